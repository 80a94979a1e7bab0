use super::policy::{Knobs, Policy, named};
use super::rows::{Expected, summary};
use super::*;
use crate::traces::{Submission, TraceError, TraceFile, submissions};
use wattune_core::bandit::Knob;

const KNOBS: Knobs = Knobs { eta: 0.5, beta: Some(2.0), window: 0 };

const TRAIN: &str = "dataset,network,batch_size,optimizer,learning_rate,run,target_metric,target_epoch\n\
    d,n,8,o,1,1,0.5,4\nd,n,8,o,1,2,0.5,6\nd,n,16,o,1,1,0.5,3\nd,n,16,o,1,2,0.5,\nd,n,16,o,1,3,0.5,nan\nd,n,16,o,1,1,0.9,7\n";
const POWER: &str = "dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power\n\
    d,n,8,o,100,16,90\nd,n,8,o,200,10,150\nd,n,16,o,100,14,95\nd,n,16,o,200,8,160\nd,n,32,o,200,5,170\nx,y,8,o,300,1,1\n";

fn file(text: &str) -> TraceFile {
    TraceFile { path: "summary_power_p100.csv".into(), bytes: text.into() }
}

fn query(target_metric: f64, default_batch_size: u64) -> JobQuery {
    let (dataset, network) = ("d".to_owned(), "n".to_owned());
    JobQuery { dataset, network, optimizer: None, target_metric, max_epochs: 50, default_batch_size }
}

fn job(train: &str, power: &str, query: &JobQuery) -> Result<Job, TraceError> {
    Traces::join(&file(train), &file(power))?.job(query)
}

fn policy(name: &str) -> Policy {
    named(name).expect("a policy")
}

#[test]
fn both_traces_are_joined() {
    let job = job(TRAIN, POWER, &query(0.5, 64)).expect_err("32 is the largest of the power trace, and not trained");
    assert!(
        job.to_string().contains("no rows of d/n at batch size 32, with which policies begin; there are rows at 8, 16"),
        "{job}"
    );
    let job = self::job(TRAIN, POWER, &query(0.5, 16)).expect("a job");
    assert_eq!((job.workload.as_str(), job.default, job.max_power.get()), ("d/n", 1, 200.0), "x/y was not trained");
    let paths: Vec<_> = job.arms.iter().map(|arm| arm.paths.clone()).collect();
    assert_eq!(paths, [vec![Some(4), Some(6)], vec![Some(3), None, None]]);
    assert_eq!(job.arms[0].levels.iter().map(|level| level.limit.get()).collect::<Vec<_>>(), [200.0, 100.0]);
    assert_eq!(job.recurrences, 2 * 2 * 2);
    let other = self::job(TRAIN, POWER, &query(0.9, 16)).expect("a job");
    assert_eq!((other.arms.len(), other.recurrences), (2, 2 * 2), "8 stays, and counts as one that never is at 0.9");
    assert_eq!(other.arms[0].paths, [None]);
}

#[test]
fn gaps_of_the_traces_are_noted() {
    let notes = |job: &Job| -> Vec<String> {
        let after =
            |note: &String| note.strip_prefix(&format!("{} d/n: ", job.gpu)).expect("the job's name").to_owned();
        job.notes.iter().map(after).collect()
    };
    let usual = job(TRAIN, POWER, &query(0.5, 16)).expect("a job");
    assert_eq!(notes(&usual), ["batch sizes 32 are left out: the train trace has no runs of them"]);
    let power = POWER.replace("d,n,8,o,100,16,90\n", "").replace("d,n,16,o,100,14,95\nd,n,16,o,200,8,160\n", "");
    let train = TRAIN.replace("d,n,8,o,1,1,0.5,4\n", "d,n,8,o,1,1,0.5,4\nd,n,32,o,1,1,0.5,4\nd,n,64,o,1,1,0.9,4\n");
    let power = format!("{power}d,n,32,o,100,14,95\nd,n,64,o,200,14,95\nd,n,64,o,100,14,95\nd,n,128,o,100,14,95\n");
    let job = job(&train, &power, &query(0.5, 8)).expect("a job");
    assert_eq!(job.arms.iter().map(|arm| arm.batch_size).collect::<Vec<_>>(), [8, 32, 64]);
    assert_eq!(
        notes(&job),
        [
            "batch sizes 16 are left out: the power trace has no rows of them",
            "batch sizes 128 are left out: the train trace has no runs of them",
            "batch sizes 64 are tried, and never at the target: the train trace has no runs of them for it",
            "batch size 8 was not measured at 100 W",
        ]
    );
    assert!(certain().notes.is_empty(), "{:?}", certain().notes);
}

#[test]
fn batch_sizes_of_one_side_of_a_switch_are_left_out_and_noted() {
    let (mut before, mut after) = (certain(), certain());
    after.arms.truncate(2);
    before.arms.remove(0);
    before.default = 1;
    before.shared_with(&after, "after").expect("they share 16");
    after.shared_with(&before, "before").expect("they share 16");
    let left = |job: &Job| job.arms.iter().map(|arm| arm.batch_size).collect::<Vec<_>>();
    assert_eq!((left(&before), before.default, left(&after), after.default), (vec![16], 0, vec![16], 0));
    let notes = |job: &Job| job.notes.iter().filter_map(|n| n.split(" d/n: ").nth(1)).collect::<Vec<_>>().join("; ");
    assert_eq!(
        notes(&before),
        "batch sizes 32 are left out: the traces after the switch lack them; \
         the default batch size is 16, not 32, for the same reason"
    );
    assert_eq!(notes(&after), "batch sizes 8 are left out: the traces before the switch lack them");
}

/// Worked out by hand: an epoch with batch size 8 at 200 W costs (1500 J + 200 W · 10 s)/2 = 1750 J.
#[test]
fn the_oracle_expects_what_runs_cost_until_one_reaches_the_target() {
    let job = job(TRAIN, POWER, &query(0.5, 16)).expect("a job");
    let knob = job.knob(0.5);
    let expected = |arm: usize, level| oracle::expected(&job.arms[arm], level, 50, &knob).map(|cost| cost.get());
    assert_eq!(expected(0, 0), Some(1750.0 * 5.0));
    assert_eq!(expected(0, 1), Some(2320.0 * 5.0));
    // Of three runs with batch size 16, one reaches the target after 3 epochs, and two end after 50 epochs without it.
    assert!((expected(1, 0).expect("it can be reached") - 1440.0 * 103.0).abs() < 1e-6);
    assert_eq!(oracle::expected(&job.arms[1], 0, 2, &knob), None);
    let best = oracle::best(&job, &knob).expect("one");
    assert_eq!((best.arm, best.level), (0, 0));
    let energy = Knob { eta: 1.0, ..knob };
    assert_eq!(oracle::best(&job, &energy).map(|best| (best.arm, best.level)), Some((0, 1)), "energy alone: 100 W");
}

#[test]
fn the_mean_of_many_runs_is_what_the_oracle_expects() {
    let job = job(TRAIN, POWER, &query(0.5, 8)).expect("a job");
    let recurring = Recurring { job: &job, recurrences: 20_000, knobs: KNOBS, switch: None };
    let result = recur(&recurring, &policy("oracle"), 3).expect("runs");
    let mean = result.runs.iter().map(|run| run.cost.get()).sum::<f64>() / 20_000.0;
    assert!((mean / 8750.0 - 1.0).abs() < 0.01, "{mean}");
    assert!(result.runs.iter().all(|run| run.reached && run.batch_size == 8 && run.limit.get() == 200.0));
}

#[test]
fn the_grid_tries_all_in_order_but_what_fails() {
    let train = "dataset,network,batch_size,optimizer,target_metric,target_epoch\n\
        d,n,4,o,0.5,\nd,n,8,o,0.5,4\nd,n,16,o,0.5,3\n";
    let power = format!("{POWER}d,n,4,o,100,20,90\nd,n,4,o,200,20,90\n");
    let job = job(train, &power, &query(0.5, 8)).expect("a job");
    let recurring = Recurring { job: &job, recurrences: 6, knobs: KNOBS, switch: None };
    let result = recur(&recurring, &policy("grid"), 1).expect("runs");
    let tried: Vec<_> = result.runs.iter().map(|run| (run.recurrence, run.batch_size, run.limit.get())).collect();
    let best = [(5, 16, 200.0), (6, 16, 200.0)];
    assert_eq!(tried[..5], [(1, 4, 200.0), (1, 8, 200.0), (2, 8, 100.0), (3, 16, 200.0), (4, 16, 100.0)]);
    assert_eq!(tried[5..], best);
    assert_eq!((result.batch_size, result.limit.get()), (16, 200.0));
}

#[test]
fn the_grid_begins_anew_on_a_gpu_with_other_limits() {
    let before = job(TRAIN, POWER, &query(0.5, 8)).expect("a job");
    let power = "dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power\n\
        d,n,8,o,150,10,90\nd,n,16,o,150,14,95\n";
    let after = job(TRAIN, power, &query(0.5, 8)).expect("a job");
    // The switch comes while limits that the other GPU lacks are still to be tried, and after all were tried.
    for at in [2, 9] {
        let switch = Switch { at, job: after.clone(), new_gpu: true };
        let recurring = Recurring { job: &before, recurrences: 12, knobs: KNOBS, switch: Some(&switch) };
        let result = recur(&recurring, &policy("grid"), 1).expect("runs");
        let tried: Vec<u64> = result.runs.iter().filter(|run| run.recurrence >= at).map(|run| run.batch_size).collect();
        assert!(tried.contains(&8) && tried.contains(&16), "{tried:?}");
        assert_eq!(result.limit.get(), 150.0);
    }
}

#[test]
fn wrong_values_are_named_with_line_and_column() {
    let broken = |train: &str, power: &str| job(train, power, &query(0.5, 16)).expect_err("unusable").to_string();
    let error = broken(TRAIN, &POWER.replace("16,90", "sixteen,90"));
    assert!(error.ends_with(", line 2, column time_per_epoch: \"sixteen\" is not a number above 0"), "{error}");
    let error = broken(&TRAIN.replace("0.5,6", "0.5,6.5"), POWER);
    assert!(error.contains("line 3, column target_epoch: \"6.5\" is not a whole number"), "{error}");
    let error = broken(&TRAIN.replace("target_epoch", "epoch"), POWER);
    assert!(error.contains("it lacks the column target_epoch; it has dataset, network"), "{error}");
    let error = broken(TRAIN.lines().next().expect("names"), POWER);
    assert!(error.contains("it has no rows"), "{error}");
    assert!(broken(&TRAIN.replace("d,n", "e,n"), POWER).contains("it has no training"));
    let error = job(TRAIN, POWER, &query(0.4, 16)).expect_err("unusable").to_string();
    assert!(error.ends_with("no runs of d/n with target metric 0.4; there are 0.5, 0.9"), "{error}");
    let error = job(&format!("{TRAIN}d,n,8,p,1,1,0.5,4\n"), &format!("{POWER}d,n,8,p,100,16,90\n"), &query(0.5, 16));
    assert!(error.expect_err("two").to_string().ends_with("choose one: o, p"));
    let error = job(&TRAIN.replace("0.5,3", "0.5,51"), POWER, &query(0.5, 16)).expect_err("unusable").to_string();
    assert!(error.contains("no run of d/n with batch size 16 reached 0.5 in 50 epochs"), "{error}");
}

/// Returns a job without chance: an epoch takes a second at 100 W and costs 100 J; runs with the batch sizes 8, 16 and
/// 32 need 8, 10 and 30 epochs.
fn certain() -> Job {
    let train = "dataset,network,batch_size,optimizer,target_metric,target_epoch\n\
        d,n,8,o,0.5,8\nd,n,16,o,0.5,10\nd,n,32,o,0.5,30\n";
    let power = "dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power\n\
        d,n,8,o,100,1,100\nd,n,16,o,100,1,100\nd,n,32,o,100,1,100\n";
    job(train, power, &query(0.5, 16)).expect("a job")
}

#[test]
fn overlapping_submissions_go_by_the_best_known_and_failures_are_repeated() {
    let text = "group,start,end,job,runtime_ratio\n\
        a,0,10,d,\na,5,20,d,\na,25,30,d,1\na,26,40,d,2\na,50,60,d,1\n";
    let listed = submissions(&file(text)).expect("submissions");
    let all: Vec<&Submission> = listed.iter().collect();
    let result = overlap(&certain(), &KNOBS, &all, &policy("zeus"), 1).expect("runs");
    let runs: Vec<_> =
        result.runs.iter().map(|run| (run.recurrence, run.batch_size, run.reached, run.cost.get())).collect();
    let expected = [
        (1, 16, true, 1000.0),
        // While the default batch size is explored, no better one is known.
        (2, 16, true, 1000.0),
        (3, 8, true, 800.0),
        // The exploration of 8 has not ended: 16 is still the best known. This run takes twice as long as the others.
        (4, 16, true, 2000.0),
        // Stopped at twice the cheapest cost of 800; the next run begins the second round of pruning, at the new
        // default, 8.
        (5, 32, false, 1600.0),
        (5, 8, true, 800.0),
    ];
    assert_eq!(runs, expected);
    assert_eq!(result.batch_size, 8);
    let what = ("zeus", &certain(), Some("a"), 1);
    let row = summary(what, &result, 5, |r| Expected {
        run: wattune_core::bandit::Cost::new(800.0),
        runs: [1.0, 1.0, 1.0, 2.0, 1.0][r as usize - 1],
    });
    assert!((row.cumulative_regret_runs - (7200.0 / 800.0 - 6.0)).abs() < 1e-12, "{row:?}");
}

/// After the switch, the bound on a run's cost is below the cost of an epoch: each recurrence has one row, and the job
/// goes on.
#[test]
fn a_recurrence_without_an_epoch_has_a_row_and_does_not_end_the_job() {
    let before = certain();
    let mut after = before.clone();
    for epoch in after.arms.iter_mut().flat_map(|arm| &mut arm.levels).flat_map(|level| &mut level.epochs) {
        epoch.time = wattune_core::units::Seconds::new(30.0);
    }
    let switch = Switch { at: 4, job: after, new_gpu: true };
    let recurring = Recurring { job: &before, recurrences: 5, knobs: KNOBS, switch: Some(&switch) };
    let result = recur(&recurring, &policy("zeus"), 1).expect("runs");
    let late: Vec<_> = result.runs.iter().filter(|run| run.recurrence >= 4).collect();
    assert_eq!(late.iter().map(|run| run.recurrence).collect::<Vec<_>>(), [4, 5]);
    assert!(late.iter().all(|run| !run.reached && run.cost.get() == 0.0), "{late:?}");
}
