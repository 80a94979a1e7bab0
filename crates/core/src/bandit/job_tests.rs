//! Tests of the lifecycle of trials, with any number of clients that call in any order, some of which die.

use chrono::TimeDelta;
use proptest::prelude::*;

use super::*;
use crate::bandit::{EarlierJob, Kind, Knob, Reward, Spec, Target};
use crate::domain::JobId;
use crate::units::{Joules, Seconds, Watts};

fn at(seconds: i64) -> DateTime<Utc> {
    DateTime::UNIX_EPOCH + TimeDelta::seconds(seconds)
}

fn job(policy: PolicyName) -> Job {
    let spec = Spec {
        batch_sizes: vec![8, 16, 32, 64, 128],
        default_batch_size: 32,
        max_epochs: 20,
        knob: Knob { eta: 1.0, max_power: Watts::new(300.0) },
        beta: Some(2.0),
        window: 0,
        policy,
        zeus: None,
    };
    let terms = Terms {
        spec,
        target: Target { metric: 0.5, higher_is_better: true },
        lease: Seconds::new(100.0),
        reward: Reward::Energy,
        gpus: None,
        seed: Some(7),
    };
    Job::new(terms.checked().expect("valid"), 0)
}

fn report(epochs: u32, energy: f64, metric: f64) -> Report {
    Report { epochs, energy: Joules::new(energy), time: Seconds::new(f64::from(epochs)), metric: Some(metric) }
}

/// Returns a training run whose account supplies the energy, but not the time.
fn metering(id: &str) -> MeteringJob {
    MeteringJob { id: JobId::new(id).expect("an id"), has_time: false, before: None }
}

/// Runs a trial to its end: an epoch costs `each`, and the trial reaches its target after `needs` epochs.
fn train(job: &mut Job, number: u32, each: f64, needs: u32, now: DateTime<Utc>) -> Verdict {
    for epoch in 1..=100 {
        let metric = if epoch >= needs { 0.6 } else { 0.1 };
        let verdict = job.report(number, &report(epoch, each * f64::from(epoch), metric), None, now).expect("taken");
        if verdict.stop {
            return verdict;
        }
    }
    panic!("a trial that never stops");
}

#[test]
fn a_trial_ends_at_its_target_or_when_its_cost_is_too_high() {
    let mut job = job(PolicyName::Zeus);
    let first = job.begin(None, at(0)).expect("begun");
    assert_eq!((first.number, job.runs[0].trial.batch_size), (1, 32));
    assert_eq!(train(&mut job, 1, 10.0, 5, at(1)), Verdict { stop: true, reached: true, max_epochs: 5, late: false });
    assert_eq!((job.runs[0].trial.cost, job.runs[0].trial.epoch_cost), (Cost::new(50.0), Some(Cost::new(10.0))));
    // Twice the cost of the cheapest run is 100: five epochs at 20 each.
    job.begin(None, at(2)).expect("begun");
    assert_eq!(train(&mut job, 2, 20.0, 9, at(3)), Verdict { stop: true, reached: false, max_epochs: 5, late: false });
    assert_eq!(job.runs[1].trial.state, State::Ended(Outcome::Stopped));
    // A trial whose first epoch costs more than these 100 is stopped during the epoch.
    job.begin(None, at(4)).expect("begun");
    let verdict = job.report(3, &report(0, 101.0, 0.0), None, at(5)).expect("taken");
    assert!(verdict.stop && !verdict.reached, "{verdict:?}");
}

#[test]
fn a_first_epoch_that_costs_more_than_beta_allows_is_stopped_by_each_policy() {
    for policy in [PolicyName::Zeus, PolicyName::Wattune] {
        let mut job = job(policy);
        job.begin(None, at(0)).expect("begun");
        train(&mut job, 1, 10.0, 5, at(1));
        job.begin(None, at(2)).expect("begun");
        let verdict = job.report(2, &report(0, 90.0, 0.0), None, at(3)).expect("taken");
        assert!(!verdict.stop, "{policy:?}: {verdict:?}");
        let verdict = job.report(2, &report(0, 110.0, 0.0), None, at(4)).expect("taken");
        assert!(verdict.stop && !verdict.reached, "{policy:?}: {verdict:?}");
        // Its batch size has cost enough.
        let stopped = job.runs[1].trial.batch_size;
        job.begin(None, at(5)).expect("begun");
        let next = job.runs[2].trial.batch_size;
        assert!(policy == PolicyName::Zeus || next != stopped, "{stopped} again");
    }
}

#[test]
fn the_first_epoch_pays_for_the_profile() {
    let mut job = job(PolicyName::Zeus);
    job.begin(None, at(0)).expect("begun");
    job.report(1, &report(1, 90.0, 0.1), None, at(1)).expect("taken");
    assert_eq!(job.runs[0].trial.epoch_cost, Some(Cost::new(90.0)), "nothing better is known");
    job.report(1, &report(3, 110.0, 0.1), None, at(2)).expect("taken");
    assert_eq!(job.runs[0].trial.epoch_cost, Some(Cost::new(10.0)));
    assert_eq!(job.runs[0].trial.cost, Cost::new(110.0));
}

#[test]
fn a_client_that_missed_a_response_repeats_its_call() {
    let mut job = job(PolicyName::Zeus);
    let begun = job.begin(Some("a"), at(0)).expect("begun");
    assert_eq!(job.begin(Some("a"), at(1)), Ok(Begun { number: begun.number, again: true }));
    let last = report(5, 50.0, 0.6);
    let verdict = job.report(1, &last, None, at(2)).expect("taken");
    let before = job.clone();
    assert_eq!(job.report(1, &last, None, at(3)), Ok(verdict));
    assert_eq!(job.end(1, Some(&last), None, Ending::Withdrawn, at(3)), Ok(()));
    assert_eq!(job.begin(Some("a"), at(4)), Ok(Begun { number: 1, again: true }));
    assert_eq!(job, before);
}

#[test]
fn after_the_end_consistent_reports_get_the_verdict_and_others_are_rejected() {
    let mut job = job(PolicyName::Zeus);
    job.begin(None, at(0)).expect("begun");
    let metered_job = metering("a");
    let last = report(5, 50.0, 0.6);
    let verdict = job.report(1, &last, None, at(1)).expect("taken");
    assert!(verdict.stop && !verdict.late, "{verdict:?}");
    let before = job.clone();
    assert_eq!(job.report(1, &last, None, at(2)), Ok(verdict));
    // Reports of a client that missed the request to stop and trained on.
    for later in [report(6, 60.0, 0.3), report(5, 51.0, 0.6), Report { metric: None, ..report(5, 50.0, 0.6) }] {
        assert_eq!(job.report(1, &later, None, at(2)), Ok(Verdict { late: true, ..verdict }), "{later:?}");
    }
    let settled = job.report(1, &report(5, 49.0, 0.6), Some(&metered_job), at(2));
    assert_eq!(settled, Ok(verdict), "the ledger is exact only later");
    for (wrong, field) in [
        (report(4, 50.0, 0.1), "epochs"),
        (report(5, 49.0, 0.6), "energy_j"),
        (Report { time: Seconds::new(4.0), ..last }, "time_s"),
        (report(5, 50.0, 0.4), "metric"),
    ] {
        for refused in
            [job.report(1, &wrong, None, at(2)).map(drop), job.end(1, Some(&wrong), None, Ending::Withdrawn, at(2))]
        {
            assert!(matches!(&refused, Err(Refused::Ended { field: named, .. }) if *named == field), "{refused:?}");
        }
    }
    assert_eq!(job, before);
    job.begin(None, at(3)).expect("begun");
    job.report(2, &last, Some(&metered_job), at(4)).expect("taken");
    let other = metering("b");
    let refused = job.report(2, &last, Some(&other), at(5));
    assert!(matches!(&refused, Err(Refused::Ended { field: "job_id", .. })), "{refused:?}");
    let message = job.report(1, &report(4, 50.0, 0.1), None, at(6)).expect_err("refused").to_string();
    assert_eq!(
        message,
        "epochs is 4 after 5; trial 1 has ended at 1970-01-01T00:00:01Z: it reached its target after 5 epochs"
    );
}

#[test]
fn a_withdrawn_trial_is_ignored() {
    let mut job = job(PolicyName::Zeus);
    job.begin(None, at(0)).expect("begun");
    train(&mut job, 1, 10.0, 5, at(1));
    for number in 2..=6 {
        assert_eq!(job.begin(None, at(2)).expect("begun").number, number);
        let last = report(0, 1.0, 0.1);
        for _ in 0..2 {
            assert_eq!(job.end(number, Some(&last), None, Ending::Withdrawn, at(2)), Ok(()), "whoever asks again");
        }
        assert_eq!(job.run(number).expect("known").trial.state, State::Ended(Outcome::Withdrawn));
        let late = job.report(number, &last, None, at(3)).expect_err("refused").to_string();
        assert!(late.contains("it was withdrawn"), "{late}");
        assert!(matches!(job.end(number, None, None, Ending::NotReached, at(3)), Err(Refused::Void { .. })));
    }
    // One lost trial beside five withdrawn ones does not suffice to give up the batch size.
    job.begin(None, at(4)).expect("begun");
    job.expire(at(200));
    assert_eq!(job.run(7).expect("known").trial.state, State::Ended(Outcome::Lost));
    assert_eq!(job.outlook().map(|c| c.batch_size), Ok(16));
}

#[test]
fn numbers_continue_after_those_of_an_earlier_job() {
    let mut job = Job { earlier: 12, ..job(PolicyName::Zeus) };
    assert_eq!(job.begin(None, at(0)).expect("begun").number, 13);
    assert_eq!(job.begin(None, at(0)).expect("begun").number, 14);
    assert_eq!(job.report(12, &report(1, 10.0, 0.1), None, at(1)), Err(Refused::NoSuchTrial(12)));
}

#[test]
fn an_impossible_report_changes_nothing() {
    let mut job = job(PolicyName::Zeus);
    job.begin(None, at(0)).expect("begun");
    job.report(1, &report(3, 30.0, 0.1), None, at(1)).expect("taken");
    let before = job.clone();
    for (wrong, field) in [(report(2, 30.0, 0.1), "epochs"), (report(4, 29.0, 0.1), "energy_j")] {
        match job.report(1, &wrong, None, at(2)) {
            Err(Refused::Contradiction { field: named, .. }) => assert_eq!(named, field),
            other => panic!("{other:?}"),
        }
    }
    let free = Report { epochs: 4, ..Report::default() };
    assert!(matches!(job.report(1, &free, None, at(2)), Err(Refused::Contradiction { .. })));
    assert_eq!(job.report(2, &report(1, 1.0, 0.1), None, at(2)), Err(Refused::NoSuchTrial(2)));
    assert_eq!(job, before);
    let metered_job = metering("a");
    job.report(1, &report(4, 29.0, 0.1), Some(&metered_job), at(2)).expect("the ledger is exact only later");
    assert_eq!(job.runs[0].energy, Joules::new(30.0));
    job.begin(None, at(3)).expect("begun");
    let taken = job.report(2, &report(1, 10.0, 0.1), Some(&metered_job), at(3));
    assert_eq!(taken, Err(Refused::Taken { job: metered_job.id, number: 1 }));
}

#[test]
fn a_training_run_that_is_registered_anew_adds_to_the_one_before() {
    let mut job = job(PolicyName::Zeus);
    job.begin(None, at(0)).expect("begun");
    let [a, b, c] = ["a", "b", "c"].map(|id| MeteringJob { has_time: true, ..metering(id) });
    let used = |epochs, energy: f64| Report { time: Seconds::new(energy / 100.0), ..report(epochs, energy, 0.1) };
    let mut total = |epochs, energy, metering: &MeteringJob| {
        job.report(1, &used(epochs, energy), Some(metering), at(1)).expect("taken");
        (job.runs[0].energy.get(), job.runs[0].time.get())
    };
    assert_eq!(total(4, 100_000.0, &a), (100_000.0, 1_000.0));
    assert_eq!(total(5, 10_000.0, &b), (110_000.0, 1_100.0));
    assert_eq!(total(6, 30_000.0, &b), (130_000.0, 1_300.0));
    // A report of the first one that comes late counts nothing twice.
    assert_eq!(total(6, 100_000.0, &a), (130_000.0, 1_300.0));
    // It used more after its last report.
    let account = EarlierJob { job: a.id.clone(), energy: Joules::new(104_000.0), time: Seconds::new(1_040.0) };
    let c = MeteringJob { before: Some(account), ..c };
    assert_eq!(total(7, 1_000.0, &c), (135_000.0, 1_350.0));
    // A time that the client measured is that of the whole trial.
    assert_eq!(total(8, 200_000.0, &metering("c")), (334_000.0, 2_000.0));
    let before = job.clone();
    job.report(1, &used(3, 5.0), Some(&metering("d")), at(2)).expect_err("fewer epochs");
    assert_eq!(job, before);
    // No part of it counts for another trial.
    job.begin(None, at(2)).expect("begun");
    for taken in [&a, &b, &c] {
        let refused = job.report(2, &used(1, 10.0), Some(taken), at(2));
        assert_eq!(refused, Err(Refused::Taken { job: taken.id.clone(), number: 1 }));
    }
}

#[test]
fn the_sum_of_many_earlier_training_runs_is_kept() {
    let mut job = job(PolicyName::Zeus);
    job.begin(None, at(0)).expect("begun");
    for number in 0..300 {
        let metering = MeteringJob { has_time: true, ..metering(&format!("job-{number}")) };
        job.report(1, &report(1, 10.0, 0.1), Some(&metering), at(1)).expect("taken");
    }
    let run = &job.runs[0];
    assert_eq!((run.energy, run.time, run.earlier_jobs.len()), (Joules::new(3_000.0), Seconds::new(300.0), 100));
}

#[test]
fn an_implausible_report_is_rejected() {
    let mut job = job(PolicyName::Wattune);
    let number = job.begin(None, at(0)).expect("begun").number;
    let before = job.clone();
    let mut refused = |report: Report, field: &str| {
        let error = job.report(number, &report, None, at(1)).expect_err("refused");
        assert!(matches!(&error, Refused::Contradiction { field: f, .. } if *f == field), "{error}");
    };
    refused(report(21, 100.0, 0.1), "epochs");
    // 300 W for a second are 300 J: a report of 100 kJ was in millijoules, or its time was wrong.
    refused(report(1, 100_000.0, 0.1), "energy_j");
    refused(Report { time: Seconds::new(1e300), ..report(1, 100.0, 0.1) }, "time_s");
    refused(Report { time: Seconds::ZERO, ..report(1, 1e300, 0.1) }, "energy_j");
    assert_eq!(job, before, "nothing of it is taken");
}

#[test]
fn a_silent_trial_is_lost_and_its_batch_size_is_tried_again() {
    let mut job = job(PolicyName::Zeus);
    job.begin(Some("a"), at(0)).expect("begun");
    job.report(1, &report(1, 10.0, 0.1), None, at(60)).expect("taken");
    job.expire(at(160));
    assert!(job.runs[0].trial.is_running(), "the report renewed its lease");
    let begun = job.begin(None, at(161)).expect("begun");
    assert_eq!((begun.number, job.runs[1].trial.batch_size), (2, 32));
    assert_eq!(job.runs[1].trial.kind, Kind::Exploration);
    for late in [job.report(1, &report(5, 50.0, 0.6), None, at(162)).map(drop), job.begin(Some("a"), at(162)).map(drop)]
    {
        assert!(matches!(&late, Err(Refused::Void { number: 1, why, .. }) if why.contains("lease")), "{late:?}");
    }
    assert_eq!(job.end(1, None, None, Ending::Withdrawn, at(163)), Ok(()), "it is what was asked for");
}

#[test]
fn a_batch_size_whose_runs_are_lost_is_abandoned() {
    let mut job = job(PolicyName::Zeus);
    job.begin(None, at(0)).expect("begun");
    train(&mut job, 1, 10.0, 5, at(1));
    let mut now = 1;
    while job.outlook().expect("something is left").batch_size == 16 {
        job.begin(None, at(now)).expect("begun");
        now += 101;
        job.expire(at(now));
    }
    let deaths: Vec<_> = job.runs[1..].iter().map(|r| r.trial.state).collect();
    let lost = State::Ended(Outcome::Lost);
    assert_eq!(deaths, [lost, lost, State::Ended(Outcome::NotReached)]);
    assert_eq!(job.outlook().map(|c| c.batch_size), Ok(64), "below it nothing is tried");
    // The default batch size is never given up, however many of its runs are lost.
    let mut job = self::job(PolicyName::Zeus);
    for death in 0..9 {
        job.begin(None, at(death * 101)).expect("begun");
    }
    assert_eq!(job.outlook().map(|c| (c.batch_size, c.kind)), Ok((32, Kind::Concurrent)));
    assert!(job.runs[..8].iter().all(|r| r.trial.state == lost));
}

#[test]
fn an_early_failure_is_charged_if_the_policy_learns_from_costs_alone() {
    for (policy, cost) in [(PolicyName::Zeus, Cost::new(100.0 * 2.0 * 50.0)), (PolicyName::Wattune, Cost::ZERO)] {
        let mut job = job(policy);
        job.begin(None, at(0)).expect("begun");
        train(&mut job, 1, 10.0, 5, at(1));
        job.begin(None, at(2)).expect("begun");
        job.end(2, None, None, Ending::NotReached, at(3)).expect("ended");
        let failed = &job.runs[1];
        assert_eq!((failed.trial.state, failed.trial.cost), (State::Ended(Outcome::NotReached), cost), "{policy:?}");
        assert_eq!(failed.energy, Joules::ZERO, "what it used is still known");
        assert_eq!(failed.reason.contains("counts as"), policy == PolicyName::Zeus, "{}", failed.reason);
        assert_ne!(job.outlook().map(|c| c.batch_size), Ok(failed.trial.batch_size), "{policy:?}");
    }
}

/// Next action of a client.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Requests a trial, or again the client's current trial.
    Begin,
    /// Reports another epoch.
    Epoch,
    /// Repeats the client's last report.
    Repeat,
    /// Withdraws the client's trial.
    Withdraw,
    /// Dies silently; another client replaces it.
    Die,
    /// Time passes without calls.
    Wait(i64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => Just(Step::Begin),
        8 => Just(Step::Epoch),
        2 => Just(Step::Repeat),
        1 => Just(Step::Withdraw),
        1 => Just(Step::Die),
        2 => (1i64..60).prop_map(Step::Wait),
    ]
}

/// Returns the number of epochs that a run with a batch size needs (first value) and the cost of an epoch (second). The
/// largest batch size never reaches the target.
fn truth(batch_size: u64) -> (u32, f64) {
    match batch_size {
        8 => (4, 30.0),
        16 => (4, 20.0),
        32 => (5, 15.0),
        64 => (7, 12.0),
        _ => (1000, 11.0),
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Client {
    key: String,
    trial: Option<u32>,
    epochs: u32,
}

fn send_report(job: &mut Job, client: &mut Client, more: u32, now: DateTime<Utc>) {
    let Some(number) = client.trial else { return };
    let (needs, each) = truth(job.run(number).expect("known").trial.batch_size);
    client.epochs += more;
    let metric = if client.epochs >= needs { 0.6 } else { 0.1 };
    let verdict = job.report(number, &report(client.epochs, each * f64::from(client.epochs), metric), None, now);
    match verdict {
        Ok(verdict) if !verdict.stop => {}
        Ok(_) | Err(Refused::Void { .. }) => renew(client),
        Err(other) => panic!("{other}"),
    }
}

fn act(job: &mut Job, client: &mut Client, step: Step, now: DateTime<Utc>) {
    match step {
        Step::Begin => match job.begin(Some(&client.key), now) {
            Ok(begun) => {
                assert_eq!(begun.again, client.trial.is_some());
                client.trial = Some(begun.number);
            }
            Err(Refused::Void { .. }) => renew(client),
            Err(other) => panic!("{other}"),
        },
        Step::Epoch => send_report(job, client, 1, now),
        Step::Repeat => send_report(job, client, 0, now),
        Step::Withdraw => {
            if let Some(number) = client.trial {
                job.end(number, None, None, Ending::Withdrawn, now).expect("known");
            }
            renew(client);
        }
        Step::Die => renew(client),
        Step::Wait(_) => {}
    }
}

fn outlined(job: &Job, asked: impl Fn(&Run) -> bool) -> Job {
    let (runs, past_trials): (Vec<Run>, Vec<Run>) =
        job.runs.iter().cloned().partition(|r| r.trial.is_running() || asked(r));
    Job { past_trials: past_trials.into_iter().map(|r| r.trial).collect(), runs, ..job.clone() }
}

#[test]
fn a_forgotten_run_is_completed_again_in_its_place() {
    let mut job = job(PolicyName::Zeus);
    for i in 0..4 {
        job.begin(None, at(i)).expect("begun");
    }
    for number in [3, 1] {
        job.end(number, None, None, Ending::Withdrawn, at(9)).expect("ended");
    }
    let whole = job.clone();
    job.forget_ended();
    let numbers = |job: &Job| -> (Vec<u32>, Vec<u32>) {
        (job.past_trials.iter().map(|t| t.number).collect(), job.runs.iter().map(|r| r.trial.number).collect())
    };
    assert_eq!(numbers(&job), (vec![1, 3], vec![2, 4]));
    assert_eq!(job.trials(), whole.trials());
    for number in [1, 2, 3] {
        job.complete(whole.run(number).expect("known").clone());
    }
    assert_eq!(job, whole);
}

fn renew(client: &mut Client) {
    *client = Client { key: format!("{}'", client.key), ..Client::default() };
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn exploration_ends_whatever_sixteen_clients_do(
        zeus in any::<bool>(),
        steps in prop::collection::vec((0usize..16, step()), 0..600),
    ) {
        let mut job = job(if zeus { PolicyName::Zeus } else { PolicyName::Wattune });
        let mut clients: Vec<Client> = (0..16).map(|i| Client { key: i.to_string(), ..Client::default() }).collect();
        let mut now = at(0);
        for (who, step) in steps {
            let client = &mut clients[who];
            now += TimeDelta::milliseconds(100);
            let before = job.clone();
            // `outline` is the job as the store loads it: ended trials have only the data that policies need, except
            // the trials of this client.
            let asked = |r: &Run| r.key.as_ref() == Some(&client.key) || Some(r.trial.number) == client.trial;
            let (mut outline, mut same) = (outlined(&job, asked), client.clone());
            if let Step::Wait(seconds) = step {
                now += TimeDelta::seconds(seconds);
            }
            act(&mut job, client, step, now);
            act(&mut outline, &mut same, step, now);
            prop_assert_eq!(&same, client);
            prop_assert_eq!((outline.trials(), &outline.generator), (job.trials(), &job.generator));
            // Numbers are unique, and ended trials do not change.
            prop_assert!(job.runs.iter().zip(1..).all(|(run, n)| run.trial.number == n));
            prop_assert!(job.runs.len() <= before.runs.len() + 1);
            for (was, is) in before.runs.iter().zip(&job.runs) {
                prop_assert!(was == is || was.trial.is_running());
            }
        }
        // All clients are dead now. New ones arrive one after another, and learning ends.
        for _ in 0..60 {
            now += TimeDelta::seconds(101);
            let begun = job.begin(None, now).expect("something is left");
            prop_assert_eq!(job.runs.iter().filter(|r| r.trial.is_running()).count(), 1);
            let (needs, each) = truth(job.run(begun.number).expect("known").trial.batch_size);
            train(&mut job, begun.number, each, needs, now);
        }
        prop_assert_eq!(job.outlook().map(|c| c.kind), Ok(Kind::Regular));
        let best = crate::bandit::favourite(&job.terms.spec, &job.trials());
        let (needs, each) = truth(best);
        prop_assert!(f64::from(needs) * each <= 1.3 * 75.0, "{best}");
    }
}
