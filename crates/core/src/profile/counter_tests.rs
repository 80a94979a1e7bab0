//! Tests that a job is measured however often it reports, although energy counters update in steps.

use rand::{RngExt as _, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::steps::{GroupRange, Setting};
use super::{GpuSnapshot, Profiler, ProgressAccount, Record, Report, Settings, StallDetector};
use crate::domain::PowerLimit;
use crate::time::Monotonic;
use crate::units::{Joules, Samples, Seconds};

const RATE: f64 = 100.0;
const POWER: f64 = 280.0;

/// Simulates a job that reports every `every` seconds for a minute, each time up to 20 ms late, with an energy counter
/// that updates every `update` seconds. Returns the seconds that were measured (first) and the measured power in watts
/// (second).
fn measured(every: f64, update: f64) -> (f64, f64) {
    let limit = PowerLimit::from_milliwatts(280_000);
    let groups = [GroupRange::of_limits(limit, limit)];
    let mut profiler = Profiler::new(Settings::default(), &groups, Record::default());
    let mut stalls = StallDetector::new(ProgressAccount::default());
    stalls.set_groups(&groups);
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let (mut now, mut last) = (0.0, None);
    while now < 60.0 {
        now += every + rng.random_range(0.0..0.02);
        let at = Monotonic::default().after(Seconds::new(now));
        let energy = Joules::new((now / update).floor() * update * POWER);
        let setting: Setting = vec![limit.into()];
        stalls.observe(at, Some(&setting), Some(energy), false);
        profiler.observe(GpuSnapshot {
            at,
            setting: Some(setting),
            steered: true,
            unusable: false,
            capped: true,
            energy: vec![energy],
        });
        match last.replace(now) {
            None => stalls.begin(),
            Some(before) => {
                let span = now - before;
                let known = profiler.setting_estimates();
                let known = |setting: &Setting| known.iter().find(|(of, _)| of == setting).map(|(_, known)| *known);
                stalls.report(Seconds::new(span), Samples::new(RATE * span), &known);
                stalls.latest_pauses().into_iter().for_each(|pauses| profiler.exclude_pauses(pauses));
            }
        }
        profiler.report(Report { received: at, at: Some(Seconds::new(now)), samples: Samples::new(RATE * now) });
    }
    let profile = profiler.profile();
    profile.ceiling().map_or((0.0, 0.0), |point| (point.measured.get(), point.power.mean.get()))
}

#[test]
fn frequent_reports_are_measured_although_the_counter_updates_in_steps() {
    for every in [0.05, 0.1, 0.3, 1.0] {
        for update in [0.001, 0.02, 0.05, 0.1] {
            let (seconds, power) = measured(every, update);
            let case = format!("reports every {every} s, updates every {update} s");
            assert!(seconds >= 45.0, "{case}: {seconds} s of 58 measured");
            assert!((power / POWER - 1.0).abs() < 0.005, "{case}: {power} W");
        }
    }
}
