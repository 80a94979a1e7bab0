//! Ends the wait of a command that another `wattune run` holds.

use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use super::child;
use super::environment::has_same_pids;
use crate::cli::daemon::{Daemon, Failure};
use crate::files;
use signal_hook::consts::SIGUSR1;

/// Time-out of one request.
const REQUEST: Duration = Duration::from_secs(3);

/// Starts the command of the waiting job of this user with this key now. Returns a message; `None` if there is none.
///
/// Sends SIGUSR1 to the process that holds the command. If this process cannot see that process, for example because it
/// is in another container, the daemon passes the request on.
///
/// # Errors
/// If the daemon does not answer.
pub(super) async fn release(daemon: &Daemon, key: &str) -> Result<Option<String>, Failure> {
    let (jobs, _) = daemon.call(Method::GET, "/v1/jobs", None, REQUEST).await?;
    let waits = |job: &&Value| job["key"] == key && matches!(job["phase"].as_str(), Some("held" | "suspended"));
    let waiting: Vec<&Value> = jobs.as_array().into_iter().flatten().filter(waits).collect();
    if waiting.is_empty() {
        return Ok(None);
    }
    let (status, _) = daemon.call(Method::GET, "/v1/status", None, REQUEST).await?;
    let is_here = has_same_pids(&status);
    // Keys are per user, and the list has the jobs of all.
    for job in waiting {
        let id = job["job_id"].as_str().unwrap_or_default();
        let pids = job["processes"]["pids"].as_array().into_iter().flatten().filter(|_| is_here);
        let holder = pids.filter_map(|pid| i32::try_from(pid.as_i64()?).ok()).find(|pid| is_run(*pid));
        let is_released = match holder {
            Some(pid) => is_own(pid) && child::send(pid, SIGUSR1),
            None => {
                let (path, body) = (format!("/v1/jobs/{id}/begin"), json!({ "reason": "start_now" }));
                match daemon.call(Method::POST, &path, Some(&body), REQUEST).await {
                    Ok(_) => true,
                    Err(Failure::Refused { status: 401 | 403 | 404 | 409, .. }) => false,
                    Err(failure) => return Err(failure),
                }
            }
        };
        if is_released {
            return Ok(Some(format!("job {id} with the key {key} starts now")));
        }
    }
    Ok(None)
}

fn is_own(pid: i32) -> bool {
    std::fs::metadata(format!("/proc/{pid}")).is_ok_and(|process| process.uid() == files::user())
}

/// Returns whether a process is `wattune`: its id may have been given to another one meanwhile.
fn is_run(pid: i32) -> bool {
    let own = std::fs::read_to_string("/proc/self/comm");
    let theirs = std::fs::read_to_string(format!("/proc/{pid}/comm"));
    matches!((own, theirs), (Ok(own), Ok(theirs)) if own == theirs)
}
