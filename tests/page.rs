//! What the page lives on, over a real connection: events, and the limits of the last day.

use serde_json::{Value, json};

use crate::support::{Daemon, FakeDriver, LONG, Shapes, eventually};

/// A stream of events.
struct Events {
    answer: reqwest::Response,
    text: String,
}

impl Events {
    async fn of(daemon: &Daemon) -> Self {
        let request = daemon.client().get(format!("{}/v1/events", daemon.base())).timeout(LONG);
        let answer = request.send().await.expect("connected");
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        assert_eq!(answer.headers()["cache-control"], "no-store");
        Self { answer, text: String::new() }
    }

    /// The next event's name and data; `None` at the end. Comments are left out.
    async fn next(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let (event, rest) = (event.to_owned(), rest.to_owned());
                self.text = rest;
                let field = |name: &str| event.lines().find_map(|l| l.strip_prefix(name)).map(|v| v.trim().to_owned());
                assert_eq!(field("id:"), None, "{event}");
                let Some(data) = field("data:") else { continue };
                return Some((field("event:").expect("a name"), serde_json::from_str(&data).expect("JSON")));
            }
            let chunk = self.answer.chunk().await.expect("read")?;
            self.text.push_str(std::str::from_utf8(&chunk).expect("UTF-8"));
        }
    }

    /// The next status that is as wanted.
    async fn status(&mut self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        loop {
            let (event, data) = self.next().await.unwrap_or_else(|| panic!("it ended before {what}"));
            if event == "status" && is_so(&data) {
                return data;
            }
        }
    }
}

#[tokio::test]
async fn events_tell_the_status_as_it_changes_until_the_daemon_ends() {
    let driver = FakeDriver::new(&[json!({})]);
    let state = tempfile::tempdir().expect("a directory");
    let daemon = Daemon::start_with(&driver, state.path(), &[]).await;
    let shapes = Shapes(daemon.get("/openapi.json").await.expect(200));
    let schema = shapes.of("get", "/v1/status", "200").expect("described");
    let (mut one, mut two) = (Events::of(&daemon).await, Events::of(&daemon).await);
    let first = one.status("the first", |_| true).await;
    shapes.check(schema, &first, "/v1/events");
    assert_eq!(first["jobs"], json!([]));
    let id = daemon.register(&json!({"name": "a", "gpus": [0]})).await;
    // Both are told the same: they share the answer.
    let registered = |status: &Value| status["jobs"][0]["job_id"] == id.as_str();
    assert_eq!(one.status("the job", registered).await, two.status("the job", registered).await);
    daemon.delete(&format!("/v1/jobs/{id}")).await.expect(200);
    one.status("its end", |status| status["jobs"] == json!([])).await;
    let stopping = daemon.stop("TERM");
    let ends = async { while two.next().await.is_some() {} };
    let (status, ()) = tokio::join!(stopping, ends);
    assert!(status.success());
}

#[tokio::test]
async fn a_gpus_history_tells_its_limits_as_they_were() {
    let driver = FakeDriver::new(&[json!({})]);
    let state = tempfile::tempdir().expect("a directory");
    let daemon = Daemon::start_with(&driver, state.path(), &[]).await;
    let before = daemon.gpu(0).await["power_limit_enforced_w"].clone();
    let limits = async |address: &str| -> Vec<Value> {
        let spans = daemon.get(address).await.expect(200);
        let spans = spans.as_array().expect("spans");
        for pair in spans.windows(2) {
            assert!(pair[0]["end"].as_str() <= pair[1]["start"].as_str(), "{pair:?}");
        }
        spans.iter().map(|s| s["power_limit_enforced_w"].clone()).collect()
    };
    eventually("a first span", LONG, async || (!limits("/v1/gpus/0/history").await.is_empty()).then_some(())).await;
    daemon.hold(&driver, 0, 180.0).await;
    let uuid = daemon.gpu(0).await["uuid"].as_str().expect("reported").to_owned();
    let reported = eventually("the new limit", LONG, async || {
        let reported = limits(&format!("/v1/gpus/{uuid}/history")).await;
        reported.contains(&json!(180.0)).then_some(reported)
    })
    .await;
    assert_eq!((&reported[0], reported.last()), (&before, Some(&json!(180.0))));
    let problem = daemon.get("/v1/gpus/7/history").await.problem(404);
    assert!(problem["detail"].as_str().expect("reported").contains("GPUs of this machine: 0"), "{problem}");
}
