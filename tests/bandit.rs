//! `wattune simulate bandit` on Zeus's traces, as it is typed.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::support::{number, simulate, traces};

/// The six jobs of Zeus's paper on its four GPUs.
const ALL: &str = "--train-trace @/zeus-traces/summary_train.csv --power-trace \
    @/zeus-traces/summary_power_v100.csv,@/zeus-traces/summary_power_a40.csv,@/zeus-traces/summary_power_p100.csv,\
    @/zeus-traces/summary_power_rtx6000.csv --workload cifar100/shufflenetv2,imagenet/resnet50,\
    squad/bert_base_uncased,librispeech/deepspeech2,movielens-1m/ncf,sentiment140/bert_base_uncased \
    --optimizer adadelta,adadelta,adamw,adamw,adam,adamw --target-metric 0.6,0.65,84,40,0.41,0.84 \
    --max-epochs 100,100,6,16,100,10 --default-batch-size 1024,256,32,192,1024,128";

const CIFAR: &str = "--train-trace @/zeus-traces/summary_train.csv --power-trace \
    @/zeus-traces/summary_power_v100.csv --workload cifar100/shufflenetv2 --optimizer adadelta --target-metric 0.6 \
    --max-epochs 100 --default-batch-size 1024";

fn rows(report: &Value, of: &str) -> Vec<Value> {
    report[of].as_array().unwrap_or_else(|| panic!("no {of} in {report}")).clone()
}

fn fields(row: &Value) -> Vec<&str> {
    let mut fields: Vec<&str> = row.as_object().expect("a row").keys().map(String::as_str).collect();
    fields.sort_unstable();
    fields
}

#[test]
fn zeus_is_the_reference_simulator_run_for_run() {
    let Some(ended) =
        simulate("bandit", &format!("{ALL} --policy zeus --seeds 1-3 --eta 0.5 --beta 2 --history --format json"))
    else {
        return;
    };
    let mut found: BTreeMap<(String, String, u64), Vec<Value>> = BTreeMap::new();
    for row in rows(&ended.json(), "history") {
        let dataset = row["workload"].as_str().and_then(|w| w.split('/').next()).expect("a workload").to_owned();
        let gpu = row["gpu"].as_str().expect("a GPU").to_owned();
        found.entry((gpu, dataset, row["seed"].as_u64().expect("a seed"))).or_default().push(row);
    }
    let file = traces().expect("as before").join("zeus-reference/histories_seeds_1_3.csv");
    let mut reference: BTreeMap<(String, String, u64), Vec<csv::StringRecord>> = BTreeMap::new();
    for record in csv::Reader::from_path(file).expect("the histories").into_records() {
        let record = record.expect("a row");
        let seed = record[2].parse().expect("a seed");
        reference.entry((record[0].to_owned(), record[1].to_owned(), seed)).or_default().push(record);
    }
    assert_eq!(reference.len(), 72);
    assert_eq!(found.keys().collect::<Vec<_>>(), reference.keys().collect::<Vec<_>>());
    for (job, expected) in reference {
        let runs = &found[&job];
        assert_eq!(runs.len(), expected.len(), "{job:?}");
        for (run, expected) in runs.iter().zip(&expected) {
            let value = |place: usize| expected[place].parse::<f64>().expect("a number");
            let exact =
                [number(run, "batch_size"), number(run, "power_limit_w"), f64::from(u8::from(run["reached"] == true))];
            assert_eq!(exact, [value(4), value(5), value(8)], "{job:?}, entry {}", &expected[3]);
            for (name, place) in [("energy_j", 6), ("time_s", 7)] {
                assert!((number(run, name) / value(place) - 1.0).abs() < 1e-6, "{job:?}: {run} is not {expected:?}");
            }
        }
    }
}

#[test]
fn the_command_of_the_issue_works_as_written() {
    let more = "--policy zeus,wattune,default,oracle --seeds 1-50 --eta 0.5 --beta 2 --format json";
    let Some(ended) = simulate("bandit", &format!("{CIFAR} {more}")) else { return };
    let report = ended.json();
    assert!(report.get("history").is_none(), "only with --history");
    let summary = rows(&report, "summary");
    assert_eq!(summary.len(), 4 * 50);
    let names = [
        "cumulative_cost",
        "cumulative_regret_runs",
        "final_batch_size",
        "final_power_limit_w",
        "gpu",
        "policy",
        "seed",
        "workload",
    ];
    assert_eq!(fields(&summary[0]), names);
    let mean = |policy: &str| {
        let of: Vec<f64> = summary
            .iter()
            .filter(|row| row["policy"] == policy)
            .map(|row| number(row, "cumulative_regret_runs"))
            .collect();
        of.iter().sum::<f64>() / 50.0
    };
    // The oracle's own runs come out around what it expects: 0 within the noise of 50 × 168 runs.
    assert!(mean("oracle").abs() < 1.0, "{}", mean("oracle"));
    assert!(mean("default") > mean("zeus") && mean("zeus") > mean("oracle"));
    let finals = summary.iter().filter(|row| row["policy"] == "default");
    assert!(
        finals
            .into_iter()
            .all(|row| number(row, "final_batch_size") == 1024.0 && number(row, "final_power_limit_w") == 250.0)
    );
}

#[test]
fn rows_come_as_table_csv_and_page_too() {
    let more = "--policy grid,zeus --seeds 1,3-4";
    let Some(table) = simulate("bandit", &format!("{CIFAR} {more}")) else { return };
    assert!(table.done().contains("v100 cifar100/shufflenetv2") && table.out.lines().count() == 3, "{}", table.out);
    let csv = simulate("bandit", &format!("{CIFAR} {more} --format csv")).expect("traces are there");
    let first = csv.done().lines().next().expect("names");
    assert_eq!(
        first,
        "policy,workload,gpu,seed,cumulative_cost,cumulative_regret_runs,final_batch_size,final_power_limit_w"
    );
    assert_eq!(csv.out.lines().count(), 1 + 2 * 3);
    // What the traces lack is told: beside the rows, or within what is more than rows.
    let lacking = CIFAR.replace("v100", "p100");
    let note = "p100 cifar100/shufflenetv2: batch sizes 4096 are left out: the power trace has no rows of them";
    let reported =
        |format: &str| simulate("bandit", &format!("{lacking} {more} --format {format}")).expect("traces are there");
    assert!(reported("table").done().ends_with(&format!("\n{note}\n")));
    assert!(reported("html").done().contains(note));
    assert_eq!(reported("json").json()["notes"], serde_json::json!([note]));
    let csv = reported("csv");
    assert!(!csv.done().contains("left out") && csv.err.contains(note), "{}", csv.err);
    let csv = simulate("bandit", &format!("{CIFAR} {more} --format csv --history --recurrences 4"))
        .expect("traces are there");
    let first = csv.done().lines().next().expect("names");
    let names = "policy,workload,gpu,seed,recurrence,batch_size,power_limit_w,reached,energy_j,time_s,cost";
    assert_eq!(first, names);
    assert!(
        csv.out.lines().nth(1).expect("a row").starts_with("grid,cifar100/shufflenetv2,v100,1,1,8,250.0,"),
        "{}",
        csv.out
    );
    let dir = tempfile::tempdir().expect("a directory");
    let page = dir.path().join("page.html");
    let html = simulate("bandit", &format!("{CIFAR} {more} --format html --output {}", page.display()))
        .expect("traces are there");
    assert_eq!(html.done(), "");
    let page = std::fs::read_to_string(page).expect("written");
    assert!(page.starts_with("<!doctype html>") && page.matches("<svg").count() == 2, "{page}");
    assert!(!page.contains("http") && !page.contains("<script") && !page.contains("NaN"), "it loads nothing");
}

#[test]
fn traces_switch_at_a_recurrence() {
    let more = "--drift-at 40 --drift-power-trace @/zeus-traces/summary_power_a40.csv --drift-target-metric 0.4 \
                --recurrences 120 --window 10 --policy default,zeus,oracle --history --format json";
    let Some(ended) = simulate("bandit", &format!("{CIFAR} {more}")) else { return };
    let report = ended.json();
    let runs = rows(&report, "history");
    let of = |policy: &'static str, late: bool| {
        let fits = move |row: &&Value| row["policy"] == policy && (row["recurrence"].as_u64() >= Some(40)) == late;
        runs.iter().filter(fits)
    };
    assert!(of("default", false).all(|run| number(run, "power_limit_w") == 250.0 && run["gpu"] == "v100"));
    assert!(of("default", true).all(|run| number(run, "power_limit_w") == 300.0 && run["gpu"] == "a40"));
    assert_eq!(of("oracle", true).filter(|run| run["reached"] == true).count(), 81);
    // Its regret is counted against the oracle of each side.
    let summary = rows(&report, "summary");
    let oracle = summary.iter().find(|row| row["policy"] == "oracle").expect("its row");
    assert!(number(oracle, "cumulative_regret_runs").abs() < 6.0, "{oracle}");
}

/// What only one of both GPUs has cannot be chosen.
#[test]
fn what_a_switch_leaves_out_is_reported() {
    let drift =
        "--drift-at 5 --drift-power-trace @/zeus-traces/summary_power_p100.csv --recurrences 9 --policy default";
    let Some(ended) = simulate("bandit", &format!("{CIFAR} {drift} --format json")) else { return };
    let note = "v100 cifar100/shufflenetv2: batch sizes 4096 are left out: the traces after the switch lack them";
    assert_eq!(rows(&ended.json(), "notes")[0], note);
    let page = simulate("bandit", &format!("{CIFAR} {drift} --format html")).expect("as before");
    assert!(page.done().contains(note), "{}", page.out);
}

#[test]
fn overlapping_submissions_make_groups() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("groups.csv");
    let line = |i: u32| {
        let (group, job) = if i.is_multiple_of(2) { ("a", "cifar100") } else { ("b", "cifar100/shufflenetv2") };
        format!("{group},{},{},{job},{}\n", 10 * i, 10 * i + 35, 1 + i % 3)
    };
    let text: String = (0..40).map(line).collect();
    std::fs::write(&path, format!("group,start,end,job,runtime_ratio\n{text}")).expect("written");
    let more = format!("--group-trace {} --history --format json", path.display());
    let Some(ended) = simulate("bandit", &format!("{CIFAR} {more}")) else { return };
    let report = ended.json();
    assert_eq!(rows(&report, "summary").len(), 5 * 2, "five policies, two groups");
    for policy in ["default", "grid", "zeus", "wattune", "oracle"] {
        for group in ["a", "b"] {
            let history = rows(&report, "history");
            let runs = history.iter().filter(|row| row["policy"] == policy && row["group"] == group);
            let mut reached: Vec<u64> =
                runs.filter(|row| row["reached"] == true).filter_map(|row| row["recurrence"].as_u64()).collect();
            reached.sort_unstable();
            assert_eq!(reached, (1..=20).collect::<Vec<_>>(), "{policy}, {group}");
        }
    }
    // Those of one group stand together in the table.
    let table =
        simulate("bandit", &format!("{CIFAR} {}", more.replace("--history --format json", ""))).expect("as before");
    let groups: Vec<&str> =
        table.done().lines().filter_map(|line| line.split(" group ").nth(1)?.split(' ').next()).collect();
    assert_eq!(groups, ["a", "a", "a", "a", "a", "b", "b", "b", "b", "b"], "{}", table.out);
    std::fs::write(&path, "group,start,end,job\na,1,2,squad\n").expect("written");
    let other = simulate("bandit", &format!("{CIFAR} {more}")).expect("as before");
    assert!(other.failed(1).contains("line 2, column job: \"squad\" is none of --workload"), "{}", other.err);
}

#[test]
fn wrong_use_is_reported_what_would_be_right() {
    let wrong = |code: i32, more: &str, says: &str| {
        let Some(ended) = simulate("bandit", &format!("{CIFAR} {more}")) else { return };
        assert!(ended.failed(code).contains(says), "{more}: {}", ended.err);
    };
    let names = wattune_lab::bandit::policy::POLICIES.iter().map(|policy| policy.name).collect::<Vec<_>>().join(", ");
    wrong(2, "--policy best", &names);
    wrong(2, "--seeds 9-1", "1-50 or 1,2,5-9");
    wrong(2, "--eta 2", "from 0 (time alone) to 1");
    wrong(2, "--beta 1", "above 1 and up to 1000000, or none");
    wrong(2, "--beta 1e7", "above 1 and up to 1000000, or none");
    wrong(2, "--beta -2", "above 1 and up to 1000000, or none");
    wrong(2, "--eta -0.1", "from 0 (time alone) to 1");
    wrong(2, "--seeds -1", "1-50 or 1,2,5-9");
    wrong(2, "--window -1", "invalid value '-1'");
    wrong(2, "--recurrences -1", "1..=1000000");
    wrong(2, "--drift-at 5", "--drift-train-trace");
    wrong(2, "--recurrences 0", "1..=1000000");
    wrong(1, "--recurrences 9 --drift-at 10 --drift-target-metric 0.4", "after the last of 9 recurrences");
    wrong(1, "--recurrences 9 --drift-at 9 --drift-target-metric -0.4", "target metric -0.4");
    let Some(ended) = simulate("bandit", &CIFAR.replace("0.6", "0.61")) else { return };
    assert!(ended.failed(1).contains("no runs of cifar100/shufflenetv2 with target metric 0.61"), "{}", ended.err);
    let ended = simulate("bandit", &CIFAR.replace("--max-epochs 100", "--max-epochs 3")).expect("as before");
    assert!(ended.failed(1).contains("the default batch size must"), "{}", ended.err);
    let twice = CIFAR.replace("power_v100.csv", "power_v100.csv,@/zeus-traces/summary_power_v100.csv");
    let ended = simulate("bandit", &twice).expect("as before");
    assert!(ended.failed(1).contains("both of a GPU v100"), "{}", ended.err);
    let twice =
        CIFAR.replace("shufflenetv2 ", "shufflenetv2,cifar100/shufflenetv2 ").replace("metric 0.6", "metric 0.5,0.6");
    let ended = simulate("bandit", &twice).expect("as before");
    assert!(ended.failed(1).contains("--workload has cifar100/shufflenetv2 twice"), "{}", ended.err);
    let ended = simulate("bandit", &CIFAR.replace("shufflenetv2 ", "shufflenetv2,squad/bert_base_uncased "))
        .expect("as before");
    assert_eq!(ended.code, Some(1), "{ended:?}");
}
