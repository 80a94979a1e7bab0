//! A stand-in for the daemon that says what a test has it say about one job: it holds, lets run, asks to stop, falls
//! silent, dies and comes back. It keeps what it knows of the job, as the daemon's database does.

use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt as _;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{Method, StatusCode, Uri};
use chrono::{DateTime, Utc};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::now;

/// What it knows and says.
#[derive(Debug)]
struct Known {
    /// Open job, with its phase; null without one.
    job: Value,
    /// Time of the last renewal of the lease.
    renewed: tokio::time::Instant,
    /// Reason for which a job that is not open has ended.
    end_reason: &'static str,
    /// Number of registrations so far.
    registrations: u32,
    wanted: &'static str,
    until: Option<DateTime<Utc>>,
    /// Method, path and body of each request that changes something, oldest first.
    requests: Vec<(String, Value)>,
    /// Answer to registrations in place of a job.
    refusal: Option<Value>,
    /// Answer to all other messages of jobs.
    rejection: Option<Value>,
    /// Namespace of process ids that the status names.
    pid_namespace: Option<u64>,
    is_frozen: bool,
}

/// The stand-in and its server.
pub(crate) struct Advisor {
    known: Arc<Mutex<Known>>,
    address: SocketAddr,
    server: Option<JoinHandle<()>>,
}

impl Advisor {
    pub(crate) async fn start() -> Self {
        let known = Known {
            job: Value::Null,
            renewed: tokio::time::Instant::now(),
            end_reason: "lease expired",
            registrations: 0,
            wanted: "run",
            until: None,
            requests: Vec::new(),
            refusal: None,
            rejection: None,
            pid_namespace: None,
            is_frozen: false,
        };
        let mut advisor =
            Self { known: Arc::new(Mutex::new(known)), address: ([127, 0, 0, 1], 0).into(), server: None };
        let listener = TcpListener::bind(advisor.address).await.expect("a port");
        advisor.address = listener.local_addr().expect("known");
        advisor.serve(listener);
        advisor
    }

    fn serve(&mut self, listener: TcpListener) {
        let router = Router::new().fallback(answer).with_state(self.known.clone());
        self.server = Some(tokio::spawn(async move {
            let _ = axum::serve(listener, router).await;
        }));
    }

    /// Listens no more, as a daemon that was killed.
    pub(crate) async fn kill(&mut self) {
        if let Some(server) = self.server.take() {
            server.abort();
            let _ = server.await;
        }
    }

    /// Listens again, at the same address.
    pub(crate) async fn restart(&mut self) {
        self.kill().await;
        let listener = super::eventually("the port", super::LONG, async || {
            let socket = tokio::net::TcpSocket::new_v4().ok()?;
            socket.set_reuseaddr(true).ok()?;
            socket.bind(self.address).ok()?;
            socket.listen(64).ok()
        })
        .await;
        self.serve(listener);
    }

    /// Answers nothing from now on, or again.
    pub(crate) fn freeze(&self, is_frozen: bool) {
        self.lock().is_frozen = is_frozen;
    }

    /// Says what it wants, and until how many seconds from now.
    pub(crate) fn want(&self, wanted: &'static str, until: impl Into<Option<f64>>) {
        let at = |seconds: f64| now() + chrono::TimeDelta::milliseconds((seconds * 1e3) as i64);
        let mut known = self.lock();
        known.wanted = wanted;
        known.until = until.into().map(at);
    }

    /// Refuses registrations with this problem from now on, or accepts them again.
    pub(crate) fn refuse(&self, problem: impl Into<Option<Value>>) {
        self.lock().refusal = problem.into();
    }

    /// Refuses all other messages of jobs with this problem from now on.
    pub(crate) fn reject(&self, problem: Value) {
        self.lock().rejection = Some(problem);
    }

    /// Has an open job with a key, which no process of this test runs, and which will end for this reason.
    pub(crate) fn hold_key(&self, key: &str, end_reason: &'static str) {
        let mut known = self.lock();
        known.job = json!({"job_id": "job-0", "lease_s": 60, "phase": "held", "key": key, "processes": null});
        (known.renewed, known.end_reason) = (tokio::time::Instant::now(), end_reason);
    }

    /// Says which processes the open job has, by their ids on this machine.
    pub(crate) fn set_processes(&self, processes: Value) {
        let mut known = self.lock();
        known.job["processes"] = processes;
        known.pid_namespace = std::fs::metadata("/proc/self/ns/pid").ok().map(|file| file.ino());
    }

    /// Forgets the job, whose lease has run out.
    pub(crate) fn forget(&self) {
        self.lock().job = Value::Null;
    }

    pub(crate) fn address(&self) -> String {
        self.address.to_string()
    }

    /// Phase of the open job; null without one.
    pub(crate) fn phase(&self) -> Value {
        self.lock().job["phase"].clone()
    }

    /// Changes the phase of the open job.
    pub(crate) fn set_phase(&self, phase: &str) {
        self.lock().job["phase"] = json!(phase);
    }

    /// Bodies of the requests whose path ends like this, oldest first.
    pub(crate) fn requests(&self, end: &str) -> Vec<Value> {
        let known = self.lock();
        known.requests.iter().filter(|(path, _)| path.ends_with(end)).map(|(_, body)| body.clone()).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().expect("not poisoned")
    }
}

async fn answer(
    State(known): State<Arc<Mutex<Known>>>,
    method: Method,
    uri: Uri,
    body: Bytes,
) -> (StatusCode, axum::Json<Value>) {
    if known.lock().expect("not poisoned").is_frozen {
        std::future::pending::<()>().await;
    }
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let mut known = known.lock().expect("not poisoned");
    let (status, body) = known.answer(&method, uri.path(), body);
    (StatusCode::from_u16(status).expect("a status"), axum::Json(body))
}

impl Known {
    fn answer(&mut self, method: &Method, path: &str, body: Value) -> (u16, Value) {
        let parts: Vec<&str> = path.trim_start_matches("/v1/").split('/').collect();
        if method == Method::GET {
            return match parts.as_slice() {
                ["status"] => {
                    let gpu = json!({"index": 0, "uuid": "GPU-0", "model": "A"});
                    (200, json!({"gpus": [gpu], "simulated": true, "pid_namespace": self.pid_namespace}))
                }
                ["jobs"] if self.job.is_null() => (200, json!([])),
                ["jobs"] => {
                    let mut job = self.job.clone();
                    let left = job["lease_s"].as_f64().map(|lease| lease - self.renewed.elapsed().as_secs_f64());
                    job["lease_left_s"] = json!(left);
                    (200, json!([job]))
                }
                ["jobs", id] if self.job["job_id"] != **id => {
                    (200, json!({"name": "x", "end_reason": self.end_reason}))
                }
                _ => (200, json!({"name": "x"})),
            };
        }
        self.requests.push((format!("{method} {path}"), body.clone()));
        if let Some(rejection) = self.rejection.as_ref().filter(|_| path != "/v1/jobs") {
            return (rejection["status"].as_u64().expect("a status") as u16, rejection.clone());
        }
        match parts.as_slice() {
            ["jobs"] => self.register(&body),
            ["jobs", id, _] | ["jobs", id] if self.job["job_id"] != **id => {
                (404, json!({"detail": format!("there is no job {id}")}))
            }
            ["jobs", _, action] => {
                self.renewed = tokio::time::Instant::now();
                match *action {
                    "begin" => {
                        self.job["phase"] = json!("planned");
                        (self.wanted, self.until) = ("run", None);
                    }
                    "suspended" => self.job["phase"] = json!("suspended"),
                    _ => {}
                }
                (200, self.said())
            }
            _ => {
                self.job = Value::Null;
                (200, json!({"name": "x", "energy_j": 1.0, "savings": {"against_original": {"unknown": "a stand-in"}}}))
            }
        }
    }

    fn register(&mut self, body: &Value) -> (u16, Value) {
        if let Some(refusal) = &self.refusal {
            return (refusal["status"].as_u64().expect("a status") as u16, refusal.clone());
        }
        let is_replaced = !self.job.is_null() && body["replaces"] == self.job["job_id"];
        if !is_replaced && self.job["key"].is_string() && self.job["key"] == body["key"] {
            let why = format!("key: job {} has it", self.job["job_id"].as_str().unwrap_or_default());
            return (409, json!({"status": 409, "field": "key", "detail": why}));
        }
        self.registrations += 1;
        self.renewed = tokio::time::Instant::now();
        let phase = if body["start"].is_object() { "held" } else { "waiting" };
        self.job = json!({
            "job_id": format!("job-{}", self.registrations), "lease_s": 2, "phase": phase, "gpus": ["GPU-0"],
            "control": true, "key": body["key"], "objective": {}, "processes": {"pids": body["pids"]},
            "start": {}, "registered_at": now(),
        });
        (201, self.said())
    }

    /// The job's view with what is wanted of it.
    fn said(&self) -> Value {
        let mut said = self.job.clone();
        said["wanted"] = json!(self.wanted);
        said["until"] = json!(self.until);
        // Relative to a start at the time of the answer: at the planned start there is nothing left to save.
        said["start"]["expected_saving_pct"] = json!(if self.wanted == "hold" { 12.0 } else { 0.6 });
        said
    }
}
