//! The Slurm job that a run is part of. To wait, the job goes back to Slurm's queue and frees its allocation.

use std::process::{Command, Stdio};
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::child::Signals;
use wattune_core::domain::legible;
use wattune_core::units::Seconds;

/// Longest time for one command of Slurm, whose controller may be busy.
const PATIENCE: Duration = Duration::from_secs(20);
/// Number of attempts to set the start of a job that has just been requeued, and the time between two.
const ATTEMPTS: u32 = 60;
const ATTEMPT_EVERY: Duration = Duration::from_millis(500);

/// Slurm job that runs this process in its batch script. Slurm can requeue the job: end it, and start its script again
/// later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Allocation {
    /// Number of the job (`SLURM_JOB_ID`).
    number: u32,
    /// True if Slurm has requeued the job before.
    pub(super) is_restarted: bool,
}

impl Allocation {
    /// Finds the Slurm job of this process; `None` outside of Slurm.
    ///
    /// # Errors
    /// The reason why the job cannot be requeued.
    pub(super) async fn find(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, String> {
        let Some(number) = variable("SLURM_JOB_ID").and_then(|number| number.parse().ok()) else { return Ok(None) };
        let shown = scontrol(&["show", "job", "--oneliner", &format!("{number}")]).await?;
        let restarts = variable("SLURM_RESTART_COUNT").and_then(|count| count.parse::<u32>().ok()).unwrap_or(0);
        match why_not(&shown) {
            None => Ok(Some(Self { number, is_restarted: restarts > 0 })),
            Some(why) => Err(format!("Slurm job {number} {why}")),
        }
    }

    /// Requeues the job: Slurm ends it and starts it again after `wait`. Slurm then ends this process, too. Returns a
    /// message.
    ///
    /// # Errors
    /// The reason why Slurm does not requeue it.
    pub(super) async fn requeue(&self, wait: Seconds, signals: &mut Signals) -> Result<String, String> {
        let number = self.number.to_string();
        let begun = crate::clock::since_boot();
        scontrol(&["requeue", &number]).await?;
        // From here on Slurm asks this process to end, and kills it after KillWait.
        let mut failed = String::new();
        for _ in 0..ATTEMPTS {
            let left = (wait - (crate::clock::since_boot() - begun)).get().max(0.0).ceil();
            let start = format!("StartTime=now+{left}");
            match scontrol(&["update", &format!("JobId={number}"), &start]).await {
                Ok(_) => return Ok(format!("Slurm job {number} waits in the queue, and starts again in {left} s")),
                Err(why) => failed = why,
            }
            tokio::select! {
                () = sleep(ATTEMPT_EVERY) => {}
                _ = signals.next() => {}
            }
        }
        Ok(format!("Slurm job {number} is requeued, and starts again as soon as Slurm can: {failed}"))
    }
}

/// Returns why a job that `scontrol show job --oneliner` shows like this cannot be requeued by its batch script.
fn why_not(shown: &str) -> Option<&'static str> {
    let has = |field: &str| shown.split_whitespace().any(|part| part == field);
    if !has("BatchFlag=1") {
        return Some("is no batch job, so it cannot be requeued");
    }
    (!has("Requeue=1")).then_some("may not be requeued; submit it with --requeue")
}

/// Runs `scontrol` as this process's user, and returns its output.
async fn scontrol(arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new("scontrol");
    command.args(arguments).stdin(Stdio::null());
    let what = format!("scontrol {}", arguments.first().copied().unwrap_or_default());
    // No command of the user runs meanwhile, whose end this process waits for.
    let running = tokio::task::spawn_blocking(move || command.output());
    let output = match timeout(PATIENCE, running).await {
        Ok(Ok(Ok(output))) => output,
        Ok(Ok(Err(error))) => return Err(format!("cannot run {what}: {error}")),
        _ => return Err(format!("{what} did not answer within {} s", PATIENCE.as_secs())),
    };
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("{what} failed: {}", legible(String::from_utf8_lossy(&output.stderr).trim())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_batch_jobs_that_may_be_requeued_are() {
        for (shown, expected) in [
            ("JobId=7 JobName=a Requeue=1 Restarts=0 BatchFlag=1 Reboot=0", None),
            ("JobId=7 JobName=a Requeue=0 Restarts=0 BatchFlag=1", Some("--requeue")),
            ("JobId=7 JobName=a Requeue=1 Restarts=0 BatchFlag=0", Some("no batch job")),
        ] {
            let why = why_not(shown);
            assert_eq!(why.is_some(), expected.is_some(), "{shown}");
            assert!(expected.is_none_or(|part| why.is_some_and(|why| why.contains(part))), "{shown}");
        }
    }
}
