//! The audit log: each control action with who, what, before and after, which agree with the driver's log of writes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use wattune::store::{AuditQuery, Store};

use crate::support::{Curve, Daemon, Ended, FakeDriver, LONG, Training, eventually};

/// Samples per second of a job by the limit of its GPU.
const CURVE: Curve = &[(100.0, 60.0), (300.0, 100.0)];

/// The tests as the log names them for their requests over TCP.
fn us() -> String {
    format!("user {}", wattune::files::user())
}

/// A daemon with a socket, and the directories of both.
struct Node {
    daemon: Daemon,
    state: tempfile::TempDir,
    socket: PathBuf,
}

impl Node {
    async fn start(driver: &FakeDriver) -> Self {
        Self::start_in(driver, tempfile::tempdir().expect("a directory")).await
    }

    async fn start_in(driver: &FakeDriver, state: tempfile::TempDir) -> Self {
        let socket = state.path().join("wattune.sock");
        let daemon = Daemon::start_with(driver, state.path(), &["--socket", socket.to_str().expect("UTF-8")]).await;
        Self { daemon, state, socket }
    }

    /// Head and body of an answer over the socket.
    async fn ask(&self, path: &str) -> (String, String) {
        let mut stream = UnixStream::connect(&self.socket).await.expect("connected");
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut answer = String::new();
        tokio::time::timeout(LONG, stream.read_to_string(&mut answer)).await.expect("in time").expect("answered");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        (head.to_owned(), body.to_owned())
    }

    async fn records(&self, query: &str) -> Vec<Value> {
        let (head, body) = self.ask(&format!("/v1/audit{query}")).await;
        assert!(head.starts_with("HTTP/1.1 200"), "{head}\n{body}");
        let page: Value = serde_json::from_str(&body).expect("JSON");
        page["records"].as_array().expect("a list").clone()
    }

    /// The records of a GPU whose actions changed its limit, as (who, before, after) in watts.
    async fn changes(&self, gpu: usize) -> Vec<(String, f64, f64)> {
        let records = self.records(&format!("?gpu={gpu}")).await;
        let changed = records.iter().filter(|r| {
            ["set_power_limit", "restore_power_limit"].contains(&r["action"].as_str().expect("a word"))
                && r["outcome"] == "enforced"
                && r["before"] != r["after"]
        });
        let watts = |state: &Value| state["power_limit_w"].as_f64().expect("watts");
        changed.map(|r| (r["who"].as_str().expect("a name").into(), watts(&r["before"]), watts(&r["after"]))).collect()
    }
}

/// The records that a daemon has stored, read from its database.
async fn stored(state: &Path) -> Vec<Value> {
    let query = AuditQuery { after: None, limit: 10_000, gpu: None, job: None, since: None };
    let page = Store::open_read_only(state).await.expect("opens").audit().page(query).await.expect("read");
    page.records.into_iter().map(|(_, record)| serde_json::to_value(record).expect("JSON")).collect()
}

#[tokio::test]
async fn every_change_of_a_limit_has_its_author_and_agrees_with_the_drivers_log() {
    let driver = Arc::new(FakeDriver::new(&[json!({}), json!({}), json!({})]));
    let node = Node::start(&driver).await;
    let daemon = &node.daemon;
    // By hand, by a Zeus client and by a job's plan.
    daemon.hold(&driver, 0, 225.0).await;
    daemon.delete("/v1/gpus/0/power-limit").await.expect(200);
    eventually("the original limit", LONG, async || (driver.limit_w(0) == Some(300.0)).then_some(())).await;
    daemon.hold(&driver, 0, 250.0).await;
    let zeus = async |watts: u32| {
        let query = format!("gpu_ids=1&power_limit_mw={}&block=true", watts * 1000);
        let url = format!("{}/gpu/set_power_limit?{query}", daemon.base());
        daemon.client().post(url).send().await.expect("answered").status().as_u16()
    };
    assert_eq!((zeus(200).await, zeus(200).await, zeus(7).await), (200, 200, 400));
    let id = daemon
        .register(&json!({"name": "planned", "gpus": [2], "work": {"total_samples": 1_000_000}, "lease_s": 3600}))
        .await;
    let training = Training::start(daemon.base(), &id, &driver, vec![(2, CURVE)], 0.0);
    eventually("a limit of the job's", LONG, async || (!driver.limits_written(2).is_empty()).then_some(())).await;
    training.stop().await;
    let Node { daemon, state, .. } = node;
    assert!(daemon.stop("TERM").await.success());
    let node = Node::start_in(&driver, state).await;

    let chained = |changes: &[(String, f64, f64)]| changes.windows(2).all(|pair| pair[0].2 == pair[1].1);
    for gpu in 0..3 {
        let changes = node.changes(gpu).await;
        let after: Vec<f64> = changes.iter().map(|(_, _, after)| *after).collect();
        assert_eq!(after, driver.limits_written(gpu), "GPU {gpu}: {changes:?}");
        assert!(chained(&changes), "GPU {gpu}: {changes:?}");
        assert_eq!(changes.first().map(|(_, before, _)| *before), Some(300.0));
        assert_eq!(changes.last().map(|(who, _, after)| (who.as_str(), *after)), Some(("wattune", 300.0)));
    }
    let by_hand = node.changes(0).await;
    let us = us();
    let expected = [(us.as_str(), 225.0), ("wattune", 300.0), (us.as_str(), 250.0), ("wattune", 300.0)];
    let found: Vec<(&str, f64)> = by_hand.iter().map(|(who, _, after)| (who.as_str(), *after)).collect();
    assert_eq!(found, expected);
    let of_zeus = node.records("?gpu=1").await;
    let mut brief: Vec<_> = of_zeus.iter().map(|r| (r["action"].clone(), r["outcome"].clone())).collect();
    brief.truncate(3);
    let set = json!("set_power_limit");
    // The second write changed nothing, and the third is refused.
    assert_eq!(brief, [(set.clone(), json!("enforced")), (set.clone(), json!("enforced")), (set, json!("refused"))]);
    assert!(of_zeus[..3].iter().all(|r| r["who"].as_str().is_some_and(|who| who.starts_with("Zeus client"))));
    assert_eq!(of_zeus[2]["after"]["power_limit_w"], 7.0, "{}", of_zeus[2]);
    assert!(of_zeus[2]["reason"].as_str().is_some_and(|why| why.contains("outside")), "{}", of_zeus[2]);
    let of_job = node.records(&format!("?job={id}")).await;
    assert_eq!((&of_job[0]["action"], &of_job[0]["who"]), (&json!("register_job"), &json!(us)));
    assert_eq!((&of_job[1]["action"], &of_job[1]["who"]), (&json!("set_power_limit"), &json!("wattune")));
}

#[tokio::test]
async fn demand_response_jobs_and_overrides_are_recorded_with_their_end() {
    let driver = FakeDriver::new(&[json!({"deny_set_limit": true}), json!({})]);
    let node = Node::start(&driver).await;
    let daemon = &node.daemon;
    let now = crate::support::now();
    let event = json!({"id": "dr-1", "start": now, "end": now + chrono::TimeDelta::hours(1), "target_w": 500});
    daemon.post("/v1/demand-response", &event).await.expect(201);
    eventually("the cap", LONG, async || {
        node.records("").await.iter().any(|r| r["action"] == "change_cap" && r["after"]["cap_w"] == 500.0).then_some(())
    })
    .await;
    daemon.delete("/v1/demand-response/dr-1").await.expect(200);
    daemon.delete("/v1/demand-response/dr-1").await.problem(404);
    daemon.put("/v1/gpus/0/power-limit", &json!({"power_limit_w": 200, "ttl_s": 60})).await.problem(403);
    daemon.put("/v1/gpus/1/power-limit", &json!({"power_limit_w": 7, "ttl_s": 60})).await.problem(422);
    daemon.put("/v1/gpus/1/power-limit", &json!({"power_limit_w": 200, "ttl_s": 1})).await.expect(200);
    let id = daemon.register(&json!({"name": "short", "gpus": [1], "lease_s": 3600, "control": false})).await;
    daemon.delete(&format!("/v1/jobs/{id}")).await.expect(200);
    // The original limit comes back last. A second restoration, between the event and the override, is made only if
    // the controller looks at the GPU between the two requests.
    eventually("the end of the override", LONG, async || {
        let records = node.records("").await;
        let ended = records.iter().position(|r| r["action"] == "end_override")?;
        let restored = |r: &Value| r["action"] == "restore_power_limit" && r["after"]["power_limit_w"] == 300.0;
        records[ended..].iter().any(restored).then_some(())
    })
    .await;
    let records = node.records("").await;
    let one = |action: &str, outcome: &str| {
        let found = records.iter().find(|r| r["action"] == action && r["outcome"] == outcome);
        found.unwrap_or_else(|| panic!("no {action} that is {outcome}: {records:#?}")).clone()
    };
    let announced = one("announce_demand_response", "enforced");
    assert_eq!((&announced["event"], &announced["after"]["cap_w"]), (&json!("dr-1"), &json!(500.0)));
    assert_eq!(one("withdraw_demand_response", "enforced")["before"]["cap_w"], 500.0);
    assert_eq!(one("withdraw_demand_response", "refused")["event"], "dr-1");
    let denied = records.iter().find(|r| r["outcome"] == "failed" && r["who"] == us()).expect("a record");
    assert_eq!((&denied["before"]["power_limit_w"], &denied["after"]["power_limit_w"]), (&json!(300.0), &json!(200.0)));
    assert!(denied["reason"].as_str().is_some_and(|why| why.contains("nvmlDeviceSetPowerManagementLimit")), "{denied}");
    assert!(one("set_power_limit", "refused")["reason"].as_str().is_some_and(|why| why.contains("accepts")));
    assert!(one("end_override", "enforced")["reason"].as_str().is_some_and(|why| why.contains("its time is over")));
    assert_eq!(one("register_job", "enforced")["job_id"], json!(id));
    assert_eq!(one("end_job", "enforced")["who"], us());
    assert_eq!(one("end_job", "enforced")["reason"], "ended by its owner");
    let numbers: Vec<u64> = records.iter().map(|r| r["number"].as_u64().expect("a number")).collect();
    assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");

    let last = numbers.last().expect("records") - 1;
    assert_eq!(node.records(&format!("?after={last}")).await.len(), 1);
    let (_, page) = node.ask("/v1/audit?limit=2").await;
    let page: Value = serde_json::from_str(&page).expect("JSON");
    assert_eq!((page["records"].as_array().map(Vec::len), page["next_after"].as_u64()), (Some(2), Some(numbers[1])));
    assert!(node.records("?since=2100-01-01T00:00:00Z").await.is_empty());
    let (head, csv) = node.ask("/v1/audit?format=csv").await;
    assert!(
        head.contains("text/csv") && csv.starts_with("number,at,who,action,gpu,job_id,event,before,after,"),
        "{csv}"
    );
    assert_eq!(csv.lines().count(), numbers.len() + 1, "{csv}");
    for (query, status) in [("?since=yesterday", 422), ("?limit=0", 422), ("?gpu=7", 404), ("?x=1", 422)] {
        let (head, _) = node.ask(&format!("/v1/audit{query}")).await;
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{query}: {head}");
    }
    let refused = daemon.get("/v1/audit").await.problem(403);
    assert!(refused["detail"].as_str().is_some_and(|text| text.contains("use the Unix socket")), "{refused}");
}

#[tokio::test]
async fn what_the_command_restores_is_recorded() {
    let driver = FakeDriver::new(&[json!({})]);
    let node = Node::start(&driver).await;
    node.daemon.hold(&driver, 0, 225.0).await;
    node.daemon.kill();
    let restored = Daemon::restore(&driver, node.state.path());
    assert!(restored.status.success(), "{restored:?}");
    let records = stored(node.state.path()).await;
    let last = records.last().expect("a record");
    let who = format!("wattune restore, user {}", wattune::files::user());
    assert_eq!((&last["action"], &last["who"]), (&json!("restore_power_limit"), &json!(who)), "{records:?}");
    assert_eq!((&last["after"], &last["outcome"]), (&json!({"power_limit_w": 300.0}), &json!("enforced")), "{last}");
}

#[tokio::test]
async fn what_the_command_forgets_is_recorded_and_the_rest_is_restored() {
    let driver = FakeDriver::new(&[json!({}), json!({})]);
    let node = Node::start(&driver).await;
    node.daemon.hold(&driver, 0, 225.0).await;
    node.daemon.hold(&driver, 1, 200.0).await;
    node.daemon.kill();
    driver.set(1, json!({"removed": true}));
    let (state, gone) = (node.state.path().to_str().expect("UTF-8"), FakeDriver::uuid(1));
    let ended =
        Ended::with_driver(&driver, &["restore", "--state-dir", state, "--format", "json", "--forget", gone.as_str()]);
    let lines = ended.json();
    let outcomes = json!([lines[0]["gpu"], lines[0]["outcome"], lines[1]["outcome"]]);
    assert_eq!(outcomes, json!([gone, "forgotten", "restored"]), "{lines}");
    assert_eq!(driver.limit_w(0), Some(300.0));
    let records = stored(node.state.path()).await;
    let [.., forgotten, restored] = records.as_slice() else { panic!("two records: {records:?}") };
    assert_eq!((&forgotten["gpu"], &forgotten["outcome"]), (&json!(gone), &json!("not_enforced")), "{forgotten}");
    assert!(forgotten["reason"].as_str().is_some_and(|why| why.contains("forgotten on request")), "{forgotten}");
    assert!(forgotten["after"].is_null() && restored["outcome"] == "enforced", "{forgotten} {restored}");
}

#[tokio::test]
async fn a_killed_daemons_stored_records_stay_and_the_next_one_records_what_it_restores() {
    let driver = FakeDriver::new(&[json!({})]);
    let node = Node::start(&driver).await;
    node.daemon.hold(&driver, 0, 225.0).await;
    let state = node.state.path().to_owned();
    eventually("the record on disk", LONG, async || {
        stored(&state).await.iter().any(|r| r["after"]["power_limit_w"] == 225.0).then_some(())
    })
    .await;
    node.daemon.kill();
    let node = Node::start_in(&driver, node.state).await;
    assert_eq!(node.changes(0).await, [(us(), 300.0, 225.0), ("wattune".to_owned(), 225.0, 300.0)]);
    let restored = node.records("").await;
    let restored = restored.iter().find(|r| r["action"] == "restore_power_limit").expect("a record");
    assert!(restored["reason"].as_str().is_some_and(|why| why.contains("original limit")), "{restored}");
}
