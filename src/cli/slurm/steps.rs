//! Actions of Slurm's scripts: the Prolog registers a job, the TaskProlog passes its id on, the Epilog ends it.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::api::Api;
use super::deadline::Deadline;
use super::facts::Facts;
use super::gpus::{self, DRIVER_LIST, Given};
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
    let given = gpus::given(facts.number, variable("SLURM_JOB_GPUS").as_deref(), until)?;
    if given == Given::None {
        return Ok(Vec::new());
    }
    let mut done = Vec::new();
    if let Err(error) = facts.ask_queue(until) {
        done.push(format!("{error:#}; the job goes by its number"));
    }
    for id in of_slurm_job(api, facts.number)? {
        api.delete(&format!("/v1/jobs/{id}"))?;
        done.push(format!("job {id} of an earlier run of Slurm job {} ended", facts.number));
    }
    let mut tags = facts.tags();
    let (gpus, control, _lock) = match given {
        Given::Devices(devices) => (gpus::names(&devices, Path::new(DRIVER_LIST)), control, None),
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

/// Ends the job that has finished on this node.
pub(super) fn epilog(api: &Api) -> Lines {
    let facts = Facts::of_environment(variable)?;
    let mut done = Vec::new();
    for id in of_slurm_job(api, facts.number)? {
        let account = api.delete(&format!("/v1/jobs/{id}"))?;
        let energy =
            account["energy_j"].as_f64().map_or("unknown energy".to_owned(), |joules| format!("{joules:.0} J"));
        done.push(format!("Slurm job {}, job {id}, ended with {energy}", facts.number));
    }
    Ok(done)
}

/// Prints environment variables for a task: Slurm copies lines `export NAME=value` into the task's environment. Prints
/// nothing for a job that is not registered.
pub(super) fn task_prolog(api: &Api) -> Lines {
    let facts = Facts::of_environment(variable)?;
    let Some(id) = of_slurm_job(api, facts.number)?.into_iter().next() else { return Ok(Vec::new()) };
    let mut lines = format!("export WATTUNE_JOB_ID={id}\n");
    match api.reached() {
        Some(DaemonAddress::Socket(path)) => lines += &format!("export WATTUNE_SOCKET={}\n", path.display()),
        Some(DaemonAddress::Tcp(address)) => lines += &format!("export WATTUNE_LISTEN={address}\n"),
        None => {}
    }
    print(lines.as_bytes())?;
    Ok(Vec::new())
}

/// Returns the ids of the open jobs that were registered for a Slurm job.
fn of_slurm_job(api: &Api, number: u32) -> anyhow::Result<Vec<String>> {
    let jobs = api.get("/v1/jobs")?;
    let of_it = jobs.as_array().into_iter().flatten().filter(|job| job["processes"]["slurm_job_id"] == json!(number));
    Ok(of_it.filter_map(|job| job["job_id"].as_str().map(str::to_owned)).collect())
}
