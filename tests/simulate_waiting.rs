//! `wattune simulate carbon --within` on the recorded traces, as it is typed.

use serde_json::Value;

use crate::support::{Ended, number, simulate, wattune};

const DE: &str = "--carbon-trace @/carbon/DE_2021_hourly.csv --forecast-trace @/carbon/DE_2021H2_carboncast_96h.csv";

fn mean<'a>(report: &'a Value, policy: &str, duration_h: f64) -> &'a Value {
    let means = report["means"].as_array().expect("means");
    let fits = |m: &&Value| m["policy"] == policy && m["duration_h"].as_f64() == Some(duration_h);
    means.iter().find(fits).unwrap_or_else(|| panic!("no mean of {policy} at {duration_h} h"))
}

#[test]
fn waiting_on_de_saves_most_of_what_perfect_foresight_saves() {
    let days = "--submit-from 2021-09-01 --submit-until 2021-09-20 --submit-every 7h";
    let Some(ended) = simulate("carbon", &format!("{DE} --hours 1,8 --within 24 {days} --format json")) else { return };
    ended.done();
    let report = ended.json();
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 69 * 2 * 7, "submissions, durations, policies");
    for row in rows {
        assert!(number(row, "carbon_reduction_pct") <= number(row, "best_reduction_pct") + 1e-9, "{row}");
        assert!((0.0..=24.0).contains(&number(row, "waited_h")), "{row}");
    }
    for duration in [1.0, 8.0] {
        let of = |policy| number(mean(&report, policy, duration), "carbon_reduction_pct");
        assert!(of("when") > 0.75 * of("clairvoyant"), "{}", mean(&report, "when", duration));
        assert!(of("when") > of("two-oclock") && of("when") > of("quantile") && of("now") == 0.0);
        assert!(of("clairvoyant") > 10.0, "the grid varies");
        assert!(number(mean(&report, "when", duration), "losing_over_2_pct") < 8.0);
    }
    let bins = report["calibration"].as_array().expect("bins");
    let stated: u64 = bins.iter().map(|bin| bin["submissions"].as_u64().expect("a count")).sum();
    assert_eq!(stated, 69 * 2, "each submission, also one that starts at once");
}

#[test]
fn perfect_forecasts_leave_only_gains_too_small_to_wait_for() {
    let one = "--submit-from 2021-10-03 --submit-until 2021-10-06 --submit-every 5 --policy when";
    let Some(ended) =
        simulate("carbon", &format!("{DE} --hours 3 --within 12h {one} --forecast perfect --format json"))
    else {
        return;
    };
    ended.done();
    for row in ended.json()["rows"].as_array().expect("rows") {
        assert!(number(row, "carbon_reduction_pct") >= number(row, "best_reduction_pct") - 2.0, "{row}");
    }
}

#[test]
fn tables_and_csv_have_the_same_rows() {
    let few = "--submit-from 2021-10-03 --submit-until 2021-10-03 --submit-every 12 --policy now,cats,clairvoyant";
    let run = |format: &str| simulate("carbon", &format!("{DE} --hours 2 --within 6 {few} --format {format}"));
    let Some(table) = run("table") else { return };
    table.done();
    assert!(table.out.starts_with("Means over 2 submissions"), "{}", table.out);
    assert_eq!(table.out.matches("cats").count(), 1, "{}", table.out);
    let csv = run("csv").expect("as before");
    csv.done();
    assert_eq!(csv.out.lines().count(), 1 + 2 * 3, "{}", csv.out);
    assert!(csv.out.starts_with("policy,grid,duration_h,within_h,submitted_at,start,"), "{}", csv.out);
}

#[test]
fn submissions_after_the_end_of_the_forecasts_are_left_out() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, column: &str, days: u32| {
        let hour = |h: u32| format!("2021-07-{:02}T{:02}:00:00Z,{}\n", 1 + h / 24, h % 24, 200 + h % 24 * 8);
        let path = folder.path().join(name);
        let rows: String = (0..24 * days).map(hour).collect();
        std::fs::write(&path, format!("timestamp,{column}\n{rows}")).expect("written");
        path.display().to_string()
    };
    let (actual, forecast) = (file("grid.csv", "carbon_intensity", 10), file("said.csv", "forecast", 5));
    let run = |more: &str| {
        let traces = format!("--carbon-trace {actual} --forecast-trace {forecast}");
        let arguments = format!("simulate carbon {traces} --hours 1 --within 2 --submit-every 6 --format json {more}");
        Ended::of(&mut wattune(&arguments.split_whitespace().collect::<Vec<_>>()))
    };
    let ended = run("--policy now");
    let times: Vec<String> = ended.json()["rows"]
        .as_array()
        .expect("rows")
        .iter()
        .map(|row| row["submitted_at"].as_str().expect("a time").to_owned())
        .collect();
    assert_eq!(times.len(), 5 * 4);
    assert!(times.iter().all(|at| at.as_str() < "2021-07-06"), "{times:?}");
    let warning = "20 submissions are left out, the first at 2021-07-06T00:00:00Z: the forecasts have ended by then";
    assert!(ended.err.contains(warning), "{}", ended.err);
    let late = run("--policy now --submit-from 2021-07-06");
    assert!(late.failed(1).contains("--submit-from 2021-07-06T00:00:00Z: the forecasts end at"), "{}", late.err);
    let without = run("--policy now --submit-from 2021-07-06 --forecast none");
    assert_eq!((without.json()["rows"].as_array().map(Vec::len), without.err.as_str()), (Some(20), ""));
}

#[test]
fn wrong_combinations_say_what_would_be_right() {
    let refused = |arguments: &str, expected: &str| {
        let Some(ended) = simulate("carbon", arguments) else { return };
        assert_ne!(ended.code, Some(0), "{arguments}");
        assert!(ended.err.contains(expected), "{arguments}: {}", ended.err);
    };
    refused(&format!("{DE} --within 24 --submit-from 2022-05-01"), "--submit-from");
    refused(&format!("{DE} --within 24 --policy static"), "no policy \"static\" chooses starts");
    refused(&format!("{DE} --within 24 --format html"), "use table, json or csv");
    refused(&format!("{DE} --within 24 --starts 3"), "--starts");
    refused(DE, "--power-trace");
    refused(&format!("{DE} --within 0"), "0.01 to 8784 hours");
}
