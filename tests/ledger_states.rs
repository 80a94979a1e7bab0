//! What settlements rest on: whose values are joined, what generated ones are worth, and what a kill leaves behind.

use std::collections::BTreeMap;
use std::time::Duration;

use rusqlite::Connection;
use serde_json::{Value, json};
use wattune::controller::{Controller, NewJob};
use wattune::providers::{FeedState, Ranks, SourceState};
use wattune_core::domain::{Intensity, JobId, Origin, SignalKind, SignalScope, Slot};
use wattune_core::ledger::report::{Grouping, ReportRequest};
use wattune_core::units::GramsPerKwh;

use crate::ledger::{FINAL_AFTER_H, FORECAST, Node, STEPS_AN_HOUR, Source, at, forecast, half_hours};
use crate::ledger::{newest, published, reproduce, verify};
use crate::nvml::gpu;
use crate::support::{self, Daemon, Ended, FakeDriver, eventually, wattune};

fn value(grams: f64, origin: Origin) -> Option<Intensity> {
    Some(Intensity { value: GramsPerKwh::new(grams), origin })
}

#[tokio::test]
async fn sources_that_do_not_say_what_they_mean_are_not_joined() {
    for (kind, scope, joined) in [
        (SignalKind::Unspecified, SignalScope::Lifecycle, false),
        (SignalKind::Average, SignalScope::Unspecified, false),
        (SignalKind::Average, SignalScope::Lifecycle, true),
    ] {
        let node = Node::new();
        // The first expects 400 and never tells what came; the second tells 100, in the same words.
        let says = |hour: i64| {
            let now = at(hour);
            let of = |name: &'static str, came: bool| {
                let source = Source(name);
                let actual = half_hours(0, 2 * hour, |_| value(100.0, Origin::Measured).filter(|_| came));
                let reported = forecast(&source, hour, Origin::Forecast, actual);
                let reported = wattune_core::domain::Forecast { kind, scope, ..reported };
                SourceState::starting(&source, usize::from(came), None, at(0)).answered(reported.into(), now, 0.5, 4.0)
            };
            let (first, second) = (of("first", false), of("second", true));
            let state = FeedState::starting(vec![first.clone(), second.clone()], at(0));
            state.with(0, first, &Ranks::default(), now).with(1, second, &Ranks::default(), now)
        };
        node.feed.send_replace(says(0));
        let mut controller = node.controller().await;
        controller.tick().await;
        for hour in 0..2 {
            for step in 0..STEPS_AN_HOUR {
                node.pass(step);
                if step + 1 == STEPS_AN_HOUR {
                    node.feed.send_replace(says(hour + 1));
                }
                controller.tick().await;
            }
        }
        let settled = newest(&controller.store(), 0).await;
        let used: Vec<(&str, f64)> = settled.factors.iter().map(|f| (&*f.source, f.g_per_kwh.get())).collect();
        let expected = if joined { ("second", 100.0) } else { ("first", FORECAST) };
        assert_eq!(used, [expected; 2], "{kind:?}, {scope:?}");
        controller.shut_down().await;
    }
}

#[tokio::test]
async fn generated_values_stand_as_reported_and_are_never_final_and_reports_say_so() {
    let mut node = Node::new();
    let came = |_, _| value(250.0, Origin::Synthetic);
    node.say_of(0, came, Origin::Synthetic);
    let mut controller = node.controller().await;
    controller.tick().await;
    let hours = FINAL_AFTER_H + 3;
    for hour in 0..hours {
        for step in 0..STEPS_AN_HOUR {
            node.pass(step);
            if step + 1 == STEPS_AN_HOUR {
                node.say_of(hour + 1, came, Origin::Synthetic);
            }
            controller.tick().await;
        }
    }
    let store = controller.store();
    for hour in 0..hours {
        let settled = newest(&store, hour).await;
        for factor in &settled.factors {
            let reported = json!([factor.g_per_kwh.get(), factor.origin, factor.state]);
            assert_eq!(reported, json!([250.0, "synthetic", "provisional"]), "hour {hour}: {settled:#?}");
        }
        assert_eq!(settled.total().state(), "provisional");
    }
    let span = Slot::new(at(0), at(hours)).expect("from < to");
    let wanted = ReportRequest { by: Grouping::Day, span, unit: None, restated_by_pct: 5.0, now: at(hours) };
    let report = store.report(wanted).await.expect("read");
    assert!(report.data.synthetic, "{:?}", report.data.sources);
    assert_eq!(report.total.total.state(), "provisional");
    controller.shut_down().await;
    let arguments = ["report", "--from", "2026-01-01", "--to", "2026-01-01", "--state-dir"];
    let mut command = wattune(&arguments);
    let table = Ended::of(command.arg(node.state.path()));
    assert!(table.done().contains("from a generator, not a real grid's"), "{}", table.done());
    assert!(table.done().contains("late DE (lifecycle, synthetic: of no real grid)"), "{}", table.done());
}

#[tokio::test]
async fn a_kill_between_the_close_of_an_hour_and_its_settlement_settles_it_once() {
    let mut node = Node::new();
    node.say(0, published);
    let mut controller = node.controller().await;
    controller.tick().await;
    for hour in 0..2 {
        node.hour(&mut controller, hour).await;
    }
    // The third hour ends, its block is closed, and the daemon is killed before it settles anything.
    for step in 0..STEPS_AN_HOUR - 1 {
        node.pass(step);
        controller.tick().await;
    }
    node.pass(STEPS_AN_HOUR - 1);
    let store = controller.store();
    let close = store.close_block(at(3)).await.expect("closed").expect("rows");
    let of_hour = |hour: i64| -> u64 {
        close.cells.iter().filter(|cell| cell.hour == at(hour)).map(|cell| cell.energy_mj.get()).sum()
    };
    assert!(of_hour(2) > 0, "{close:#?}");
    assert_eq!(store.settlements_of(at(2)).await.expect("read"), []);
    assert_eq!(store.due_hours().await.expect("read").len(), 1);
    drop((store, controller));
    verify(&node.export().await).expect("in order after the kill");

    node.say(3, published);
    let mut kept = BTreeMap::new();
    for round in 0..3 {
        let mut controller = node.controller().await;
        for _ in 0..3 {
            controller.tick().await;
        }
        let store = controller.store();
        for hour in 0..3 {
            let versions = store.settlements_of(at(hour)).await.expect("read");
            assert!(!versions.is_empty(), "hour {hour} in round {round}");
            assert_eq!(kept.entry(hour).or_insert_with(|| versions.clone()), &versions, "hour {hour}, round {round}");
        }
        assert_eq!(kept[&2].len(), 1, "{:#?}", kept[&2]);
        assert_eq!(store.due_hours().await.expect("read"), []);
        // What was closed before the kill, and the minutes that nobody watched.
        let settled: u64 = kept[&2][0].total().energy.get();
        assert!(settled > of_hour(2) && settled < of_hour(2) + 310 * 280_000, "{settled} mJ");
        drop((store, controller));
    }
    let text = node.export().await;
    assert_eq!(verify(&text).expect("in order").differences, []);
    reproduce(&text, 0);
    let lines = String::from_utf8(text).expect("text");
    let entries: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let energy = |rows: &mut dyn Iterator<Item = &Value>| -> u64 { rows.map(|v| v.as_u64().expect("mJ")).sum() };
    let third = |row: &&Value| {
        let start = row["interval"]["start"].as_str().unwrap_or_default();
        ("2026-01-01T02".."2026-01-01T03").contains(&start)
    };
    let recorded = energy(&mut entries.iter().filter(third).map(|row| &row["interval"]["energy_mj"]));
    assert_eq!(recorded, kept[&2][0].total().energy.get(), "nothing lost and nothing twice");
}

/// Starts a daemon, and waits until it has recorded the energy of two GPUs.
async fn recording(driver: &FakeDriver, state: &std::path::Path, settings: &str) -> Daemon {
    let daemon = Daemon::start(Daemon::command_set(driver, state, settings), state).await;
    eventually("recorded energy", Duration::from_secs(30), async || {
        let recorded = daemon.get("/v1/status").await.expect(200)["ledger"]["recorded"].clone();
        (recorded.as_array()?.len() >= 2).then_some(())
    })
    .await;
    daemon
}

#[tokio::test]
async fn a_counter_reset_while_nobody_looks_is_a_gap_with_its_time_and_no_energy() {
    let driver = FakeDriver::new(&[gpu(), gpu()]);
    let state = tempfile::tempdir().expect("a directory");
    let settings = "[control]\ntick_s = 0.05\ninterval_s = 1\n";
    let daemon = recording(&driver, state.path(), settings).await;
    assert_eq!(daemon.get("/v1/status").await.expect(200)["ledger"]["unknown_gaps"], 0);
    let job =
        daemon.register(&json!({"name": "on", "gpus": [0], "lease_s": 600, "objective": {"max_slowdown": 0.03}})).await;
    let progress = format!("/v1/jobs/{job}/progress");
    daemon.post(&progress, &json!({"samples": 0})).await.expect(200);
    // What a job said last is written with the intervals.
    tokio::time::sleep(Duration::from_secs(3)).await;
    daemon.kill();
    // Both GPUs go on; the first one's counter starts again.
    driver.set(0, json!({"energy_resets": 1}));
    let before = verify(&crate::ledger::export(state.path()).await).expect("in order");
    let daemon = Daemon::start(Daemon::command_set(&driver, state.path(), settings), state.path()).await;
    let report = eventually("a report of the gaps", Duration::from_secs(30), async || {
        let report = daemon.get("/v1/report?by=gpu").await.expect(200);
        let gaps = report["completeness"]["gaps"].as_array()?;
        let of = |gpu: usize| gaps.iter().any(|gap| gap["device"] == FakeDriver::uuid(gpu));
        (of(0) && of(1)).then_some(report)
    })
    .await;
    // No hour is settled yet, and there is energy all the same.
    assert!(report["completeness"]["hours_with_energy"].as_u64() >= Some(1), "{report:#}");
    daemon.post(&progress, &json!({"samples": 1000})).await.expect(200);
    let account = daemon.delete(&format!("/v1/jobs/{job}")).await.expect(200);
    let why = account["savings"]["against_max"]["unknown"].as_str().expect("words");
    assert!(why.contains("its counter was reset while it was not read"), "{account:#}");
    let gaps = report["completeness"]["gaps"].as_array().expect("gaps");
    let unknown: Vec<&Value> = gaps.iter().filter(|gap| gap["energy_j"].is_null()).collect();
    assert_eq!(unknown.len(), 1, "{gaps:#?}");
    assert_eq!(unknown[0]["device"], FakeDriver::uuid(0));
    let filled = unknown[0]["filled"].as_str().expect("words");
    assert!(filled.starts_with("not filled: its counter was reset"), "{filled}");
    assert!(unknown[0]["from"].as_str() < unknown[0]["to"].as_str(), "{gaps:#?}");
    let status = daemon.get("/v1/status").await.expect(200);
    assert_eq!(status["ledger"]["unknown_gaps"], 1);
    let metrics = daemon.get("/metrics").await.text;
    assert!(metrics.contains("\nwattune_ledger_unknown_gaps_total 1"), "{metrics}");
    // A third daemon finds nothing new of that, and still shows it.
    assert!(daemon.stop("TERM").await.success());
    let daemon = Daemon::start(Daemon::command_set(&driver, state.path(), settings), state.path()).await;
    let ledger = eventually("the gaps of the day", Duration::from_secs(30), async || {
        let ledger = daemon.get("/v1/status").await.expect(200)["ledger"].clone();
        (ledger["gaps_last_day"].as_u64()? > 0).then_some(ledger)
    })
    .await;
    assert_eq!((&ledger["unknown_gaps"], &ledger["unknown_gaps_last_day"]), (&json!(0), &json!(1)), "{ledger}");
    let metrics = daemon.get("/metrics").await.text;
    assert!(metrics.contains("\nwattune_ledger_gaps_last_day{energy=\"unknown\"} 1"), "{metrics}");
    assert!(daemon.stop("TERM").await.success());
    let found = verify(&crate::ledger::export(state.path()).await).expect("in order");
    assert!(found.entries > before.entries && found.differences.is_empty(), "{found:?}");
    let table = Ended::of(wattune(&["report", "--state-dir"]).arg(state.path()));
    let expected = "1 gap(s) with unknown energy, which is in no figure here";
    assert!(table.done().contains(expected), "{}", table.done());
}

#[tokio::test]
async fn a_reboot_resets_a_counter_that_shows_more_than_before() {
    let driver = FakeDriver::new(&[gpu(), gpu()]);
    let state = tempfile::tempdir().expect("a directory");
    let settings = "[control]\ntick_s = 0.05\ninterval_s = 1\n";
    let daemon = recording(&driver, state.path(), settings).await;
    assert!(daemon.stop("TERM").await.success());
    // The machine restarts, and the counters pass their old readings before the next daemon starts.
    let db = Connection::open(state.path().join("wattune.db")).expect("opens");
    let renamed = "UPDATE last_seen SET line = json_set(line, '$.boot_id', 'an-earlier-boot')";
    assert_eq!(db.execute(renamed, []).expect("written"), 1);
    drop(db);
    driver.jump_counter(0, 1000);
    let since_boot = driver.counter_j(0);
    let daemon = Daemon::start(Daemon::command_set(&driver, state.path(), settings), state.path()).await;
    let gaps = eventually("a report of the gaps", Duration::from_secs(30), async || {
        let report = daemon.get("/v1/report?by=gpu").await.expect(200);
        let gaps = report["completeness"]["gaps"].as_array()?.clone();
        let of = |gpu: usize| {
            let of_gpu = gaps.iter().filter(|gap| gap["device"] == FakeDriver::uuid(gpu));
            let (unknown, known): (Vec<&Value>, Vec<&Value>) = of_gpu.partition(|gap| gap["energy_j"].is_null());
            !unknown.is_empty() && !known.is_empty()
        };
        (of(0) && of(1)).then_some(gaps)
    })
    .await;
    let (unknown, known): (Vec<&Value>, Vec<&Value>) = gaps.iter().partition(|gap| gap["energy_j"].is_null());
    assert_eq!((unknown.len(), known.len()), (2, 2), "{gaps:#?}");
    for gap in unknown {
        assert!(gap["filled"].as_str().expect("words").starts_with("not filled: its counter was reset"), "{gap}");
    }
    // All that the counter shows was used since the restart, not only what it shows beyond the old reading.
    let of_first = known.into_iter().find(|gap| gap["device"] == FakeDriver::uuid(0)).expect("a gap");
    let energy = of_first["energy_j"].as_f64().expect("joules");
    assert!((since_boot - 50.0..=driver.counter_j(0)).contains(&energy), "{energy} J, {since_boot} J at the start");
    assert_eq!(daemon.get("/v1/status").await.expect(200)["ledger"]["unknown_gaps"], 2);
    assert!(daemon.stop("TERM").await.success());
    assert_eq!(verify(&crate::ledger::export(state.path()).await).expect("in order").differences, []);
}

#[tokio::test]
async fn a_gpu_without_a_counter_that_nobody_watched_has_a_gap_and_its_job_no_score() {
    let driver = FakeDriver::new(&[json!({"energy_supported": false}), gpu()]);
    let state = tempfile::tempdir().expect("a directory");
    let settings = "[control]\ntick_s = 0.05\ninterval_s = 1\n";
    let daemon = Daemon::start(Daemon::command_set(&driver, state.path(), settings), state.path()).await;
    let mut jobs = Vec::new();
    for gpu in [0, 1] {
        let job =
            json!({"name": format!("on {gpu}"), "gpus": [gpu], "lease_s": 600, "objective": {"max_slowdown": 0.03}});
        jobs.push(daemon.register(&job).await);
    }
    for job in &jobs {
        daemon.post(&format!("/v1/jobs/{job}/progress"), &json!({"samples": 1})).await.expect(200);
    }
    // What a job said last is written with the intervals.
    tokio::time::sleep(Duration::from_secs(3)).await;
    daemon.kill();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let daemon = Daemon::start(Daemon::command_set(&driver, state.path(), settings), state.path()).await;
    for job in &jobs {
        daemon.post(&format!("/v1/jobs/{job}/progress"), &json!({"samples": 1000})).await.expect(200);
        daemon.delete(&format!("/v1/jobs/{job}")).await.expect(200);
    }
    let report = daemon.get("/v1/report?by=name&functional_unit=run").await.expect(200);
    let unknown: Vec<&Value> = report["completeness"]["gaps"]
        .as_array()
        .expect("gaps")
        .iter()
        .filter(|gap| gap["energy_j"].is_null())
        .collect();
    assert_eq!(unknown.len(), 1, "{report:#}");
    assert_eq!(unknown[0]["device"], FakeDriver::uuid(0));
    assert!(unknown[0]["filled"].as_str().expect("words").contains("has no energy counter"), "{report:#}");
    let of = |name: &str| report["rows"].as_array()?.iter().find(|row| row["key"] == name).cloned();
    let (without, with) = (of("on 0").expect("a row"), of("on 1").expect("a row"));
    assert_eq!(without["sci_g_per_unit"], Value::Null, "{report:#}");
    assert!(without["sci_note"].as_str().expect("words").contains("is unknown for part of the time"), "{report:#}");
    assert_ne!(with["sci_g_per_unit"], Value::Null, "{report:#}");
    assert!(daemon.stop("TERM").await.success());
    assert_eq!(verify(&crate::ledger::export(state.path()).await).expect("in order").differences, []);
}

fn observed() -> NewJob {
    NewJob { control: false, ..support::job("late", 0.03) }
}

/// What a running job shows of itself, after it was held against its account and against the ledger.
async fn figure(controller: &mut Controller, id: &JobId, hours: i64) -> f64 {
    let shown = controller.jobs()[0].carbon_g.expect("intensities are known");
    let account = controller.account_of(id).await.expect("runs").carbon_g.expect("intensities are known");
    assert!((shown / account - 1.0).abs() < 1e-9, "{shown} {account} after {hours} hours");
    let rows = controller.store().intervals_of(id).await.expect("read");
    let grams = |row: &wattune_core::ledger::Interval| {
        let half = (row.slot.start() - at(0)).num_minutes() / 30;
        let reported = published(half, hours).map_or(FORECAST, |reported| reported.value.get());
        row.energy.to_joules().get() / 3.6e6 * reported
    };
    let expected: f64 = rows.iter().map(grams).sum();
    assert!((shown / expected - 1.0).abs() < 1e-6, "{shown} {expected} after {hours} hours");
    shown
}

#[tokio::test]
async fn a_running_job_has_one_figure_wherever_it_is_asked_for_and_keeps_it_over_a_restart() {
    let mut node = Node::new();
    node.say(0, published);
    let mut controller = node.controller().await;
    controller.tick().await;
    let id = JobId::new(controller.register(observed()).await.expect("free").job_id).expect("an id");
    let mut before = 0.0;
    for hour in 0..14 {
        node.hour(&mut controller, hour).await;
        before = figure(&mut controller, &id, hour + 1).await;
    }
    // What is told is less than what was expected as it was recorded.
    let as_recorded = controller.jobs()[0].energy_j.expect("recorded") / 3.6e6 * FORECAST;
    assert!(before < 0.9 * as_recorded, "nothing was counted anew: {before} of {as_recorded}");
    controller.shut_down().await;
    let mut controller = node.controller().await;
    let energy = controller.jobs()[0].energy_j.expect("recorded");
    assert!(energy > 0.0, "what an earlier daemon recorded is there before the first tick");
    controller.tick().await;
    let now = figure(&mut controller, &id, 14).await;
    assert!((now / before - 1.0).abs() < 1e-6, "{now} {before}");
    controller.shut_down().await;
}
