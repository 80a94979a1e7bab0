//! The ledger over HTTP: reports and the ledger, as the command line tells them of the same state.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::Value;
use wattune::store::Store;

use crate::nvml::gpu;
use crate::report::{KWH, keep, outcome};
use crate::support::{Daemon, Ended, FakeDriver, LONG, eventually, wattune};

/// What the ledger hold, in millijoules.
const ALL: u64 = KWH + KWH / 10 + 2 * KWH + 7 + KWH / 4 + KWH / 8 + 1 + KWH / 2;
const SPAN: &str = "from=2026-03-01&to=2026-03-01";

/// A daemon over a ledger of four hours; what it records itself lies months later.
struct Kept {
    daemon: Daemon,
    state: tempfile::TempDir,
    _driver: FakeDriver,
}

impl Kept {
    /// Minutes of so long ago are kept.
    async fn new() -> Self {
        Self::with("keep_intervals_days = 36525").await
    }

    async fn with(ledger: &str) -> Self {
        let (state, driver) = (tempfile::tempdir().expect("a directory"), FakeDriver::new(&[gpu()]));
        keep(state.path()).await;
        let store = Store::open(state.path()).await.expect("opens");
        store.append_entry(&outcome("a", 1, 120.5.into())).await.expect("noted");
        // Forty days on which a daemon ran since.
        let march: DateTime<Utc> = "2026-03-02T00:00:00Z".parse().expect("a time");
        for day in 0..40 {
            store.begin_day(march + TimeDelta::days(day)).await.expect("noted");
        }
        store.close().await;
        let settings = format!("{}[ledger]\n{ledger}\n", Daemon::QUICK);
        let daemon = Daemon::start(Daemon::command_set(&driver, state.path(), &settings), state.path()).await;
        Self { daemon, state, _driver: driver }
    }

    async fn get(&self, path: &str) -> Value {
        self.daemon.get(path).await.expect(200)
    }

    fn report(&self, arguments: &[&str]) -> Ended {
        let mut command = wattune(&["report"]);
        command.args(arguments).arg("--state-dir").arg(self.state.path());
        Ended::of(&mut command)
    }

    /// What both say, of a moment at which the daemon wrote nothing in between.
    async fn both(&self, query: &str, arguments: &[&str]) -> (String, String) {
        for _ in 0..50 {
            let path = format!("/v1/report?{query}");
            let before = self.daemon.get(&path).await;
            assert_eq!(before.status, 200, "{}", before.text);
            let reported = self.report(arguments).done().to_owned();
            if timeless(&self.daemon.get(&path).await.text) == timeless(&before.text) {
                return (timeless(&before.text), timeless(&reported));
            }
        }
        panic!("the daemon never stops to write about a time long ago");
    }
}

/// Without the moment at which it was made, and white space of JSON.
fn timeless(text: &str) -> String {
    if let Ok(mut value) = serde_json::from_str::<Value>(text) {
        value.as_object_mut().expect("an object").remove("made_at").expect("told when");
        return value.to_string();
    }
    let (before, after) = text.split_once("method 1, 20").unwrap_or((text, ""));
    format!("{before}{}", after.split_once('Z').map_or(after, |(_, rest)| rest))
}

#[tokio::test]
async fn reports_are_those_of_the_command_line_whatever_they_are_asked() {
    let kept = Kept::new().await;
    let day = ["--from", "2026-03-01", "--to", "2026-03-01"];
    for by in ["job", "name", "gpu", "tag:team", "day", "month"] {
        let query = format!("{SPAN}&by={}", by.replace(':', "%3A"));
        let (http, cli) = kept.both(&query, &[&day[..], &["--by", by, "--format", "json"]].concat()).await;
        assert_eq!(http, cli, "by {by}");
        let reported: Value = serde_json::from_str(&http).expect("JSON");
        assert_eq!(reported["by"], by);
        let sum: f64 =
            reported["rows"].as_array().expect("rows").iter().filter_map(|row| row["energy_j"].as_f64()).sum();
        assert!((sum - ALL as f64 / 1e3).abs() < 1e-6, "by {by}: {sum} J");
        assert_eq!(
            (&reported["total"]["saved_g"], &reported["total"]["saved_of_jobs"]),
            (&120.5.into(), &1.into()),
            "by {by}"
        );
    }
    // Spans, units and thresholds.
    for (query, arguments) in [
        (
            "from=2026-03-01T01:20:00Z&to=2026-03-01T02:40:00Z",
            &["--from", "2026-03-01T01:20:00Z", "--to", "2026-03-01T02:40:00Z"][..],
        ),
        (
            "from=2026-03-01T02:00:00%2B02:00&to=2026-03-02",
            &["--from", "2026-03-01T02:00:00+02:00", "--to", "2026-03-02"],
        ),
        ("to=2026-03-20", &["--to", "2026-03-20"]),
        ("from=1999-12-31&to=2000-01-01", &["--from", "1999-12-31", "--to", "2000-01-01"]),
        (
            "from=2026-03-01&to=2026-03-01&functional_unit=epoch&samples_per_epoch=100000&restated_by_pct=0",
            &[
                "--from",
                "2026-03-01",
                "--to",
                "2026-03-01",
                "--functional-unit",
                "epoch",
                "--samples-per-epoch",
                "100000",
                "--restated-by",
                "0",
            ],
        ),
        (
            "from=2026-03-01&to=2026-03-01&functional_unit=run",
            &["--from", "2026-03-01", "--to", "2026-03-01", "--functional-unit", "run"],
        ),
    ] {
        let (http, cli) = kept.both(query, &[arguments, &["--format", "json"]].concat()).await;
        assert_eq!(http, cli, "{query}");
    }
    let part = kept.get("/v1/report?from=2026-03-01T01:20:00Z&to=2026-03-01T02:40:00Z").await;
    assert_eq!((&part["from"], &part["to"]), (&"2026-03-01T01:00:00Z".into(), &"2026-03-01T03:00:00Z".into()));
    // Hours 1 and 2: two kWh, seven millijoules and the first part of the gap.
    assert_eq!(part["total"]["energy_j"], (2 * KWH + 7 + KWH / 4) as f64 / 1e3);
    let empty = kept.get("/v1/report?from=1999-12-31&to=2000-01-01").await;
    assert_eq!((&empty["rows"], &empty["total"]["energy_j"]), (&Value::Array(Vec::new()), &0.0.into()));
}

#[tokio::test]
async fn formats_have_their_media_types_and_say_the_same() {
    let kept = Kept::new().await;
    let day = ["--from", "2026-03-01", "--to", "2026-03-01", "--by", "name"];
    for (format, media_type) in
        [("json", "application/json"), ("csv", "text/csv; charset=utf-8"), ("html", "text/html; charset=utf-8")]
    {
        let query = format!("{SPAN}&by=name&format={format}");
        let answer = kept.daemon.get(&format!("/v1/report?{query}")).await;
        assert_eq!((answer.status, answer.content_type.as_str()), (200, media_type));
        let (http, cli) = kept.both(&query, &[&day[..], &["--format", format]].concat()).await;
        assert_eq!(http, cli, "as {format}");
        let whole = format!("{}/v1/report?{query}", kept.daemon.base());
        let answer = kept.daemon.client().get(whole).send().await.expect("answered");
        let policy = answer.headers().get("content-security-policy").map(|p| p.to_str().expect("text").to_owned());
        assert_eq!(policy.is_some_and(|p| p.starts_with("default-src 'none'")), format == "html", "{format}");
    }
    let json = kept.get(&format!("/v1/report?{SPAN}&by=name")).await;
    let csv = kept.daemon.get(&format!("/v1/report?{SPAN}&by=name&format=csv")).await.text;
    let rows: Vec<BTreeMap<String, String>> =
        csv::Reader::from_reader(csv.as_bytes()).deserialize().collect::<Result<_, _>>().expect("CSV");
    let reported = json["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), reported.len());
    for (row, reported) in rows.iter().zip(reported) {
        assert_eq!(row["energy_j"].parse().ok(), reported["energy_j"].as_f64(), "{row:?}");
        assert_eq!(row["saved_g"].parse().ok(), reported["saved_g"].as_f64(), "{row:?}");
    }
    let page = kept.daemon.get(&format!("/v1/report?{SPAN}&by=name&format=html")).await.text;
    assert!(page.contains("120.50 g (110.50 g to 140.50 g)") && !page.contains("<script"), "{page}");
}

#[tokio::test]
async fn the_ledger_comes_in_pages_that_are_those_of_an_export_which_verifies() {
    let kept = Kept::new().await;
    let whole = kept.get(&format!("/v1/ledger?{SPAN}&limit=10000")).await;
    assert_eq!((&whole["from"], &whole["to"]), (&"2026-03-01T00:00:00Z".into(), &"2026-03-02T00:00:00Z".into()));
    let all = whole["intervals"].as_array().expect("intervals").clone();
    assert_eq!((all.len(), &whole["next_after"]), (8, &Value::Null));
    let (mut paged, mut after, mut pages) = (Vec::new(), Value::Null, 0);
    loop {
        let more = if after.is_null() { String::new() } else { format!("&after={after}") };
        let page = kept.get(&format!("/v1/ledger?{SPAN}&limit=3{more}")).await;
        let entries = page["entries"].as_array().expect("entries");
        // Settlements come with the first page, all versions of each hour.
        if after.is_null() {
            assert_eq!(page["entries"], whole["entries"]);
        } else {
            assert!(entries.is_empty(), "{entries:?}");
        }
        paged.extend(page["intervals"].as_array().expect("intervals").clone());
        (after, pages) = (page["next_after"].clone(), pages + 1);
        if after.is_null() {
            break;
        }
    }
    assert_eq!((paged, pages), (all.clone(), 3));

    let file = kept.state.path().join("ledger.jsonl");
    let path = file.to_str().expect("UTF-8");
    kept.report(&["export", "--output", path]).done();
    let verified = Ended::of(&mut wattune(&["report", "verify", path, "--format", "json"])).json();
    assert_eq!(verified["in_order"], true, "{verified}");
    let text = std::fs::read_to_string(&file).expect("written");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let found = |key: &str, number: &Value| {
        let line = lines.iter().find(|line| line[key] == *number);
        line.unwrap_or_else(|| panic!("no {key} {number} in the export")).clone()
    };
    for row in &all {
        let line = found("row", &row["row"]);
        assert_eq!((&line["hash"], &line["block"]), (&row["hash"], &row["block"]), "{row}");
        for field in ["device", "start", "end", "energy_mj", "source", "uncertainty_pct"] {
            assert_eq!(line["interval"][field], row[field], "{row}");
        }
    }
    let entries = whole["entries"].as_array().expect("entries");
    assert!(entries.iter().filter(|e| e["entry"]["kind"] == "settlement").count() >= 8, "{entries:#?}");
    for entry in entries {
        let line = found("seq", &entry["seq"]);
        assert_eq!((&line["hash"], &line["entry"]), (&entry["hash"], &entry["entry"]), "{entry}");
    }
}

#[tokio::test]
async fn hours_that_were_rolled_up_come_as_sums_with_all_their_energy() {
    let kept = Kept::with("keep_intervals_days = 35").await;
    let page = eventually("a roll-up", LONG, async || {
        let page = kept.get(&format!("/v1/ledger?{SPAN}")).await;
        page["intervals"].as_array()?.len().le(&1).then_some(page)
    })
    .await;
    let sum = |key: &str| -> u64 {
        let rows = page[key].as_array().expect("rows").iter();
        rows.map(|row| row["energy_mj"].as_u64().expect("mJ")).sum()
    };
    assert_eq!(sum("rolled_up") + sum("intervals"), ALL);
    let report = kept.get(&format!("/v1/report?{SPAN}")).await;
    assert_eq!(report["total"]["energy_j"], ALL as f64 / 1e3);
    let gaps = report["completeness"]["gaps"].as_array().expect("gaps");
    assert_eq!((gaps.len(), &gaps[0]["energy_j"]), (1, &((KWH / 4 + KWH / 8) as f64 / 1e3).into()), "{gaps:#?}");
    assert!(kept.report(&["verify"]).done().contains("is valid"));
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_with_what_would_be_right() {
    let kept = Kept::new().await;
    for (path, field, right) in [
        ("/v1/report?by=cow", Some("by"), "expected job, name, gpu, day, month, or tag:KEY"),
        ("/v1/report?by=tag:", Some("by"), "tag:KEY"),
        ("/v1/report?by=", Some("by"), "expected job, name, gpu"),
        ("/v1/report?from=yesterday", Some("from"), "write it as 2026-01-31 or 2026-01-31T12:00:00Z"),
        ("/v1/report?to=2026-02-30", Some("to"), "write it as"),
        ("/v1/report?to=1969-12-30", Some("to"), "is not between 1970-01-01 and"),
        ("/v1/report?to=%2B262142-12-31", Some("to"), "is not between 1970-01-01 and"),
        ("/v1/ledger?to=%2B262142-12-31", Some("to"), "is not between 1970-01-01 and"),
        ("/v1/report?from=2026-03-02&to=2026-03-01", Some("from"), "is not before the end, 2026-03-02T00:00Z"),
        ("/v1/report?from=2026-03-01T00:30:00Z&to=2026-03-01T00:30:00Z", Some("from"), "the end, 2026-03-01T00:30:00Z"),
        ("/v1/report?format=pdf", Some("format"), "unknown variant `pdf`, expected one of `json`, `csv`, `html`"),
        ("/v1/report?functional_unit=cow", Some("functional_unit"), "give run, epoch or 1e6-samples"),
        ("/v1/report?samples_per_epoch=5", Some("samples_per_epoch"), "needs functional_unit=epoch"),
        ("/v1/report?functional_unit=epoch&samples_per_epoch=0", Some("samples_per_epoch"), "must be at least 1"),
        ("/v1/report?functional_unit=epoch&samples_per_epoch=NaN", Some("samples_per_epoch"), "must be at least 1"),
        ("/v1/report?restated_by_pct=-1", Some("restated_by_pct"), "from 0 to 1000000 percent"),
        ("/v1/report?colour=red", Some("colour"), "unknown field `colour`, expected one of `by`"),
        ("/v1/ledger?from=2026-03-01&to=2026-03-08", Some("from"), "request one week at a time"),
        ("/v1/ledger?limit=0", Some("limit"), "from 1 to 10000"),
        ("/v1/ledger?limit=10001", Some("limit"), "from 1 to 10000"),
        ("/v1/ledger?limit=ten", Some("limit"), "limit"),
        ("/v1/ledger?after=18446744073709551615", Some("after"), "use next_after of the previous page"),
        ("/v1/ledger?after=-1", Some("after"), "after"),
        ("/v1/ledger?by=job", Some("by"), "unknown field `by`"),
    ] {
        let problem = kept.daemon.get(path).await.problem(422);
        let detail = problem["detail"].as_str().expect("words");
        assert!(detail.contains(right), "{path}: {detail}");
        assert_eq!(problem["field"].as_str(), field, "{path}: {problem}");
    }
    // A week is not too long.
    kept.get("/v1/ledger?from=2026-03-01&to=2026-03-07").await;
    for path in ["/v1/report", "/v1/ledger"] {
        kept.daemon.delete(path).await.problem(405);
    }
}
