//! Recurring jobs that are damaged, imported from elsewhere, or interrupted.

use rusqlite::Connection;
use serde_json::json;

use crate::recurring::{report, spec, start};

#[tokio::test]
async fn a_generator_that_cannot_be_one_is_refused_and_holds_nobody_up_where_it_is_stored() {
    let state = tempfile::tempdir().expect("a directory");
    let daemon = start(state.path()).await;
    let base = "/v1/recurring/a";
    daemon.put(base, &spec()).await.expect(201);
    // Zeus draws once its explorations are through.
    for number in 1..=6 {
        let trial = daemon.post(&format!("{base}/trials"), &json!({})).await.expect(201);
        let batch_size = trial["batch_size"].as_u64().expect("a batch size");
        let last = report(number, batch_size, 10);
        daemon.post(&format!("{base}/trials/{number}/progress"), &last).await.expect(200);
    }
    assert_eq!(daemon.get(base).await.expect(200)["stage"], "exploiting");
    let mut document = daemon.get(&format!("{base}/export")).await.expect(200);
    document["generator"] = json!({"state": "0", "increment": "0", "half": null});
    let refused = daemon.post("/v1/recurring/b/import", &document).await.problem(422);
    assert_eq!(refused["field"], "generator.increment", "{refused}");
    assert!(refused["detail"].as_str().expect("text").contains("odd"), "{refused}");
    daemon.get("/v1/recurring/b").await.problem(404);

    daemon.kill();
    let db = Connection::open(state.path().join("wattune.db")).expect("the database");
    let generator = document["generator"].to_string();
    assert_eq!(db.execute("UPDATE recurring_jobs SET generator = ?1", [generator]).expect("written"), 1);
    drop(db);
    let daemon = start(state.path()).await;
    assert_eq!(daemon.get(base).await.expect(200)["stage"], "exploiting");
    daemon.post(&format!("{base}/trials"), &json!({})).await.expect(201);
    assert_eq!(daemon.delete(base).await.expect(200)["trials"], 7);
    daemon.get(base).await.problem(404);
}

/// What a trial is told that takes its time from a job whose client counts seconds; the daemon is killed after `kills` of
/// its reports.
async fn time_from_ledger(kills: &[u64], asked: &[u64]) -> f64 {
    let state = tempfile::tempdir().expect("a directory");
    let mut daemon = start(state.path()).await;
    let mut spec = spec();
    spec["eta"] = json!(0.5);
    daemon.put("/v1/recurring/a", &spec).await.expect(201);
    daemon.post("/v1/recurring/a/trials", &json!({})).await.expect(201);
    let id = daemon.register(&json!({"name": "a", "gpus": [0], "batch_size": 64, "lease_s": 600})).await;
    let trial = "/v1/recurring/a/trials/1";
    for turn in 1..=4 {
        let at = json!({"samples": 1000 * turn, "at_s": 100 * turn});
        daemon.post(&format!("/v1/jobs/{id}/progress"), &at).await.expect(200);
        if asked.contains(&turn) {
            let report = json!({"epochs": turn, "job_id": id, "metric": 0.1});
            daemon.post(&format!("{trial}/progress"), &report).await.expect(200);
        }
        if kills.contains(&turn) {
            daemon.kill();
            daemon = start(state.path()).await;
        }
    }
    let time = daemon.get(trial).await.expect(200)["time_s"].as_f64().expect("a number");
    // Not a report goes by without its time, either.
    let job = daemon.get(&format!("/v1/jobs/{id}")).await.expect(200);
    assert_eq!(time, job["active_s"].as_f64().expect("known") + job["stalled_s"].as_f64().expect("known"), "{job}");
    time
}

#[tokio::test]
async fn a_trial_that_takes_its_time_from_a_job_loses_none_of_it_when_the_daemon_is_killed() {
    assert_eq!(time_from_ledger(&[], &[2, 4]).await, 300.0);
    assert_eq!(time_from_ledger(&[2], &[2, 4]).await, 300.0, "after a report that relied on it");
    assert_eq!(time_from_ledger(&[1, 2], &[4]).await, 300.0, "before any of it was asked for");
    assert_eq!(time_from_ledger(&[4], &[2, 4]).await, 300.0, "after the last");
}

#[tokio::test]
async fn a_training_run_that_is_registered_anew_loses_no_energy_not_even_over_restarts() {
    let state = tempfile::tempdir().expect("a directory");
    let mut daemon = start(state.path()).await;
    daemon.put("/v1/recurring/a", &spec()).await.expect(201);
    daemon.post("/v1/recurring/a/trials", &json!({})).await.expect(201);
    // A second one at the same time has the same batch size.
    daemon.post("/v1/recurring/a/trials", &json!({})).await.expect(201);
    let trial = "/v1/recurring/a/trials/1";
    let (mut recorded, mut runs) = (0.0, Vec::new());
    for epochs in 1..=3 {
        let id = daemon.register(&json!({"name": "a", "gpus": [0], "batch_size": 64})).await;
        runs.push(id.clone());
        if epochs > 1 {
            // A sign of life before the new run's first progress: the trial has the time of the runs before.
            let again = json!({"epochs": epochs - 1, "job_id": id, "metric": 0.1});
            daemon.post(&format!("{trial}/progress"), &again).await.expect(200);
        }
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        let report = json!({"epochs": epochs, "job_id": id, "time_s": epochs, "metric": 0.1});
        daemon.post(&format!("{trial}/progress"), &report).await.expect(200);
        // What it uses after its last report counts, too.
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        let account = daemon.delete(&format!("/v1/jobs/{id}")).await.expect(200);
        if epochs == 3 {
            daemon.post(&format!("{trial}/progress"), &report).await.expect(200);
        }
        recorded += account["energy_by_device_j"]["gpu"].as_f64().expect("recorded");
        daemon.stop("TERM").await;
        daemon = start(state.path()).await;
    }
    let view = daemon.get(trial).await.expect(200);
    let energy = view["energy_j"].as_f64().expect("known");
    assert!(recorded > 0.0 && (energy / recorded - 1.0).abs() < 1e-6, "{recorded} {view}");
    // The energy of the first of them counts for no other trial, though this one has ended.
    daemon.post(&format!("{trial}/end"), &json!({"outcome": "not_reached"})).await.expect(200);
    let report = json!({"epochs": 1, "job_id": runs[0], "time_s": 1, "metric": 0.1});
    let taken = daemon.post("/v1/recurring/a/trials/2/progress", &report).await.problem(409);
    assert!(taken["detail"].as_str().expect("text").contains("trial 1"), "{taken}");
    let document = daemon.get("/v1/recurring/a/export").await.expect(200);
    assert_eq!(document["trials"][0]["earlier_jobs"].as_array().map(Vec::len), Some(2), "{document}");
    daemon.post("/v1/recurring/b/import", &document).await.expect(201);
    let mut wrong = document;
    wrong["trials"][0]["earlier_jobs"][0]["energy_j"] = json!(2.0 * energy);
    let refused = daemon.post("/v1/recurring/c/import", &wrong).await.problem(422);
    assert!(refused["detail"].as_str().expect("text").contains("whose earlier_jobs have"), "{refused}");
}

#[tokio::test]
async fn costs_stay_numbers() {
    let state = tempfile::tempdir().expect("a directory");
    let daemon = start(state.path()).await;
    let mut spec = spec();
    spec["beta"] = json!(1e300);
    let refused = daemon.put("/v1/recurring/a", &spec).await.problem(422);
    assert_eq!(refused["field"], "beta", "{refused}");
    assert!(refused["detail"].as_str().expect("text").contains("up to 1000000"), "{refused}");
    spec["beta"] = json!(1e6);
    spec["max_power_w"] = json!(5e4);
    daemon.put("/v1/recurring/a", &spec).await.expect(201);
    let trials = "/v1/recurring/a/trials";
    daemon.post(trials, &json!({})).await.expect(201);
    let last = json!({"epochs": 1, "energy_j": 5e14, "time_s": 1e9, "metric": 0.7});
    assert_eq!(daemon.post(&format!("{trials}/1/progress"), &last).await.expect(200)["reached"], true);
    daemon.post(trials, &json!({})).await.expect(201);
    let failed = daemon.post(&format!("{trials}/2/end"), &json!({"outcome": "not_reached"})).await.expect(200);
    assert_eq!(failed["cost_j"], 5e22);
    let document = daemon.get("/v1/recurring/a/export").await.expect(200);
    daemon.post("/v1/recurring/b/import", &document).await.expect(201);
}

#[tokio::test]
async fn trials_that_contradict_themselves_are_not_imported() {
    let state = tempfile::tempdir().expect("a directory");
    let daemon = start(state.path()).await;
    daemon.put("/v1/recurring/a", &spec()).await.expect(201);
    let trials = "/v1/recurring/a/trials";
    daemon.post(trials, &json!({"key": "k".repeat(200)})).await.expect(201);
    for epochs in [2, 5] {
        daemon.post(&format!("{trials}/1/progress"), &report(1, 64, epochs)).await.expect(200);
    }
    daemon.post(trials, &json!({})).await.expect(201);
    daemon.post(&format!("{trials}/2/end"), &json!({"outcome": "not_reached"})).await.expect(200);
    daemon.post(trials, &json!({})).await.expect(201);
    let document = daemon.get("/v1/recurring/a/export").await.expect(200);
    let states: Vec<_> = document["trials"].as_array().expect("trials").iter().map(|t| t["state"].clone()).collect();
    assert_eq!(states, ["reached", "not_reached", "running"]);
    daemon.post("/v1/recurring/b/import", &document).await.expect(201);
    for (place, field, value, says) in [
        (0, "cost_j", json!(0), "a trial 1 with cost_j 0"),
        (0, "cost_j", json!(1e-300), "a trial 1 with cost_j"),
        (0, "energy_j", json!(0), "a trial 1 with cost_j"),
        (0, "epoch_cost_j", json!(1e-9), "a trial 1 with epoch_cost_j"),
        (0, "first_cost_j", json!(1e9), "first_cost_j above its cost"),
        (0, "first_epochs", json!(null), "without first_epochs"),
        (0, "epochs", json!(0), "without an epoch"),
        (0, "key", json!(""), "a trial 1 whose key has 0 characters; give 1 to 200"),
        (1, "cost_j", json!(-1), "negative"),
        (1, "epoch_cost_j", json!(7), "without an epoch"),
        (2, "key", json!("k".repeat(50_000)), "a trial 3 whose key has 50000 characters"),
        (
            0,
            "begun_at",
            json!("+10000-01-01T00:00:00Z"),
            "a trial 1 with a time that is outside the years 1970 to 9999",
        ),
        (2, "lease_until", json!("+262000-01-01T00:00:00Z"), "outside the years"),
        (2, "cost_j", json!(5), "a trial 3 with cost_j 5, but 0 follows from"),
    ] {
        let mut wrong = document.clone();
        wrong["trials"][place][field] = value;
        let refused = daemon.post("/v1/recurring/c/import", &wrong).await.problem(422);
        let detail = refused["detail"].as_str().expect("text");
        assert!(refused["field"] == "trials" && detail.contains(says), "{field}: {detail}");
    }
}

#[tokio::test]
async fn whoever_fell_silent_is_reported_so_even_if_its_batch_size_is_taken_for_the_reason() {
    let state = tempfile::tempdir().expect("a directory");
    let daemon = start(state.path()).await;
    let mut spec = spec();
    spec["lease_s"] = json!(1);
    daemon.put("/v1/recurring/a", &spec).await.expect(201);
    let trials = "/v1/recurring/a/trials";
    daemon.post(trials, &json!({})).await.expect(201);
    daemon.post(&format!("{trials}/1/progress"), &report(1, 64, 5)).await.expect(200);
    for number in 2..=4 {
        let trial = daemon.post(trials, &json!({"key": number.to_string()})).await.expect(201);
        assert_eq!(trial["batch_size"], 32, "{trial}");
        tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
    }
    for (number, state) in [(2, "lost"), (3, "lost"), (4, "not_reached")] {
        let trial = format!("{trials}/{number}");
        assert_eq!(daemon.get(&trial).await.expect(200)["state"], state);
        daemon.post(trials, &json!({"key": number.to_string()})).await.problem(410);
        daemon.post(&format!("{trial}/progress"), &report(number, 32, 1)).await.problem(410);
        daemon.post(&format!("{trial}/end"), &json!({"outcome": "not_reached"})).await.problem(410);
        daemon.post(&format!("{trial}/end"), &json!({})).await.expect(200);
    }
    // It stays so where it is imported.
    let document = daemon.get("/v1/recurring/a/export").await.expect(200);
    daemon.post("/v1/recurring/b/import", &document).await.expect(201);
    daemon.post("/v1/recurring/b/trials", &json!({"key": "4"})).await.problem(410);
}

#[tokio::test]
async fn a_trial_whose_energy_and_time_contradict_each_other_is_warned_of() {
    let state = tempfile::tempdir().expect("a directory");
    let daemon = start(state.path()).await;
    daemon.put("/v1/recurring/a", &crate::recurring::spec()).await.expect(201);
    let trials = "/v1/recurring/a/trials";
    let table = [
        (json!({"epochs": 1, "energy_j": 0.0625, "time_s": 900}), "energy_j in kilowatt-hours?"),
        (json!({"epochs": 1, "energy_j": 225_000, "time_s": 900_000}), "time_s in milliseconds"),
        (json!({"epochs": 1, "energy_j": 225_000, "time_s": 900}), ""),
    ];
    for (number, (report, meant)) in (1..).zip(&table) {
        daemon.post(trials, &json!({})).await.expect(201);
        let verdict = daemon.post(&format!("{trials}/{number}/progress"), report).await.expect(200);
        let trial = daemon.get(&format!("{trials}/{number}")).await.expect(200);
        let ended = daemon.post(&format!("{trials}/{number}/end"), &json!({})).await.expect(200);
        for answer in [verdict, trial, ended] {
            let warnings = answer["warnings"].as_array().expect("warnings");
            assert_eq!(warnings.is_empty(), meant.is_empty(), "{report}: {answer}");
            assert!(answer["warnings"].to_string().contains(meant), "{report}: {answer}");
        }
    }
}
