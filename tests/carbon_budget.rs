//! A carbon budget of the node: jobs bend for it together, and where it cannot be kept that is told.

use std::path::Path;
use std::sync::Arc;

use chrono::TimeDelta;
use serde_json::{Value, json};

use crate::nvml::{CURVE, gpu};
use crate::support::{Daemon, Ended, FakeDriver, LONG, Training, eventually, forecast_file, now};

/// The quick settings with a budget.
async fn start(driver: &Arc<FakeDriver>, state: &Path, carbon: &Path, budget: &str) -> Daemon {
    let settings = format!("{}lowest_w = 180\n{budget}", Daemon::QUICK);
    let mut command = Daemon::command_set(driver, state, &settings);
    command.arg("--carbon-file").arg(carbon);
    Daemon::start(command, state).await
}

fn budget(grams: f64) -> String {
    let (from, until) = (now() - TimeDelta::hours(1), now() + TimeDelta::days(2));
    let span = format!("from = \"{}\"\nuntil = \"{}\"", from.to_rfc3339(), until.to_rfc3339());
    format!("[carbon_budget]\nlimit_g = {grams}\n{span}\n")
}

/// The plans of some jobs, once all of them are made and `right` of each.
async fn plans(daemon: &Daemon, ids: &[String], what: &str, right: impl Fn(&Value) -> bool) -> Vec<Value> {
    eventually(what, LONG, async || {
        let mut plans = Vec::new();
        for id in ids {
            let plan = daemon.get(&format!("/v1/jobs/{id}/plan")).await.expect(200);
            plans.push(plan);
        }
        plans.iter().all(|plan| plan["applied"] == true && plan["made_at"].is_string() && right(plan)).then_some(plans)
    })
    .await
}

fn grams(plans: &[Value]) -> f64 {
    plans.iter().map(|plan| plan["expected_carbon_g"].as_f64().expect("planned")).sum()
}

fn limits(plan: &Value) -> Vec<f64> {
    let segments = plan["segments"].as_array().expect("segments").iter();
    segments.map(|s| s["power_limits_w"][0].as_f64().expect("a limit")).collect()
}

#[tokio::test]
async fn jobs_bend_together_for_a_budget_and_say_when_it_cannot_be_kept() {
    let driver = Arc::new(FakeDriver::new(&[gpu(), gpu()]));
    let state = tempfile::tempdir().expect("a directory");
    let carbon = forecast_file(&state, 3600, 30, |_| 400.0);
    let daemon = start(&driver, state.path(), &carbon, "").await;
    assert_eq!(daemon.get("/v1/status").await.expect(200)["carbon_budget"], Value::Null);
    // Hours of work, as fast as possible.
    let job = |name: &str, gpu: usize| {
        json!({"name": name, "gpus": [gpu], "work": {"total_samples": 1_000_000}, "lease_s": 600,
               "objective": {"eta": 0, "max_slowdown": 0.5}})
    };
    let ids = vec![daemon.register(&job("first", 0)).await, daemon.register(&job("second", 1)).await];
    let trainings: Vec<Training> =
        (0..2).map(|b| Training::start(daemon.base(), &ids[b], &driver, vec![(b, CURVE)], 0.0)).collect();
    let free = plans(&daemon, &ids, "plans without a budget", |_| true).await;
    assert!(free.iter().flat_map(limits).all(|limit| limit == 280.0), "{free:?}");
    assert!(daemon.stop("TERM").await.success());

    // A tenth less than that, what has been emitted already included.
    let limit = 0.9 * grams(&free);
    let daemon = start(&driver, state.path(), &carbon, &budget(limit)).await;
    trainings.iter().for_each(|training| training.report_to(daemon.base()));
    let bent = plans(&daemon, &ids, "plans within the budget", |plan| limits(plan).iter().any(|l| *l < 280.0)).await;
    let status = daemon.get("/v1/status").await.expect(200);
    let view = &status["carbon_budget"];
    assert_eq!(view["limit_g"], limit);
    let emitted = view["emissions_g"].as_f64().expect("recorded");
    assert!(emitted > 0.0, "what was emitted before the restart counts: {view}");
    assert!(view["expected_g"].as_f64().expect("planned") <= limit * 1.01, "{view}");
    assert!(grams(&bent) <= (limit - emitted) * 1.01 && grams(&bent) > 0.9 * limit, "no more than needed: {view}");
    for plan in &bent {
        assert_eq!(plan["warnings"], json!([]), "{plan:#}");
        let reasons: Vec<&str> =
            plan["segments"].as_array().expect("segments").iter().filter_map(|s| s["reason"].as_str()).collect();
        assert!(reasons.iter().any(|r| r.contains("by the node's carbon budget until ")), "{reasons:?}");
    }
    assert!(daemon.stop("TERM").await.success());

    // Half of it is out of reach within the slowdown.
    let daemon = start(&driver, state.path(), &carbon, &budget(0.4 * grams(&free))).await;
    trainings.iter().for_each(|training| training.report_to(daemon.base()));
    let broken = plans(&daemon, &ids, "plans that break the budget", |plan| plan["warnings"] != json!([])).await;
    for plan in &broken {
        let warning = plan["warnings"][0].as_str().expect("a sentence");
        assert!(
            warning.contains("the node's carbon budget until ") && warning.contains("will be exceeded by"),
            "{warning}"
        );
        assert!(plan["segments"][0]["reason"].as_str().is_some_and(|r| r.contains("which cannot be kept")), "{plan:#}");
        assert!(plan["expected_slowdown"].as_f64().expect("planned") < 0.501, "promises about time are kept: {plan:#}");
    }
    assert!(daemon.problems().await.contains("the node's carbon budget until "));
}

#[tokio::test]
async fn the_budget_of_a_job_covers_the_earlier_jobs_that_it_continues() {
    let driver = Arc::new(FakeDriver::new(&[gpu()]));
    let state = tempfile::tempdir().expect("a directory");
    let carbon = forecast_file(&state, 3600, 30, |_| 400.0);
    let daemon = start(&driver, state.path(), &carbon, "").await;
    let job = |budget: f64| {
        json!({"name": "a", "gpus": [0], "work": {"total_samples": 1_000_000}, "lease_s": 1, "key": "k",
               "objective": {"max_slowdown": 0.5, "carbon_budget_g": budget}})
    };
    let first = daemon.register(&job(1000.0)).await;
    let emitted = eventually("emissions", LONG, async || {
        daemon.post(&format!("/v1/jobs/{first}/lease"), &json!({})).await.expect(200);
        let account = daemon.get(&format!("/v1/jobs/{first}/emissions")).await.expect(200);
        account["carbon_g"].as_f64().filter(|grams| *grams > 0.01)
    })
    .await;
    eventually("the lease's end", LONG, async || {
        daemon.get("/v1/jobs").await.expect(200).as_array().is_some_and(Vec::is_empty).then_some(())
    })
    .await;
    for (budget, broken) in [(1000.0, 0), (emitted / 2.0, 1)] {
        let next = daemon.register(&job(budget)).await;
        let view = daemon.get(&format!("/v1/jobs/{next}")).await.expect(200);
        assert_eq!(view["broken_promises"], broken, "{view:#}");
        eventually("the lease's end", LONG, async || {
            daemon.get("/v1/jobs").await.expect(200).as_array().is_some_and(Vec::is_empty).then_some(())
        })
        .await;
    }
}

#[test]
fn the_doctor_says_what_is_asked_of_the_node_and_whether_it_can_be_kept() {
    let driver = FakeDriver::new(&[gpu(), gpu()]);
    let state = tempfile::tempdir().expect("a directory");
    let config = state.path().join("asked.toml");
    let detail = |settings: &str, what: &str| {
        std::fs::write(&config, settings).expect("written");
        let flags = ["doctor", "--listen", "127.0.0.1:0", "--format", "json", "--config"];
        let mut flags: Vec<&str> = flags.to_vec();
        flags.extend([config.to_str().expect("UTF-8"), "--state-dir", state.path().to_str().expect("UTF-8")]);
        let findings = Ended::with_driver(&driver, &flags).json();
        let found = findings.as_array().expect("a list").iter().find(|f| f["what"] == what).cloned();
        found.map(|f| format!("{}: {}", f["verdict"].as_str().expect("a word"), f["detail"].as_str().expect("a text")))
    };
    assert_eq!(detail("", "node's cap"), None);
    let enough = detail("[cap]\nlimit_pct = 50\n", "node's cap").expect("reported");
    assert_eq!(enough, "good: 350 W at all times; the lowest cap is 350 W, the GPUs' lowest limits add up to 200 W");
    // Announced or not, it will come.
    let event = "[cap]\nevents = [{ id = \"a\", start = 2998-12-01T17:00:00Z, end = 2998-12-01T18:00:00Z, target_w = 150, \
                 notice_s = 600 }]\n";
    let too_low = detail(event, "node's cap").expect("reported");
    assert_eq!(
        too_low,
        "limited: 1 event(s) to come; the lowest cap is 150 W, but the GPUs' lowest limits add up to 200 W: it cannot be met"
    );
    let once = "[carbon_budget]\nlimit_g = 500\nfrom = 2026-01-01T00:00:00Z\nuntil = 2998-01-01T00:00:00Z\n";
    let budget = detail(once, "node's carbon budget").expect("reported");
    assert!(budget.starts_with("good: 500 gCO2e from 2026-01-01T00:00:00Z until 2998-01-01T00:00:00Z; "), "{budget}");
    let over = "[carbon_budget]\nlimit_g = 500\nfrom = 2001-01-01T00:00:00Z\nuntil = 2001-02-01T00:00:00Z\n";
    assert!(detail(over, "node's carbon budget").expect("reported").starts_with("limited: the budget period is over"));
}
