//! Actions of Slurm's scripts: the Prolog registers a job, the TaskProlog passes its id on, the Epilog ends it.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::api::Api;
use super::deadline::Deadline;
use super::facts::{CONTROL_REFUSED, Facts};
use super::gpus::{self, Given};
use super::job_gpus::{self, DRIVER_LIST};
use crate::cli::ask::DaemonAddress;
use crate::cli::daemon::Failure;
use crate::cli::output::print;

/// The lock that Prologs take while they choose GPUs that Slurm does not name.
const LOCK: &str = "/run/lock/wattune-slurm.lock";
const LOCK_PATIENCE: Duration = Duration::from_millis(400);

/// Lines that say what was done.
type Lines = anyhow::Result<Vec<String>>;

fn variable(key: &str) -> Option<String> {
    std::env::var(key).ok()
}

/// Registers the job that starts. If a registration of an earlier, requeued run of the same job is still open, ends
/// that one first.
pub(super) fn prolog(api: &Api, lease_s: f64, control: bool, until: &Deadline) -> Lines {
    let mut facts = Facts::of_environment(variable)?;
    let given = gpus::given(facts.number, variable(job_gpus::VARIABLE).as_deref(), until)?;
    if given == Given::None {
        return Ok(Vec::new());
    }
    let mut done = Vec::new();
    if let Err(error) = facts.ask_queue(until) {
        done.push(format!("{error:#}; the job goes by its number"));
    }
    for (id, _) in end_all(api, |job| is_of_prolog(job, facts.number))? {
        done.push(format!("job {id} of an earlier run of Slurm job {} ended", facts.number));
    }
    let mut tags = facts.tags();
    let (gpus, control, _lock) = match given {
        Given::Devices(devices) => (gpus::names(&devices, &job_gpus::uuids(Path::new(DRIVER_LIST))), control, None),
        Given::Count(count) => {
            // A guess must not be silent, and must not set limits.
            let lock = lock();
            let chosen = gpus::choose(count, &api.get("/v1/gpus")?, &api.get("/v1/jobs")?)?;
            tags.insert("gpus_from".to_owned(), "count".to_owned());
            done.push(format!(
                "Slurm does not report which {count} GPU(s) job {} has; assumed {}",
                facts.number,
                json!(chosen)
            ));
            (chosen, false, lock)
        }
        Given::None => return Ok(Vec::new()),
    };
    let (job, refused) = match register(api, &facts, &gpus, &tags, lease_s, control) {
        // Another job controls a GPU, as where Slurm lets jobs share one: the energy is recorded all the same.
        Err(Failure::Refused { status: 409, .. }) if control => {
            tags.insert(CONTROL_REFUSED.to_owned(), "conflict".to_owned());
            (register(api, &facts, &gpus, &tags, lease_s, false)?, true)
        }
        registered => (registered?, false),
    };
    let (id, slurm) = (job["job_id"].as_str().unwrap_or_default().to_owned(), facts.number);
    let how = if refused { ", recorded only: another job controls its GPUs" } else { "" };
    done.push(format!("Slurm job {slurm} is job {id} on {} GPU(s){how}", gpus.len()));
    Ok(done)
}

fn register(
    api: &Api,
    facts: &Facts,
    gpus: &[Value],
    tags: &BTreeMap<String, String>,
    lease_s: f64,
    control: bool,
) -> Result<Value, Failure> {
    let job = json!({
        "name": facts.name(), "gpus": gpus, "control": control, "lease_s": lease_s,
        "slurm_job_id": facts.number, "tags": tags, "uid": facts.uid,
    });
    api.post("/v1/jobs", &job)
}

/// Takes the lock of Prologs, if it becomes free in time: without it, two jobs may get the same GPU.
fn lock() -> Option<File> {
    let file = File::options().create(true).truncate(false).write(true).open(LOCK).ok()?;
    let until = Deadline::within(LOCK_PATIENCE);
    while !until.is_over() {
        if file.try_lock().is_ok() {
            return Some(file);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    None
}

/// Ends the jobs of the Slurm job that has finished on this node.
pub(super) fn epilog(api: &Api) -> Lines {
    let facts = Facts::of_environment(variable)?;
    let mut done = Vec::new();
    for (id, account) in end_all(api, |job| ends_with(job, facts.number))? {
        let energy =
            account["energy_j"].as_f64().map_or("unknown energy".to_owned(), |joules| format!("{joules:.0} J"));
        done.push(format!("Slurm job {}, job {id}, ended with {energy}", facts.number));
    }
    Ok(done)
}

/// Ends the open jobs with this property; returns their ids and accounts.
///
/// # Errors
/// If the daemon does not answer, or refuses to end one of them; it has ended the others then.
fn end_all(api: &Api, is_one: impl Fn(&Value) -> bool) -> anyhow::Result<Vec<(String, Value)>> {
    let (mut ended, mut refused) = (Vec::new(), None);
    for id in ids_of(api, is_one)? {
        match api.delete(&format!("/v1/jobs/{id}")) {
            Ok(account) => ended.push((id, account)),
            // Its own process, or its lease, has just ended it.
            Err(failure) if failure.is_end_of_job() => {}
            // Such as one of another user, who may give any tag: it must not keep the others open.
            Err(failure @ Failure::Refused { .. }) => refused = Some(failure),
            Err(failure) => return Err(failure.into()),
        }
    }
    refused.map_or(Ok(ended), |failure| Err(failure.into()))
}

/// Returns true if a job ends with this Slurm job: the one that the Prolog has registered, and those that its processes
/// have registered, which may have been killed. With a key, a later run may continue a job whose lease has expired, but
/// none that was ended. A job that was found lasts for as long as its processes.
fn ends_with(job: &Value, number: u32) -> bool {
    let tags = &job["tags"];
    let has_number = tags["slurm_job_id"].as_str().is_some_and(|tag| tag == number.to_string());
    let is_of_process = has_number && job["key"].is_null() && tags["found"].is_null();
    is_of_prolog(job, number) || is_of_process
}

/// Returns true if a job was registered for this Slurm job as a whole.
fn is_of_prolog(job: &Value, number: u32) -> bool {
    job["processes"]["slurm_job_id"] == json!(number)
}

/// Prints environment variables for a task: Slurm copies lines `export NAME=value` into the task's environment. Prints
/// nothing for a job that is not registered.
pub(super) fn task_prolog(api: &Api) -> Lines {
    let facts = Facts::of_environment(variable)?;
    let of_job = ids_of(api, |job| is_of_prolog(job, facts.number))?;
    let Some(id) = of_job.into_iter().next() else { return Ok(Vec::new()) };
    let mut lines = format!("export WATTUNE_JOB_ID={id}\n");
    match api.reached() {
        Some(DaemonAddress::Socket(path)) => lines += &format!("export WATTUNE_SOCKET={}\n", path.display()),
        Some(DaemonAddress::Tcp(address)) => lines += &format!("export WATTUNE_LISTEN={address}\n"),
        None => {}
    }
    print(lines.as_bytes())?;
    Ok(Vec::new())
}

/// Returns the ids of the open jobs with this property.
fn ids_of(api: &Api, is_one: impl Fn(&Value) -> bool) -> anyhow::Result<Vec<String>> {
    let jobs = api.get("/v1/jobs")?;
    let chosen = jobs.as_array().into_iter().flatten().filter(|job| is_one(job));
    Ok(chosen.filter_map(|job| job["job_id"].as_str().map(str::to_owned)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slurm_job_ends_its_jobs_and_no_others() {
        let tags = json!({"slurm_job_id": "7"});
        for (job, expected) in [
            (json!({"processes": {"slurm_job_id": 7}, "tags": tags}), true),
            (json!({"processes": {"slurm_job_id": 7}}), true),
            (json!({"processes": {"pids": [1]}, "tags": tags, "key": null}), true),
            (json!({"processes": null, "tags": tags}), true),
            (json!({"processes": {"pids": [1]}, "tags": tags, "key": "nightly"}), false),
            (json!({"processes": {"pids": [1]}, "tags": {"slurm_job_id": "7", "found": "slurm"}}), false),
            (json!({"processes": {"slurm_job_id": 8}, "tags": {"slurm_job_id": "8"}}), false),
            (json!({"processes": null, "tags": {}}), false),
        ] {
            assert_eq!(ends_with(&job, 7), expected, "{job}");
        }
    }
}
