//! Tests of the belief against direct conditioning, and of the policy on given curves of costs.

use proptest::prelude::*;

use super::change_detection::changes;
use super::gaussian_belief::{Drift, GaussianBelief, hazard, survival};
use super::observation::Observation;
use crate::bandit::{
    Cost, Generator, Kind, Knob, NoneConverges, Outcome, PolicyName, Spec, State, Trial, next, patience,
};
use crate::units::Watts;

fn spec(batch_sizes: &[u64], default_batch_size: u64) -> Spec {
    let knob = Knob { eta: 0.5, max_power: Watts::new(250.0) };
    let policy = PolicyName::Wattune;
    let batch_sizes = batch_sizes.to_vec();
    Spec { batch_sizes, default_batch_size, max_epochs: 100, knob, beta: Some(2.0), window: 0, policy, zeus: None }
        .checked()
        .expect("a valid job")
}

fn trial(trials: &[Trial], batch_size: u64, epochs: u32, epoch_cost: f64, outcome: Outcome) -> Trial {
    Trial {
        number: u32::try_from(trials.len()).expect("few") + 1,
        batch_size,
        kind: Kind::Regular,
        state: State::Ended(outcome),
        cost: Cost::new(f64::from(epochs) * epoch_cost),
        epochs,
        epoch_cost: Some(Cost::new(epoch_cost)),
        ended_at: None,
    }
}

/// Runs the job until `times` runs reached the target. `curve` returns, for a batch size, the number of epochs that a
/// run needs (first value) and the cost of an epoch (second).
fn play(spec: &Spec, times: usize, seed: u64, curve: impl Fn(u64) -> (u32, f64)) -> Vec<Trial> {
    let mut generator = Generator::new(seed);
    let mut trials: Vec<Trial> = Vec::new();
    while trials.iter().filter(|t| t.reached()).count() < times && trials.len() < 20 * times {
        let Ok(choice) = next(spec, &trials, &mut generator) else { break };
        let (needed, epoch_cost) = curve(choice.batch_size);
        let allowed = patience(spec, &trials, choice.batch_size, Cost::new(epoch_cost));
        let outcome = if needed <= allowed { Outcome::Reached } else { Outcome::Stopped };
        trials.push(trial(&trials, choice.batch_size, needed.min(allowed), epoch_cost, outcome));
    }
    trials
}

#[test]
fn the_hazard_is_that_of_the_normal_distribution() {
    // φ(z)/(1 − Φ(z)), computed with 30 digits.
    let known = [
        (-3.0, 0.004_437_839_042_125_664),
        (-1.0, 0.287_599_970_939_178_4),
        (0.0, 0.797_884_560_802_865_4),
        (1.0, 1.525_135_276_160_981),
        (1.999, 2.372_329_841_607_757),
        (2.001, 2.374_101_283_393_788),
        (5.0, 5.186_503_967_125_842),
        (20.0, 20.049_753_068_527_85),
    ];
    for (z, h) in known {
        assert!((hazard(z) - h).abs() < 1e-9 * h.max(1e-3), "at {z}: {} and not {h}", hazard(z));
    }
}

#[test]
fn survival_is_that_of_the_normal_distribution_in_the_tails_too() {
    // (1 − Φ(2))/(1 − Φ(1)) and (1 − Φ(−1))/(1 − Φ(−3)), computed with 30 digits.
    for (earlier, later, known) in [(1.0, 2.0, 0.143_393_498_698_806_6), (-3.0, -1.0, 0.842_482_010_876_709_2)] {
        let found = survival(earlier, later);
        assert!((found - known).abs() < 1e-9, "from {earlier} to {later}: {found} and not {known}");
    }
    let far = survival(60.0, 60.01);
    assert!((far - (-0.6_f64).exp()).abs() < 1e-3, "{far}");
    for (earlier, later) in [(-42.0, -41.0), (-60.0, -20.0), (-1e3, -9.0)] {
        assert!((survival(earlier, later) - 1.0).abs() < 1e-12, "from {earlier} to {later}");
    }
}

proptest! {
    /// Two observations one after the other lead to the same belief as both at once, which the 2×2 formula computes.
    #[test]
    fn observing_is_conditioning(
        octaves in prop::collection::vec(0.1f64..3.0, 2..8), (a, b) in (0usize..8, 0usize..8),
        (y, z) in (-1.0f64..1.0, -1.0f64..1.0), (v, w) in (0.01f64..1.0, 0.01f64..1.0),
    ) {
        let octaves: Vec<f64> = octaves.iter().scan(0.0, |x, step| { *x += step; Some(*x) }).collect();
        let n = octaves.len();
        let (a, b) = (a % n, b % n);
        let drift = Drift { slope: 0.1, slope_deviation: 0.3, walk: 0.2 };
        let prior = GaussianBelief::new(&octaves, n / 2, 1.0, 0.5, drift);
        let covariance = |i: usize, j: usize| {
            let (x, y) = (octaves[i] - octaves[n / 2], octaves[j] - octaves[n / 2]);
            0.25 + 0.09 * x * y + 0.04 * if x * y > 0.0 { x.abs().min(y.abs()) } else { 0.0 }
        };
        let mut belief = prior.clone();
        belief.observe(a, y, v);
        belief.observe(b, z, w);
        let (saa, sbb, sab) = (covariance(a, a) + v, covariance(b, b) + w, covariance(a, b));
        let determinant = saa * sbb - sab * sab;
        let (da, db) = (y - prior.mean(a), z - prior.mean(b));
        for k in 0..n {
            let (ka, kb) = (covariance(k, a), covariance(k, b));
            let mean = prior.mean(k) + (ka * (sbb * da - sab * db) + kb * (saa * db - sab * da)) / determinant;
            let less = (ka * (sbb * ka - sab * kb) + kb * (saa * kb - sab * ka)) / determinant;
            prop_assert!((belief.mean(k) - mean).abs() < 1e-9);
            prop_assert!((belief.variance(k) - (covariance(k, k) - less)).abs() < 1e-9);
        }
    }

    /// On any convex cost curve without noise, the best batch size is found to within 5 %, and most runs use it.
    #[test]
    fn a_valley_is_found(
        bottom in 0usize..8, default in 0usize..8, left in 0.1f64..0.6, right in 0.1f64..0.6, seed in 0u64..1000,
    ) {
        let sizes: Vec<u64> = (3..11).map(|k| 1 << k).collect();
        let spec = spec(&sizes, sizes[default]);
        let curve = |b: u64| {
            let off = f64::from(b.trailing_zeros()) - 3.0 - bottom as f64;
            (20, 1000.0 * (if off < 0.0 { -left * off } else { right * off }).exp())
        };
        let trials = play(&spec, 40, seed, curve);
        let cost = |b: u64| curve(b).1;
        let least = cost(sizes[bottom]);
        prop_assert!(cost(super::favourite(&spec, &trials)) <= 1.05 * least);
        let late = trials.iter().rev().take(20).filter(|t| cost(t.batch_size) <= 1.05 * least).count();
        prop_assert!(late >= 14, "{late} of the last 20");
    }
}

/// Numbers of epochs that halve within an octave and then double are not noise: batch size 128 is 10 % cheaper than
/// 256.
#[test]
fn a_rough_curve_far_from_the_default_is_not_smoothed_away() {
    let sizes: Vec<u64> = (3..11).map(|k| 1 << k).collect();
    let curve = |b: u64| {
        let place = b.trailing_zeros() as usize - 3;
        let epochs = [40, 19, 17, 18, 20, 31, 43, 76][place];
        (epochs, [1151.0, 567.0, 321.0, 176.0, 100.0, 71.0, 62.0, 59.0][place])
    };
    for seed in 1..=10 {
        let spec = spec(&sizes, 8);
        let trials = play(&spec, 60, seed, curve);
        assert_eq!(super::favourite(&spec, &trials), 128, "seed {seed}");
    }
}

/// The first explored batch size never reaches the target, and costs more than the allowance for stopped runs; the
/// other batch sizes are still explored.
#[test]
fn one_expensive_failure_does_not_end_the_search() {
    let spec = spec(&[64, 128, 192, 256], 128);
    let curve = |b: u64| {
        (
            match b {
                64 => u32::MAX,
                128 => 32,
                192 => 25,
                _ => 21,
            },
            1000.0,
        )
    };
    for seed in 1..=10 {
        let trials = play(&spec, 60, seed, curve);
        assert_eq!(super::favourite(&spec, &trials), 256, "seed {seed}");
    }
}

#[test]
fn the_first_run_and_a_concurrent_second_use_the_default() {
    let spec = spec(&[32, 64, 128], 64);
    let mut generator = Generator::new(1);
    let first = next(&spec, &[], &mut generator).expect("something to run");
    assert_eq!((first.batch_size, first.kind), (64, Kind::Exploration));
    let running = Trial { state: State::Running, epoch_cost: None, ..trial(&[], 64, 0, 1.0, Outcome::Lost) };
    let beside = next(&spec, &[running], &mut generator).expect("something to run");
    assert_eq!((beside.batch_size, beside.kind), (64, Kind::Concurrent));
}

#[test]
fn a_batch_size_that_never_reaches_its_target_is_avoided() {
    let spec = spec(&[64, 128], 128);
    let trials = play(&spec, 60, 3, |b| if b == 64 { (u32::MAX, 1000.0) } else { (30, 1000.0) });
    let wasted: f64 = trials.iter().filter(|t| t.batch_size == 64).map(|t| t.cost.get()).sum();
    assert!(wasted <= 0.8 * 30_000.0, "{wasted} spent on it");
    assert!(trials.iter().any(|t| t.batch_size == 64), "it was tried");
}

#[test]
fn two_failures_do_not_end_a_job_that_has_reached_its_target() {
    let spec = spec(&[32], 32);
    let mut trials = play(&spec, 20, 5, |_| (10, 100.0));
    for _ in 0..2 {
        trials.push(trial(&trials, 32, 3, 100.0, Outcome::NotReached));
    }
    let choice = next(&spec, &trials, &mut Generator::new(5)).expect("something to run");
    assert_eq!((choice.batch_size, choice.kind), (32, Kind::Regular));
}

#[test]
fn if_nothing_reaches_the_target_all_are_tried_once_and_none_converges() {
    let spec = spec(&[8, 16, 32, 64], 32);
    let trials = play(&spec, 10, 5, |_| (u32::MAX, 10.0));
    let mut tried: Vec<u64> = trials.iter().map(|t| t.batch_size).collect();
    tried.sort_unstable();
    assert_eq!(tried, [8, 16, 32, 64]);
    assert_eq!(next(&spec, &trials, &mut Generator::new(5)), Err(NoneConverges));
}

#[test]
fn lost_runs_have_no_effect() {
    let spec = spec(&[8, 16, 32, 64], 32);
    let mut trials = play(&spec, 12, 7, |b| (10, 1000.0 / b as f64 + b as f64));
    let without = next(&spec, &trials, &mut Generator::new(9));
    trials.push(trial(&trials, 64, 3, 1.0, Outcome::Lost));
    assert_eq!(next(&spec, &trials, &mut Generator::new(9)), without);
}

/// Returns a curve of costs with the minimum at `bottom` (log₂ of the batch size), on which each run needs `epochs`
/// epochs.
fn valley(bottom: f64, epochs: u32) -> impl Fn(u64) -> (u32, f64) {
    move |b| (epochs, 1000.0 * (0.3 * ((b as f64).log2() - bottom).abs()).exp())
}

/// Runs the job `times` more times; returns the batch sizes of these runs.
fn go_on(spec: &Spec, trials: &mut Vec<Trial>, times: usize, curve: impl Fn(u64) -> (u32, f64)) -> Vec<u64> {
    let mut generator = Generator::new(12);
    let before = trials.len();
    for _ in 0..times {
        let choice = next(spec, trials, &mut generator).expect("something to run");
        let (needed, epoch_cost) = curve(choice.batch_size);
        let allowed = patience(spec, trials, choice.batch_size, Cost::new(epoch_cost));
        let outcome = if needed <= allowed { Outcome::Reached } else { Outcome::Stopped };
        trials.push(trial(trials, choice.batch_size, needed.min(allowed), epoch_cost, outcome));
    }
    trials[before..].iter().map(|t| t.batch_size).collect()
}

#[test]
fn after_a_change_the_new_best_is_found() {
    let spec = spec(&[16, 32, 64, 128, 256], 64);
    let mut trials = play(&spec, 30, 11, valley(4.0, 20));
    assert_eq!(super::favourite(&spec, &trials), 16);
    go_on(&spec, &mut trials, 30, valley(8.0, 20));
    assert_eq!(super::favourite(&spec, &trials), 256);
}

#[test]
fn a_change_equal_for_all_batch_sizes_causes_no_exploration() {
    let spec = spec(&[16, 32, 64, 128, 256], 64);
    for epochs in [8, 50] {
        let mut trials = play(&spec, 30, 11, valley(4.0, 20));
        let ran = go_on(&spec, &mut trials, 30, valley(4.0, epochs));
        assert_eq!(super::favourite(&spec, &trials), 16);
        let elsewhere = ran.iter().filter(|b| **b != 16).count();
        assert!(elsewhere <= 2, "{epochs} epochs: {ran:?}");
    }
}

#[test]
fn a_favourite_that_fails_twice_in_a_row_is_abandoned() {
    let spec = spec(&[8, 16, 32, 64], 32);
    let mut trials = play(&spec, 12, 7, |b| (10, 1000.0 / b as f64 + b as f64));
    let favourite = super::favourite(&spec, &trials);
    for _ in 0..2 {
        let failed =
            Trial { epoch_cost: None, cost: Cost::ZERO, ..trial(&trials, favourite, 0, 0.0, Outcome::NotReached) };
        trials.push(failed);
    }
    assert_ne!(super::favourite(&spec, &trials), favourite);
    let mut generator = Generator::new(3);
    for _ in 0..20 {
        assert_ne!(next(&spec, &trials, &mut generator).expect("others are left").batch_size, favourite);
    }
}

/// Returns a result of arm 0 that reached the target, with these log epochs and this log cost of an epoch.
fn result(log_epochs: f64, log_epoch_cost: f64) -> Observation {
    Observation { arm: 0, log_epochs, epochs: log_epochs.exp(), log_epoch_cost, reached: true }
}

#[test]
fn two_higher_or_three_lower_costs_are_a_change() {
    let known = vec![result(3.0, 5.0); 6];
    for (off, needed) in [(result(4.0, 5.0), 2), (result(3.0, 5.5), 2), (result(2.0, 5.0), 3), (result(3.0, 4.5), 3)] {
        for results in 1..=4 {
            let observations = [known.clone(), vec![off; results]].concat();
            let found = changes(1, &observations);
            assert_eq!(found.at, if results < needed { vec![] } else { vec![6] }, "{results} like {off:?}");
            assert_eq!(found.unconfirmed_outlier, (results < needed).then_some(0), "{results} like {off:?}");
        }
    }
}

#[test]
fn outliers_on_both_sides_are_noise() {
    let mut observations = vec![result(3.0, 5.0); 6];
    for turn in 0..10 {
        observations.push(result(if turn % 2 == 0 { 3.6 } else { 2.4 }, 5.0));
    }
    let found = changes(1, &observations);
    assert_eq!((found.at, found.unconfirmed_outlier), (vec![], None));
}

#[test]
fn outliers_that_proved_to_be_noise_are_remembered() {
    let mut observations = Vec::new();
    for _ in 0..4 {
        observations.extend([vec![result(1.4, 5.0); 6], vec![result(1.8, 5.0)]].concat());
    }
    observations.extend(vec![result(1.8, 5.0); 2]);
    let found = changes(1, &observations);
    assert_eq!((found.at, found.unconfirmed_outlier), (vec![], None));
}

#[test]
fn an_outlier_is_repeated_at_once() {
    let spec = spec(&[16, 32, 64, 128, 256], 64);
    let mut trials = play(&spec, 30, 11, valley(4.0, 20));
    go_on(&spec, &mut trials, 1, valley(4.0, 8));
    let doubtful = trials.last().expect("one").batch_size;
    assert_eq!(go_on(&spec, &mut trials, 2, valley(4.0, 8)), [doubtful; 2]);
}

#[test]
fn the_newest_epoch_cost_counts() {
    let spec = spec(&[16, 32, 64], 32);
    let found = |costs: &[f64]| {
        let mut trials = Vec::new();
        for cost in costs {
            trials.push(trial(&trials, 32, 10, *cost, Outcome::Reached));
        }
        super::posterior(&spec, &trials)[1].0.get()
    };
    let (as_now, as_before) = (found(&[100.0, 108.0]), found(&[108.0]));
    assert!((as_now / as_before - 1.0).abs() < 0.01, "{as_now} and not {as_before}");
}

#[test]
fn a_batch_size_without_enough_memory_keeps_larger_ones_from_being_tried() {
    for (default, seed) in [(16, 1), (64, 2), (64, 3)] {
        let spec = spec(&[16, 32, 64, 128, 256, 512, 1024, 2048], default);
        let mut generator = Generator::new(seed);
        let mut trials: Vec<Trial> = Vec::new();
        for _ in 0..30 {
            let choice = next(&spec, &trials, &mut generator).expect("something to run");
            let trial = match choice.batch_size {
                16 => trial(&trials, 16, 10, 200.0, Outcome::Reached),
                32 | 64 => trial(&trials, choice.batch_size, 10, 100.0, Outcome::Reached),
                _ => Trial { epoch_cost: None, ..trial(&trials, choice.batch_size, 0, 0.0, Outcome::NotReached) },
            };
            trials.push(trial);
        }
        let failed = trials.iter().filter(|t| t.batch_size > 64).count();
        assert_eq!(failed, 1, "of {:?}", trials.iter().map(|t| t.batch_size).collect::<Vec<_>>());
    }
}

#[test]
fn the_best_batch_size_comes_back_after_all_have_become_more_expensive() {
    for (sizes, factor) in [(vec![32, 64, 128], 2.5), (vec![32, 64, 128], 4.0), (vec![16, 32, 64, 128], 3.0)] {
        for seed in 1..=8 {
            let spec = spec(&sizes, 64);
            let (mut generator, mut noise) = (Generator::new(seed), Generator::new(seed + 100));
            let mut trials: Vec<Trial> = Vec::new();
            for run in 0..45 {
                let choice = next(&spec, &trials, &mut generator).expect("something to run");
                let usual = match choice.batch_size {
                    16 => 20.0,
                    32 => 16.0,
                    64 => 13.0,
                    _ => 10.0,
                };
                let epoch_cost = usual * if run < 15 { 1.0 } else { factor };
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "about ten")]
                let needed = (10.0 * (0.05 * noise.normal()).exp()).round() as u32;
                let allowed = patience(&spec, &trials, choice.batch_size, Cost::new(epoch_cost));
                let outcome = if needed <= allowed { Outcome::Reached } else { Outcome::Stopped };
                trials.push(trial(&trials, choice.batch_size, needed.min(allowed), epoch_cost, outcome));
            }
            // The first runs after the change are stopped, since they cost more than twice as much as before.
            let later = trials[30..].iter().filter(|t| t.batch_size == 128 && t.reached()).count();
            assert!(later >= 12, "{sizes:?}, {factor} times the cost, seed {seed}: {later} of 15 runs");
        }
    }
}

#[test]
fn a_known_batch_size_is_seldom_stopped_within_its_first_epoch() {
    let spec = spec(&[32, 64], 64);
    let mut trials = Vec::new();
    for batch_size in [64, 32, 64] {
        trials.push(trial(&trials, batch_size, 1, if batch_size == 64 { 10.0 } else { 11.0 }, Outcome::Reached));
    }
    let high = Cost::new(30.0);
    assert!(!super::exceeds_beta(&spec, &trials, 64, high) && !super::exceeds_beta(&spec, &trials, 32, high));
    // A batch size without a result is stopped, and a known one if something else must be wrong.
    assert!(super::exceeds_beta(&spec, &trials[..1], 32, high));
    assert!(super::exceeds_beta(&spec, &trials, 64, Cost::new(110.0)));
}
