use proptest::prelude::*;

use super::zeus::Arm;
use super::*;
use crate::units::{Joules, Seconds, Watts};

fn spec(batch_sizes: &[u64], default_batch_size: u64) -> Spec {
    Spec {
        batch_sizes: batch_sizes.to_vec(),
        default_batch_size,
        max_epochs: 50,
        knob: Knob { eta: 0.5, max_power: Watts::new(300.0) },
        beta: Some(2.0),
        window: 0,
        policy: PolicyName::Zeus,
        zeus: None,
    }
    .checked()
    .expect("a job")
}

fn trial(trials: &[Trial], choice: Choice, cost: f64, outcome: Outcome) -> Trial {
    Trial {
        number: u32::try_from(trials.len()).expect("few") + 1,
        batch_size: choice.batch_size,
        kind: choice.kind,
        state: State::Ended(outcome),
        cost: Cost::new(cost),
        epochs: 10,
        epoch_cost: Some(Cost::new(cost / 10.0)),
        ended_at: None,
    }
}

fn regular(batch_size: u64) -> Choice {
    Choice { batch_size, kind: Kind::Regular }
}

/// Prunes as described in `zeus.rs`, step by step. `result` returns the cost of a run with a batch size (first
/// argument) in a round (second, 0 or 1); `None` if the run misses its target. Returns the batch sizes that were run,
/// in order (first), and those that pruning left (second).
fn pruned(sizes: &[u64], default: u64, result: impl Fn(u64, usize) -> Option<f64>) -> (Vec<u64>, Vec<u64>) {
    let (mut explored, mut set, mut start) = (Vec::new(), sizes.to_vec(), default);
    for round in 0..2 {
        let mut kept: Vec<(f64, u64)> = Vec::new();
        let middle = set.iter().filter(|b| **b <= start).count();
        let mut walk = |range: Box<dyn Iterator<Item = usize>>, kept: &mut Vec<(f64, u64)>| {
            for i in range {
                explored.push(set[i]);
                match result(set[i], round) {
                    Some(cost) => kept.push((cost, set[i])),
                    None => return,
                }
            }
        };
        walk(Box::new((0..middle).rev()), &mut kept);
        walk(Box::new(middle..set.len()), &mut kept);
        let mut best = f64::INFINITY;
        for (cost, batch_size) in &kept {
            if *cost < best {
                (best, start) = (*cost, *batch_size);
            }
        }
        set = kept.iter().map(|(_, batch_size)| *batch_size).collect();
        set.sort_unstable();
    }
    (explored, set)
}

proptest! {
    /// The policy explores as `pruned` does, even if trials are lost, or other trials begin while one explores.
    #[test]
    fn pruning_explores_as_described(
        sizes in proptest::collection::btree_set(1_u64..20, 1..8),
        default in any::<prop::sample::Index>(),
        costs in proptest::collection::vec((1_u8..6, prop::bool::weighted(0.8)), 40),
        noise in proptest::collection::vec(0_u8..4, 200),
    ) {
        let sizes: Vec<u64> = sizes.into_iter().collect();
        let spec = spec(&sizes, sizes[default.index(sizes.len())]);
        let result = |batch_size: u64, round: usize| {
            let (cost, reached) = costs[(usize::try_from(batch_size).expect("small") + 20 * round) % costs.len()];
            reached.then(|| f64::from(cost))
        };
        let (expected, left) = pruned(&sizes, spec.default_batch_size, result);
        let mut generator = Generator::new(0);
        let (mut trials, mut explored): (Vec<Trial>, Vec<u64>) = (Vec::new(), Vec::new());
        for noise in noise {
            let choice = match next(&spec, &trials, &mut generator) {
                Err(NoneConverges) => {
                    prop_assert!(left.is_empty());
                    break;
                }
                Ok(choice) => choice,
            };
            if choice.kind == Kind::Regular {
                prop_assert!(left.contains(&choice.batch_size));
                break;
            }
            prop_assert_eq!(choice.kind, Kind::Exploration);
            if noise == 0 {
                trials.push(trial(&trials, choice, 1.0, Outcome::Lost));
                continue;
            }
            let mut running = trial(&trials, choice, 0.0, Outcome::Lost);
            running.state = State::Running;
            trials.push(running);
            let place = trials.len() - 1;
            if noise == 1 {
                let beside = next(&spec, &trials, &mut generator).expect("a batch size");
                prop_assert_eq!(beside.kind, Kind::Concurrent);
                trials.push(trial(&trials, beside, 0.5, Outcome::Stopped));
            }
            let round = explored.iter().filter(|b| **b == choice.batch_size).count();
            explored.push(choice.batch_size);
            let ended = result(choice.batch_size, round);
            trials[place].cost = Cost::new(ended.unwrap_or(9.0));
            trials[place].state = State::Ended(if ended.is_some() { Outcome::Reached } else { Outcome::Stopped });
        }
        // All explorations were as expected; some may be missing if `noise` was too short for all rounds.
        prop_assert_eq!(&explored[..], &expected[..explored.len()]);
        if next(&spec, &trials, &mut generator).is_ok_and(|choice| choice.kind == Kind::Regular) {
            prop_assert_eq!(explored, expected);
        }
    }

    #[test]
    fn any_order_of_all_is_a_shuffle(seed in any::<u64>(), n in 0_u32..40) {
        let mut order = Generator::new(seed).shuffled(n);
        order.sort_unstable();
        prop_assert_eq!(order, (0..n).collect::<Vec<_>>());
    }

    #[test]
    fn costs_lie_between_energy_and_time(eta in 0.0..=1.0_f64, energy in 0.0..1e9_f64, time in 0.0..1e6_f64) {
        let knob = Knob { eta, max_power: Watts::new(250.0) };
        let cost = knob.cost(Joules::new(energy), Seconds::new(time)).get();
        let (low, high) = (energy.min(250.0 * time), energy.max(250.0 * time));
        prop_assert!(cost >= low * (1.0 - 1e-12) && cost <= high * (1.0 + 1e-12));
    }
}

/// The expected values come from NumPy 2's `default_rng(seed)`: four normals, `choice(7, 7, replace=False)`,
/// `integers(0, n)` for n of 10, 3, 1000, 1 and 7, and another normal.
#[test]
fn draws_are_those_of_numpy() {
    for (seed, normals, order, integers, after) in [
        (
            0,
            [0.125_730_221_093_393_3, -0.132_104_863_291_301_9, 0.640_422_650_443_282_1, 0.104_900_117_153_039_71],
            [0, 5, 1, 2, 3, 4, 6],
            [2, 2, 670, 0, 0],
            -2.325_030_774_638_834_3,
        ),
        (
            1,
            [0.345_584_192_064_786, 0.821_618_143_501_158_4, 0.330_437_076_183_387_14, -1.303_157_231_604_361],
            [6, 4, 0, 5, 3, 2, 1],
            [8, 2, 837, 0, 3],
            -0.736_454_087_001_666_9,
        ),
        (
            (1 << 40) + 7,
            [-1.173_664_911_464_844_5, 0.062_018_496_353_640_83, -0.359_896_723_761_747_7, -0.637_900_379_112_779_3],
            [2, 1, 6, 5, 3, 0, 4],
            [3, 1, 826, 0, 0],
            2.138_135_803_620_713_6,
        ),
    ] {
        let mut generator = Generator::new(seed);
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-13, "seed {seed}: {a} is not {b}");
        normals.into_iter().for_each(|normal| close(generator.normal(), normal));
        assert_eq!(generator.shuffled(7), order, "seed {seed}");
        assert_eq!([10, 3, 1000, 1, 7].map(|n| generator.below(n)), integers, "seed {seed}");
        // A generator that was stored and loaded continues where it was.
        let kept = serde_json::to_string(&generator).expect("text");
        let mut generator: Generator = serde_json::from_str(&kept).expect("the same");
        close(generator.normal(), after);
    }
}

/// Includes 50 draws from the ziggurat's tail.
#[test]
fn draws_are_those_of_numpy_after_200000() {
    let mut generator = Generator::new(5);
    let drawn: Vec<f64> = (0..200_000).map(|_| generator.normal()).collect();
    assert!((drawn.iter().sum::<f64>() - 365.957_814_982_902_73).abs() < 1e-9);
    assert!((drawn[141_008].abs() - 4.820_175_842_608_121).abs() < 1e-13);
    assert_eq!(drawn.iter().filter(|x| x.abs() > 3.654_152_885_361_009).count(), 50);
    assert_eq!(generator.below(1 << 30), 684_747_246);
}

/// A damaged state repeats the same draw forever; drawing must still terminate.
#[test]
fn a_constant_stream_terminates() {
    let of = |state: u128, increment: u128| -> Generator {
        let text = format!(r#"{{"state":"{state}","increment":"{increment}","half":null}}"#);
        serde_json::from_str(&text).expect("a generator")
    };
    assert!(Generator::new(7).is_sound());
    let mut zeros = of(0, 0);
    assert!(!zeros.is_sound());
    assert!(zeros.below(3) < 3);
    assert_eq!(zeros.shuffled(7).iter().copied().collect::<std::collections::BTreeSet<_>>(), (0..7).collect());
    // A state that follows itself, so that the same draw repeats. It is in the ziggurat's fifth layer, above the bell
    // curve, and therefore always rejected.
    let state = 0xffff_ffff_ffff_ff05_u128;
    let next = state.wrapping_mul(0x2360_ED05_1FC6_5DA4_4385_DF64_9FCC_F645);
    let mut rejected = of(state, state.wrapping_sub(next));
    assert!(!rejected.is_sound());
    assert!(rejected.normal().is_finite());
}

/// The expected choices follow from NumPy's draws, with beliefs fitted as in Zeus's reference implementation.
#[test]
fn thompson_sampling_chooses_as_the_reference() {
    let spec = spec(&[8, 16, 32], 16);
    let mut trials: Vec<Trial> = Vec::new();
    let mut run = |batch_size, kind, cost| {
        let choice = Choice { batch_size, kind };
        trials.push(trial(&trials, choice, cost, Outcome::Reached));
    };
    for (batch_size, cost) in [(16, 98.0), (8, 100.0), (32, 102.0), (16, 101.0), (8, 104.0), (32, 99.0)] {
        run(batch_size, Kind::Exploration, cost);
    }
    run(16, Kind::Regular, 103.0);
    let mut generator = Generator::new(11);
    let chosen: Vec<u64> = (0..24).map(|_| next(&spec, &trials, &mut generator).expect("an arm").batch_size).collect();
    assert_eq!(chosen, CHOSEN);
    assert_eq!(favourite(&spec, &trials), 32);
}

const CHOSEN: [u64; 24] = [8, 16, 16, 32, 8, 32, 32, 8, 8, 16, 32, 32, 32, 16, 32, 16, 32, 32, 32, 16, 32, 8, 8, 8];

#[test]
fn beliefs_are_fitted_on_the_newest_rewards() {
    let flat = Arm::fit(&[-5.0, -5.0]);
    assert_eq!(flat, Arm { mean: -5.0, precision: f64::INFINITY, deviation: 0.0, observations: 2 });
    let arm = Arm::fit(&[-1.0, -3.0]);
    assert!((arm.mean + 2.0).abs() < 1e-12 && (arm.deviation - 0.5_f64.sqrt()).abs() < 1e-12, "{arm:?}");
    // A window of the 2 newest results leaves out the expensive runs with batch size 16.
    let mut job = spec(&[16, 32], 16);
    let mut trials = Vec::new();
    for (batch_size, kind, cost) in [
        (16, Kind::Exploration, 9.0),
        (32, Kind::Exploration, 3.0),
        (32, Kind::Exploration, 3.0),
        (16, Kind::Exploration, 9.0),
        (16, Kind::Regular, 2.0),
        (16, Kind::Regular, 2.0),
    ] {
        trials.push(trial(&trials, Choice { batch_size, kind }, cost, Outcome::Reached));
    }
    assert_eq!(favourite(&job, &trials), 32);
    job.window = 2;
    assert_eq!(favourite(&job, &trials), 16);
    let next = next(&job, &trials, &mut Generator::new(1)).expect("an arm");
    assert_eq!(next, regular(16), "both arms are certain");
}

#[test]
fn runs_may_cost_beta_times_the_cheapest() {
    let mut job = spec(&[16, 32], 16);
    let mut trials = vec![];
    assert_eq!(patience(&job, &trials, 16, Cost::new(1.0)), 50);
    trials.push(trial(&trials, regular(16), 10.0, Outcome::Reached));
    trials.push(trial(&trials, regular(32), 4.0, Outcome::Stopped));
    assert_eq!(
        patience(&job, &trials, 32, Cost::new(3.0)),
        6,
        "20 of 10, in whole epochs; runs that failed do not count"
    );
    assert_eq!(patience(&job, &trials, 32, Cost::new(21.0)), 0);
    job.beta = None;
    assert_eq!(patience(&job, &trials, 32, Cost::new(21.0)), 50);
}

#[test]
fn an_invalid_specification_names_the_reason() {
    let good = spec(&[32, 16], 16);
    assert_eq!(good.batch_sizes, [16, 32]);
    let why = |change: fn(&mut Spec)| {
        let mut bad = spec(&[16, 32], 16);
        change(&mut bad);
        bad.checked().expect_err("refused").to_string()
    };
    assert_eq!(why(|s| s.batch_sizes = vec![16, 16]), "batch_sizes contains 16 twice; list each batch size once");
    assert_eq!(why(|s| s.default_batch_size = 24), "default_batch_size is 24, which is not among batch_sizes");
    assert!(why(|s| s.batch_sizes.clear()).contains("from 1 to 100"));
    assert!(why(|s| s.batch_sizes = vec![0, 16]).contains("at least one sample"));
    assert!(why(|s| s.max_epochs = 0).starts_with("max_epochs is 0"));
    assert!(why(|s| s.knob.eta = 1.5).contains("from 0 (time alone) to 1"));
    assert!(why(|s| s.knob.max_power = Watts::ZERO).starts_with("max_power_w is 0"));
    for beta in [1.0, 1e7, f64::INFINITY, f64::NAN] {
        let job = Spec { beta: Some(beta), ..good.clone() };
        assert!(job.checked().expect_err("refused").to_string().contains("above 1 and up to 1000000, or null"));
    }
}
