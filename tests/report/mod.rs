//! `wattune report` and what it reads: the ledger of a state directory, without a daemon.

mod sample;
mod savings;

use std::path::Path;

use chrono::TimeDelta;
use rusqlite::Connection;
use serde_json::{Value, json};
use wattune::store::{Checkpoint, Store};
use wattune_core::domain::{Continuation, JobId};
use wattune_core::ledger::Share;
use wattune_core::units::{GramsCo2e, Millijoules, Samples};

use crate::support::{Ended, wattune};

use sample::*;
pub(crate) use sample::{KWH, keep, ledger, outcome, report};

const DAY: [&str; 4] = ["--from", "2026-03-01", "--to", "2026-03-01"];

fn as_json(dir: &Path, arguments: &[&str]) -> Value {
    report(dir, &[&DAY[..], &["--format", "json"], arguments].concat()).json()
}

#[tokio::test]
async fn a_small_report_is_as_it_should_be() {
    let dir = ledger().await;
    let table = report(dir.path(), &[&DAY[..], &["--by", "name", "--functional-unit", "run"]].concat());
    insta::assert_snapshot!(table.done().replace(env!("CARGO_PKG_VERSION"), "VERSION"), @r"
    2026-03-01 00:00 to 2026-03-02 00:00 UTC, by name

    row                kWh    ±%   gCO2e  g/kWh    state  final %  unknown %  estimated %  marginal g  facility kWh  facility g     SCI g
    =bert|<b>       0.5000   5.0       –      –  unknown      0.0      100.0          0.0           –         0.750           –         –
    resnet50        3.1000   5.0  875.00  282.3    mixed     35.5        0.0          0.0     770.000         4.650    1312.500  1312.500
    (idle)          0.0000   5.0    0.00      –    mixed      0.0       12.5          0.0           –         0.000       0.000         –
    (unattributed)  0.3750  10.0       –      –  unknown      0.0      100.0        100.0           –         0.562           –         –
    -------------------------------------------------------------------------------------------------------------------------------------
    total           3.9750   5.5  875.00  282.3    mixed     27.7       22.0          9.4     770.000         5.963    1312.500  1312.500

    Emissions are location-based, by average intensities; final 3960000 J (27.7 %), provisional 7200000 J (50.3 %), forecast 0 J (0.0 %), unknown 3150000 J (22.0 %).
    Boundary: metered: GPUs, processor packages; node factor: not declared (1); PUE: 1.5 (annual report, 2026-01-01). Embodied: not declared.
    Completeness: 4 of 24 hour(s) have energy; jobs + idle + unattributed equals the counters' increase, to the millijoule; 1 gap(s) with 1350000 J, filled from the counters; 1800000 J not settled yet.
    Saved, compared with the original limit: unknown of 2 job(s); not part of the emissions above.
    Version: 9 settlements (computed emissions of an hour), at most 2 of one hour; last computed again: 2026-03-01 02:30:00Z; an hour's emissions changed 1 time(s) by more than 5 %.
    Intensities: average: energy_charts DE (lifecycle) (2 h); average: none (2 h); marginal: none (3 h); marginal: watttime DE (lifecycle) (1 h).
    wattune VERSION, method 1, settings cde0fb0dec1400c5, node node-1.
    SCI: per run, 1 job(s).
    ");
    let hours = ["--from", "2026-03-01T02:00:00Z", "--to", "2026-03-01T04:00:00Z"];
    let running = report(dir.path(), &hours);
    let note = "Saved, compared with the original limit: unknown, as none of 1 job(s) has ended; not part";
    assert!(running.done().contains(note), "{}", running.done());
}

#[tokio::test]
async fn all_groupings_of_a_stored_ledger_add_up_to_the_same() {
    let dir = ledger().await;
    let all = KWH + KWH / 10 + 2 * KWH + 7 + KWH / 4 + KWH / 8 + 1 + KWH / 2;
    // 1.1 kWh at 250 g and 2 kWh (and 7 mJ) at 300 g; of the rest nothing is known.
    let carbon = 1.1 * 250.0 + 2.0 * 300.0 + 7.0 / KWH as f64 * 300.0;
    for by in ["job", "name", "gpu", "tag:team", "day", "month"] {
        let found = as_json(dir.path(), &["--by", by]);
        let rows = found["rows"].as_array().expect("rows");
        let sum = |field: &str| rows.iter().map(|row| row[field].as_f64().unwrap_or(0.0)).sum::<f64>();
        for (field, expected) in [("energy_j", all as f64 / 1e3), ("carbon_g", carbon)] {
            let total = found["total"][field].as_f64().expect("known");
            assert!((total - expected).abs() < 1e-5, "{by}: {field} is {total}, not {expected}");
            assert!((sum(field) - expected).abs() < 1e-5, "{by}: {field} sums to {}", sum(field));
        }
        let kwh = found["total"]["energy_kwh"].as_f64().expect("known");
        assert!((kwh - all as f64 / KWH as f64).abs() < 1e-12);
        assert_eq!(found["total"]["marginal_carbon_g"], 770.0, "a book of its own");
        let facility = found["total"]["facility_carbon_g"].as_f64().expect("known");
        assert!((facility - 1.5 * carbon).abs() < 1e-5);
        assert_eq!(found["total"]["market_based_carbon_g"], Value::Null);
        assert_eq!(found["completeness"]["unsettled_j"], (KWH / 2) as f64 / 1e3);
    }
    let by_job = as_json(dir.path(), &["--by", "tag:team"]);
    let keys: Vec<&str> =
        by_job["rows"].as_array().expect("rows").iter().map(|r| r["key"].as_str().expect("a key")).collect();
    assert_eq!(keys, ["vision", "(none)", "(idle)", "(unattributed)"]);
    // Half of the gap: hours are the grain.
    let part =
        report(dir.path(), &["--from", "2026-03-01T03:10:00Z", "--to", "2026-03-01T03:20:00Z", "--format", "json"]);
    let part = part.json();
    assert_eq!((&part["from"], &part["to"]), (&"2026-03-01T03:00:00Z".into(), &"2026-03-01T04:00:00Z".into()));
    assert_eq!(part["total"]["energy_j"], (KWH / 8 + 1 + KWH / 2) as f64 / 1e3);
}

#[tokio::test]
async fn a_report_says_what_an_auditor_asks() {
    let dir = ledger().await;
    let found = as_json(dir.path(), &["--by", "job", "--functional-unit", "1e6-samples"]);
    let devices = found["completeness"]["devices"].as_array().expect("devices");
    for d in devices {
        let number = |field: &str| d[field].as_i64().expect("a number");
        let recorded = number("jobs_mj") + number("idle_mj") + number("unattributed_mj");
        assert_eq!(recorded, number("counter_mj") + number("integrated_mj"), "{d}");
    }
    assert_eq!(devices.len(), 2);
    let gaps = found["completeness"]["gaps"].as_array().expect("gaps");
    assert_eq!(gaps.len(), 1, "cut at the full hour, and one all the same: {gaps:?}");
    assert_eq!((&gaps[0]["from"], &gaps[0]["to"]), (&"2026-03-01T02:30:00Z".into(), &"2026-03-01T03:15:00Z".into()));
    let version = &found["version"];
    assert_eq!((&version["highest"], &version["resettled_hours"]), (&2.into(), &1.into()), "{version}");
    let restated = &version["restatements"][0];
    assert_eq!((&restated["before_g"], &restated["after_g"]), (&220.0.into(), &275.0.into()), "{version}");
    assert_eq!(version["last_restated_at"], "2026-03-01T02:30:00Z");
    let first = &found["rows"][1];
    assert_eq!((&first["key"], &first["state"]), (&"resnet50".into(), &"mixed".into()), "{first}");
    let share = 100.0 * 1.1 / 3.1;
    assert!((first["final_pct"].as_f64().expect("known") - share).abs() < 1e-9, "{first}");
    // (1.1 · 250 + 2 · 300) g × 1.5 for two million samples.
    assert_eq!(first["sci_g_per_unit"], 875.0 * 1.5 / 2.0);
    assert_eq!((&found["embodied"], &first["embodied_g"]), (&Value::Null, &Value::Null));
    assert_eq!(found["terms"][0]["pue_date"], "2026-01-01");
    assert!(found["method"]["boundary"].as_str().expect("reported").contains("PUE: 1.5 (annual report, 2026-01-01)"));
    let unended = &found["rows"][0];
    assert_eq!((&unended["sci_g_per_unit"], &unended["carbon_g"]), (&Value::Null, &Value::Null), "{unended}");
    assert_eq!(unended["state"], "unknown");
}

#[tokio::test]
async fn all_formats_say_the_same_and_names_are_no_markup() {
    let dir = ledger().await;
    let reported = as_json(dir.path(), &["--by", "name"]);
    let csv = report(dir.path(), &[&DAY[..], &["--by", "name", "--format", "csv"]].concat());
    let mut reader = csv::Reader::from_reader(csv.done().as_bytes());
    let rows: Vec<std::collections::BTreeMap<String, String>> =
        reader.deserialize().collect::<Result<_, _>>().expect("CSV");
    let from_json = reported["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), from_json.len());
    for (csv, json) in rows.iter().zip(from_json) {
        for (name, value) in json.as_object().expect("a row") {
            match value {
                Value::Number(number) => assert_eq!(csv[name].parse().ok(), number.as_f64(), "{name}"),
                Value::Null => assert_eq!(csv[name], "", "{name}"),
                Value::String(text) if name != "key" => assert_eq!(&csv[name], text),
                _ => {}
            }
        }
    }
    assert_eq!(rows[0]["key"], "'=bert|<b>", "no formula");
    let output = dir.path().join("report.html");
    let html = [&DAY[..], &["--by", "name", "--format", "html", "--output", output.to_str().expect("UTF-8")]].concat();
    report(dir.path(), &html).done();
    let page = std::fs::read_to_string(&output).expect("written");
    assert!(page.contains("=bert|&lt;b&gt;") && !page.contains("=bert|<b>"));
    for foreign in ["http://", "https://", "<script", "@import", "url("] {
        assert!(!page.contains(foreign), "nothing is loaded: {foreign}");
    }
    assert!(page.contains("@media print") && page.contains("<svg "));
    let days = report(dir.path(), &[&DAY[..], &["--by", "day", "--format", "html"]].concat());
    assert!(days.done().contains("<polyline") && !days.done().contains("NaN"));
    let markdown = report(dir.path(), &[&DAY[..], &["--by", "name", "--format", "markdown"]].concat());
    assert!(markdown.done().contains("=bert\\|&lt;b>"), "{}", markdown.done());
    let columns: Vec<usize> = markdown
        .done()
        .lines()
        .filter(|l| l.starts_with('|'))
        .map(|l| l.replace("\\|", "").matches('|').count())
        .collect();
    assert!(columns.windows(2).all(|w| w[0] == w[1]), "{columns:?}");
}

#[tokio::test]
async fn an_export_is_checked_without_a_daemon_and_a_change_is_named() {
    let dir = ledger().await;
    let verified = report(dir.path(), &["verify"]);
    let head = verified.done().lines().find_map(|l| l.strip_prefix("head ")).expect("a digest").to_owned();
    let file = dir.path().join("ledger.jsonl");
    let path = file.to_str().expect("UTF-8");
    report(dir.path(), &["export", "--output", path]).done();
    let again = Ended::of(&mut wattune(&["report", "verify", path, "--format", "json"]));
    assert_eq!((&again.json()["in_order"], &again.json()["head"]), (&true.into(), &head.as_str().into()));
    let text = std::fs::read_to_string(&file).expect("written");
    let line = text.lines().position(|l| l.contains("\"interval\"")).expect("an interval");
    let place = text.lines().take(line).map(|l| l.len() + 1).sum::<usize>() + 120;
    let mut bytes = text.into_bytes();
    bytes[place] ^= 1;
    std::fs::write(&file, bytes).expect("written");
    let broken = Ended::of(&mut wattune(&["report", "verify", path]));
    assert_eq!(broken.code, Some(1));
    assert!(broken.out.contains(&format!("line {}", line + 1)), "{}", broken.out);
    std::fs::write(&file, report(dir.path(), &["export"]).done().replace('\n', "\r\n")).expect("written");
    let broken = Ended::of(&mut wattune(&["report", "verify", path]));
    assert!(broken.out.contains("line 1: ends with a carriage return"), "{}", broken.out);
    let missing = Ended::of(&mut wattune(&["report", "verify", "/nonexistent/ledger.jsonl"]));
    assert!(missing.failed(1).contains("/nonexistent/ledger.jsonl"));
}

#[tokio::test]
async fn a_correction_moves_energy_and_the_ledger_still_verifies() {
    let dir = ledger().await;
    let whole = ["--from", "2026-03-01T02:00:00Z", "--to", "2026-03-01T04:00:00Z"];
    let correct = |more: &[&str]| report(dir.path(), &[&["correct"], &whole[..], more].concat());
    let said = ["--who", "ada", "--why", "the job's client was not running"];
    // Only what lies within, to the second: the first half of the gap begins at 02:30.
    let within = ["correct", "--from", "2026-03-01T02:30:01Z", "--to", "2026-03-01T03:00:00Z"];
    let none = report(dir.path(), &[&within[..], &["--of", "unattributed", "--give-to", "job:b"], &said[..]].concat());
    assert!(none.failed(1).contains("no recorded interval of the energy to be corrected lies within"), "{none:?}");
    let done = correct(&[&["--of", "unattributed", "--give-to", "job:b"], &said[..]].concat());
    let reported = done.done();
    assert!(reported.contains("2 intervals with 1350000.000 J of GPU-"), "{reported}");
    assert!(
        reported
            .contains(" between 2026-03-01T02:00:00Z and 2026-03-01T04:00:00Z, in 2 hour(s); emissions computed again"),
        "{reported}"
    );
    let after = as_json(dir.path(), &["--by", "job"]);
    let rows = after["rows"].as_array().expect("rows");
    assert!(rows.iter().all(|row| row["kind"] != "unattributed"), "{rows:#?}");
    let b = rows.iter().find(|row| row["job_id"] == "b").expect("its row");
    assert_eq!(b["energy_j"], (KWH / 2 + KWH / 4 + KWH / 8) as f64 / 1e3);
    report(dir.path(), &["verify"]).done();
    let export = report(dir.path(), &["export"]);
    assert!(export.done().contains("\"who\":\"ada\""), "the correction is an entry");
    let made = &after["corrections"][0];
    assert_eq!((&made["who"], &made["why"]), (&"ada".into(), &"the job's client was not running".into()));
    assert_eq!((&made["of"], &made["given_to"]), (&"unattributed".into(), &"job:b".into()));
    assert_eq!((&made["intervals"], &made["energy_j"]), (&2.into(), &1_350_000.0.into()));
    for format in ["table", "markdown", "html"] {
        let reported = report(dir.path(), &[&DAY[..], &["--format", format]].concat());
        for part in ["ada", "the job's client was not running", "unattributed", "job:b"] {
            let reported = reported.done().replace("&#39;", "'");
            assert!(reported.contains(part), "{format}: {part}: {reported}");
        }
    }
    let half = ["--from", "2026-03-01T03:00:00Z", "--to", "2026-03-01T04:00:00Z", "--format", "json"];
    let half = report(dir.path(), &half).json();
    assert_eq!(half["corrections"][0]["energy_j"], (KWH / 8) as f64 / 1e3, "of the span's intervals");
    let before = ["--from", "2026-03-01T00:00:00Z", "--to", "2026-03-01T01:00:00Z", "--format", "json"];
    assert_eq!(report(dir.path(), &before).json()["corrections"], json!([]), "of other hours");

    let again = correct(&[&["--of", "unattributed", "--give-to", "idle"], &said[..]].concat());
    assert!(again.failed(1).contains("no recorded interval of the energy"), "{again:?}");
    let nowhere = correct(&[&["--device", "GPU-9", "--of", "idle", "--give-to", "job:b"], &said[..]].concat());
    assert!(
        nowhere.failed(1).contains("no closed block has energy of device GPU-9; known devices: GPU-0"),
        "{nowhere:?}"
    );
    let nobody = correct(&[&["--of", "idle", "--give-to", "job:c"], &said[..]].concat());
    assert!(nobody.failed(1).contains("there is no job c"), "{nobody:?}");
    let senseless = correct(&[&["--of", "nobody", "--give-to", "idle"], &said[..]].concat());
    assert!(senseless.failed(2).contains("job:ID, idle or unattributed"), "{senseless:?}");
    let store = Store::open(dir.path()).await.expect("opens");
    store.roll_up(1000, 1000, at(30.0)).await.expect("rolled up");
    store.close().await;
    let gone = correct(&[&["--of", "idle", "--give-to", "job:b"], &said[..]].concat());
    assert!(gone.failed(1).contains("rolled up"), "{gone:?}");
    // Rolled up, all figures are what they were.
    let rolled = as_json(dir.path(), &["--by", "job"]);
    assert_eq!(rolled["total"], after["total"]);
    let gaps = rolled["completeness"]["gaps"].as_array().expect("gaps");
    assert_eq!(gaps.len(), 1, "as hours");
    assert!(gaps[0]["filled"].as_str().is_some_and(|said| said.contains("minutes were rolled up")), "{gaps:#?}");
    assert_eq!(after["completeness"]["gaps"][0]["filled"], "the counter's increase, spread evenly over the time");
    report(dir.path(), &["verify"]).done();
}

#[tokio::test]
async fn a_badge_has_the_figures_with_their_state() {
    let dir = ledger().await;
    let svg = dir.path().join("badge.svg");
    let badge = report(dir.path(), &["badge", "--name", "resnet50", "--svg", svg.to_str().expect("UTF-8")]);
    let summary = badge.done();
    assert!(summary.contains("3.1000 kWh") && summary.contains("875.0 g CO2e"), "{summary}");
    assert!(summary.contains("mixed (final 35 %, provisional 65 %"), "{summary}");
    assert!(summary.contains("not declared") && summary.contains("method 1"), "{summary}");
    let svg = std::fs::read_to_string(&svg).expect("written");
    assert!(svg.starts_with("<svg ") && svg.contains("3.10 kWh · 875.0 g CO2e (mixed)"), "{svg}");
    let none = report(dir.path(), &["badge", "--job", "nobody"]);
    assert!(none.failed(1).contains("no energy of nobody"), "{none:?}");
    assert!(report(dir.path(), &["badge"]).failed(2).contains("--job"));
}

#[tokio::test]
async fn every_part_of_a_job_has_the_badge_of_all_of_it() {
    let dir = ledger().await;
    let store = Store::open(dir.path()).await.expect("opens");
    let mut part = stored("c", "resnet50", Some("vision"), 3.5, Some(4.0));
    part.spec.offers.continues = Some(Continuation {
        job: JobId::new("a").expect("an id"),
        asked_at: at(0.0),
        done: Samples::ZERO,
        emitted: GramsCo2e::ZERO,
        first: None,
    });
    store.save_job(&part).await.expect("saved");
    store.append(&[row("GPU-0", job("c"), 3.8, 3.9, KWH)], &[]).await.expect("written");
    store.close().await;
    let badge = |id: &str| report(dir.path(), &["badge", "--job", id]).done().to_owned();
    let (first, second) = (badge("a"), badge("c"));
    assert_eq!(first, second);
    assert!(first.contains("4.1000 kWh") && first.contains("with 2 parts"), "{first}");
    assert!(!badge("b").contains("parts"), "one that was not continued");
}

#[tokio::test]
async fn savings_are_those_of_the_newest_outcome_and_say_of_how_many_jobs() {
    let dir = ledger().await;
    let store = Store::open(dir.path()).await.expect("opens");
    store.save_job(&stored("c", "resnet50", Some("vision"), 0.5, Some(1.5))).await.expect("saved");
    // Against the maximum usable limit, and an older version: neither counts.
    store.append_entry(&outcome("a", 1, json!(700.0))).await.expect("noted");
    store.append_entry(&outcome("a", 2, json!(120.5))).await.expect("noted");
    store.append_entry(&outcome("c", 1, json!({ "unknown": "another job was on its boards" }))).await.expect("noted");
    store.append(&[row("GPU-0", job("c"), 3.8, 3.9, KWH)], &[]).await.expect("written");
    store.close().await;
    for (by, key, jobs) in [
        ("name", "resnet50", 2),
        ("tag:team", "vision", 2),
        ("gpu", "GPU-0", 3),
        ("day", "2026-03-01", 2),
        ("month", "2026-03", 2),
    ] {
        let found = as_json(dir.path(), &["--by", by]);
        let rows = found["rows"].as_array().expect("rows");
        let row = rows.iter().find(|row| row["key"] == key).unwrap_or_else(|| panic!("no {key}: {rows:#?}"));
        for (row, jobs) in [(row, jobs), (&found["total"], 3)] {
            let reported =
                ["saved_low_g", "saved_g", "saved_high_g", "saved_of_jobs", "jobs"].map(|field| row[field].clone());
            assert_eq!(reported, [json!(110.5), json!(120.5), json!(140.5), json!(1), json!(jobs)], "by {by}: {row}");
        }
    }
    let by_job = as_json(dir.path(), &["--by", "job"]);
    let of = |id: &str| {
        let rows = by_job["rows"].as_array().expect("rows");
        let row = rows.iter().find(|row| row["job_id"] == id).expect("a row");
        (row["saved_g"].clone(), row["saved_of_jobs"].clone())
    };
    assert_eq!(
        (of("a"), of("c"), of("b")),
        ((json!(120.5), json!(1)), (Value::Null, json!(0)), (Value::Null, json!(0)))
    );

    let names = ["--by", "name"];
    let table = report(dir.path(), &[&DAY[..], &names].concat());
    assert!(table.done().contains("saved g (jobs)") && table.done().contains("120.500 (1 of 2)"), "{}", table.done());
    let note = "Saved, compared with the original limit: 120.50 g (110.50 g to 140.50 g), known of 1 of 3 jobs";
    assert!(table.done().contains(note), "{}", table.done());
    let markdown = report(dir.path(), &[&DAY[..], &names, &["--format", "markdown"]].concat());
    assert!(markdown.done().contains("| 120.500 (1 of 2) |"), "{}", markdown.done());
    let html = report(dir.path(), &[&DAY[..], &names, &["--format", "html"]].concat());
    assert!(html.done().contains("<td>120.50 <small>1 of 2 jobs</small>"), "{}", html.done());
    assert!(html.done().contains("120.50 g (110.50 g to 140.50 g), known of 1 of 3 jobs"), "{}", html.done());
    let csv = report(dir.path(), &[&DAY[..], &names, &["--format", "csv"]].concat());
    assert!(csv.done().lines().any(|line| line.contains(",110.5,120.5,140.5,1,")), "{}", csv.done());
    // A badge has no room to say that it is of one of two runs.
    let elsewhere = tempfile::tempdir().expect("a directory");
    let svg = elsewhere.path().join("badge.svg");
    let badge = |what: &[&str]| {
        let arguments = [&["badge"], what, &["--svg", svg.to_str().expect("UTF-8")]].concat();
        let reported = report(dir.path(), &arguments).done().to_owned();
        (reported, std::fs::read_to_string(&svg).expect("written"))
    };
    let (summary, svg_of_both) = badge(&["--name", "resnet50"]);
    assert!(summary.contains("120.5 g (110.5 g to 140.5 g), known of 1 of 2 jobs"), "{summary}");
    assert!(!svg_of_both.contains("saved"), "{svg_of_both}");
    let (summary, svg_of_one) = badge(&["--job", "a"]);
    assert!(summary.contains("| 120.5 g (110.5 g to 140.5 g) |"), "{summary}");
    assert!(svg_of_one.contains(" · 120.5 g saved"), "{svg_of_one}");
    // The job's end lies in no other report.
    let later =
        report(dir.path(), &["--from", "2026-03-01T02:00:00Z", "--to", "2026-03-02", "--format", "json"]).json();
    assert_eq!(later["total"]["saved_g"], Value::Null, "{later:#}");
    // What was reckoned before energy was taken from the job is not what it saved.
    let said = ["--of", "job:a", "--give-to", "idle", "--who", "ada", "--why", "not its own"];
    let span = ["--from", "2026-03-01T00:00:00Z", "--to", "2026-03-01T02:00:00Z"];
    report(dir.path(), &[&["correct"], &span[..], &said].concat()).done();
    let corrected = as_json(dir.path(), &["--by", "job"]);
    let total = &corrected["total"];
    assert_eq!((&total["saved_g"], &total["saved_of_jobs"]), (&Value::Null, &json!(0)), "{total:#}");
}

#[tokio::test]
async fn names_are_reported_from_rows_that_are_of_none_and_devices_by_their_kind() {
    let dir = ledger().await;
    let store = Store::open(dir.path()).await.expect("opens");
    store.save_job(&stored("c", "(idle)", Some("total"), 3.0, Some(4.0))).await.expect("saved");
    store.append(&[row("GPU-0", job("c"), 3.8, 3.9, KWH)], &[]).await.expect("written");
    store.close().await;
    for (by, quoted) in [("name", "\"(idle)\""), ("tag:team", "\"total\"")] {
        for format in ["table", "markdown", "html"] {
            let reported = report(dir.path(), &[&DAY[..], &["--by", by, "--format", format]].concat());
            let reported = reported.done().replace("&quot;", "\"");
            assert!(reported.contains(quoted), "{by}, {format}: {reported}");
        }
    }
    let devices = as_json(dir.path(), &["--by", "gpu"]);
    let rows = devices["rows"].as_array().expect("rows");
    let kinds: Vec<(&Value, &Value)> = rows.iter().map(|row| (&row["key"], &row["kind"])).collect();
    assert_eq!(kinds, [(&json!("GPU-0"), &json!("gpu")), (&json!("cpu:package-0"), &json!("cpu"))]);
}

#[tokio::test]
async fn what_is_not_there_is_said_and_nothing_is_made() {
    let dir = tempfile::tempdir().expect("a directory");
    let none = report(dir.path(), &[]);
    assert!(none.failed(1).contains("there is no database at"), "{none:?}");
    assert_eq!(std::fs::read_dir(dir.path()).expect("readable").count(), 0, "nothing was made");
    for (arguments, reported) in [
        (&["--by", "colour"][..], "tag:KEY"),
        (&["--by", "tag:"], "tag:KEY"),
        (&["--from", "yesterday"], "2026-01-31"),
        (&["--to", "2400-01-01"], "is not between 1970-01-01 and 2370-"),
        (&["--from", "2026-03-02", "--to", "2026-03-01"], "not before the end"),
        (&["--samples-per-epoch", "100"], "epoch"),
        (&["--functional-unit", "epoch", "--samples-per-epoch", "0"], "at least 1"),
    ] {
        let dir = ledger().await;
        let refused = report(dir.path(), arguments);
        assert!(refused.failed(2).contains(reported), "{refused:?}");
    }
    let dir = ledger().await;
    let leap = ["--from", "2016-12-31T23:59:60Z", "--to", "2017-01-01T00:00:00Z", "--format", "json"];
    let leap = report(dir.path(), &leap).json();
    assert_eq!((&leap["from"], &leap["to"]), (&"2016-12-31T23:00:00Z".into(), &"2017-01-01T00:00:00Z".into()));
    let before = report(dir.path(), &["--from", "2020-01-01", "--to", "2020-01-02", "--format", "csv"]);
    assert_eq!(before.done().lines().count(), 1, "the names: {}", before.done());
    let text = report(dir.path(), &["--from", "2020-01-01", "--to", "2020-01-02"]);
    assert!(text.done().contains("total"), "{}", text.done());
    assert!(text.done().contains("there is nothing to compare with counters"), "{}", text.done());

    let path = dir.path().join("wattune.db");
    Connection::open(&path).expect("opens").pragma_update(None, "user_version", 9999).expect("changed");
    let newer = report(dir.path(), &[]);
    assert!(newer.failed(1).contains("a newer wattune"), "{newer:?}");
    std::fs::write(&path, b"no database at all, and long enough to be looked at as one").expect("written");
    assert!(report(dir.path(), &[]).failed(1).contains("wattune.db"), "no panic");
}

#[tokio::test]
async fn a_ledger_can_be_read_while_somebody_writes_it() {
    let dir = ledger().await;
    let store = Store::open(dir.path()).await.expect("opens");
    let more = row("GPU-0", Share::Idle, 3.75, 4.0, 5);
    let point = Checkpoint {
        device: more.device.clone(),
        counter: Millijoules::new(KWH * 10),
        at: more.slot.end() + TimeDelta::seconds(1),
        read_from: None,
        holders: Vec::new(),
        rebased_mj: 0,
        estimated: Millijoules::ZERO,
    };
    store.append(&[more], &[point]).await.expect("written");
    let found = as_json(dir.path(), &["--by", "gpu"]);
    assert_eq!(found["completeness"]["unsettled_j"], (KWH / 2 + 5) as f64 / 1e3);
    store.close().await;
}
