//! Tests of the lifecycle of jobs that Zeus clients register.

use chrono::{DateTime, TimeDelta, Utc};

use super::zeus::{Arm, Draw};
use super::*;
use crate::units::Seconds;

fn at(seconds: i64) -> DateTime<Utc> {
    DateTime::UNIX_EPOCH + TimeDelta::seconds(seconds)
}

fn registration(batch_sizes: &[i64], default_batch_size: i64) -> ZeusSpec {
    ZeusSpec {
        max_power: 300.0,
        number_of_gpus: 4,
        gpu_model: "A100".into(),
        job_id: "job-1".into(),
        job_id_prefix: "job".into(),
        batch_sizes: batch_sizes.to_vec(),
        default_batch_size,
        eta_knob: 1.0,
        beta_knob: Some(2.0),
        target_metric: 0.5,
        higher_is_better_metric: true,
        max_epochs: 10,
        num_pruning_rounds: 2,
        window_size: 0,
        mab_prior_mean: 0.0,
        mab_prior_precision: 0.0,
        mab_num_explorations: 2,
        mab_seed: Some(1),
    }
}

fn job(registration: ZeusSpec) -> Job {
    Job::new(registration.terms(Seconds::new(100.0)).expect("valid"), 0)
}

fn begin(job: &mut Job, now: i64) -> (u32, Draw) {
    job.begin_for_zeus(at(now)).expect("begun")
}

fn report(job: &mut Job, number: u32, energy: f64, metric: f64, epoch: i64, now: i64) -> ZeusVerdict {
    let batch_size = job.trials().iter().find(|t| t.number == number).expect("begun").batch_size;
    let report = ZeusReport { time: 1.0, energy, metric, epoch };
    job.report_for_zeus(number, batch_size, &report, at(now)).expect("accepted")
}

/// Begins a trial and ends it at once: with the target if `energy` is positive, else without. Returns its batch size.
fn run(job: &mut Job, energy: f64, now: i64) -> u64 {
    let (number, draw) = begin(job, now);
    let metric = if energy > 0.0 { 0.6 } else { 0.1 };
    let verdict = report(job, number, energy.abs(), metric, 10, now);
    assert_ne!(verdict, ZeusVerdict::Continue);
    draw.choice.batch_size
}

#[test]
fn reports_are_judged_by_cost_then_target_then_epochs() {
    let table = [
        (199.0, 0.1, 9, ZeusVerdict::Continue),
        (200.0, 0.5, 1, ZeusVerdict::Reached),
        (200.0, f64::NAN, 10, ZeusVerdict::NotReached { max_epochs: 10 }),
        (201.0, 0.9, 1, ZeusVerdict::TooExpensive { cost: 201.0, beta: 2.0, least: 100.0 }),
        (0.0, 0.9, -3, ZeusVerdict::Reached),
        (f64::INFINITY, 0.1, 1, ZeusVerdict::TooExpensive { cost: f64::INFINITY, beta: 2.0, least: 100.0 }),
    ];
    for (energy, metric, epoch, expected) in table {
        let mut job = job(registration(&[32], 32));
        assert_eq!(run(&mut job, 100.0, 0), 32);
        let (number, _) = begin(&mut job, 1);
        assert_eq!(report(&mut job, number, energy, metric, epoch, 2), expected, "{energy} J, {metric}, {epoch}");
        let kept = job.run(number).expect("loaded");
        assert!(kept.energy.get().is_finite() && kept.trial.cost.get().is_finite(), "{kept:?}");
        if expected != ZeusVerdict::Continue {
            let again = report(&mut job, number, 7.0, 0.9, 1, 3);
            assert_eq!(again, ZeusVerdict::Ended { reached: expected == ZeusVerdict::Reached });
        }
    }
}

#[test]
fn a_report_without_a_valid_cost_does_not_end_its_trial() {
    let mut job = job(registration(&[32], 32));
    let (number, _) = begin(&mut job, 0);
    let mut send =
        |time, energy, metric| job.report_for_zeus(number, 32, &ZeusReport { time, energy, metric, epoch: 1 }, at(1));
    let refused = |time, energy| Err(ZeusRefused::NotAQuantity { time, energy });
    assert_eq!(send(-1.0, 1.0, 0.9), refused(true, false));
    assert_eq!(send(f64::NAN, -1.0, 0.1), refused(true, true), "a cost that is no number is not within the limit");
    assert_eq!(send(-1.0, 1.0, 0.1), Ok(ZeusVerdict::Continue));
    assert_eq!(send(1.0, 1.0, 0.9), Ok(ZeusVerdict::Reached));
    assert_eq!(
        job.report_for_zeus(number, 64, &ZeusReport { time: 1.0, energy: 1.0, metric: 0.9, epoch: 1 }, at(1)),
        Err(ZeusRefused::NoSuchTrial)
    );
}

#[test]
fn only_trials_that_reached_the_target_set_the_cost_limit() {
    let mut job = job(registration(&[64, 128], 64));
    run(&mut job, -1.0, 0);
    let (number, draw) = begin(&mut job, 1);
    assert_eq!(draw.choice.batch_size, 128);
    assert_eq!(report(&mut job, number, 1000.0, 0.6, 2, 2), ZeusVerdict::Reached, "1 J of a failure is no limit");
}

#[test]
fn early_stopped_trials_do_not_lower_the_cost_limit() {
    let mut job = job(ZeusSpec { beta_knob: Some(0.5), ..registration(&[32], 32) });
    run(&mut job, 100.0, 0);
    for _ in 0..3 {
        let (number, _) = begin(&mut job, 1);
        let stopped = ZeusVerdict::TooExpensive { cost: 51.0, beta: 0.5, least: 100.0 };
        assert_eq!(report(&mut job, number, 51.0, 0.1, 1, 1), stopped);
        job.runs.last_mut().expect("begun").trial.kind = Kind::Concurrent;
    }
}

#[test]
fn a_lost_exploration_is_repeated_and_its_late_report_counts() {
    let mut job = job(registration(&[32, 64], 64));
    let (lost, _) = begin(&mut job, 0);
    let (beside, draw) = begin(&mut job, 50);
    assert_eq!(draw.choice, Choice { batch_size: 64, kind: Kind::Concurrent });
    assert_eq!(report(&mut job, beside, 1.0, 0.1, 1, 90), ZeusVerdict::Continue);
    let (again, draw) = begin(&mut job, 101);
    assert_eq!(draw.choice, Choice { batch_size: 64, kind: Kind::Exploration });
    assert_eq!(job.run(lost).expect("loaded").trial.state, State::Ended(Outcome::Lost));
    assert_eq!(report(&mut job, lost, 1.0, 0.1, 1, 102), ZeusVerdict::Continue);
    assert_eq!(job.run(lost).expect("loaded").trial.kind, Kind::Concurrent, "another one explores now");
    assert_eq!(report(&mut job, lost, 80.0, 0.6, 2, 103), ZeusVerdict::Reached);
    assert_eq!(report(&mut job, again, 90.0, 0.6, 2, 104), ZeusVerdict::Reached);
    assert_eq!(begin(&mut job, 105).1.choice, Choice { batch_size: 32, kind: Kind::Exploration });
    // Without another exploration since, the trial goes on as one.
    assert_eq!(report(&mut job, 4, 70.0, 0.6, 2, 300), ZeusVerdict::Reached);
    assert_eq!(job.run(4).expect("loaded").trial.kind, Kind::Exploration);
}

#[test]
fn a_process_that_ends_withdraws_its_trial_unless_it_has_a_result() {
    let mut job = job(registration(&[32], 32));
    let (first, _) = begin(&mut job, 0);
    assert_eq!(job.end_for_zeus(first, 32, at(1)), Ok(()));
    assert_eq!(job.end_for_zeus(first, 32, at(1)), Ok(()));
    assert_eq!(job.end_for_zeus(first, 64, at(1)), Err(ZeusRefused::NoSuchTrial));
    let report = ZeusReport { time: 1.0, energy: 1.0, metric: 0.1, epoch: 1 };
    assert_eq!(job.report_for_zeus(first, 32, &report, at(2)), Err(ZeusRefused::Withdrawn));
    assert_eq!(run(&mut job, 1.0, 3), 32);
    assert_eq!(job.end_for_zeus(2, 32, at(4)), Ok(()));
    assert!(job.run(2).expect("loaded").trial.reached());
}

#[test]
fn a_concurrent_trial_may_end_after_pruning_has() {
    let mut job = job(registration(&[32], 32));
    let (first, _) = begin(&mut job, 0);
    let (beside, _) = begin(&mut job, 0);
    assert_eq!(report(&mut job, first, 100.0, 0.6, 1, 1), ZeusVerdict::Reached);
    run(&mut job, 100.0, 1);
    let (_, draw) = begin(&mut job, 2);
    assert_eq!((draw.choice.kind, draw.new_arms), (Kind::Regular, vec![32]));
    assert_eq!(draw.samples[0].to_string(), "Arm 32: mu ~ N(-100.00, 0.00) -> -100.00");
    assert_eq!(report(&mut job, beside, 90.0, 0.6, 1, 3), ZeusVerdict::Reached);
    assert_eq!(begin(&mut job, 4).1.new_arms, Vec::<u64>::new(), "announced once");
}

#[test]
fn without_pruning_rounds_all_batch_sizes_are_arms() {
    let mut job = job(ZeusSpec { num_pruning_rounds: 0, mab_num_explorations: 0, ..registration(&[16, 32, 64], 64) });
    let mut first: Vec<u64> = (0..3).map(|i| run(&mut job, 100.0, i)).collect();
    first.sort_unstable();
    assert_eq!(first, [16, 32, 64]);
    assert_eq!(begin(&mut job, 9).1.samples.len(), 3);
}

#[test]
fn a_window_below_the_number_of_explorations_favours_no_arm() {
    let small = ZeusSpec { window_size: 1, mab_num_explorations: 3, ..registration(&[32, 64], 64) };
    let mut job = job(small);
    let energy = |batch_size| if batch_size == 32 { 100.0 } else { 101.0 };
    let mut chosen = Vec::new();
    for now in 0..12 {
        let (number, draw) = begin(&mut job, now);
        report(&mut job, number, energy(draw.choice.batch_size), 0.6, 1, now);
        chosen.push(draw.choice.batch_size);
    }
    assert_eq!(chosen[..4], [64, 32, 32, 64]);
    assert_eq!(chosen[6..], [32; 6], "with three runs of each, the cheaper one is chosen: {chosen:?}");
}

#[test]
fn a_batch_size_below_one_stops_the_pruning_as_on_the_server() {
    let mut job = job(registration(&[-3, 0, 32], 32));
    run(&mut job, 100.0, 0);
    assert_eq!(job.begin_for_zeus(at(1)), Err(ZeusRefused::Impossible(0)));
}

#[test]
fn too_many_running_trials_displace_the_oldest() {
    let mut job = job(registration(&[32], 32));
    let count = u32::try_from(refused::MAX_RUNNING).expect("small") + 1;
    for _ in 0..count {
        begin(&mut job, 0);
    }
    assert_eq!(job.run(1).expect("loaded").trial.state, State::Ended(Outcome::Lost));
    assert!(job.run(2).expect("loaded").trial.is_running() && job.run(count).expect("loaded").trial.is_running());
    assert_eq!(report(&mut job, 1, 1.0, 0.1, 1, 1), ZeusVerdict::Continue);
}

#[test]
fn arms_are_fitted_to_the_rewards_that_the_server_uses() {
    let mut job = job(ZeusSpec { window_size: 3, ..registration(&[32], 32) });
    let (first, _) = begin(&mut job, 0);
    let (beside, _) = begin(&mut job, 0);
    report(&mut job, beside, 90.0, 0.6, 1, 1);
    report(&mut job, first, 100.0, 0.6, 1, 2);
    run(&mut job, 110.0, 3);
    // N(mean, variance) of the belief: explorations only, without the concurrent trial.
    let text = |draw: &Draw| draw.samples[0].to_string();
    let (third, draw) = begin(&mut job, 4);
    assert!(text(&draw).starts_with("Arm 32: mu ~ N(-105.00, 12.50)"), "{}", text(&draw));
    let (fourth, _) = begin(&mut job, 5);
    report(&mut job, fourth, 120.0, 0.6, 1, 6);
    // The window's newest: the second exploration, the concurrent trial before it, and the one just reported.
    let (_, draw) = begin(&mut job, 7);
    let arm = Arm::fit(&[-90.0, -110.0, -120.0]);
    let expected = format!("Arm 32: mu ~ N({:.2}, {:.2})", arm.mean, 1.0 / arm.precision);
    assert!(text(&draw).starts_with(&expected), "{} instead of {expected}", text(&draw));
    report(&mut job, third, 130.0, 0.6, 1, 8);
    let (_, draw) = begin(&mut job, 9);
    let arm = Arm::fit(&[-110.0, -120.0, -130.0]);
    let expected = format!("Arm 32: mu ~ N({:.2}, {:.2})", arm.mean, 1.0 / arm.precision);
    assert!(text(&draw).starts_with(&expected), "{} instead of {expected}", text(&draw));
}

#[test]
fn sums_are_rounded_as_by_numpy() {
    // The sum and the variance by NumPy 2.4 of the first numbers of one sequence.
    let table = [
        (3_u32, -251.0, 3522.3718820861673),
        (8_u32, -676.0, 1488.678571428571),
        (9_u32, -726.2857142857143, 1438.8863693625597),
        (100_u32, -7007.142857142857, 1737.4132653061224),
        (128_u32, -9090.285714285714, 1738.938456632653),
        (129_u32, -9180.571428571428, 1728.3139136310733),
        (300_u32, -21450.0, 1719.25),
        (1000_u32, -71357.14285714284, 1700.6785714285713),
    ];
    for (count, sum, variance) in table {
        let numbers: Vec<f64> = (0..count).map(|k| -f64::from(k * 7919 % 1000) / 7.0).collect();
        let arm = Arm::fit(&numbers);
        let of_reward = 1.0 / variance;
        let precision = f64::from(count) * of_reward;
        assert_eq!((arm.mean, arm.precision), (of_reward * sum / (0.0 + precision), precision), "{count}");
    }
}
