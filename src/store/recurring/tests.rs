//! Tests of recurring jobs: what memory keeps of them is what the database holds.

use chrono::{DateTime, Utc};
use proptest::prelude::*;

use super::{Created, FullRuns, Page, StoredRecurring};
use crate::store::tests::store;
use crate::store::{FILE_NAME, Store};
use wattune_core::bandit::{
    Cost, EarlierJob, Ending, Job, Kind, Knob, Outcome, PolicyName, Report, Reward, Run, Spec, State, Target, Terms,
    Trial,
};
use wattune_core::domain::{JobId, JobName, Owner};
use wattune_core::units::{Joules, Seconds, Watts};

fn at(seconds: i64) -> DateTime<Utc> {
    DateTime::UNIX_EPOCH + chrono::TimeDelta::seconds(seconds)
}

fn job_id() -> JobId {
    JobId::new("job-1").expect("an id")
}

fn earlier_job(number: u32) -> EarlierJob {
    let job = JobId::new(format!("earlier-{number}")).expect("an id");
    EarlierJob { job, energy: Joules::new(0.1), time: Seconds::new(0.2) }
}

/// Returns a recurring job with trials of all kinds, as an import would create it.
fn recurring() -> StoredRecurring {
    let terms = Terms {
        spec: Spec {
            batch_sizes: vec![8, 16],
            default_batch_size: 8,
            max_epochs: 10,
            knob: Knob { eta: 1.0, max_power: Watts::new(300.0) },
            beta: Some(2.0),
            window: 0,
            policy: PolicyName::Wattune,
            zeus: None,
        },
        target: Target { metric: 0.5, higher_is_better: true },
        lease: Seconds::new(100.0),
        reward: Reward::Energy,
        gpus: None,
        seed: Some(7),
    };
    let states = Outcome::ALL.map(State::Ended);
    let mut job = Job::new(terms.checked().expect("valid"), 0);
    for (number, state) in (1..).zip(states.into_iter().cycle().take(11).chain([State::Running])) {
        let trial = Trial {
            number,
            batch_size: 8 << (number % 2),
            kind: [Kind::Exploration, Kind::Concurrent, Kind::Regular][number as usize % 3],
            state,
            cost: Cost::new(f64::from(number)),
            epochs: number % 10,
            epoch_cost: (number % 4 > 0).then_some(Cost::new(0.5)),
            ended_at: (state != State::Running).then(|| at(9)),
        };
        job.runs.push(Run {
            trial,
            energy: Joules::new(3.0),
            time: Seconds::new(4.0),
            metric: Some(0.25),
            first: (number % 3 == 0).then_some((1, Cost::new(2.0))),
            key: Some(format!("key {number}")),
            job: (number % 5 == 0).then(|| JobId::new(format!("job-{number}")).expect("an id")),
            earlier_jobs: (1..number % 4).map(|earlier| earlier_job(number * 10 + earlier)).collect(),
            begun_at: at(1),
            lease_until: at(1000),
            reason: format!("trial {number}"),
            owners: [Owner::User(1000 + number)].into_iter().collect(),
        });
    }
    StoredRecurring {
        name: JobName::new("nightly").expect("a name"),
        created_at: at(0),
        job,
        owners: Default::default(),
        members: Default::default(),
    }
}

#[tokio::test]
async fn an_outline_has_the_data_for_policies_and_the_selected_runs() {
    let (_dir, store) = store().await;
    let made = recurring();
    assert_eq!(store.create_recurring(&made, 9, 9).await.expect("writes"), Created::New);
    assert_eq!(store.recurring(&made.name).await.expect("reads"), Some(made.clone()));
    let page = |newest_first, after, limit| {
        let page = Some(Page { newest_first, after, limit });
        FullRuns { page, ..FullRuns::default() }
    };
    let asked = [
        (FullRuns::default(), vec![12]),
        (FullRuns { number: Some(3), ..FullRuns::default() }, vec![3, 12]),
        (FullRuns { number: Some(12), ..FullRuns::default() }, vec![12]),
        (FullRuns { key: Some("key 4".into()), ..FullRuns::default() }, vec![4, 12]),
        (FullRuns { run: Some(JobId::new("job-10").expect("an id")), ..FullRuns::default() }, vec![10, 12]),
        (FullRuns { number: Some(99), key: Some("none".into()), run: Some(job_id()), page: None }, vec![12]),
        (page(false, None, 3), vec![1, 2, 3, 12]),
        (page(false, Some(9), 3), vec![10, 11, 12]),
        (page(true, None, 3), vec![10, 11, 12]),
        (page(true, Some(4), 2), vec![2, 3, 12]),
    ];
    for (full_runs, expected) in asked {
        let outline = store.recurring_outline(&made.name, full_runs.clone()).await.expect("reads").expect("is there");
        assert_eq!(outline.job.trials(), made.job.trials(), "{full_runs:?}");
        let numbers: Vec<u32> = outline.job.runs.iter().map(|r| r.trial.number).collect();
        assert_eq!(numbers, expected, "{full_runs:?}");
        for run in &outline.job.runs {
            assert_eq!(Some(run), made.job.run(run.trial.number), "{full_runs:?}");
        }
    }
}

#[tokio::test]
async fn the_log_is_checkpointed_beside_requests() {
    let (dir, store) = store().await;
    let file = dir.path().join(FILE_NAME);
    let size = || std::fs::metadata(&file).expect("is there").len();
    let (made, before) = (recurring(), size());
    for number in 0..300 {
        let name = JobName::new(format!("job {number}")).expect("a name");
        store.create_recurring(&StoredRecurring { name, ..made.clone() }, 9, 9).await.expect("writes");
    }
    for _ in 0..1000 {
        if size() > before {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("all of it is in the log still");
}

#[tokio::test]
async fn a_recreated_job_continues_the_numbers_of_the_deleted_one() {
    let (_dir, store) = store().await;
    let made = recurring();
    let empty = StoredRecurring { job: Job { runs: Vec::new(), ..made.job.clone() }, ..made.clone() };
    let begin = async || {
        let begun = store.change_recurring(&made.name, FullRuns::default(), |job| job.begin(None, at(10))).await;
        begun.expect("writes").expect("is there").0.expect("begun").number
    };
    store.create_recurring(&empty, 9, 9).await.expect("writes");
    assert!(store.delete_recurring(&made.name).await.expect("writes"));
    store.create_recurring(&empty, 9, 9).await.expect("writes");
    assert_eq!(begin().await, 1, "the deleted one had none");
    assert!(store.delete_recurring(&made.name).await.expect("writes"));
    store.create_recurring(&made, 9, 9).await.expect("writes");
    assert!(store.delete_recurring(&made.name).await.expect("writes"));
    store.create_recurring(&empty, 9, 9).await.expect("writes");
    assert_eq!(begin().await, 13);
    assert!(store.delete_recurring(&made.name).await.expect("writes"));
    assert!(!store.delete_recurring(&made.name).await.expect("writes"), "there is none");
    store.create_recurring(&empty, 9, 9).await.expect("writes");
    assert_eq!((begin().await, begin().await), (14, 15));
    let other = StoredRecurring { name: JobName::new("other").expect("a name"), ..empty };
    store.create_recurring(&other, 9, 9).await.expect("writes");
    let begun = store.change_recurring(&other.name, FullRuns::default(), |job| job.begin(None, at(10))).await;
    assert_eq!(begun.expect("writes").expect("is there").0.expect("begun").number, 1);
}

#[tokio::test]
async fn a_change_of_a_recurring_job_keeps_everything_else() {
    let (_dir, store) = store().await;
    let mut made = recurring();
    store.create_recurring(&made, 9, 9).await.expect("writes");
    let begun = store.change_recurring(&made.name, FullRuns::default(), |job| job.begin(Some("new"), at(10))).await;
    let (answer, _) = begun.expect("writes").expect("is there");
    assert_eq!(answer.expect("begun").number, 13);
    made.job.begin(Some("new"), at(10)).expect("begun");
    assert_eq!(store.recurring(&made.name).await.expect("reads"), Some(made));
}

/// Returns a second connection, as another process has it.
fn other_connection(dir: &tempfile::TempDir) -> rusqlite::Connection {
    rusqlite::Connection::open(dir.path().join(FILE_NAME)).expect("opens")
}

async fn trials(store: &Store, name: &JobName) -> Option<Vec<Trial>> {
    let outline = store.recurring_outline(name, FullRuns::default()).await.expect("reads");
    outline.map(|outline| outline.job.trials())
}

#[tokio::test]
async fn what_another_connection_changes_is_seen_at_once() {
    let (dir, store) = store().await;
    let made = recurring();
    store.create_recurring(&made, 9, 9).await.expect("writes");
    assert_eq!(trials(&store, &made.name).await.expect("is there")[2].cost, Cost::new(3.0));
    let other = other_connection(&dir);
    other.execute("UPDATE recurring_trials SET cost_j = 99 WHERE number = 3", []).expect("writes");
    assert_eq!(trials(&store, &made.name).await.expect("is there")[2].cost, Cost::new(99.0));
    other.execute("DELETE FROM recurring_trials", []).expect("writes");
    let change = |job: &mut Job| job.trials().len();
    let changed = store.change_recurring(&made.name, FullRuns::default(), change).await.expect("writes");
    assert_eq!(changed.expect("is there").0, 0);
    other.execute("DELETE FROM recurring_jobs", []).expect("writes");
    assert_eq!(trials(&store, &made.name).await, None);
}

#[tokio::test]
async fn a_change_that_cannot_be_stored_is_not_kept_in_memory() {
    let (dir, store) = store().await;
    let made = recurring();
    store.create_recurring(&made, 9, 9).await.expect("writes");
    let before = trials(&store, &made.name).await;
    let refuse = "CREATE TRIGGER refuse BEFORE INSERT ON recurring_trials BEGIN SELECT RAISE(ABORT, 'refused'); END";
    other_connection(&dir).execute_batch(refuse).expect("writes");
    let begin = |job: &mut Job| job.begin(None, at(10)).expect("begins");
    store.change_recurring(&made.name, FullRuns::default(), begin).await.expect_err("the trigger refuses");
    assert_eq!(trials(&store, &made.name).await, before);
}

#[derive(Clone, Debug)]
enum Step {
    Begin(Option<u8>),
    Report(u32, u32),
    End(u32, bool),
    Expire(u16),
    Delete,
    Create,
    /// Another connection changes something else.
    Elsewhere,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => prop::option::of(0u8..6).prop_map(Step::Begin),
        6 => (1u32..20, 0u32..12).prop_map(|(number, epochs)| Step::Report(number, epochs)),
        3 => (1u32..20, any::<bool>()).prop_map(|(number, withdrawn)| Step::End(number, withdrawn)),
        1 => (0u16..300).prop_map(Step::Expire),
        1 => Just(Step::Delete),
        2 => Just(Step::Create),
        1 => Just(Step::Elsewhere),
    ]
}

async fn take(store: &Store, other: &rusqlite::Connection, made: &StoredRecurring, step: Step, now: &mut i64) {
    let name = &made.name;
    let number = |number| FullRuns { number: Some(number), ..FullRuns::default() };
    let (time, report) = (at(*now), |epochs: u32| Report {
        epochs,
        energy: Joules::new(f64::from(epochs) * 10.0),
        time: Seconds::new(f64::from(epochs)),
        metric: Some(f64::from(epochs) / 20.0),
    });
    match step {
        Step::Begin(key) => {
            let key = key.map(|key| format!("key {key}"));
            let full_runs = FullRuns { key: key.clone(), ..FullRuns::default() };
            let begin = move |job: &mut Job| job.begin(key.as_deref(), time).is_ok();
            store.change_recurring(name, full_runs, begin).await.expect("writes");
        }
        Step::Report(trial, epochs) => {
            let report = move |job: &mut Job| job.report(trial, &report(epochs), None, time).is_ok();
            store.change_recurring(name, number(trial), report).await.expect("writes");
        }
        Step::End(trial, withdrawn) => {
            let ending = if withdrawn { Ending::Withdrawn } else { Ending::NotReached };
            let end =
                move |job: &mut Job, _: super::UsersOfRecurring<'_>| job.end(trial, None, None, ending, time).is_ok();
            store.change_recurring_of(name, number(trial), end).await.expect("writes");
        }
        Step::Expire(seconds) => {
            *now += i64::from(seconds);
            let now = at(*now);
            store.change_recurring(name, FullRuns::default(), move |job| job.expire(now)).await.expect("writes");
        }
        Step::Delete => {
            store.delete_recurring(name).await.expect("writes");
        }
        Step::Create => {
            store.create_recurring(made, 9, 9).await.expect("writes");
        }
        Step::Elsewhere => {
            other.execute("INSERT INTO recurring_deleted (name, last) VALUES ('x', 1) ON CONFLICT DO UPDATE SET last = last + 1", []).expect("writes");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn memory_and_database_agree_after_each_step(steps in prop::collection::vec(step(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let (dir, store) = store().await;
            let (made, other, mut now) = (recurring(), other_connection(&dir), 10);
            for step in steps {
                take(&store, &other, &made, step, &mut now).await;
                // This reads all rows anew.
                let stored = store.recurring(&made.name).await.expect("reads");
                let outline = store.recurring_outline(&made.name, FullRuns::default()).await.expect("reads");
                let expected = stored.map(|mut stored| {
                    stored.job.forget_ended();
                    stored
                });
                prop_assert_eq!(outline, expected);
            }
            Ok(())
        })?;
    }
}
