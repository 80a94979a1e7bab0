//! A node's cap is a promise: the limits that the driver was told, in the order in which it was told them, never add up
//! to more, GPUs without a job included.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Value, json};

use crate::nvml::{CURVE, gpu};
use crate::support::{Daemon, FakeDriver, LONG, Training, eventually, forecast_file, now};

/// What [`gpu`] is found at.
const FOUND: f64 = 280.0;

/// The quick settings, with two rungs to a sweep, and a cap.
fn settings(cap: &str) -> String {
    format!("{}lowest_w = 230\n[cap]\nlead_s = 0\n{cap}\n", Daemon::QUICK)
}

/// The sum of all limits after each write that the driver took, with its time.
fn sums(driver: &FakeDriver, gpus: usize) -> Vec<(f64, f64)> {
    let mut limits: BTreeMap<String, f64> = (0..gpus).map(|b| (FakeDriver::uuid(b), FOUND)).collect();
    let mut sums = vec![(0.0, FOUND * gpus as f64)];
    for write in driver.writes().into_iter().filter(|w| w.call == "nvmlDeviceSetPowerManagementLimit" && w.code == 0) {
        let watts = write.argument.parse::<f64>().expect("milliwatts") / 1e3;
        *limits.get_mut(&write.uuid).expect("a GPU") = watts;
        sums.push((write.at, limits.values().sum()));
    }
    sums
}

/// Checks that from `since` on, or from the first moment on at which the sum was within it, no sum is above the cap.
#[track_caller]
fn kept(driver: &FakeDriver, gpus: usize, cap: f64) {
    let sums = sums(driver, gpus);
    let reached = sums.iter().position(|(_, sum)| *sum <= cap).expect("reached");
    assert!(sums[..=reached].windows(2).all(|w| w[1].1 < w[0].1), "lowered first: {sums:?}");
    assert!(sums[reached..].iter().all(|(_, sum)| *sum <= cap), "above {cap} W: {sums:?}");
}

fn unix(t: DateTime<Utc>) -> f64 {
    t.timestamp_micros() as f64 / 1e6
}

/// The sum in force at a moment.
fn sum_at(sums: &[(f64, f64)], t: f64) -> f64 {
    sums.iter().take_while(|(at, _)| *at <= t).last().expect("a beginning").1
}

async fn sum_is(driver: &FakeDriver, gpus: usize, what: &str, right: impl Fn(f64) -> bool) {
    eventually(what, LONG, async || {
        let limits = (0..gpus).map(|b| driver.limit_w(b)).collect::<Option<Vec<f64>>>()?;
        right(limits.iter().sum()).then_some(())
    })
    .await;
}

fn job(name: &str, gpu: usize, priority: i32) -> Value {
    json!({"name": name, "gpus": [gpu], "work": {"total_samples": 1_000_000}, "objective": {"max_slowdown": 0.035},
           "lease_s": 60, "priority": priority})
}

#[tokio::test]
async fn jobs_come_and_are_planned_under_a_cap() {
    let driver = Arc::new(FakeDriver::new(&[gpu(), gpu(), gpu()]));
    let state = tempfile::tempdir().expect("a directory");
    let carbon = forecast_file(&state, 4, 200, |i| if i % 2 == 0 { 100.0 } else { 600.0 });
    let mut command = Daemon::command_set(&driver, state.path(), &settings("limit_w = 640"));
    command.arg("--carbon-file").arg(carbon);
    let daemon = Daemon::start(command, state.path()).await;
    sum_is(&driver, 3, "the cap", |sum| sum <= 640.0).await;
    assert!((0..3).all(|b| driver.limit_w(b) == Some(213.0)), "boards without a job share what there is");
    let first = daemon.register(&job("first", 0, 0)).await;
    let _first = Training::start(daemon.base(), &first, &driver, vec![(0, CURVE)], 0.0);
    eventually("the ceiling", LONG, async || (driver.limit_w(0) == Some(FOUND)).then_some(())).await;
    let second = daemon.register(&job("second", 1, 5)).await;
    let _second = Training::start(daemon.base(), &second, &driver, vec![(1, CURVE)], 0.0);
    daemon.phase(&first, "planned").await;
    daemon.phase(&second, "planned").await;
    let begun = [0, 1].map(|gpu| driver.limits_written(gpu).len());
    let planned = eventually("planned changes", LONG, async || {
        let written = [0, 1].map(|gpu| driver.limits_written(gpu)[begun[gpu]..].to_vec());
        (written.iter().map(Vec::len).sum::<usize>() > 6).then_some(written)
    })
    .await;
    // Their plans fit by themselves: no limit is cut to one that was never measured.
    assert!(planned.iter().flatten().all(|limit| [FOUND, 230.0].contains(limit)), "{planned:?}");
    let status = daemon.get("/v1/status").await.expect(200);
    assert_eq!(status["cap"]["limit_w"], 640.0);
    assert_eq!(status["cap"]["source"], "the constant cap");
    assert_eq!(status["problems"], json!([]), "{status:#}");
    kept(&driver, 3, 640.0);
    assert!(driver.limit_w(2).is_some_and(|w| w < FOUND));
    // Nobody is left to keep the cap, and it is kept all the same.
    assert!(daemon.stop("TERM").await.success());
    kept(&driver, 3, 640.0);
    let held = std::fs::read_to_string(state.path().join("found-limits.json")).expect("readable");
    let below: Vec<usize> = (0..3).filter(|b| driver.limit_w(*b) != Some(FOUND)).collect();
    assert!(!below.is_empty() && below.iter().all(|b| held.contains(&FakeDriver::uuid(*b))), "{held}");
    assert!(sums(&driver, 3).last().is_some_and(|(_, sum)| *sum > 630.0), "what fits comes back");
    assert!(Daemon::restore(&driver, state.path()).status.success());
    assert!((0..3).all(|b| driver.limit_w(b) == Some(FOUND)));
}

#[tokio::test]
async fn limits_are_down_when_an_event_begins() {
    let driver = Arc::new(FakeDriver::new(&[gpu(), gpu(), gpu()]));
    let state = tempfile::tempdir().expect("a directory");
    let daemon = Daemon::start(Daemon::command_set(&driver, state.path(), &settings("")), state.path()).await;
    let id = daemon.register(&job("busy", 0, 0)).await;
    let _training = Training::start(daemon.base(), &id, &driver, vec![(0, CURVE)], 0.0);
    daemon.phase(&id, "profiling").await;
    // 30 s are enough.
    let (start, end) = (now() + TimeDelta::seconds(30), now() + TimeDelta::seconds(34));
    let event = json!({"id": "dr-1", "start": start, "end": end, "target_w": 400, "notice_s": 30, "ramp_s": 10,
                       "rebound_w": 700, "rebound_s": 6});
    let announced = daemon.post("/v1/demand-response", &event).await.expect(201);
    assert_eq!(announced["state"], "announced");
    tokio::time::sleep(Duration::from_secs(36)).await;
    let over = end + TimeDelta::seconds(6);
    let sums_now = sums(&driver, 3);
    let at = |t: DateTime<Utc>| sum_at(&sums_now, unix(t));
    assert!(at(start - TimeDelta::seconds(20)) > 700.0, "nothing is done for it before its ramp: {sums_now:?}");
    let mut t = start - TimeDelta::seconds(10);
    while t < now() - TimeDelta::milliseconds(500) {
        let before = (start - t).as_seconds_f64();
        let after = (t - end).as_seconds_f64();
        let baseline = 3.0 * 350.0;
        let cap = match () {
            () if before > 0.0 => 400.0 + (baseline - 400.0) * before / 10.0,
            () if after < 0.0 => 400.0,
            () => (400.0 + (baseline - 400.0) * after / 10.0).min(700.0),
        };
        assert!(at(t) <= cap + 1e-6, "{} W under {cap} W {before} s before the start: {sums_now:?}", at(t));
        t += TimeDelta::milliseconds(50);
    }
    assert!(sums_now.iter().any(|(_, sum)| *sum <= 400.0));
    sum_is(&driver, 3, "what was found", |sum| sum > 700.0).await;
    assert!(now() >= over, "the rebound limit holds until it is over");
    let events = daemon.get("/v1/demand-response").await.expect(200);
    eventually("the event's end", LONG, async || {
        (daemon.get("/v1/demand-response").await.expect(200)[0]["state"] == "over").then_some(())
    })
    .await;
    assert_eq!(events.as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn a_killed_daemon_keeps_the_cap_when_it_is_back() {
    let driver = FakeDriver::new(&[gpu(), gpu()]);
    let state = tempfile::tempdir().expect("a directory");
    let command = || Daemon::command_set(&driver, state.path(), &settings("limit_w = 500"));
    let daemon = Daemon::start(command(), state.path()).await;
    sum_is(&driver, 2, "the cap", |sum| sum <= 500.0).await;
    daemon.hold(&driver, 0, FOUND).await;
    assert_eq!(driver.limit_w(1), Some(220.0), "a wish by hand bends last");
    // Not even by hand.
    daemon.put("/v1/gpus/1/power-limit", &json!({"power_limit_w": 280, "ttl_s": 60})).await.expect(200);
    // It gets its half once the other one has gone down to its own.
    eventually("what the cap leaves it", LONG, async || {
        let view = daemon.get("/v1/gpus/1").await.expect(200);
        view["detail"].as_str()?.contains("the node's cap allows 250 W of the wanted 280 W").then_some(())
    })
    .await;
    sum_is(&driver, 2, "half each", |sum| sum == 500.0).await;
    daemon.kill();
    let daemon = Daemon::start(command(), state.path()).await;
    let view = eventually("what fits", LONG, async || {
        let gpus = daemon.get("/v1/gpus").await.expect(200);
        let all = gpus.as_array()?.iter().all(|g| g["power_limit_requested_w"] == 250.0 && g["state"] == "free");
        all.then_some(gpus)
    })
    .await;
    assert!(view.as_array().expect("a list").iter().all(|g| g["power_limit_original_w"] == FOUND), "{view}");
    kept(&driver, 2, 500.0);
    assert!(daemon.stop("TERM").await.success());
    kept(&driver, 2, 500.0);
    // Without the cap, the next daemon gives back what was found.
    let daemon = Daemon::start(Daemon::command_set(&driver, state.path(), &settings("")), state.path()).await;
    sum_is(&driver, 2, "what was found", |sum| sum == 2.0 * FOUND).await;
    assert!(daemon.stop("TERM").await.success());
    // Where the operator wants it so, a daemon that ends restores in full.
    let restoring = Daemon::command_set(&driver, state.path(), &settings("limit_w = 500\non_exit = \"restore\""));
    let daemon = Daemon::start(restoring, state.path()).await;
    sum_is(&driver, 2, "the cap", |sum| sum <= 500.0).await;
    assert!(daemon.stop("TERM").await.success());
    assert_eq!((driver.limit_w(0), driver.limit_w(1)), (Some(FOUND), Some(FOUND)));
}

#[tokio::test]
async fn a_cap_applies_to_jobs_that_are_not_controlled() {
    let driver = FakeDriver::new(&[gpu(), gpu()]);
    let state = tempfile::tempdir().expect("a directory");
    let daemon = Daemon::start(Daemon::command_set(&driver, state.path(), &settings("")), state.path()).await;
    let guest = json!({"name": "guest", "gpus": [1], "control": false, "lease_s": 600});
    let id = daemon.register(&guest).await;
    daemon.stop("TERM").await;
    let capped = Daemon::command_set(&driver, state.path(), &settings("limit_w = 300"));
    let daemon = Daemon::start(capped, state.path()).await;
    sum_is(&driver, 2, "the cap", |sum| sum <= 300.0).await;
    assert!(driver.limit_w(1) < Some(FOUND), "a job that is not controlled counts too");
    // Without the job it is a GPU without a job.
    daemon.delete(&format!("/v1/jobs/{id}")).await.expect(200);
    kept(&driver, 2, 300.0);
    daemon.stop("TERM").await;
}

#[tokio::test]
async fn slow_writes_and_boundaries_break_nothing() {
    let driver = FakeDriver::new(&[gpu(), gpu(), gpu()]);
    let state = tempfile::tempdir().expect("a directory");
    let (start, end) = (now() + TimeDelta::seconds(9), now() + TimeDelta::seconds(14));
    let span = |t: DateTime<Utc>| t.format("%FT%T%.3fZ").to_string();
    let cap = format!(
        "limit_w = 700\nschedule = [{{ start = \"{}\", end = \"{}\", limit_w = 500 }}]",
        span(start),
        span(end)
    );
    let daemon = Daemon::start(Daemon::command_set(&driver, state.path(), &settings(&cap)), state.path()).await;
    sum_is(&driver, 3, "the cap", |sum| sum <= 700.0).await;
    driver.set(0, json!({"slow_ms": 700, "slow_calls": ["nvmlDeviceSetPowerManagementLimit"]}));
    // GPU 1 may rise only after GPU 0 has been lowered, which takes a while.
    daemon.put("/v1/gpus/1/power-limit", &json!({"power_limit_w": 280, "ttl_s": 600})).await.expect(200);
    daemon.put("/v1/gpus/0/power-limit", &json!({"power_limit_w": 120, "ttl_s": 600})).await.expect(200);
    eventually("the raise", LONG, async || (driver.limit_w(1) == Some(280.0)).then_some(())).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    kept(&driver, 3, 700.0);
    let wait = (end - now() + TimeDelta::milliseconds(1500)).to_std().unwrap_or_default();
    tokio::time::sleep(wait).await;
    let sums_now = sums(&driver, 3);
    for tenth in 0..50 {
        let t = start + TimeDelta::milliseconds(100 * tenth);
        assert!(sum_at(&sums_now, unix(t)) <= 500.0, "{tenth}: {sums_now:?}");
    }
    kept(&driver, 3, 700.0);
    eventually("room again", LONG, async || (driver.limit_w(2) == Some(280.0)).then_some(())).await;
    kept(&driver, 3, 700.0);
}

#[tokio::test]
async fn events_are_announced_amended_withdrawn_and_survive() {
    let driver = FakeDriver::new(&[gpu(), gpu()]);
    let state = tempfile::tempdir().expect("a directory");
    let fixed = "events = [{ id = \"fixed\", start = \"2099-12-01T17:00:00Z\", end = \"2099-12-01T18:00:00Z\", \
                 target_pct = 60 }]";
    let command = || Daemon::command_set(&driver, state.path(), &settings(fixed));
    let daemon = Daemon::start_with(&driver, state.path(), &[]).await;
    drop(daemon);
    let daemon = Daemon::start(command(), state.path()).await;
    let event =
        json!({"id": "a", "start": "2099-01-01T01:00:00+01:00", "end": "2099-01-01T01:00:00Z", "target_w": 400});
    let posted = daemon.post("/v1/demand-response", &event).await.expect(201);
    assert_eq!((&posted["start"], &posted["origin"]), (&json!("2099-01-01T00:00:00Z"), &json!("api")), "{posted}");
    assert_eq!(daemon.post("/v1/demand-response", &event).await.expect(200), posted, "the same again is the same");
    let mut amended = event.clone();
    amended["target_pct"] = json!(50);
    amended["target_w"] = json!(null);
    assert_eq!(daemon.post("/v1/demand-response", &amended).await.expect(200)["target_pct"], 50.0);
    let refused = async |fields: Value, status: u16| {
        let mut event = event.clone();
        event.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        daemon.post("/v1/demand-response", &event).await.problem(status)
    };
    assert_eq!(refused(json!({"end": "2098-01-01T00:00:00Z"}), 422).await["field"], "end");
    assert_eq!(
        refused(json!({"start": "2001-01-01T00:00:00Z", "end": "2001-01-01T00:00:01Z"}), 422).await["field"],
        "end"
    );
    assert_eq!(refused(json!({"target_w": 0}), 422).await["field"], "target_w");
    assert_eq!(refused(json!({"start": "soon"}), 422).await["field"], "start");
    assert_eq!(refused(json!({"watts": 5}), 422).await["field"], "watts");
    let twice = refused(json!({"id": "fixed"}), 409).await;
    assert!(twice["detail"].as_str().is_some_and(|d| d.contains("settings")), "{twice}");
    daemon.kill();
    let daemon = Daemon::start(command(), state.path()).await;
    let events = daemon.get("/v1/demand-response").await.expect(200);
    let ids: Vec<&str> = events.as_array().expect("a list").iter().filter_map(|e| e["id"].as_str()).collect();
    assert_eq!(ids, ["a", "fixed"], "by their start: {events}");
    assert_eq!(events[0]["target_pct"], 50.0);
    daemon.delete("/v1/demand-response/fixed").await.problem(409);
    daemon.delete("/v1/demand-response/b").await.problem(404);
    assert_eq!(daemon.delete("/v1/demand-response/a").await.expect(200)["id"], "a");
    assert_eq!(daemon.get("/v1/demand-response").await.expect(200).as_array().map(Vec::len), Some(1));
    // One that has begun is kept at once, and what was found is back once it is withdrawn.
    let begun = json!({"id": "now", "start": now() - TimeDelta::seconds(5), "end": now() + TimeDelta::hours(1),
                       "target_pct": 50});
    daemon.post("/v1/demand-response", &begun).await.expect(201);
    sum_is(&driver, 2, "half of 700 W", |sum| sum <= 350.0).await;
    daemon.delete("/v1/demand-response/now").await.expect(200);
    sum_is(&driver, 2, "what was found", |sum| sum == 2.0 * FOUND).await;
}

#[tokio::test]
async fn a_cap_for_hours_has_jobs_measured_within_its_reach() {
    let driver = Arc::new(FakeDriver::new(&[gpu(), gpu()]));
    let state = tempfile::tempdir().expect("a directory");
    let daemon = Daemon::start(Daemon::command_set(&driver, state.path(), &settings("")), state.path()).await;
    // With the other GPU at its lowest limit of 100 W, there are 240 W: one rung less than the ceiling of 280 W.
    let event = json!({"id": "long", "start": now() - TimeDelta::seconds(5), "end": now() + TimeDelta::hours(8),
                       "target_w": 340});
    daemon.post("/v1/demand-response", &event).await.expect(201);
    sum_is(&driver, 2, "the event", |sum| sum <= 340.0).await;
    let id = daemon.register(&job("patient", 0, 0)).await;
    let _training = Training::start(daemon.base(), &id, &driver, vec![(0, CURVE)], 0.0);
    let view = daemon.phase(&id, "planned").await;
    let profile = daemon.get(&format!("/v1/jobs/{id}/profile")).await.expect(200);
    assert_eq!(profile["points"][0]["power_limits_w"], json!([230.0]), "{profile}");
    assert!(view["warnings"][0].as_str().is_some_and(|w| w.contains("measured up to 230 W")), "{view}");
    kept(&driver, 2, 340.0);
    // What was out of reach is measured once there is room.
    daemon.delete("/v1/demand-response/long").await.expect(200);
    eventually("the ceiling", LONG, async || {
        let profile = daemon.get(&format!("/v1/jobs/{id}/profile")).await.expect(200);
        let whole = profile["points"][0]["power_limits_w"] == json!([FOUND]) && profile["complete"] == true;
        whole.then_some(profile)
    })
    .await;
    assert_eq!(daemon.phase(&id, "planned").await["warnings"], json!([]));
}

#[tokio::test]
async fn who_waits_for_a_cap_to_lift_takes_no_room_from_others() {
    let driver = Arc::new(FakeDriver::new(&[gpu(), gpu()]));
    let state = tempfile::tempdir().expect("a directory");
    let daemon = Daemon::start(Daemon::command_set(&driver, state.path(), &settings("")), state.path()).await;
    let busy = daemon.register(&job("busy", 0, 0)).await;
    let _busy = Training::start(daemon.base(), &busy, &driver, vec![(0, CURVE)], 0.0);
    daemon.phase(&busy, "planned").await;
    // 10 W too little for the other job's ceiling.
    let event = json!({"id": "short", "start": now() - TimeDelta::seconds(5), "end": now() + TimeDelta::minutes(20),
                       "target_w": 370});
    daemon.post("/v1/demand-response", &event).await.expect(201);
    let waits = daemon.register(&job("waits", 1, 0)).await;
    let _waits = Training::start(daemon.base(), &waits, &driver, vec![(1, CURVE)], 0.0);
    let view = eventually("the wait", LONG, async || {
        let view = daemon.get(&format!("/v1/jobs/{waits}")).await.expect(200);
        let reported = view["warnings"][0].as_str()?.starts_with("measuring waits until 2");
        (reported && view["phase"] == "profiling").then_some(view)
    })
    .await;
    assert!(view["reason"].as_str().is_some_and(|r| r.contains("measuring waits for 280 W")), "{view}");
    eventually("room for who is planned", LONG, async || (driver.limit_w(0)? >= 230.0).then_some(())).await;
    assert_eq!(daemon.get(&format!("/v1/jobs/{busy}")).await.expect(200)["phase"], "planned");
    sum_is(&driver, 2, "the event", |sum| sum <= 370.0).await;
    daemon.delete("/v1/demand-response/short").await.expect(200);
    assert_eq!(daemon.phase(&waits, "planned").await["warnings"], json!([]));
}

#[tokio::test]
async fn a_job_that_is_not_controlled_yields_to_a_higher_priority() {
    let driver = Arc::new(FakeDriver::new(&[gpu(), gpu()]));
    let state = tempfile::tempdir().expect("a directory");
    let capped = Daemon::command_set(&driver, state.path(), &settings("limit_w = 400"));
    let daemon = Daemon::start(capped, state.path()).await;
    daemon.register(&json!({"name": "guest", "gpus": [1], "control": false, "lease_s": 600})).await;
    let mut urgent = job("urgent", 0, 5);
    urgent["objective"] = json!({"max_slowdown": 0.0});
    let id = daemon.register(&urgent).await;
    let _training = Training::start(daemon.base(), &id, &driver, vec![(0, CURVE)], 0.0);
    daemon.phase(&id, "planned").await;
    eventually("the ceiling", LONG, async || {
        let planned = daemon.get(&format!("/v1/jobs/{id}")).await.expect(200)["phase"] == "planned";
        (planned && driver.limit_w(0) == Some(FOUND) && driver.limit_w(1) == Some(120.0)).then_some(())
    })
    .await;
    kept(&driver, 2, 400.0);
}

#[tokio::test]
async fn a_gpu_that_is_silent_lowers_no_ceiling_for_good() {
    let driver = Arc::new(FakeDriver::new(&[gpu(), gpu()]));
    let state = tempfile::tempdir().expect("a directory");
    let capped = Daemon::command_set(&driver, state.path(), &settings("limit_w = 500"));
    let daemon = Daemon::start(capped, state.path()).await;
    sum_is(&driver, 2, "the cap", |sum| sum <= 500.0).await;
    driver.set(1, json!({"lost": true}));
    eventually("the fault", LONG, async || {
        (daemon.get("/v1/gpus/1").await.expect(200)["state"] == "lost").then_some(())
    })
    .await;
    let id = daemon.register(&job("unlucky", 0, 0)).await;
    driver.set(1, json!({"lost": false}));
    let _training = Training::start(daemon.base(), &id, &driver, vec![(0, CURVE)], 0.0);
    // With the other GPU at its lowest limit of 100 W, there is enough power for the full limit.
    eventually("the full limit", LONG, async || {
        let profile = daemon.get(&format!("/v1/jobs/{id}/profile")).await.expect(200);
        (profile["points"][0]["power_limits_w"] == json!([FOUND]) && profile["complete"] == true).then_some(())
    })
    .await;
}
