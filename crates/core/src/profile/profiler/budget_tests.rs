//! Tests the cost of profiling with simulated jobs that allow little slowdown.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Uniform};

use crate::domain::PowerLimit;
use crate::profile::steps::GroupRange;
use crate::profile::{GpuSnapshot, Profiler, Record, Report, Settings, Slack, Stage};
use crate::time::Monotonic;
use crate::units::{Joules, Samples, Seconds};

const fn w(watts: u32) -> PowerLimit {
    PowerLimit::from_milliwatts(watts * 1000)
}

/// Power limit in watts, throughput in samples/s and power in watts, roughly ResNet-50 on an A40.
const CURVE: [(u32, f64, f64); 9] = [
    (300, 100.0, 290.0),
    (275, 99.6, 270.0),
    (250, 98.3, 248.0),
    (225, 96.4, 224.0),
    (200, 93.7, 199.0),
    (175, 80.0, 174.0),
    (150, 60.8, 149.0),
    (125, 45.0, 124.0),
    (100, 34.0, 99.0),
];

/// Simulates a run of `duration` seconds with an allowed slowdown of `part`, and returns the time lost in seconds
/// (first) and the profiler (second). The job reports every `every` seconds; its speed is drawn within ±`noise` each
/// second.
fn learn(duration: f64, part: f64, every: u32, noise: f64, record: Record) -> (f64, Profiler) {
    let group = GroupRange::of_limits(w(300), w(100));
    let mut profiler = Profiler::new(Settings::default(), &[group], record).with_slack_budget();
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let speed = Uniform::new_inclusive(1.0 - noise, 1.0 + noise).expect("a range");
    let (mut samples, mut energy, mut lost) = (0.0, 0.0, 0.0);
    for second in 0..duration as u32 {
        let limit = profiler.wanted().map_or(300, |setting| setting[0].limit.milliwatts() / 1000);
        let (_, rate, power) = *CURVE.iter().find(|point| point.0 == limit).expect("a step");
        (samples, energy) = (samples + rate * speed.sample(&mut rng), energy + power);
        lost += 1.0 - rate / 100.0;
        let at = Monotonic::default().after(Seconds::new(f64::from(second + 1)));
        let is_known = profiler.profile().ceiling().is_some();
        let allowed = Seconds::new(if is_known { duration * part } else { 0.0 });
        profiler.allow(Some(Slack {
            allowed,
            lost: Seconds::new(lost),
            full_duration: Some(Seconds::new(duration)),
            part,
        }));
        if second < 2_000 {
            assert_eq!(*profiler.profile(), profiler.measured_profile(), "kept at {second} s");
        }
        let setting = Some(vec![w(limit).into()]);
        profiler.observe(GpuSnapshot {
            at,
            setting,
            steered: true,
            unusable: false,
            capped: true,
            energy: vec![Joules::new(energy)],
        });
        if second % every == 0 {
            profiler.report(Report { received: at, at: None, samples: Samples::new(samples) });
        }
    }
    (lost, profiler)
}

#[test]
fn profiling_spends_at_most_a_quarter_of_the_slack() {
    for duration in [120.0, 300.0, 600.0, 1800.0] {
        for part in [0.01, 0.03, 0.1] {
            for every in [1, 10, 30] {
                for noise in [0.0, 0.1] {
                    let (lost, _) = learn(duration, part, every, noise, Record::default());
                    let case = format!("{duration} s, {part}, reports each {every} s, ±{noise}");
                    // Throughput may fall faster than the limit, which the profiler notices only with the next report.
                    let unseen = f64::from(2 * every) * 0.2;
                    assert!(lost <= duration * part * 0.25 + unseen.min(duration * part * 0.25), "{case}: {lost}");
                }
            }
        }
    }
}

#[test]
fn later_runs_measure_what_one_run_cannot_afford() {
    let measured = |profiler: &Profiler| profiler.profile().points.len();
    let (lost, first) = learn(320.0, 0.03, 1, 0.02, Record::default());
    assert!(lost <= 2.4, "{lost}");
    let (_, second) = learn(320.0, 0.03, 1, 0.02, first.record().clone());
    let (_, third) = learn(320.0, 0.03, 1, 0.02, second.record().clone());
    assert!(measured(&first) < measured(&third), "{} {}", measured(&first), measured(&third));
}

#[test]
fn a_job_without_slack_is_not_profiled() {
    let (lost, profiler) = learn(600.0, 0.0, 1, 0.01, Record::default());
    assert_eq!((lost, profiler.stage()), (0.0, Stage::Done));
    assert_eq!(profiler.profile().points.len(), 1, "the reference is known, and nothing else");
}

#[test]
fn limits_too_slow_to_be_useful_are_measured_only_if_nearly_free() {
    let lowest = |duration, part| {
        let (_, profiler) = learn(duration, part, 1, 0.0, Record::default());
        let points = &profiler.profile().points;
        points.iter().map(|p| p.setting[0].limit.milliwatts() / 1000).min().expect("measured")
    };
    // 225 W slows by more than 3 %; no limit further down pays.
    assert!(lowest(600.0, 0.03) >= 200, "{}", lowest(600.0, 0.03));
    assert!(lowest(100_000.0, 0.03) <= 150, "{}", lowest(100_000.0, 0.03));
}
