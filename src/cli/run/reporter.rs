//! Registers the command's job with the daemon, passes its progress on, keeps its lease, and ends it.
//!
//! The command runs whatever the daemon does: each request has a short time-out, and a daemon that is absent, frozen or
//! restarted is asked again later.

use std::path::{Path, PathBuf};
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::mpsc::Receiver;
use tokio::sync::oneshot;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::daemon::{Daemon, Failure};
use super::environment::{JOB_ID, pid_namespace, say};
use super::gpus::{Gpu, Visible};
use super::lines::Latest;
use super::progress::{Follower, Message};
use super::request::Registration;
use crate::cli::ask::DaemonAddress;
use wattune_core::domain::{JobId, ProgressSource};

/// Time-out of one request while the command runs.
const REQUEST: Duration = Duration::from_millis(1500);
/// Time between two reports of progress.
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// Time between two attempts to register with a daemon that is absent.
const REGISTER_EVERY: Duration = Duration::from_secs(5);
/// Longest time without a request that renews the lease, as a part of the lease.
const LEASE_PART: f64 = 0.2;
/// Time between two attempts to control GPUs that another job controls.
const CONTROL_EVERY: Duration = Duration::from_secs(10);
/// Time-out of the request that ends the job.
const END: Duration = Duration::from_secs(3);

/// Registered job of the command.
#[derive(Clone, Debug)]
struct Job {
    id: String,
    lease: Duration,
    /// Process of the command that has registered the job itself, and reports for it.
    script: Option<u32>,
    /// True if that process has ended the job.
    is_over: bool,
}

/// Connection of one command to the daemon.
pub(super) struct Reporter {
    daemon: Daemon,
    registration: Registration,
    visible: Visible,
    follower: Follower,
    /// Progress found in the command's output.
    lines: Latest,
    job: Option<Job>,
    /// Ids of earlier registrations of this run, such as those that ended while the daemon was frozen.
    earlier: Vec<String>,
    /// Ids of all jobs that this process has registered.
    own: Vec<String>,
    /// Registration with control, while another job controls a GPU; it is tried again.
    uncontrolled: Option<serde_json::Map<String, Value>>,
    /// File for the id of the job that this process has registered last: code of the command may replace that job.
    job_file: Option<PathBuf>,
    /// Time of the last attempt to register.
    attempted: Instant,
    /// Time of the last request that the daemon answered.
    contact: Option<Instant>,
    /// True if another attempt to register makes no sense.
    gave_up: bool,
    /// True if a message has said that the command runs without the daemon.
    has_complained: bool,
    /// Messages of the daemon about this job, for the summary.
    problem: Option<String>,
    quiet: bool,
}

/// Result of a run for the summary.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Ids of the run's jobs, in order; empty if none was registered.
    pub(super) jobs: Vec<String>,
    /// Final account of the last job; `None` if the daemon gave none.
    pub(super) account: Option<Value>,
    /// Source of the job's progress; `None` if there was none.
    pub(super) source: Option<ProgressSource>,
    /// Reason why there is no account.
    pub(super) problem: Option<String>,
}

/// What the command needs to know about its registration.
#[derive(Clone, Debug)]
pub(super) struct Registered {
    pub(super) job: String,
    pub(super) address: DaemonAddress,
}

impl Reporter {
    pub(super) fn new(
        daemon: Daemon,
        registration: Registration,
        visible: Visible,
        lines: Latest,
        job_file: Option<PathBuf>,
        quiet: bool,
    ) -> Self {
        Self {
            follower: Follower::new(registration.batch_size),
            daemon,
            registration,
            visible,
            lines,
            job: None,
            earlier: Vec::new(),
            own: Vec::new(),
            uncontrolled: None,
            job_file,
            attempted: Instant::now(),
            contact: None,
            gave_up: false,
            has_complained: false,
            problem: None,
            quiet,
        }
    }

    /// Registers the job.
    ///
    /// Returns `None` if the daemon does not answer or refuses it; a message says so once.
    pub(super) async fn register(&mut self) -> Option<Registered> {
        self.attempted = Instant::now();
        match self.try_register().await {
            Ok(registered) => return Some(registered),
            Err(failure) => {
                let refused = matches!(failure, Failure::Refused { .. });
                self.gave_up |= refused;
                self.problem = Some(failure.to_string());
                if !std::mem::replace(&mut self.has_complained, true) {
                    let how = if refused { "is not registered" } else { "runs without wattune until it does" };
                    self.say(&format!("{failure}; the command {how}"));
                }
            }
        }
        None
    }

    async fn try_register(&mut self) -> Result<Registered, Failure> {
        let (status, _) = self.daemon.call(Method::GET, "/v1/status", None, REQUEST).await?;
        let mut body = self.registration.body.clone();
        if !body.contains_key("gpus") {
            let gpus: Vec<Gpu> = serde_json::from_value(status["gpus"].clone())
                .map_err(|error| Failure::NoAnswer(format!("the daemon's list of GPUs cannot be read: {error}")))?;
            let chosen = self.visible.choose(&gpus);
            let chosen = chosen.map_err(|detail| Failure::Refused { status: 0, field: Some("gpus".into()), detail })?;
            body.insert("gpus".into(), chosen.into());
        }
        if status["pid_namespace"].as_u64().is_some_and(|there| Some(there) == pid_namespace()) {
            body.insert("pids".into(), json!([std::process::id()]));
        }
        let of_environment = std::env::var(JOB_ID).ok().filter(|id| !id.is_empty());
        if let Some(other) = self.find_of_slurm(&body["tags"]).await.filter(|id| of_environment.as_ref() == Some(id)) {
            self.replace(&mut body, &other).await;
        }
        let with_control = body.clone();
        let (job, address) = self.post_registration(body).await?;
        let text = |key: &str| job[key].as_str().unwrap_or_default().to_owned();
        let (id, address) = (text("job_id"), address.clone());
        let lease = Duration::from_secs_f64(job["lease_s"].as_f64().unwrap_or(60.0).clamp(1.0, 86_400.0));
        self.describe(&job, &status);
        let is_refused = job["control"] == false && with_control.get("control") != Some(&Value::Bool(false));
        self.uncontrolled = is_refused.then_some(with_control);
        self.own.push(id.clone());
        if let Some(file) = &self.job_file {
            // Without it, only the job that was registered before the command began can be replaced.
            let _ = write_whole(file, &id);
        }
        self.job = Some(Job { id: id.clone(), lease, script: None, is_over: false });
        (self.contact, self.problem) = (Some(Instant::now()), None);
        self.follower.put_back();
        Ok(Registered { job: id, address })
    }

    /// Posts a registration. If the daemon refuses a part that only adds to the job, leaves that part out.
    async fn post_registration(
        &self,
        mut body: serde_json::Map<String, Value>,
    ) -> Result<(Value, &DaemonAddress), Failure> {
        let mut has_replaced = false;
        loop {
            let wire = Value::Object(body.clone());
            let failure = match self.daemon.call(Method::POST, "/v1/jobs", Some(&wire), REQUEST).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            match &failure {
                // The daemon itself runs below this process, or sees other processes.
                Failure::Refused { status: 422, field: Some(field), .. } if field == "pids" => {
                    body.remove("pids");
                }
                // Another job counts these processes, unless it is the job of this Slurm job.
                Failure::Refused { status: 409, detail, .. } if detail.starts_with("pids: ") => {
                    match self.find_of_slurm(&body["tags"]).await.filter(|_| !body.contains_key("replaces")) {
                        Some(other) if !has_replaced => {
                            has_replaced = true;
                            self.replace(&mut body, &other).await;
                        }
                        _ => {
                            body.remove("pids");
                        }
                    }
                }
                // Another task of the same Slurm job has replaced that registration.
                Failure::Refused { status: 404 | 409, .. } if body.contains_key("replaces") => {
                    body.remove("replaces");
                }
                Failure::Refused { status: 409, detail, .. } if body.get("control") != Some(&Value::Bool(false)) => {
                    if let Some(found) = self.find_own().await {
                        return Ok(found);
                    }
                    if let Some(other) = self.find_of_slurm(&body["tags"]).await.filter(|_| !has_replaced) {
                        has_replaced = true;
                        self.replace(&mut body, &other).await;
                        continue;
                    }
                    self.say(&format!("{detail}; the command's energy is recorded without control"));
                    body.insert("control".into(), false.into());
                }
                _ => return Err(failure),
            }
        }
    }

    /// Has the registration replace a job. A site that records a job without control does not want its replacement
    /// controlled.
    async fn replace(&self, body: &mut serde_json::Map<String, Value>, job: &str) {
        body.insert("replaces".into(), job.into());
        let found = self.daemon.call(Method::GET, &format!("/v1/jobs/{job}"), None, REQUEST).await;
        if found.is_ok_and(|(job, _)| job["control"] == false) {
            body.insert("control".into(), false.into());
        }
    }

    /// Returns this run's job if an earlier request has registered it, whose answer did not arrive in time.
    async fn find_own(&self) -> Option<(Value, &DaemonAddress)> {
        let (jobs, address) = self.daemon.call(Method::GET, "/v1/jobs", None, REQUEST).await.ok()?;
        let own = pid_namespace()?;
        let is_own = |job: &&Value| job["processes"]["pids"] == json!([std::process::id()]);
        let (status, _) = self.daemon.call(Method::GET, "/v1/status", None, REQUEST).await.ok()?;
        let found = jobs.as_array()?.iter().find(is_own).filter(|_| status["pid_namespace"] == json!(own))?;
        Some((found.clone(), address))
    }

    /// Returns the id of the job that Slurm's Prolog has registered for the same Slurm job, if nothing reports for it.
    async fn find_of_slurm(&self, tags: &Value) -> Option<String> {
        let (jobs, _) = self.daemon.call(Method::GET, "/v1/jobs", None, REQUEST).await.ok()?;
        let slurm = tags["slurm_job_id"].as_str()?;
        let is_same = |job: &&Value| job["tags"]["slurm_job_id"] == slurm && job["progress_source"].is_null();
        Some(jobs.as_array()?.iter().find(is_same)?["job_id"].as_str()?.to_owned())
    }

    fn say(&self, message: &str) {
        if !self.quiet {
            say(message);
        }
    }

    fn describe(&self, job: &Value, status: &Value) {
        let uuids: Vec<&str> = job["gpus"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let of_job = |gpu: &&Value| gpu["uuid"].as_str().is_some_and(|uuid| uuids.contains(&uuid));
        let chosen = status["gpus"].as_array().into_iter().flatten().filter(of_job);
        let indexes: Vec<String> = chosen.map(|gpu| gpu["index"].to_string()).collect();
        let how = match (job["control"].as_bool(), job["objective"]["max_slowdown"].as_f64()) {
            (Some(false), _) => "recorded without control".to_owned(),
            (_, Some(most)) => format!("at most {:.4} % slower", most * 100.0).replace(".0000", ""),
            _ => "controlled".to_owned(),
        };
        let label = if status["simulated"].as_bool() == Some(true) { " (simulated)" } else { "" };
        let id = job["job_id"].as_str().unwrap_or_default();
        self.say(&format!("job {id} on GPU {}{label}, {how}", indexes.join(", ")));
    }

    /// Passes progress on until `end` is signalled; then ends the job and returns the outcome.
    pub(super) async fn run(mut self, mut messages: Receiver<Message>, mut end: oneshot::Receiver<()>) -> Outcome {
        let mut ticks = interval(REPORT_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                Some(message) = messages.recv() => self.observe(&message),
                _ = ticks.tick() => {
                    if self.job.is_some() {
                        self.report().await;
                    } else if !self.gave_up && self.attempted.elapsed() >= REGISTER_EVERY {
                        self.register().await;
                    }
                }
                _ = &mut end => break,
            }
        }
        while let Ok(message) = messages.try_recv() {
            self.observe(&message);
        }
        self.finish().await
    }

    /// Takes a message of the command's processes into account.
    pub(super) fn observe(&mut self, message: &Message) {
        self.follower.apply(message);
        let Some(id) = message.job_id.as_ref().filter(|_| message.source == ProgressSource::PythonClient) else {
            return;
        };
        if JobId::new(id.clone()).is_err() {
            return;
        }
        // Several processes may have a job each at the same time: the newest job is followed.
        let is_new = self.job.as_ref().is_none_or(|job| job.id != *id) && !self.earlier.contains(id);
        if is_new {
            let lease = self.job.as_ref().map_or(Duration::from_secs(60), |job| job.lease);
            self.earlier.extend(self.job.take().map(|job| job.id));
            self.job = Some(Job { id: id.clone(), lease, script: Some(message.pid), is_over: false });
        }
    }

    /// Reports new progress, or renews the lease if there has been none for a while.
    async fn report(&mut self) {
        if let Some(message) = self.lines.take() {
            self.observe(&message);
        }
        self.retry_control().await;
        let Some(job) = self.job.clone() else { return };
        if job.is_over {
            return self.leave_over(&job);
        }
        let count = self.follower.take();
        let count = count.filter(|count| job.script.is_none() && count.source != ProgressSource::PythonClient);
        let is_due = self.contact.is_none_or(|at| at.elapsed() >= job.lease.mul_f64(LEASE_PART));
        let sent = match count {
            Some(count) => {
                let mut body = json!({ "samples": count.samples, "at_s": count.at_s, "source": count.source });
                if let Some(total) = count.total {
                    body["total_samples"] = total.into();
                }
                let path = format!("/v1/jobs/{}/progress", job.id);
                self.daemon.call(Method::POST, &path, Some(&body), REQUEST).await
            }
            None if is_due => {
                let path = format!("/v1/jobs/{}/lease", job.id);
                self.daemon.call(Method::POST, &path, Some(&json!({})), REQUEST).await
            }
            None => return,
        };
        match sent {
            Ok(_) => self.contact = Some(Instant::now()),
            Err(failure) if failure.is_end_of_job() && job.script.is_some() => {
                // What the command does from here on is not part of its job: its code said so.
                self.job = Some(Job { is_over: true, ..job });
            }
            Err(failure) if failure.is_end_of_job() => {
                // The lease ended while the daemon or this process was stopped. The job is registered anew.
                self.earlier.push(job.id);
                self.job = None;
            }
            Err(Failure::Refused { detail, .. }) => self.problem = Some(detail),
            Err(Failure::NoAnswer(_)) if count.is_some() => self.follower.put_back(),
            Err(Failure::NoAnswer(_)) => {}
        }
    }

    /// Registers the job with control once the job that controlled its GPUs is gone, such as one that was killed and whose
    /// lease has run out.
    async fn retry_control(&mut self) {
        let (Some(body), Some(job)) = (&self.uncontrolled, &self.job) else { return };
        if job.script.is_some() || self.attempted.elapsed() < CONTROL_EVERY {
            return;
        }
        self.attempted = Instant::now();
        let mut body = body.clone();
        body.insert("replaces".into(), job.id.clone().into());
        let answer = self.daemon.call(Method::POST, "/v1/jobs", Some(&Value::Object(body)), REQUEST).await;
        let Ok((Some(id), lease)) = answer.map(|(new, _)| (new["job_id"].as_str().map(str::to_owned), job.lease))
        else {
            return;
        };
        self.say(&format!("job {id} controls the GPUs from now on"));
        if let Some(file) = &self.job_file {
            let _ = write_whole(file, &id);
        }
        self.own.push(id.clone());
        self.uncontrolled = None;
        self.earlier.extend(self.job.replace(Job { id, lease, script: None, is_over: false }).map(|job| job.id));
        self.follower.put_back();
    }

    /// Lets go of a job that a process of the command has ended, once that process has ended, too: what runs now is
    /// another part of the command, and gets a job after a while.
    fn leave_over(&mut self, job: &Job) {
        if job.script.is_some_and(|pid| Path::new(&format!("/proc/{pid}")).exists()) {
            return;
        }
        self.earlier.push(job.id.clone());
        (self.job, self.attempted) = (None, Instant::now());
        self.follower = Follower::new(self.registration.batch_size);
    }

    /// Reports the last progress and ends the job.
    async fn finish(mut self) -> Outcome {
        self.report().await;
        let source = self.follower.source();
        let Some(job) = self.job.take() else {
            return Outcome { jobs: self.earlier, source, problem: self.problem, account: None };
        };
        let (ending, account) = (format!("/v1/jobs/{}", job.id), format!("/v1/jobs/{}/emissions", job.id));
        let ended = match self.daemon.call(Method::DELETE, &ending, None, END).await {
            Err(failure) if failure.is_end_of_job() => self.daemon.call(Method::GET, &account, None, END).await,
            ended => ended,
        };
        let (account, failed) = match ended {
            Ok((account, _)) => (Some(account), None),
            Err(failure) => (None, Some(format!("{failure}; the job ends with its lease"))),
        };
        // One of them may be open if the command named a job that did not replace it.
        for own in self.own.iter().filter(|own| **own != job.id && failed.is_none()) {
            let _ = self.daemon.call(Method::DELETE, &format!("/v1/jobs/{own}"), None, END).await;
        }
        let problem = failed.or(self.problem);
        Outcome { jobs: self.earlier.into_iter().chain([job.id]).collect(), account, source, problem }
    }
}

/// Writes a file so that a reader sees either all of the text or the file as it was before.
fn write_whole(file: &Path, text: &str) -> std::io::Result<()> {
    let new = file.with_extension("new");
    std::fs::write(&new, text)?;
    std::fs::rename(new, file)
}
