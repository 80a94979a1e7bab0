//! What is wrong in requests is refused with what would be right, and changes nothing half-way.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::support::{Curve, Daemon, FakeDriver, LONG, Training, eventually};

/// One limit, so that a job is profiled in six seconds and then planned.
const SINGLE: Curve = &[(300.0, 100.0)];

fn single() -> Value {
    json!({"min_w": 300, "max_w": 300, "default_w": 300, "demand_w": 400})
}

/// What is sent, and status, field and text of the refusal.
type Refused<'a> = (Value, u16, Option<&'a str>, &'a str);

#[tokio::test]
async fn a_registration_that_is_refused_takes_nothing() {
    let driver = FakeDriver::new(&[json!({}), json!({}), json!({})]);
    let state = tempfile::tempdir().expect("a directory");
    let daemon = Daemon::start_with(&driver, state.path(), &[]).await;
    let holder = daemon.register(&json!({"name": "first", "gpus": [0]})).await;
    let (held, other) = (FakeDriver::uuid(0), FakeDriver::uuid(1));
    let known = format!("GPUs of this machine: 0 ({held}), 1 ({other}), 2 (");
    let by = format!("GPU 0 ({held}) is controlled by job {holder} (first)");
    let job = |more: Value| {
        let mut job = json!({"name": "second", "gpus": [1]});
        job.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        job
    };
    let objective = |more: Value| job(json!({"work": {"total_samples": 1000}, "objective": more}));
    let many: serde_json::Map<_, _> = (0..17).map(|i| (format!("t{i}"), json!("x"))).collect();
    let table: Vec<Refused> = vec![
        (job(json!({"gpus": [7]})), 404, None, &known),
        (job(json!({"gpus": [1, "GPU-unknown"]})), 404, None, &known),
        (job(json!({"gpus": [0]})), 409, None, &by),
        (job(json!({"gpus": [1, held, 2]})), 409, None, &by),
        (job(json!({"gpus": []})), 422, Some("gpus"), "give at least one index or UUID"),
        (job(json!({"gpus": [1, 1]})), 422, Some("gpus"), "twice"),
        (job(json!({"gpus": [1, other]})), 422, Some("gpus"), "twice"),
        (job(json!({"gpus": "1"})), 422, Some("gpus"), "give a list of indexes or UUIDs"),
        (job(json!({"name": ""})), 422, Some("name"), "1 to 128 characters"),
        (job(json!({"name": "a\nb"})), 422, Some("name"), "control character"),
        (job(json!({"name": "a\u{202e}b"})), 422, Some("name"), "change the direction of text"),
        (job(json!({"tags": {"team": "a\n# b"}})), 422, Some("tags"), "the value of \"team\" has the character U+000A"),
        (job(json!({"tags": {"a\u{1b}[2J": "b"}})), 422, Some("tags"), "has the character U+001B"),
        (job(json!({"pids": [1]})), 422, Some("pids"), "names 1, the parent of all processes"),
        (job(json!({"batch_size": 0})), 422, Some("batch_size"), "or leave it out"),
        (job(json!({"batch_size": 1.5})), 422, Some("batch_size"), "whole number"),
        (job(json!({"lease_s": 0.5})), 422, Some("lease_s"), "from 1 to 86400"),
        (job(json!({"lease_s": 86_401})), 422, Some("lease_s"), "from 1 to 86400"),
        (job(json!({"work": {"total_samples": 0}})), 422, Some("work.total_samples"), "more than 0"),
        (job(json!({"work": {"total_samples": -5}})), 422, Some("work.total_samples"), "more than 0"),
        (job(json!({"work": {"total_samples": 1e300}})), 422, Some("work.total_samples"), "at most 1e15"),
        (objective(json!({"eta": 1.01})), 422, Some("objective.eta"), "not from 0 to 1"),
        (objective(json!({"eta": -0.1})), 422, Some("objective.eta"), "not from 0 to 1"),
        (objective(json!({"max_slowdown": -0.01})), 422, Some("objective.max_slowdown"), "0.03 allows 3 %"),
        (objective(json!({"deadline": "tomorrow"})), 422, Some("objective.deadline"), "RFC 3339"),
        (objective(json!({"deadline": "2027-01-01T00:00:00"})), 422, Some("objective.deadline"), "RFC 3339"),
        (objective(json!({"carbon": 1})), 422, Some("objective.carbon"), "expected one of `eta`"),
        (
            job(json!({"objective": {"deadline": "2027-01-01T00:00:00Z"}})),
            422,
            Some("objective.deadline"),
            "give work.total_samples too",
        ),
        (job(json!({"tags": many})), 422, Some("tags"), "at most 16 tags"),
        (job(json!({"gpu": 1})), 422, Some("gpu"), "unknown field `gpu`, expected one of"),
    ];
    for (body, status, field, part) in &table {
        let problem = daemon.post("/v1/jobs", body).await.problem(*status);
        assert_eq!(problem["field"].as_str(), *field, "{body}: {problem}");
        assert!(problem["detail"].as_str().expect("reported").contains(part), "{body}: {problem}");
    }
    let valid = job(json!({})).to_string();
    let form = daemon.post_text("/v1/jobs", "application/x-www-form-urlencoded", valid.clone()).await.problem(415);
    assert!(form["detail"].as_str().expect("reported").contains("must be application/json"), "{form}");
    let large = format!("{valid}{}", " ".repeat(70_000));
    let large = daemon.post_text("/v1/jobs", "application/json", large).await.problem(413);
    assert!(large["detail"].as_str().expect("reported").contains("http.body_limit_bytes"), "{large}");
    for text in ["", "{", "{\"name\": NaN}", "{\"name\": \"a\", \"gpus\": [1], \"lease_s\": 1e999}"] {
        let problem = daemon.post_text("/v1/jobs", "application/json", text).await.problem(400);
        assert!(problem["detail"].as_str().expect("reported").starts_with("the body is"), "{problem}");
    }

    let jobs = daemon.get("/v1/jobs").await.expect(200);
    assert_eq!(jobs.as_array().expect("jobs").len(), 1, "{jobs}");
    assert_eq!(daemon.get("/v1/jobs?state=ended").await.expect(200), json!([]));
    for gpu in [1, 2] {
        let gpu = daemon.gpu(gpu).await;
        assert_eq!((&gpu["state"], &gpu["owner"], &gpu["observed_jobs"]), (&json!("free"), &Value::Null, &json!([])));
    }
    assert_eq!(daemon.gpu(0).await["owner"], holder);
    assert!(driver.writes().is_empty());
}

#[tokio::test]
async fn progress_that_makes_no_sense_is_refused_and_forgotten() {
    let driver = FakeDriver::new(&[json!({})]);
    let state = tempfile::tempdir().expect("a directory");
    let daemon = Daemon::start_with(&driver, state.path(), &[]).await;
    let id = daemon.register(&json!({"name": "a", "gpus": [0], "work": {"total_samples": 1e15}})).await;
    let path = format!("/v1/jobs/{id}/progress");
    let first = daemon.post(&path, &json!({"samples": 100, "at_s": 5.0})).await.expect(200);
    assert_eq!(first["phase"], "profiling", "{first}");
    let table: [(&str, u16, Option<&str>, &str); 20] = [
        (r#"{"samples": -1}"#, 422, Some("samples"), "cannot be negative"),
        (r#"{"samples": NaN}"#, 400, None, "JSON has no NaN"),
        (r#"{"samples": Infinity}"#, 400, None, "no infinity"),
        (r#"{"samples": 1e999}"#, 400, None, "number out of range"),
        (r#"{"samples": 1e300}"#, 422, Some("samples"), "no run counts beyond 1e15"),
        (r#"{"samples": null}"#, 422, Some("samples"), "give the cumulative count"),
        (r#"{"samples": "200"}"#, 422, Some("samples"), "give the cumulative count"),
        (r#"{"samples": [200]}"#, 422, Some("samples"), "give the cumulative count"),
        (r#"{"at_s": 6}"#, 422, Some("samples"), "missing field"),
        (r#"{"samples": 99, "at_s": 6}"#, 422, Some("samples"), "less than the 100 reported before"),
        (r#"{"samples": 99}"#, 422, Some("samples"), "register anew after going back to an old checkpoint"),
        (r#"{"samples": 200, "at_s": 4.9}"#, 422, Some("at_s"), "must come from a monotonic clock"),
        (r#"{"samples": 200, "at_s": -1}"#, 422, Some("at_s"), "cannot be negative"),
        (r#"{"samples": 200, "at_s": 1.7e12}"#, 422, Some("at_s"), "is this Unix time in milliseconds?"),
        (r#"{"samples": 200, "at_s": 1.79e9}"#, 422, Some("at_s"), "is this Unix time?"),
        (r#"{"samples": 200, "at_s": "now"}"#, 422, Some("at_s"), "monotonic clock, or leave it out"),
        (r#"{"samples": 200, "loss": 0.1}"#, 422, Some("loss"), "expected one of `samples`, `at_s`"),
        ("[200]", 422, None, "expected an object"),
        ("", 400, None, "the body is empty"),
        (r#"{"samples": 200"#, 400, None, "not JSON"),
    ];
    for (text, status, field, part) in table {
        let problem = daemon.post_text(&path, "application/json", text).await.problem(status);
        assert_eq!(problem["field"].as_str(), field, "{text}: {problem}");
        assert!(problem["detail"].as_str().expect("reported").contains(part), "{text}: {problem}");
    }
    assert_eq!(daemon.get(&format!("/v1/jobs/{id}")).await.expect(200)["samples"], 100.0);
    // The extremes of what is taken are taken: nothing behind the door trips over them.
    daemon.post(&path, &json!({"samples": 1e15})).await.expect(200);
    let late = daemon.register(&json!({"name": "b", "gpus": [0], "control": false})).await;
    daemon.post(&format!("/v1/jobs/{late}/progress"), &json!({"samples": 1e15, "at_s": 1e10})).await.expect(200);
    assert_eq!(daemon.get(&format!("/v1/jobs/{id}")).await.expect(200)["samples"], 1e15);

    let unknown = daemon.post("/v1/jobs/nobody/progress", &json!({"samples": 1})).await.problem(404);
    assert!(unknown["detail"].as_str().expect("reported").contains("registered with POST /v1/jobs"), "{unknown}");
    daemon.delete(&format!("/v1/jobs/{id}")).await.expect(200);
    for answer in [daemon.post(&path, &json!({"samples": 200})).await, daemon.delete(&format!("/v1/jobs/{id}")).await] {
        let ended = answer.problem(409);
        let detail = ended["detail"].as_str().expect("reported");
        assert!(
            detail.contains("has already ended") && detail.contains(&format!("GET /v1/jobs/{id}/emissions")),
            "{ended}"
        );
    }
}

#[tokio::test]
async fn a_deadline_that_cannot_be_met_runs_flat_out_and_says_so() {
    let driver = Arc::new(FakeDriver::new(&[single(), single(), single(), single()]));
    let state = tempfile::tempdir().expect("a directory");
    let daemon = Daemon::start_with(&driver, state.path(), &[]).await;
    let soon = (crate::support::now() + chrono::TimeDelta::seconds(60)).to_rfc3339();
    // About a thousand seconds of work at 100 samples a second.
    let deadlines = ["2001-01-01T00:00:00Z", &soon, "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"];
    let (mut ids, mut trainings) = (Vec::new(), Vec::new());
    for (gpu, deadline) in deadlines.iter().enumerate() {
        let objective = json!({"deadline": deadline});
        let job = json!({"name": format!("job {gpu}"), "gpus": [gpu], "work": {"total_samples": 100_000},
                         "objective": objective});
        let id = daemon.register(&job).await;
        trainings.push(Training::start(daemon.base(), &id, &driver, vec![(gpu, SINGLE)], 0.0));
        ids.push(id);
    }
    // What is lost already is told while the job is still being measured.
    let measured = daemon.phase(&ids[0], "profiling").await;
    let warning = measured["warnings"][0].as_str().expect("a warning");
    assert!(warning.starts_with("the deadline 2001-01-01T00:00:00Z will be missed by at least 2"), "{measured}");
    let warnings = async |id: &str| -> Vec<String> {
        let plan = eventually("a plan", LONG, async || {
            let plan = daemon.get(&format!("/v1/jobs/{id}/plan")).await.expect(200);
            plan["made_at"].is_string().then_some(plan)
        })
        .await;
        let job = daemon.get(&format!("/v1/jobs/{id}")).await.expect(200);
        assert_eq!((&job["phase"], &job["power_limit_w"]), (&json!("planned"), &json!(300.0)), "{job}");
        serde_json::from_value(plan["warnings"].clone()).expect("texts")
    };
    for (gpu, least, unit) in [(0, 24.0, "years"), (1, 600.0, "s")] {
        let reported = warnings(&ids[gpu]).await;
        let [only] = reported.as_slice() else { panic!("one warning, not {reported:?}") };
        let (_, late) = only.split_once("Z will be missed by ").expect(only);
        let late: Vec<&str> = late.split(' ').collect();
        assert!(late[0].parse::<f64>().expect(only) > least && late[1] == unit, "{reported:?}");
    }
    assert!(warnings(&ids[2]).await[0].contains(" will be missed by more than 100 years"));
    assert!(warnings(&ids[3]).await.is_empty());
    let problems = daemon.get("/v1/status").await.expect(200)["problems"].clone();
    let missed = problems.as_array().expect("texts").iter().filter(|p| p.to_string().contains("will be missed"));
    assert_eq!(missed.count(), 3, "{problems}");
    for training in trainings {
        let answers = training.stop().await;
        assert!(answers.iter().all(|a| a["warnings"].is_array()), "{:?}", answers.last());
    }
}

#[tokio::test]
async fn an_address_that_cannot_be_read_is_refused_as_documented() {
    let driver = FakeDriver::new(&[json!({})]);
    let state = tempfile::tempdir().expect("a directory");
    let daemon = Daemon::start_with(&driver, state.path(), &[]).await;
    let document = daemon.get("/openapi.json").await.expect(200);
    let mut seen = 0;
    for (path, item) in document["paths"].as_object().expect("paths").iter().filter(|(path, _)| path.contains('{')) {
        for (method, operation) in item.as_object().expect("operations") {
            // What is no UTF-8 is no name, and no number either.
            let address = path.replace("{number}", "first").replace("{id}", "%FF").replace("{name}", "%FF");
            let method = reqwest::Method::from_bytes(method.to_uppercase().as_bytes()).expect("a method");
            let request = daemon.client().request(method.clone(), format!("{}{address}", daemon.base()));
            let problem = daemon.send(request.json(&json!({}))).await.problem(400);
            assert!(
                problem["detail"].as_str().expect("reported").starts_with("the address cannot be read"),
                "{problem}"
            );
            let documented = &operation["responses"]["400"]["$ref"];
            assert_eq!(documented, "#/components/responses/Problem", "{method} {path}");
            seen += 1;
        }
    }
    assert!(seen > 10, "{seen}");
    let problem = daemon.get("/v1/recurring/a/trials/first").await.problem(400);
    assert!(problem["detail"].as_str().expect("reported").contains("first"), "{problem}");
}

#[tokio::test]
async fn no_warning_holds_a_number_that_nobody_can_read() {
    let driver = Arc::new(FakeDriver::new(&[single(), single(), single()]));
    let state = tempfile::tempdir().expect("a directory");
    let daemon = Daemon::start_with(&driver, state.path(), &[]).await;
    let table = [
        json!({"work": {"total_samples": 5e-324}}),
        json!({"work": {"total_samples": 1e15}, "objective": {"deadline": "0001-01-01T00:00:00Z"}}),
        json!({"work": {"total_samples": 1e15}, "objective": {"carbon_budget_g": 1e300}}),
    ];
    let (mut ids, mut trainings) = (Vec::new(), Vec::new());
    for (gpu, more) in table.iter().enumerate() {
        let mut job = json!({"name": format!("job {gpu}"), "gpus": [gpu]});
        job.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        let id = daemon.register(&job).await;
        trainings.push(Training::start(daemon.base(), &id, &driver, vec![(gpu, SINGLE)], 0.0));
        ids.push(id);
    }
    daemon.phase(&ids[1], "planned").await;
    let mut reported = Vec::new();
    for id in &ids {
        for path in [format!("/v1/jobs/{id}"), format!("/v1/jobs/{id}/plan")] {
            let warnings = daemon.get(&path).await.expect(200)["warnings"].clone();
            reported.extend(warnings.as_array().into_iter().flatten().map(ToString::to_string));
        }
    }
    reported.push(daemon.problems().await);
    let is_long = |text: &String| {
        let digits = text.split(|c: char| !c.is_ascii_digit()).map(str::len).max().unwrap_or(0);
        digits > 16 || text.split(|c: char| !c.is_alphabetic()).any(|word| matches!(word, "inf" | "NaN"))
    };
    assert!(reported.iter().any(|text| text.contains("more than 100 years")), "{reported:?}");
    assert!(reported.iter().any(|text| text.contains("5e-324 in all")), "{reported:?}");
    assert!(!reported.iter().any(is_long), "{reported:?}");
    for training in trainings {
        training.stop().await;
    }
}
