//! Registers the command's job with the daemon, passes its progress on, keeps its lease, and ends it.
//!
//! The command runs whatever the daemon does: each request has a short time-out, and a daemon that is absent, frozen or
//! restarted is asked again later.

mod registering;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::mpsc::Receiver;
use tokio::sync::oneshot;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::advice::Stage;
use super::environment::say;
use super::gpus::Visible;
use super::lines::Latest;
use super::link::Link;
use super::progress::{Follower, Message};
use super::request::Registration;
use crate::cli::ask::{DaemonAddress, TokenSource};
use crate::cli::daemon::{Daemon, Failure};
use wattune_core::domain::{JobId, ProgressSource};

/// Time-out of one request while the command runs.
const REQUEST: Duration = Duration::from_millis(1500);
/// Time between two reports of progress.
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// Time between two attempts to register with a daemon that is absent.
const REGISTER_EVERY: Duration = Duration::from_secs(5);
/// Longest time without a request that renews the lease, as a part of the lease.
const LEASE_PART: f64 = 0.2;
/// Longest time without a request while the command waits, or may be asked to stop.
const ASK_EVERY: Duration = Duration::from_secs(2);
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
    /// GPUs of the job that Slurm's Prolog had registered, if there was one.
    gpus_of_slurm: Option<Value>,
    /// Connection to the lifecycle of the command.
    link: Link,
    /// File for the id of the job that this process has registered last: code of the command may replace that job.
    job_file: Option<PathBuf>,
    /// Time of the last attempt to register.
    attempted: Instant,
    /// Time of the last request that the daemon answered.
    contact: Option<Instant>,
    /// True if another attempt to register cannot succeed.
    pub(super) gave_up: bool,
    /// True if a message has said that the command runs without the daemon.
    has_complained: bool,
    /// Refusals of this job's messages that were printed, without their digits: some state a time, which changes.
    refusals: BTreeSet<String>,
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
    /// The daemon's last view of the job's start; `suspend` is that of its suspensions. Null if there is none.
    pub(super) start: Value,
    pub(super) suspend: Value,
}

/// End of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The command has ended, or will not run: the job ends.
    Over,
    /// Another process will continue the job: it stays open until its lease expires.
    Left,
}

/// Answer to the attempt to register the job.
#[derive(Debug)]
pub(super) enum Answer {
    /// The daemon at this address has registered the job.
    Registered(DaemonAddress),
    /// The daemon refuses a value that the user gave; contains the reason.
    Wrong(String),
    /// Another open job has the same key; contains the daemon's message and what is known about that job.
    Taken(String, Holder),
    /// The daemon does not answer, or cannot register the job.
    Alone,
}

/// Open job that has this job's key.
#[derive(Clone, Debug)]
pub(super) struct Holder {
    /// Id of the job; `None` if the daemon does not list it.
    pub(super) job: Option<String>,
    /// Time until its lease expires, if nothing renews it; `None` if unknown.
    pub(super) lease_left: Option<Duration>,
    /// Which of its processes run; `None` if that cannot be determined here.
    pub(super) life: Option<Life>,
}

/// Which processes of an open job run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// The process that registered the job.
    Registrant,
    /// Other processes of the job. The process that registered it has ended, or is not visible here.
    Others,
    /// No process of the job.
    Gone,
}

impl Reporter {
    pub(super) fn new(
        daemon: Daemon,
        registration: Registration,
        visible: Visible,
        lines: Latest,
        job_file: Option<PathBuf>,
        link: Link,
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
            gpus_of_slurm: None,
            job_file,
            link,
            attempted: Instant::now(),
            contact: None,
            gave_up: false,
            has_complained: false,
            refusals: BTreeSet::new(),
            problem: None,
            quiet,
        }
    }

    fn say(&self, message: &str) {
        if !self.quiet {
            say(message);
        }
    }

    /// Reports progress until `end` is signalled. Then ends or leaves the job, and returns the outcome.
    pub(super) async fn run(mut self, mut messages: Receiver<Message>, mut end: oneshot::Receiver<End>) -> Outcome {
        // A short lease must not run out between two reports.
        let lease = self.registration.body.get("lease_s").and_then(Value::as_f64);
        let lease = lease.map(|lease| Duration::from_secs_f64(lease.clamp(1.0, 86_400.0)));
        let mut ticks = interval(lease.map_or(REPORT_EVERY, |lease| REPORT_EVERY.min(lease.mul_f64(2.0 * LEASE_PART))));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let ended = loop {
            tokio::select! {
                // The end comes first: each other branch may wait for a daemon that does not answer.
                biased;
                ended = &mut end => break ended.unwrap_or(End::Over),
                Some(message) = messages.recv() => self.observe(&message),
                () = self.link.changed() => {
                    if self.link.reported().stage == Stage::Running {
                        self.follower.restart();
                    }
                    self.pass_stage().await;
                }
                _ = ticks.tick() => {
                    if self.job.is_some() {
                        if self.pass_stage().await {
                            self.report().await;
                        }
                    } else if !self.gave_up && self.attempted.elapsed() >= REGISTER_EVERY {
                        if let Answer::Wrong(why) = self.register().await {
                            self.say(&format!("{why}; the command is not registered"));
                        }
                        self.pass_stage().await;
                    } else if self.gave_up {
                        // No answer will come: a command that waits follows the plan that it has.
                        self.link.given_up();
                    }
                }
            }
        };
        while let Ok(message) = messages.try_recv() {
            self.observe(&message);
        }
        self.finish(ended).await
    }

    /// Reports to the daemon what the command does, if it has not acknowledged that yet. Returns false if the daemon does not
    /// answer.
    async fn pass_stage(&mut self) -> bool {
        let Some(job) = self.job.clone().filter(|_| self.registration.has_offer()) else { return true };
        let Some(reported) = self.link.unacknowledged(&job.id) else { return true };
        let (path, body) = match (reported.stage, reported.reason) {
            (Stage::Running, Some(reason)) if reason.is_known_to_daemon() => {
                ("begin", json!({ "reason": reason.name() }))
            }
            (Stage::Running, _) => ("begin", json!({})),
            (Stage::Suspended, _) => {
                // The last progress of the process that has exited.
                self.report().await;
                ("suspended", json!({}))
            }
            (Stage::Held, _) => return true,
        };
        let path = format!("/v1/jobs/{}/{path}", job.id);
        match self.daemon.call(Method::POST, &path, Some(&body), REQUEST).await {
            Ok((answer, _)) => {
                self.contact = Some(Instant::now());
                self.link.confirm(&job.id, reported);
                self.link.acknowledged(reported.stage);
                self.link.answered(&answer);
            }
            Err(failure @ Failure::NoAnswer(_)) => {
                self.link.failed(&failure);
                return false;
            }
            Err(failure @ Failure::Refused { status: 404, .. }) => self.lose(&job, &failure),
            Err(failure @ Failure::Refused { status: 409, .. }) => {
                self.link.confirm(&job.id, reported);
                self.link.acknowledged(reported.stage);
                self.problem = Some(failure.to_string());
            }
            Err(failure @ Failure::Refused { .. }) => {
                self.record_refusal(&failure);
                // The lease of a command that runs is renewed all the same. That of a suspended one was renewed above, and
                // the answer is no sign that the daemon knows of the stop.
                return reported.stage == Stage::Running;
            }
        }
        true
    }

    /// Counts a refusal like a request without an answer. Prints its text once, and once more for a command that waits.
    fn record_refusal(&mut self, failure: &Failure) {
        self.link.failed(failure);
        let why = failure.to_string();
        let then = match self.link.reported().stage {
            Stage::Held => "; the command starts at the time that the daemon stated last",
            Stage::Suspended => "; the command resumes at the time that the daemon stated last",
            Stage::Running => "",
        };
        let text = why.replace(|c: char| c.is_ascii_digit(), "");
        let is_new = self.refusals.insert(text.clone());
        if self.refusals.insert(text + then) || is_new {
            self.say(&format!("the daemon refuses this job's messages: {why}{then}"));
        }
        self.problem = Some(why);
    }

    /// Lets go of a job that the daemon has ended; the next attempt registers another one.
    fn lose(&mut self, job: &Job, failure: &Failure) {
        self.problem = Some(failure.to_string());
        self.earlier.push(job.id.clone());
        self.job = None;
        self.link.lost();
    }

    /// Takes a message of the command's processes into account.
    pub(super) fn observe(&mut self, message: &Message) {
        self.follower.apply(message);
        self.link.complete(self.follower.is_complete(self.registration.total()));
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
        // A job that is held or suspended makes no progress, as far as the daemon knows.
        let count = if self.link.is_running() { self.follower.take() } else { None };
        let count = count.filter(|count| job.script.is_none() && count.source != ProgressSource::PythonClient);
        let every = job.lease.mul_f64(LEASE_PART);
        let every = if self.registration.has_offer() { every.min(ASK_EVERY) } else { every };
        let is_due = self.contact.is_none_or(|at| at.elapsed() >= every);
        let sent = match count {
            Some(count) => {
                let mut body = json!({ "samples": count.samples, "source": count.source });
                if !self.link.has_other_clock() {
                    body["at_s"] = count.at_s.into();
                }
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
            Ok((answer, _)) => {
                self.contact = Some(Instant::now());
                self.link.answered(&answer);
            }
            Err(failure) if failure.is_end_of_job() && job.script.is_some() => {
                // What the command does from here on is not part of its job: its code said so.
                self.job = Some(Job { is_over: true, ..job });
            }
            Err(Failure::Refused { status: 409, .. }) if count.is_some() && self.registration.has_offer() => {
                // The job has ended, or the daemon takes it for held or suspended: the next renewal of the lease says which.
                self.follower.put_back();
                self.contact = None;
                self.link.doubt();
            }
            Err(failure) if failure.is_end_of_job() => {
                // The lease ended while the daemon or this process was stopped. The job is registered anew.
                self.earlier.push(job.id);
                self.job = None;
                self.link.lost();
            }
            Err(failure) => {
                match failure {
                    Failure::NoAnswer(_) => self.link.failed(&failure),
                    Failure::Refused { .. } => self.record_refusal(&failure),
                }
                if count.is_some() && failure.may_pass(TokenSource::of_environment().as_ref()) {
                    self.follower.put_back();
                }
            }
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

    /// Reports the last progress, and ends the job unless another process will continue it.
    async fn finish(mut self, end: End) -> Outcome {
        // Where the daemon does not answer, the little time is for the job's end alone: a frozen daemon finds that request in
        // its socket when it goes on.
        if self.link.is_answered() && self.pass_stage().await {
            self.report().await;
        }
        let source = self.follower.source();
        let (start, suspend) = self.link.views();
        let Some(job) = self.job.take() else {
            return Outcome { jobs: self.earlier, source, problem: self.problem, account: None, start, suspend };
        };
        let (ending, account) = (format!("/v1/jobs/{}", job.id), format!("/v1/jobs/{}/emissions", job.id));
        let ended = match end {
            End::Left => self.daemon.call(Method::GET, &account, None, END).await,
            End::Over => match self.daemon.call(Method::DELETE, &ending, None, END).await {
                Err(failure) if failure.is_end_of_job() => self.daemon.call(Method::GET, &account, None, END).await,
                ended => ended,
            },
        };
        let (account, failed) = match ended {
            Ok((account, _)) => (Some(account), None),
            Err(failure) => (None, Some(format!("{failure}; the job ends when its lease expires"))),
        };
        // One of them may be open if the command named a job that did not replace it.
        for own in self.own.iter().filter(|own| **own != job.id && failed.is_none()) {
            let _ = self.daemon.call(Method::DELETE, &format!("/v1/jobs/{own}"), None, END).await;
        }
        let problem = failed.or(self.problem);
        let jobs = self.earlier.into_iter().chain([job.id]).collect();
        Outcome { jobs, account, source, problem, start, suspend }
    }
}

/// Writes a file so that a reader sees either all of the text or the file as it was before.
fn write_whole(file: &Path, text: &str) -> std::io::Result<()> {
    let new = file.with_extension("new");
    std::fs::write(&new, text)?;
    std::fs::rename(new, file)
}
