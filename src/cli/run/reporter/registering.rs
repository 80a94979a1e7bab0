//! Registers the command's job, again whenever the daemon has lost it, and continues a job that another process left.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::super::child::{is_running, is_zombie};
use super::super::due::{OtherClock, Reading};
use super::super::environment::{JOB_ID, has_same_pids, variable};
use super::super::gpus::Gpu;
use super::{Answer, Holder, Job, Life, REQUEST, Reporter, write_whole};
use crate::cli::ask::{DaemonAddress, TokenSource};
use crate::cli::daemon::Failure;
use crate::cli::slurm::facts::CONTROL_REFUSED;
use wattune_core::domain::JobSpec;

/// Reason that the daemon states for the end of a job whose lease expired.
const LEFT_BEHIND: &str = "lease expired";
/// Part of the refusal of a job whose GPU another job controls.
const CONTROLLED: &str = "is controlled by job";

impl Reporter {
    /// Registers the job.
    ///
    /// If the daemon does not answer, or cannot register the job, prints one message about it.
    pub(in crate::cli::run) async fn register(&mut self) -> Answer {
        self.attempted = Instant::now();
        let failure = match self.try_register().await {
            Ok(address) => return Answer::Registered(address),
            Err(failure) => failure,
        };
        self.link.failed(&failure);
        if let Failure::Refused { detail, .. } = &failure
            && is_about_key(&failure)
        {
            return Answer::Taken(detail.clone(), self.holder_of_key(detail).await);
        }
        if let Failure::Refused { status, field, detail } = &failure
            && self.registration.is_own_value(*status, field.as_deref())
        {
            self.gave_up = true;
            self.problem = Some(detail.clone());
            return Answer::Wrong(self.registration.describe_refusal(detail, field.as_deref()));
        }
        let token = TokenSource::of_environment();
        self.gave_up |= !failure.may_pass(token.as_ref());
        self.problem = Some(failure.to_string());
        if !std::mem::replace(&mut self.has_complained, true) {
            self.say(&describe_unregistered(&failure, token.as_ref()));
        }
        Answer::Alone
    }

    /// Returns what is known of the open job with this job's key, which a refusal names.
    async fn holder_of_key(&self, refusal: &str) -> Holder {
        let job = self.find_by_key(refusal).await.map(|(job, _)| job).unwrap_or_default();
        let left = job["lease_left_s"].as_f64();
        Holder {
            job: job["job_id"].as_str().map(str::to_owned),
            lease_left: left.map(|left| Duration::from_secs_f64(left.clamp(0.0, 86_400.0))),
            life: self.life_of(&job).await,
        }
    }

    /// Returns which processes run of a job that named its processes; `None` if that cannot be determined here.
    ///
    /// The daemon counts these processes and their descendants, and knows another process by its start time if it has the
    /// same id. Where the daemon has not counted yet, the ids decide.
    async fn life_of(&self, job: &Value) -> Option<Life> {
        let pids: Vec<u64> = job["processes"]["pids"].as_array()?.iter().filter_map(Value::as_u64).collect();
        if pids.is_empty() {
            return None;
        }
        let (status, _) = self.daemon.call(Method::GET, "/v1/status", None, REQUEST).await.ok()?;
        let is_here = has_same_pids(&status);
        let runs_here = is_here && pids.iter().copied().any(is_running);
        // The daemon counts zombies, too.
        let zombies = pids.iter().copied().filter(|pid| is_here && is_zombie(*pid)).count();
        let running = job["processes"]["running"].as_u64();
        match running.map(|running| running.saturating_sub(u64::try_from(zombies).unwrap_or(u64::MAX))) {
            Some(0) => Some(Life::Gone),
            Some(_) if runs_here => Some(Life::Registrant),
            Some(_) => Some(Life::Others),
            None if runs_here => Some(Life::Registrant),
            None => is_here.then_some(Life::Gone),
        }
    }

    /// Returns the reason why a job has ended; `None` if the job is open or unknown, or ended because its lease
    /// expired.
    pub(in crate::cli::run) async fn why_ended(&self, job: &str) -> Option<String> {
        let (job, _) = self.daemon.call(Method::GET, &format!("/v1/jobs/{job}"), None, REQUEST).await.ok()?;
        let why = job["end_reason"].as_str().filter(|why| *why != LEFT_BEHIND)?;
        Some(why.to_owned())
    }

    /// Returns the open job with this job's key that a refusal names; other users may have jobs with the same key.
    async fn find_by_key(&self, refusal: &str) -> Option<(Value, &DaemonAddress)> {
        let key = self.registration.body.get("key")?;
        let (jobs, address) = self.daemon.call(Method::GET, "/v1/jobs", None, REQUEST).await.ok()?;
        let found = jobs
            .as_array()?
            .iter()
            .find(|job| job["key"] == *key && job["job_id"].as_str().is_some_and(|id| refusal.contains(id)))?;
        Some((found.clone(), address))
    }

    /// Returns the open job with this job's key if it is this process's own; otherwise the id of one whose processes are
    /// gone, such as those of a wrapper that was killed.
    async fn adopt(&self, refusal: &str) -> Option<Result<(Value, &DaemonAddress), String>> {
        let (job, address) = self.find_by_key(refusal).await?;
        let life = self.life_of(&job).await?;
        match life {
            Life::Registrant if is_own(&job) => Some(Ok((job, address))),
            Life::Gone => Some(Err(job["job_id"].as_str().unwrap_or_default().to_owned())),
            Life::Registrant | Life::Others => None,
        }
    }

    async fn try_register(&mut self) -> Result<DaemonAddress, Failure> {
        let (status, _) = self.daemon.call(Method::GET, "/v1/status", None, REQUEST).await?;
        self.link.set_clock(OtherClock::of(&status, Reading::now()));
        let mut body = self.registration.at_stage(self.link.reported().stage, self.link.latest_left());
        let of_environment = self.find_of_slurm(&body["tags"]).await.filter(is_of_environment);
        if !body.contains_key("gpus") {
            let gpus: Vec<Gpu> = serde_json::from_value(status["gpus"].clone())
                .map_err(|error| Failure::NoAnswer(format!("the daemon's list of GPUs cannot be read: {error}")))?;
            // Slurm's Prolog knows the GPUs of the whole Slurm job. Its registration ends once this one has replaced it.
            if let Some(other) = &of_environment {
                self.gpus_of_slurm = Some(other["gpus"].clone());
            }
            let chosen = match (self.visible.choose(&gpus), &self.gpus_of_slurm) {
                (Ok(chosen), _) => Value::from(chosen),
                (Err(_), Some(gpus)) => gpus.clone(),
                (Err(detail), None) => {
                    return Err(Failure::Refused { status: 0, field: Some("gpus".into()), detail });
                }
            };
            body.insert("gpus".into(), chosen);
        }
        if has_same_pids(&status) {
            body.insert("pids".into(), json!([std::process::id()]));
        }
        if let Some(other) = &of_environment {
            replace(&mut body, other);
        }
        let (job, address, with_control) = self.post_registration(body).await?;
        let text = |key: &str| job[key].as_str().unwrap_or_default().to_owned();
        let (id, address) = (text("job_id"), address.clone());
        let lease = Duration::from_secs_f64(job["lease_s"].as_f64().unwrap_or(60.0).clamp(1.0, 86_400.0));
        self.describe(&job, &status);
        let is_refused = job["control"] == false && with_control.get("control") != Some(&Value::Bool(false));
        let is_refused = is_refused && !self.registration.has_offer();
        self.uncontrolled = is_refused.then_some(with_control);
        self.own.push(id.clone());
        if let Some(file) = &self.job_file {
            // Without it, only the job that was registered before the command began can be replaced.
            let _ = write_whole(file, &id);
        }
        self.job = Some(Job { id: id.clone(), lease, script: None, is_over: false });
        (self.contact, self.problem) = (Some(Instant::now()), None);
        self.follower.put_back();
        self.link.registered(&id, &job);
        Ok(address)
    }

    /// Posts a registration; returns the job, the address of its daemon, and the registration with the control that may
    /// have been refused. If the daemon refuses a part that only adds to the job, leaves that part out.
    async fn post_registration(
        &self,
        mut body: Map<String, Value>,
    ) -> Result<(Value, &DaemonAddress, Map<String, Value>), Failure> {
        let (mut has_replaced, mut is_refused, mut is_conflict) = (false, false, false);
        loop {
            let mut wire = body.clone();
            if is_refused {
                wire.insert("control".into(), false.into());
            }
            // So that the job of a script that replaces this one asks for control, too.
            if let Some(Value::Object(tags)) = wire.get_mut("tags").filter(|_| is_conflict)
                && tags.len() < JobSpec::MOST_TAGS
            {
                tags.insert(CONTROL_REFUSED.into(), "conflict".into());
            }
            let failure = match self.daemon.call(Method::POST, "/v1/jobs", Some(&Value::Object(wire)), REQUEST).await {
                Ok((job, address)) => return Ok((job, address, body)),
                Err(failure) => failure,
            };
            match &failure {
                // A job with this key is open: this process's own, whose answer did not arrive in time, or one that
                // was left behind.
                Failure::Refused { status: 409, field: Some(field), detail } if field == "key" => {
                    match self.adopt(detail).await {
                        Some(Ok((job, address))) => return Ok((job, address, body)),
                        Some(Err(left)) if !has_replaced => {
                            has_replaced = true;
                            body.insert("replaces".into(), left.into());
                        }
                        _ => return Err(failure),
                    }
                }
                // The daemon itself runs below this process, or sees other processes, or sees them as another user's.
                Failure::Refused { status: 403 | 422, field: Some(field), .. } if field == "pids" => {
                    body.remove("pids");
                }
                // Another job counts these processes, unless it is the job of this Slurm job.
                Failure::Refused { status: 409, detail, .. } if detail.starts_with("pids: ") => {
                    match self.find_of_slurm(&body["tags"]).await.filter(|_| !body.contains_key("replaces")) {
                        Some(other) if !has_replaced => {
                            has_replaced = true;
                            replace(&mut body, &other);
                        }
                        _ => {
                            body.remove("pids");
                        }
                    }
                }
                // Only other users work on one of the GPUs.
                Failure::Refused { status: 403, field: Some(field), detail } if field == "control" => {
                    self.say(&format!("{detail}; the command's energy is recorded without control"));
                    is_refused = true;
                }
                // Another task of the same Slurm job has replaced that registration, or it belongs to another user.
                Failure::Refused { status: 403 | 404 | 409, detail, .. }
                    if body.contains_key("replaces") && !detail.contains(CONTROLLED) =>
                {
                    body.remove("replaces");
                }
                Failure::Refused { status: 409, detail, .. }
                    if !is_refused && body.get("control") != Some(&Value::Bool(false)) =>
                {
                    if let Some((job, address)) = self.find_own().await {
                        return Ok((job, address, body));
                    }
                    if !has_replaced
                        && !body.contains_key("replaces")
                        && let Some(other) = self.find_of_slurm(&body["tags"]).await
                    {
                        has_replaced = true;
                        replace(&mut body, &other);
                        continue;
                    }
                    self.say(&format!("{detail}; the command's energy is recorded without control"));
                    (is_refused, is_conflict) = (true, true);
                }
                _ => return Err(failure),
            }
        }
    }

    /// Returns this run's job if an earlier request has registered it, whose answer did not arrive in time.
    async fn find_own(&self) -> Option<(Value, &DaemonAddress)> {
        let (jobs, address) = self.daemon.call(Method::GET, "/v1/jobs", None, REQUEST).await.ok()?;
        let (status, _) = self.daemon.call(Method::GET, "/v1/status", None, REQUEST).await.ok()?;
        let found = jobs.as_array()?.iter().find(|job| is_own(job)).filter(|_| has_same_pids(&status))?;
        Some((found.clone(), address))
    }

    /// Returns the job that Slurm's Prolog has registered for the same Slurm job, if nothing reports for it. The tag
    /// does not tell it from the job of another task's `wattune run`.
    async fn find_of_slurm(&self, tags: &Value) -> Option<Value> {
        let slurm = tags["slurm_job_id"].as_str()?;
        let (jobs, _) = self.daemon.call(Method::GET, "/v1/jobs", None, REQUEST).await.ok()?;
        let is_same = |job: &&Value| {
            let is_of_prolog = job["processes"]["slurm_job_id"].is_u64() || is_of_environment(job);
            is_of_prolog && job["tags"]["slurm_job_id"] == slurm && job["progress_source"].is_null()
        };
        Some(jobs.as_array()?.iter().find(is_same)?.clone())
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
        let earlier = job["continues"].as_str().map(|earlier| format!(", goes on with job {earlier}"));
        let earlier = earlier.unwrap_or_default();
        self.say(&format!("job {id} on GPU {}{label}, {how}{earlier}", indexes.join(", ")));
    }
}

/// Describes why the command runs without a job, and until when.
fn describe_unregistered(failure: &Failure, token: Option<&TokenSource>) -> String {
    let how = match (failure, token) {
        (Failure::NoAnswer(_), _) => "runs without wattune until it does",
        (Failure::Refused { status: 401, .. }, Some(TokenSource::File(_))) => {
            "runs without wattune until WATTUNE_TOKEN_FILE has a token that the daemon accepts"
        }
        (Failure::Refused { status: 401, .. }, Some(TokenSource::Variable(_))) => {
            "is not registered, because WATTUNE_TOKEN stays the same while it runs"
        }
        (Failure::Refused { .. }, _) if failure.may_pass(token) => "runs without wattune until the daemon accepts it",
        (Failure::Refused { .. }, _) => "is not registered",
    };
    format!("{failure}; the command {how}")
}

/// Returns true if the environment names this job: Slurm's TaskProlog does so.
fn is_of_environment(job: &Value) -> bool {
    variable(JOB_ID).is_some_and(|id| job["job_id"] == id)
}

/// Has a registration replace a job. A site that records a job without control does not want its replacement
/// controlled, unless control was only refused because another job had it.
fn replace(body: &mut Map<String, Value>, job: &Value) {
    body.insert("replaces".into(), job["job_id"].clone());
    if job["control"] == false && job["tags"][CONTROL_REFUSED].is_null() {
        body.insert("control".into(), false.into());
    }
}

/// Returns true if a job's only process is this one, as far as the daemon numbers processes in the same way.
fn is_own(job: &Value) -> bool {
    job["processes"]["pids"] == json!([std::process::id()])
}

/// Returns true if the daemon refuses a job because an open one has its key.
fn is_about_key(failure: &Failure) -> bool {
    matches!(failure, Failure::Refused { status: 409, field, detail }
        if field.as_deref() == Some("key") || detail.starts_with("key "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_to_run_without_a_job_is_described() {
        let refused = |status| Failure::Refused { status, field: None, detail: "no".into() };
        let (file, variable) = (TokenSource::File("a".into()), TokenSource::Variable("b".into()));
        for (failure, token, expected) in [
            (
                Failure::NoAnswer("no daemon answers".into()),
                None,
                "no daemon answers; the command runs without wattune",
            ),
            (refused(503), None, "no; the command runs without wattune until the daemon accepts it"),
            (refused(401), Some(&file), "until WATTUNE_TOKEN_FILE has a token"),
            (refused(401), Some(&variable), "is not registered, because WATTUNE_TOKEN stays the same"),
            (refused(401), None, "no; the command is not registered"),
            (refused(403), Some(&file), "no; the command is not registered"),
        ] {
            let text = describe_unregistered(&failure, token);
            assert!(text.contains(expected), "{expected}: {text}");
        }
    }
}
