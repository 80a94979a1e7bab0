//! What learning costs a simulated job that allows little.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Uniform};

use crate::domain::PowerLimit;
use crate::profile::ladder::GroupRange;
use crate::profile::{Profiler, Record, Report, Settings, Sight, Slack, Stage};
use crate::time::Monotonic;
use crate::units::{Joules, Samples, Seconds};

const fn w(watts: u32) -> PowerLimit {
    PowerLimit::from_milliwatts(watts * 1000)
}

/// ResNet-50 on an A40, roughly: limit, samples per second, watts.
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

/// What a run of `whole` seconds with a promise of `part` lost to learning, and whether the profiler was done at its end.
/// The job reports each `every` seconds; its speed is drawn within ±`noise` each second.
fn learn(whole: f64, part: f64, every: u32, noise: f64, record: Record) -> (f64, Profiler) {
    let group = GroupRange::of_limits(w(300), w(100));
    let mut profiler = Profiler::new(Settings::default(), &[group], record).on_account();
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let speed = Uniform::new_inclusive(1.0 - noise, 1.0 + noise).expect("a range");
    let (mut samples, mut energy, mut lost) = (0.0, 0.0, 0.0);
    for second in 0..whole as u32 {
        let limit = profiler.wanted().map_or(300, |setting| setting[0].limit.milliwatts() / 1000);
        let (_, rate, power) = *CURVE.iter().find(|point| point.0 == limit).expect("a step");
        (samples, energy) = (samples + rate * speed.sample(&mut rng), energy + power);
        lost += 1.0 - rate / 100.0;
        let at = Monotonic::default().after(Seconds::new(f64::from(second + 1)));
        let is_known = profiler.profile().ceiling().is_some();
        let allowed = Seconds::new(if is_known { whole * part } else { 0.0 });
        profiler.allow(Some(Slack { allowed, lost: Seconds::new(lost), whole: Some(Seconds::new(whole)), part }));
        let setting = Some(vec![w(limit).into()]);
        profiler.see(Sight { at, setting, void: false, capped: true, energy: vec![Joules::new(energy)] });
        if second % every == 0 {
            profiler.report(Report { received: at, at: None, samples: Samples::new(samples) });
        }
    }
    (lost, profiler)
}

#[test]
fn learning_spends_a_quarter_of_the_slack_at_most() {
    for whole in [120.0, 300.0, 600.0, 1800.0] {
        for part in [0.01, 0.03, 0.1] {
            for every in [1, 10, 30] {
                for noise in [0.0, 0.1] {
                    let (lost, _) = learn(whole, part, every, noise, Record::default());
                    let case = format!("{whole} s, {part}, reports each {every} s, ±{noise}");
                    // The curve may fall more steeply than limits do: what is noticed a report later was lost before.
                    let unseen = f64::from(2 * every) * 0.2;
                    assert!(lost <= whole * part * 0.25 + unseen.min(whole * part * 0.25), "{case}: {lost}");
                }
            }
        }
    }
}

#[test]
fn what_one_run_cannot_afford_the_next_ones_learn() {
    let measured = |profiler: &Profiler| profiler.profile().points.len();
    let (lost, first) = learn(320.0, 0.03, 1, 0.02, Record::default());
    assert!(lost <= 2.4, "{lost}");
    let (_, second) = learn(320.0, 0.03, 1, 0.02, first.record().clone());
    let (_, third) = learn(320.0, 0.03, 1, 0.02, second.record().clone());
    assert!(measured(&first) < measured(&third), "{} {}", measured(&first), measured(&third));
}

#[test]
fn a_job_that_may_lose_nothing_is_left_alone() {
    let (lost, profiler) = learn(600.0, 0.0, 1, 0.01, Record::default());
    assert_eq!((lost, profiler.stage()), (0.0, Stage::Done));
    assert_eq!(profiler.profile().points.len(), 1, "the reference is known, and nothing else");
}

#[test]
fn limits_too_slow_to_be_of_use_are_looked_at_only_where_that_costs_next_to_nothing() {
    let lowest = |whole, part| {
        let (_, profiler) = learn(whole, part, 1, 0.0, Record::default());
        let points = profiler.profile().points;
        points.iter().map(|p| p.setting[0].limit.milliwatts() / 1000).min().expect("measured")
    };
    // 225 W is slower than 3 %; what lies below the next limit cannot pay.
    assert!(lowest(600.0, 0.03) >= 200, "{}", lowest(600.0, 0.03));
    assert!(lowest(100_000.0, 0.03) <= 150, "{}", lowest(100_000.0, 0.03));
}
