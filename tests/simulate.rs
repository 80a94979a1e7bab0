//! `wattune simulate carbon` on the recorded traces, as it is typed.

use serde_json::Value;

use crate::support::{Ended, traces, wattune};

/// Runs it with these arguments, in which `@` stands for the folder of the traces.
fn simulate(arguments: &str) -> Option<Ended> {
    let folder = traces()?;
    let folder = folder.to_str().expect("UTF-8");
    let arguments: Vec<String> = arguments.split_whitespace().map(|a| a.replace('@', folder)).collect();
    let mut all = vec!["simulate", "carbon"];
    all.extend(arguments.iter().map(String::as_str));
    Some(Ended::of(&mut wattune(&all)))
}

const MISO: &str = "--power-trace @/zeus-traces/summary_power_a40.csv --workload imagenet/resnet50/128 \
                    --carbon-trace @/carbon/miso_mason_city_2022-10.csv --hours 64";

fn rows(ended: &Ended) -> Vec<Value> {
    ended.json()["rows"].as_array().expect("rows").clone()
}

fn number(row: &Value, field: &str) -> f64 {
    row[field].as_f64().unwrap_or_else(|| panic!("no {field} in {row}"))
}

fn find<'a>(rows: &'a [Value], policy: &str, budget: Option<f64>) -> &'a Value {
    let fits = |r: &&Value| r["policy"] == policy && r["budget_pct"].as_f64() == budget;
    rows.iter().find(fits).unwrap_or_else(|| panic!("no row of {policy} at {budget:?}"))
}

#[test]
fn resnet_on_miso_comes_close_to_its_bounds() {
    let more = "--max-slowdown 0.01,0.03,0.05 --policy max,static,carbon-zeus,wattune,clairvoyant --format json";
    let Some(ended) = simulate(&format!("{MISO} {more}")) else { return };
    ended.done();
    let rows = rows(&ended);
    assert_eq!(rows.len(), 3 * 5 + 1);
    for row in &rows {
        assert_eq!(row["gpu"], "a40");
        assert_eq!((row["workload"].as_str(), row["batch_size"].as_u64()), (Some("imagenet/resnet50"), Some(128)));
        assert_eq!(
            (row["grid"].as_str(), row["start"].as_str()),
            (Some("miso_mason_city"), Some("2022-10-20T06:20:00Z"))
        );
        let effects = number(row, "energy_effect_pct") + number(row, "timing_effect_pct");
        assert!((effects - number(row, "carbon_reduction_pct")).abs() < 1e-9, "{row}");
    }
    for (budget, bound) in [(1.0, 5.84), (3.0, 15.03), (5.0, 18.88)] {
        let carbon = |policy| number(find(&rows, policy, Some(budget)), "carbon_reduction_pct");
        assert!((carbon("clairvoyant") - bound).abs() < 0.006, "{}", carbon("clairvoyant"));
        assert!(carbon("wattune") >= carbon("static") - 0.02 && carbon("wattune") >= bound - 0.1);
        assert!(carbon("wattune") > carbon("carbon-zeus"));
        assert_eq!(carbon("max"), 0.0);
        assert!(number(find(&rows, "wattune", Some(budget)), "time_increase_pct") <= budget + 0.05);
        assert!(find(&rows, "wattune", Some(budget))["captured_headroom"].is_null(), "there is next to none");
    }
    let prototype = find(&rows, "carbon-zeus", None);
    assert!((number(prototype, "carbon_reduction_pct") - 9.97).abs() < 0.006, "{prototype}");
    assert!((number(prototype, "time_increase_pct") - 1.73).abs() < 0.006, "{prototype}");
}

#[test]
fn two_jobs_share_a_node_under_its_cap() {
    let both = MISO.replace("resnet50/128", "resnet50/128,imagenet/resnet50/256");
    let run = |cap: &str| simulate(&format!("{both} --max-slowdown 0.1 --node-cap {cap} --format json"));
    let Some(ended) = run("400") else { return };
    ended.done();
    let tight = rows(&ended);
    assert_eq!(tight.len(), 4, "two jobs, wattune and clairvoyant");
    assert!(tight.iter().all(|row| number(row, "carbon_reduction_pct") > 0.0), "{tight:?}");
    // With room for both, each is as if alone.
    let loose = rows(&run("600").expect("as before"));
    let alone =
        rows(&simulate(&format!("{MISO} --max-slowdown 0.1 --policy wattune --format json")).expect("as before"));
    let carbon = |rows: &[Value]| number(find(rows, "wattune", Some(10.0)), "carbon_reduction_pct");
    assert!((carbon(&loose) - carbon(&alone)).abs() < 1e-6, "{loose:?}");
    let slower = |rows: &[Value]| rows.iter().map(|row| number(row, "time_increase_pct")).fold(0.0, f64::max);
    assert!(slower(&loose) <= 10.05 && slower(&tight) >= slower(&loose) - 0.05, "{tight:?}");
    let room = run("150").expect("as before");
    assert!(room.failed(1).contains("more than the node's cap of 150"), "{}", room.failed(1));
    let other = simulate(&format!("{both} --node-cap 400 --policy static")).expect("as before");
    assert!(other.failed(1).contains("under --node-cap only wattune and clairvoyant plan"), "{}", other.failed(1));
}

#[test]
fn a_sweep_of_ten_seconds_a_limit_costs_little() {
    let more = "--max-slowdown 0.03 --policy wattune --profiling 10 --format json";
    for (batch, least) in [("128", 14.8), ("256", 16.0)] {
        let arguments = format!("{MISO} {more}").replace("resnet50/128", &format!("resnet50/{batch}"));
        let Some(ended) = simulate(&arguments) else { return };
        let row = rows(&ended).remove(0);
        assert!(number(&row, "carbon_reduction_pct") >= least && number(&row, "time_increase_pct") <= 3.05, "{row}");
    }
}

#[test]
fn day_ahead_forecasts_of_california_are_followed() {
    let more = "--power-trace @/zeus-traces/summary_power_v100.csv --workload imagenet/resnet50/256 \
                --carbon-trace @/carbon/CISO_2021_hourly.csv --forecast-trace @/carbon/CISO_2021H2_carboncast_dayahead.csv \
                --hours 48 --max-slowdown 0.03 --policy static,wattune,clairvoyant --format json \
                --start 2021-07-20,2021-09-03T06:00:00Z,2021-11-11";
    let Some(ended) = simulate(more) else { return };
    let report = ended.json();
    let means = report["means"].as_array().expect("means");
    let wattune = means.iter().find(|m| m["policy"] == "wattune").expect("its mean");
    assert_eq!((wattune["rows"].as_u64(), wattune["grid"].as_str()), (Some(3), Some("CISO")));
    assert!(number(wattune, "captured_headroom") > 0.8, "{wattune}");
    assert_eq!(find(report["rows"].as_array().expect("rows"), "wattune", Some(3.0))["start"], "2021-07-20T00:00:00Z");
}

#[test]
fn rows_come_as_table_csv_and_page_too() {
    let more = "--max-slowdown 0.03 --policy wattune,carbon-zeus";
    let Some(table) = simulate(&format!("{MISO} {more}")) else { return };
    assert!(table.done().contains("a40 imagenet/resnet50/128"), "{}", table.out);
    let csv = simulate(&format!("{MISO} {more} --format csv")).expect("traces are there");
    let first = csv.done().lines().next().expect("names").to_owned();
    assert!(first.starts_with("policy,gpu,workload,batch_size,grid,start,budget_pct,carbon_reduction_pct,"), "{first}");
    assert_eq!(csv.out.lines().count(), 1 + 3);
    let dir = tempfile::tempdir().expect("a directory");
    let page = dir.path().join("page.html");
    let html = simulate(&format!("{MISO} {more} --format html --output {}", page.display())).expect("traces are there");
    assert_eq!(html.done(), "");
    let page = std::fs::read_to_string(page).expect("written");
    assert!(page.starts_with("<!doctype html>") && page.matches("<svg").count() == 2, "{page}");
    assert!(!page.contains("http") && !page.contains("<script"), "it loads nothing");
}

#[test]
fn wrong_use_is_told_what_would_be_right() {
    let Some(ended) = simulate(&format!("{MISO} --policy best")) else { return };
    assert!(ended.failed(2).contains("max, static, zeus, carbon-zeus, wattune, clairvoyant"), "{}", ended.err);
    let wrong = |more: &str| {
        let ended = simulate(&format!("{MISO} {more}")).expect("traces are there");
        ended.failed(1).to_owned()
    };
    assert!(wrong("--max-slowdown 0.5").contains("12.5 h less than the jobs may take (96.0 h)"));
    let early = wrong("--start 2022-10-19");
    assert!(early.contains("begin between 2022-10-20T06:20:00Z and 2022-10-20T23:54:48Z"), "{early}");
    let optimizer = simulate(&format!("{MISO} --optimizer sgd")).expect("traces are there");
    assert!(optimizer.failed(1).contains("adadelta"), "{}", optimizer.err);
}
