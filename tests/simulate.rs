//! `wattune simulate carbon` on the recorded traces, as it is typed.

use serde_json::Value;

use crate::support::{Ended, number, simulate, wattune};

const MISO: &str = "--power-trace @/zeus-traces/summary_power_a40.csv --workload imagenet/resnet50/128 \
                    --carbon-trace @/carbon/miso_mason_city_2022-10.csv --hours 64";

fn rows(ended: &Ended) -> Vec<Value> {
    ended.json()["rows"].as_array().expect("rows").clone()
}

fn find<'a>(rows: &'a [Value], policy: &str, budget: Option<f64>) -> &'a Value {
    let fits = |r: &&Value| r["policy"] == policy && r["budget_pct"].as_f64() == budget;
    rows.iter().find(fits).unwrap_or_else(|| panic!("no row of {policy} at {budget:?}"))
}

#[test]
fn resnet_on_miso_comes_close_to_its_bounds() {
    let more = "--max-slowdown 0.01,0.03,0.05 --policy max,static,carbon-zeus,wattune,clairvoyant --format json";
    let Some(ended) = simulate("carbon", &format!("{MISO} {more}")) else { return };
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
    let run = |cap: &str| simulate("carbon", &format!("{both} --max-slowdown 0.1 --node-cap {cap} --format json"));
    let Some(ended) = run("400") else { return };
    ended.done();
    let tight = rows(&ended);
    assert_eq!(tight.len(), 4, "two jobs, wattune and clairvoyant");
    assert!(tight.iter().all(|row| number(row, "carbon_reduction_pct") > 0.0), "{tight:?}");
    // With room for both, each is as if alone.
    let loose = rows(&run("600").expect("as before"));
    let alone = rows(
        &simulate("carbon", &format!("{MISO} --max-slowdown 0.1 --policy wattune --format json")).expect("as before"),
    );
    let carbon = |rows: &[Value]| number(find(rows, "wattune", Some(10.0)), "carbon_reduction_pct");
    assert!((carbon(&loose) - carbon(&alone)).abs() < 1e-6, "{loose:?}");
    let slower = |rows: &[Value]| rows.iter().map(|row| number(row, "time_increase_pct")).fold(0.0, f64::max);
    assert!(slower(&loose) <= 10.05 && slower(&tight) >= slower(&loose) - 0.05, "{tight:?}");
    let room = run("150").expect("as before");
    assert!(room.failed(1).contains("more than the node's cap of 150"), "{}", room.failed(1));
    let other = simulate("carbon", &format!("{both} --node-cap 400 --policy static")).expect("as before");
    assert!(other.failed(1).contains("under --node-cap only wattune and clairvoyant plan"), "{}", other.failed(1));
}

#[test]
fn a_sweep_of_ten_seconds_a_limit_costs_little() {
    let more = "--max-slowdown 0.03 --policy wattune --profiling 10 --format json";
    for (batch, least) in [("128", 14.8), ("256", 16.0)] {
        let arguments = format!("{MISO} {more}").replace("resnet50/128", &format!("resnet50/{batch}"));
        let Some(ended) = simulate("carbon", &arguments) else { return };
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
    let Some(ended) = simulate("carbon", more) else { return };
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
    let Some(table) = simulate("carbon", &format!("{MISO} {more}")) else { return };
    assert!(table.done().contains("a40 imagenet/resnet50/128"), "{}", table.out);
    let csv = simulate("carbon", &format!("{MISO} {more} --format csv")).expect("traces are there");
    let first = csv.done().lines().next().expect("names").to_owned();
    assert!(first.starts_with("policy,gpu,workload,batch_size,grid,start,budget_pct,carbon_reduction_pct,"), "{first}");
    assert_eq!(csv.out.lines().count(), 1 + 3);
    let dir = tempfile::tempdir().expect("a directory");
    let page = dir.path().join("page.html");
    let html = simulate("carbon", &format!("{MISO} {more} --format html --output {}", page.display()))
        .expect("traces are there");
    assert_eq!(html.done(), "");
    let page = std::fs::read_to_string(page).expect("written");
    assert!(page.starts_with("<!doctype html>") && page.matches("<svg").count() == 2, "{page}");
    assert!(!page.contains("http") && !page.contains("<script"), "it loads nothing");
}

/// A trace of so many hours at 100 to 300 g/kWh, and a GPU with a fast limit and one that takes four times as long.
fn short_trace(folder: &std::path::Path, hours: u32) -> String {
    let rows: String =
        (0..hours).map(|h| format!("2021-07-{:02}T{:02}:00:00Z,{}\n", 1 + h / 24, h % 24, 100 + h % 24 * 8)).collect();
    let carbon = folder.join("=grid.csv");
    std::fs::write(&carbon, format!("timestamp_utc,carbon_intensity\n{rows}")).expect("written");
    let power = folder.join("summary_power_board.csv");
    let names = "dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power";
    std::fs::write(&power, format!("{names}\nd,n,8,o,300,100,290\nd,n,8,o,200,101,190\nd,n,8,o,100,400,45\n"))
        .expect("written");
    format!("--power-trace {} --workload d/n/8 --carbon-trace {} --hours 10", power.display(), carbon.display())
}

#[test]
fn a_frontier_that_the_trace_cuts_off_leaves_a_row_without_figures_and_a_warning() {
    let folder = tempfile::tempdir().expect("a folder");
    let short = short_trace(folder.path(), 30);
    let run = |trace: &str, more: &str| {
        let arguments = format!("simulate carbon {trace} --max-slowdown 0.005,0.5 --format {more}");
        Ended::of(&mut wattune(&arguments.split_whitespace().collect::<Vec<_>>()))
    };
    let ended = run(&short, "json");
    ended.done();
    let cut = rows(&ended);
    let row = find(&cut, "carbon-zeus", Some(50.0));
    assert!(row["carbon_reduction_pct"].is_null() && row["time_increase_pct"].is_null(), "{row}");
    assert!(find(&cut, "wattune", Some(50.0))["carbon_reduction_pct"].is_number(), "the others go on");
    assert!(find(&cut, "carbon-zeus", Some(0.5))["carbon_reduction_pct"].is_number(), "within what is known");
    let warning = "no figures of carbon-zeus on d/n/8 from 2021-07-01T00:00:00Z with 50 % more time";
    assert!(ended.err.contains(warning) && ended.err.contains("begin earlier"), "{}", ended.err);
    let enough = run(&short_trace(folder.path(), 60), "json");
    enough.done();
    assert!(find(&rows(&enough), "carbon-zeus", Some(50.0))["carbon_reduction_pct"].is_number());
    assert_eq!(enough.err, "");
    let csv = run(&short_trace(folder.path(), 30), "csv");
    assert!(
        csv.done().lines().any(|line| line.starts_with("carbon-zeus,board,d/n,8,'=grid,2021-07-01T00:00:00Z,50.0,,,")),
        "{}",
        csv.out
    );
}

/// Runs `wattune simulate carbon` with these arguments, without the recorded traces.
fn run(arguments: &str) -> Ended {
    let arguments = format!("simulate carbon {arguments}");
    Ended::of(&mut wattune(&arguments.split_whitespace().collect::<Vec<_>>()))
}

/// Replaces the values of the short trace in lines that begin with one of these texts; without a value the line is left
/// out.
fn change_values(folder: &std::path::Path, lines: &[&str], value: Option<&str>) {
    let path = folder.join("=grid.csv");
    let text = std::fs::read_to_string(&path).expect("a trace");
    let changed = text.lines().filter_map(|line| match (lines.iter().any(|begin| line.starts_with(begin)), value) {
        (true, Some(value)) => Some(format!("{},{value}\n", line.split(',').next().unwrap_or_default())),
        (true, None) => None,
        (false, _) => Some(format!("{line}\n")),
    });
    std::fs::write(&path, changed.collect::<String>()).expect("written");
}

#[test]
fn a_gap_that_slow_runs_reach_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let trace = short_trace(folder.path(), 60);
    change_values(folder.path(), &["2021-07-02T06", "2021-07-02T07"], None);
    let ended = run(&format!("{trace} --max-slowdown 0.5 --format json"));
    ended.done();
    assert!(find(&rows(&ended), "carbon-zeus", Some(50.0))["carbon_reduction_pct"].is_null());
    assert!(ended.err.contains("the carbon trace has no value at 2021-07-02T06:00:00Z"), "{}", ended.err);
}

#[test]
fn a_start_at_zero_intensity_leaves_the_others_their_figures() {
    let folder = tempfile::tempdir().expect("a folder");
    let trace = short_trace(folder.path(), 60);
    let night: Vec<String> = (0..12).map(|hour| format!("2021-07-01T{hour:02}")).collect();
    change_values(folder.path(), &night.iter().map(String::as_str).collect::<Vec<_>>(), Some("0"));
    let starts = "--start 2021-07-01,2021-07-01T16:00:00Z";
    let ended = run(&format!("{trace} {starts} --max-slowdown 0.5 --policy static,wattune --format json"));
    let report = ended.json();
    for row in rows(&ended) {
        assert_eq!(row["carbon_reduction_pct"].is_null(), row["start"] == "2021-07-01T00:00:00Z", "{row}");
    }
    for mean in report["means"].as_array().expect("means") {
        assert!(mean["rows"] == 1 && mean["carbon_reduction_pct"].is_number(), "{mean}");
    }
    let warning =
        "no figures on d/n/8 from 2021-07-01T00:00:00Z: the carbon trace is zero for as long as the work takes";
    assert!(ended.err.contains(warning) && ended.err.matches("warning").count() == 1, "{}", ended.err);
}

#[test]
fn jobs_of_one_workload_on_a_node_are_told_apart() {
    let folder = tempfile::tempdir().expect("a folder");
    let trace = short_trace(folder.path(), 60).replace("d/n/8", "d/n/8,d/n/8");
    let ended = run(&format!("{trace} --max-slowdown 0.5 --node-cap 500 --policy wattune --format json"));
    let report = ended.json();
    for part in ["rows", "means"] {
        let numbers: Vec<_> = report[part].as_array().expect(part).iter().map(|of| of["job"].as_u64()).collect();
        assert_eq!(numbers, [Some(1), Some(2)], "{part}");
    }
    assert!(report["means"].as_array().expect("means").iter().all(|mean| mean["rows"] == 1), "{report}");
    let table = run(&format!("{trace} --max-slowdown 0.5 --node-cap 500 --policy wattune"));
    assert!(!table.done().contains("Means over"), "each row is one job: {}", table.out);
    assert!(table.out.contains("board d/n/8 #1") && table.out.contains("board d/n/8 #2"), "{}", table.out);
    let csv = run(&format!("{trace} --max-slowdown 0.5 --node-cap 500 --policy wattune --format csv"));
    assert!(csv.done().lines().next().is_some_and(|names| names.ends_with(",seed,job")), "{}", csv.out);
    let page = run(&format!("{trace} --max-slowdown 0.5 --node-cap 500 --policy wattune --format html"));
    assert!(page.done().contains("#1</h2>") && page.out.contains("#2</h2>"), "{}", page.out);
    assert_eq!(page.out.matches("<svg").count(), 2 * 2, "two plots a job");
    let no_room = run(&format!("{trace} --node-cap 150 --policy wattune"));
    assert_eq!(no_room.failed(1).matches("more than the node's cap of 150").count(), 1, "{}", no_room.err);
}

#[test]
fn times_at_the_end_of_the_calendar_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let trace = short_trace(folder.path(), 60);
    let start = run(&format!("{trace} --start +262142-12-31"));
    assert!(start.failed(1).contains("begin between 2021-07-01T00:00:00Z and"), "{}", start.err);
    let forecasts = folder.path().join("forecasts.csv");
    let text = "issue_date_utc,horizon_h,forecast_gco2_per_kwh\n+262142-12-31,65535,300\n";
    std::fs::write(&forecasts, text).expect("written");
    let issued = run(&format!("{trace} --forecast-trace {}", forecasts.display()));
    assert!(issued.failed(1).contains("lies outside the years 1970 to 2200"), "{}", issued.err);
}

#[test]
fn the_page_shows_limits_of_whichever_policy_there_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let trace = short_trace(folder.path(), 60);
    for (policy, shown) in
        [("static", "static"), ("max,zeus,clairvoyant", "clairvoyant"), ("wattune,clairvoyant", "wattune")]
    {
        let arguments = format!("simulate carbon {trace} --policy {policy} --format html");
        let page = Ended::of(&mut wattune(&arguments.split_whitespace().collect::<Vec<_>>()));
        assert!(
            page.done().contains(&format!("aria-label=\"Limits of {shown} with 3 % more time allowed")),
            "{}",
            page.out
        );
        assert_eq!(page.out.matches("<svg").count(), page.out.matches("aria-label=").count());
    }
}

#[test]
fn an_output_that_cannot_be_written_is_reported_before_the_work() {
    let folder = tempfile::tempdir().expect("a folder");
    let trace = short_trace(folder.path(), 12).replace("--hours 10", "--hours 100");
    let run = |output: &std::path::Path| {
        let arguments = format!("simulate carbon {trace} --output {}", output.display());
        Ended::of(&mut wattune(&arguments.split_whitespace().collect::<Vec<_>>()))
    };
    let nowhere = run(&folder.path().join("none/rows.json"));
    assert!(nowhere.failed(1).contains("--output: cannot write"), "not that the trace is too short: {}", nowhere.err);
    let output = folder.path().join("rows.json");
    assert!(run(&output).failed(1).contains("give fewer --hours"));
    assert!(!output.exists(), "nothing is left behind");
}

#[test]
fn wrong_use_is_reported_what_would_be_right() {
    let Some(ended) = simulate("carbon", &format!("{MISO} --policy best")) else { return };
    let names = wattune_lab::policy::POLICIES.iter().map(|policy| policy.name).collect::<Vec<_>>().join(", ");
    assert!(ended.failed(2).contains(&names), "{}", ended.err);
    let wrong = |more: &str| {
        let ended = simulate("carbon", &format!("{MISO} {more}")).expect("traces are there");
        ended.failed(1).to_owned()
    };
    assert!(wrong("--max-slowdown 0.5").contains("12.5 h less than the jobs may take (96.0 h)"));
    let early = wrong("--start 2022-10-19");
    assert!(early.contains("begin between 2022-10-20T06:20:00Z and 2022-10-20T23:54:48Z"), "{early}");
    let optimizer = simulate("carbon", &format!("{MISO} --optimizer sgd")).expect("traces are there");
    assert!(optimizer.failed(1).contains("adadelta"), "{}", optimizer.err);
}

/// Jobs of a day that may take two, from six starts on a grid: stopped without holding the GPU, against never stopped.
fn stopped(grid: &str, more: &str) -> Option<Vec<Value>> {
    let base = "--power-trace @/zeus-traces/summary_power_a40.csv --workload cifar100/shufflenetv2/1024 \
                --optimizer adadelta --hours 24 --max-slowdown 1 --policy wattune,clairvoyant --format json \
                --start 2021-07-20T06:00:00Z,2021-08-17,2021-09-07T12:00:00Z,2021-10-12,2021-11-16T18:00:00Z,2021-12-14";
    let traces = format!(
        "--carbon-trace @/carbon/{grid}_2021_hourly.csv --forecast-trace @/carbon/{grid}_2021H2_carboncast_dayahead.csv"
    );
    let ended = simulate("carbon", &format!("{base} {traces} {more}"))?;
    ended.done();
    Some(rows(&ended))
}

#[test]
fn stopping_without_holding_the_gpu_catches_most_of_what_can_be_caught_and_does_not_lose() {
    for (grid, least) in [("CISO", 0.8), ("DE", 0.5)] {
        let Some(without) = stopped(grid, "") else { return };
        let of = |rows: &[Value], policy: &str| -> Vec<f64> {
            rows.iter().filter(|r| r["policy"] == policy).map(|r| number(r, "carbon_reduction_pct")).collect()
        };
        let gains = |rows: &[Value], policy| -> Vec<f64> {
            of(rows, policy).iter().zip(of(&without, policy)).map(|(with, without)| with - without).collect()
        };
        let with = stopped(grid, "--suspend").expect("as before");
        let [caught, perfect] = ["wattune", "clairvoyant"].map(|policy| gains(&with, policy).iter().sum::<f64>());
        assert!(caught >= least * perfect && perfect > 10.0, "{grid}: {caught} of {perfect} points");
        assert!(with.iter().all(|row| number(row, "time_increase_pct") <= 100.05), "the latest end holds: {with:?}");
        let held = gains(&stopped(grid, "--suspend --idle-power 50").expect("as before"), "wattune");
        assert!(held.iter().all(|gain| *gain >= -0.3), "{grid}, with the GPU held: {held:?}");
    }
}

#[test]
fn costs_of_stops_need_permission_to_stop() {
    for (arguments, named) in [
        ("--restart 60", "--suspend"),
        ("--idle-power 0", "--pausable"),
        ("--suspend --pausable", "--pausable"),
        ("--suspend --restart=-1", "0 to 86400 seconds"),
    ] {
        let Some(ended) = simulate("carbon", &format!("{MISO} {arguments}")) else { return };
        let error = ended.failed(2);
        assert!(error.contains(named), "{arguments}: {error}");
    }
}
