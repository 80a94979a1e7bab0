//! Recurring jobs over HTTP: trials from beginning to end, many at once, and over kills of the daemon.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Daemon, Shapes, eventually};

fn command(state: &Path) -> Command {
    let config = state.join("test.toml");
    std::fs::write(&config, "[control]\ntick_s = 0.1\n").expect("written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_wattune"));
    command.arg("serve").arg("--config").arg(config).args(["--gpus", "simulated", "--listen", "127.0.0.1:0"]);
    command.arg("--state-dir").arg(state);
    command
}

pub(crate) async fn start(state: &Path) -> Daemon {
    Daemon::start(command(state), state).await
}

pub(crate) fn spec() -> Value {
    json!({"batch_sizes": [32, 64, 128], "default_batch_size": 64, "max_epochs": 10, "target_metric": 0.6,
           "max_power_w": 300, "eta": 1, "policy": "zeus", "seed": 1})
}

/// Epochs that a batch size needs, and the joules of each. 128 never gets there.
fn truth(batch_size: u64) -> (u64, f64) {
    match batch_size {
        32 => (4, 100.0),
        64 => (5, 70.0),
        _ => (1000, 60.0),
    }
}

/// What the `number`th trial says after so many epochs. No two trials cost quite the same.
pub(crate) fn report(number: u64, batch_size: u64, epochs: u64) -> Value {
    let (needs, each) = truth(batch_size);
    let joules = each * (1.0 + 0.01 * (number * 7 % 5) as f64) * epochs as f64;
    json!({"epochs": epochs, "energy_j": joules, "time_s": epochs, "metric": if epochs >= needs { 0.61 } else { 0.2 }})
}

#[tokio::test]
async fn a_trial_from_beginning_to_end() {
    let state = tempfile::tempdir().expect("a directory");
    let daemon = start(state.path()).await;
    let shapes = Shapes(daemon.get("/openapi.json").await.expect(200));
    let checked = |method: &str, address: &str, status: &str, value: &Value| {
        let schema = shapes.of(method, address, status).unwrap_or_else(|| panic!("{method} {address} {status}"));
        shapes.check(schema, value, address);
    };
    // A name may hold what an address may not.
    let base = "/v1/recurring/nightly%20%2F%20a";
    let made = daemon.put(base, &spec()).await.expect(201);
    checked("put", "/v1/recurring/{name}", "201", &made);
    assert_eq!(
        (&made["name"], &made["stage"], &made["favourite"]),
        (&json!("nightly / a"), &json!("exploring"), &json!(64))
    );
    let mut reordered = spec();
    reordered["batch_sizes"] = json!([128, 64, 32]);
    daemon.put(base, &reordered).await.expect(200);
    let mut other = spec();
    other["beta"] = Value::Null;
    let refused = daemon.put(base, &other).await.problem(409);
    assert!(refused["detail"].as_str().expect("text").contains("a different beta"), "{refused}");

    let trial = daemon.post(&format!("{base}/trials"), &json!({"key": "a"})).await.expect(201);
    checked("post", "/v1/recurring/{name}/trials", "201", &trial);
    assert_eq!(
        (&trial["number"], &trial["batch_size"], &trial["kind"]),
        (&json!(1), &json!(64), &json!("exploration"))
    );
    assert_eq!(daemon.post(&format!("{base}/trials"), &json!({"key": "a"})).await.expect(200), trial);
    let beside = daemon.post(&format!("{base}/trials"), &json!({})).await.expect(201);
    assert_eq!((&beside["number"], &beside["kind"]), (&json!(2), &json!("concurrent")));
    let withdrawn = daemon.post(&format!("{base}/trials/2/end"), &json!({})).await.expect(200);
    checked("post", "/v1/recurring/{name}/trials/{number}/end", "200", &withdrawn);
    assert_eq!((&withdrawn["state"], &withdrawn["reason"]), (&json!("withdrawn"), &json!("it was withdrawn")));
    let late = daemon.post(&format!("{base}/trials/2/progress"), &report(2, 64, 1)).await.problem(410);
    assert!(late["detail"].as_str().expect("text").contains("it was withdrawn"), "{late}");

    let progress = format!("{base}/trials/1/progress");
    let reported = daemon.post(&progress, &report(1, 64, 4)).await.expect(200);
    checked("post", "/v1/recurring/{name}/trials/{number}/progress", "200", &reported);
    assert_eq!((&reported["stop"], &reported["reached"]), (&json!(false), &json!(false)));
    let wrong = daemon.post(&progress, &report(1, 64, 3)).await.problem(422);
    assert_eq!(wrong["field"], "epochs");
    let not_a_number = json!({"epochs": 5, "energy_j": 400, "time_s": 5, "metric": null});
    assert_eq!(daemon.post(&progress, &not_a_number).await.expect(200)["reached"], false);
    let last = json!({"epochs": 6, "energy_j": 480, "time_s": 6, "metric": 0.6});
    let reported = daemon.post(&progress, &last).await.expect(200);
    assert_eq!((&reported["stop"], &reported["reached"]), (&json!(true), &json!(true)));
    assert_eq!(daemon.post(&progress, &last).await.expect(200), reported, "who heard nothing asks again");
    let later = json!({"epochs": 7, "energy_j": 560, "time_s": 7, "metric": 0.3});
    let late = daemon.post(&progress, &later).await.expect(200);
    assert_eq!((&late["stop"], &late["reached"], &late["max_epochs"]), (&json!(true), &json!(true), &json!(6)));
    assert!(late["reason"].as_str().expect("text").ends_with("this report came later and is not counted"), "{late}");
    let other = daemon.post(&progress, &report(1, 64, 5)).await.problem(409);
    assert_eq!(other["field"], "epochs", "{other}");
    assert!(other["detail"].as_str().expect("text").contains("it reached its target after 6 epochs"), "{other}");
    let end = json!({"report": report(1, 64, 5)});
    assert_eq!(daemon.post(&format!("{base}/trials/1/end"), &end).await.problem(409)["field"], "epochs");
    let ended = daemon.post(&format!("{base}/trials/1/end"), &json!({})).await.expect(200);
    assert_eq!(
        (&ended["state"], &ended["cost_j"], &ended["max_epochs"]),
        (&json!("reached"), &json!(480.0), &Value::Null)
    );

    let history = daemon.get(&format!("{base}/trials")).await.expect(200);
    checked("get", "/v1/recurring/{name}/trials", "200", &history);
    assert_eq!(history.as_array().expect("a list").len(), 2);
    for (query, expected) in [
        ("after=1&limit=5", vec![2]),
        ("order=asc&limit=1", vec![1]),
        ("order=desc", vec![2, 1]),
        ("order=desc&limit=1", vec![2]),
        ("order=desc&after=2", vec![1]),
    ] {
        let page = daemon.get(&format!("{base}/trials?{query}")).await.expect(200);
        checked("get", "/v1/recurring/{name}/trials", "200", &page);
        let numbers: Vec<_> = page.as_array().expect("a list").iter().filter_map(|t| t["number"].as_u64()).collect();
        assert_eq!(numbers, expected, "{query}");
    }
    for (query, says) in [("order=down", "asc"), ("sort=desc", "unknown field `sort`"), ("limit=0", "1 to 1000")] {
        let refused = daemon.get(&format!("{base}/trials?{query}")).await.problem(422);
        assert!(refused["detail"].as_str().expect("text").contains(says), "{refused}");
    }
    let view = daemon.get(base).await.expect(200);
    checked("get", "/v1/recurring/{name}", "200", &view);
    let arm = &view["arms"][1];
    assert_eq!(
        (&arm["batch_size"], &arm["runs"], &arm["reached"], &arm["mean_cost_j"]),
        (&json!(64), &json!(1), &json!(1), &json!(480.0))
    );
    let list = daemon.get("/v1/recurring").await.expect(200);
    checked("get", "/v1/recurring", "200", &list);
    assert_eq!((&list[0]["trials"], &list[0]["running"]), (&json!(2), &json!(0)));

    let document = daemon.get(&format!("{base}/export")).await.expect(200);
    checked("get", "/v1/recurring/{name}/export", "200", &document);
    daemon.post(&format!("{base}/import"), &document).await.problem(409);
    daemon.post("/v1/recurring/copy/import", &document).await.expect(201);
    let mut copy = daemon.get("/v1/recurring/copy/export").await.expect(200);
    copy["name"] = document["name"].clone();
    assert_eq!(copy, document);
    let mut broken = document.clone();
    broken["trials"][0]["batch_size"] = json!(7);
    let refused = daemon.post("/v1/recurring/broken/import", &broken).await.problem(422);
    assert_eq!(refused["field"], "trials", "{refused}");
    daemon.delete(base).await.expect(200);
    daemon.get(base).await.problem(404);
    daemon.post(&format!("{base}/trials"), &json!({})).await.problem(404);
    // A client of the deleted one does not report for a trial of the new one.
    daemon.put(base, &spec()).await.expect(201);
    daemon.post(&progress, &later).await.problem(404);
    assert_eq!(daemon.post(&format!("{base}/trials"), &json!({})).await.expect(201)["number"], 3);
    daemon.post(&progress, &later).await.problem(404);
    daemon.get("/v1/recurring/copy/trials/9").await.problem(404);
}

#[tokio::test]
async fn where_nothing_converges_it_is_said() {
    let state = tempfile::tempdir().expect("a directory");
    let daemon = start(state.path()).await;
    let mut spec = spec();
    spec["batch_sizes"] = json!([64, 128]);
    daemon.put("/v1/recurring/a", &spec).await.expect(201);
    for number in 1..=2 {
        let trial = daemon.post("/v1/recurring/a/trials", &json!({})).await.expect(201);
        assert_eq!(trial["number"], number);
        let end = json!({"outcome": "not_reached", "report": {"epochs": 1, "energy_j": 9, "time_s": 1}});
        let ended = daemon.post(&format!("/v1/recurring/a/trials/{number}/end"), &end).await.expect(200);
        assert_eq!((&ended["state"], &ended["epochs"]), (&json!("not_reached"), &json!(1)));
    }
    let refused = daemon.post("/v1/recurring/a/trials", &json!({})).await.problem(409);
    assert!(
        refused["detail"].as_str().expect("text").contains("no batch size reaches")
            && refused["detail"].to_string().contains("DELETE"),
        "{refused}"
    );
    assert_eq!(daemon.get("/v1/recurring/a").await.expect(200)["stage"], "none_converges");
}

#[tokio::test]
async fn energy_may_come_from_the_ledger() {
    let state = tempfile::tempdir().expect("a directory");
    let daemon = start(state.path()).await;
    daemon.put("/v1/recurring/nightly", &spec()).await.expect(201);
    daemon.post("/v1/recurring/nightly/trials", &json!({})).await.expect(201);
    let other = daemon.register(&json!({"name": "nightly", "gpus": [1], "batch_size": 8})).await;
    let progress = "/v1/recurring/nightly/trials/1/progress";
    let refused = daemon.post(progress, &json!({"epochs": 1, "job_id": other})).await.problem(422);
    assert_eq!(refused["field"], "job_id", "{refused}");
    let id = daemon.register(&json!({"name": "nightly", "gpus": [0], "batch_size": 64})).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    // The job has reported no samples, so that only the client knows the time.
    let refused = daemon.post(progress, &json!({"epochs": 1, "job_id": id})).await.problem(422);
    assert_eq!(refused["field"], "time_s", "{refused}");
    assert!(refused["detail"].as_str().expect("text").contains("has no progress"), "{refused}");
    daemon.post(progress, &json!({"epochs": 0, "job_id": id})).await.expect(200);
    daemon.post(progress, &json!({"epochs": 1, "job_id": id, "time_s": 2})).await.expect(200);
    let energy = daemon.get("/v1/recurring/nightly/trials/1").await.expect(200)["energy_j"].as_f64();
    assert!(energy.is_some_and(|e| e > 1.0), "{energy:?}");
    let account = daemon.delete(&format!("/v1/jobs/{id}")).await.expect(200);
    let last = json!({"epochs": 2, "job_id": id, "time_s": 4, "metric": 0.7});
    assert_eq!(daemon.post(progress, &last).await.expect(200)["reached"], true);
    let trial = daemon.get("/v1/recurring/nightly/trials/1").await.expect(200);
    let recorded = account["energy_j"].as_f64().expect("recorded");
    assert!((trial["energy_j"].as_f64().expect("known") / recorded - 1.0).abs() < 1e-6, "{trial} {account}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixteen_at_once_of_which_some_die() {
    let state = tempfile::tempdir().expect("a directory");
    let daemon = start(state.path()).await;
    for policy in ["zeus", "wattune"] {
        let mut spec = spec();
        spec["lease_s"] = json!(2);
        spec["policy"] = json!(policy);
        let base = format!("{}/v1/recurring/{policy}", daemon.base());
        daemon.put(&format!("/v1/recurring/{policy}"), &spec).await.expect(201);
        let clients: Vec<_> =
            (0..16u64).map(|who| tokio::spawn(client(daemon.client().clone(), base.clone(), who))).collect();
        let mut numbers = Vec::new();
        for client in clients {
            numbers.extend(client.await.expect("no panic"));
        }
        numbers.sort_unstable();
        let begun = numbers.len();
        numbers.dedup();
        assert_eq!(numbers.len(), begun, "each number once");
        assert_eq!(numbers, (1..=begun as u64).collect::<Vec<_>>());
        // Whoever is still silent is lost soon, and learning ends.
        let view = eventually("the end of exploration", Duration::from_secs(60), async || {
            let trial = daemon.post(&format!("/v1/recurring/{policy}/trials"), &json!({})).await.expect(201);
            let (number, batch_size) = (trial["number"].as_u64()?, trial["batch_size"].as_u64()?);
            for epochs in 1..=10 {
                let path = format!("/v1/recurring/{policy}/trials/{number}/progress");
                if daemon.post(&path, &report(number, batch_size, epochs)).await.expect(200)["stop"] == true {
                    break;
                }
            }
            let view = daemon.get(&format!("/v1/recurring/{policy}")).await.expect(200);
            (view["stage"] == "exploiting" && view["running"] == 0).then_some(view)
        })
        .await;
        assert!(view["favourite"] == 64 || view["favourite"] == 32, "{view}");
        let trials = daemon.get(&format!("/v1/recurring/{policy}/trials")).await.expect(200);
        let states: Vec<&str> = trials.as_array().expect("a list").iter().filter_map(|t| t["state"].as_str()).collect();
        assert!(states.contains(&"lost") && states.contains(&"reached"), "{states:?}");
        assert!(!states.contains(&"running"), "{states:?}");
    }
}

/// Runs a few trials one after the other, each at its own pace; every third dies without a word. Answers with their
/// numbers.
async fn client(http: reqwest::Client, base: String, who: u64) -> Vec<u64> {
    let mut numbers = Vec::new();
    for turn in 0..4 {
        let begun = http.post(format!("{base}/trials")).json(&json!({"key": format!("{who}/{turn}")})).send().await;
        let begun = begun.expect("answered");
        assert_eq!(begun.status(), 201);
        let trial: Value = begun.json().await.expect("JSON");
        let number = trial["number"].as_u64().expect("a number");
        numbers.push(number);
        let batch_size = trial["batch_size"].as_u64().expect("a batch size");
        for epochs in 1..=10 {
            if (who + turn).is_multiple_of(3) && epochs == 2 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1 + (who * 7 + turn * 3 + epochs) % 11)).await;
            let body = report(number, batch_size, epochs);
            let reported =
                http.post(format!("{base}/trials/{number}/progress")).json(&body).send().await.expect("answered");
            assert_eq!(reported.status(), 200);
            if reported.json::<Value>().await.expect("JSON")["stop"] == true {
                break;
            }
        }
    }
    numbers
}

/// When the daemon is killed around a request.
#[derive(Clone, Copy)]
enum Kill {
    Never,
    /// Before it is sent.
    Before,
    /// After it was answered; whoever asked did not hear the answer.
    After,
    /// While it is on its way.
    During(Duration),
}

/// A daemon that is killed at every step.
struct Mortal<'a> {
    state: &'a Path,
    daemon: Option<Daemon>,
    steps: u64,
    kill: fn(u64) -> Kill,
}

impl Mortal<'_> {
    fn daemon(&self) -> &Daemon {
        self.daemon.as_ref().expect("running")
    }

    async fn reborn(&mut self) {
        self.daemon.take().expect("running").kill();
        self.daemon = Some(start(self.state).await);
    }

    async fn post(&mut self, path: &str, body: &Value) -> Value {
        self.steps += 1;
        match (self.kill)(self.steps) {
            Kill::Never => {}
            Kill::Before => self.reborn().await,
            Kill::After => {
                let status = self.daemon().post(path, body).await.status;
                assert!([200, 201].contains(&status), "{status}");
                self.reborn().await;
            }
            Kill::During(delay) => {
                let request = self.daemon().client().post(format!("{}{path}", self.daemon().base())).json(body);
                let asked = tokio::spawn(request.send());
                tokio::time::sleep(delay).await;
                self.reborn().await;
                // It may have been answered or not.
                let _ = asked.await.expect("no panic");
            }
        }
        let answer = self.daemon().post(path, body).await;
        assert!([200, 201].contains(&answer.status), "{answer:?}");
        answer.json()
    }
}

/// Twelve trials, one of them withdrawn and one silent to the end; what is stored afterwards, without times.
async fn lived(kill: fn(u64) -> Kill) -> Value {
    let state = tempfile::tempdir().expect("a directory");
    let mut mortal = Mortal { state: state.path(), daemon: Some(start(state.path()).await), steps: 0, kill };
    mortal.daemon().put("/v1/recurring/a", &spec()).await.expect(201);
    for turn in 1..=12 {
        let trial = mortal.post("/v1/recurring/a/trials", &json!({"key": turn.to_string()})).await;
        assert_eq!(trial["number"], turn);
        let batch_size = trial["batch_size"].as_u64().expect("a batch size");
        let path = format!("/v1/recurring/a/trials/{turn}");
        match turn {
            3 => drop(mortal.post(&format!("{path}/end"), &json!({})).await),
            8 => continue,
            _ => {
                let (needs, _) = truth(batch_size);
                mortal.post(&format!("{path}/progress"), &report(turn, batch_size, 2)).await;
                let last = report(turn, batch_size, needs.min(10));
                let reported = mortal.post(&format!("{path}/progress"), &last).await;
                assert_eq!(reported["stop"], true, "{reported}");
            }
        }
    }
    let mut document = mortal.daemon().get("/v1/recurring/a/export").await.expect(200);
    document["created_at"] = Value::Null;
    for trial in document["trials"].as_array_mut().expect("trials") {
        for moment in ["begun_at", "lease_until", "ended_at"] {
            trial[moment] = Value::Null;
        }
    }
    document
}

#[tokio::test]
async fn a_daemon_that_is_killed_at_every_step_loses_and_doubles_nothing() {
    let uninterrupted = lived(|_| Kill::Never).await;
    assert_eq!(uninterrupted["trials"].as_array().map(Vec::len), Some(12));
    let killed = lived(|step| match step % 3 {
        0 => Kill::Before,
        1 => Kill::After,
        _ => Kill::During(Duration::from_micros(step * 100)),
    });
    assert_eq!(killed.await, uninterrupted);
}
