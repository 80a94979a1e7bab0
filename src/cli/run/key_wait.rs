//! The wait for a key that another open job has: until that job is over, or it is clear that a process runs it.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::environment::say;
use super::reporter::{Holder, Life, Reporter};

/// Time between two attempts to register a job whose key another job has.
const KEY_EVERY: Duration = Duration::from_secs(1);
/// Time after which processes count as running although the one that registered their job has ended: the daemon counts
/// processes every few seconds, and may not have counted since that one was killed with all others.
const OUTLIVED: Duration = Duration::from_secs(6);
/// Lease of a job whose lease the daemon does not state.
const USUAL_LEASE: Duration = Duration::from_secs(60);

/// Progress of the wait.
#[derive(Debug, Default)]
pub(super) struct KeyWait {
    /// Job that has the key, if the daemon lists it, and the end of its lease; `None` before the wait for that end.
    taken: Option<(Option<String>, Instant)>,
    /// Time at which the job that has the key was first seen without the process that registered it.
    outlived: Option<Instant>,
}

impl KeyWait {
    /// Waits until the next attempt to register. `refusal` is the daemon's answer to the last one.
    ///
    /// # Errors
    /// The reason why the command is not to run: another process runs the job, or has ended it.
    pub(super) async fn pause(
        &mut self,
        refusal: &str,
        holder: Holder,
        reporter: &Reporter,
        is_quiet: bool,
    ) -> Result<(), String> {
        match holder.life {
            Some(Life::Registrant) => return Err(not_here(refusal, "its process runs on this machine")),
            Some(Life::Others) => {
                self.check_others(refusal, &holder)?;
                sleep(KEY_EVERY).await;
                return Ok(());
            }
            Some(Life::Gone) | None => {}
        }
        self.check_lease(refusal, holder, is_quiet)?;
        sleep(KEY_EVERY).await;
        if let Some((Some(job), _)) = &self.taken
            && let Some(why) = reporter.why_ended(job).await
        {
            return Err(format!(
                "job {job} with the same key has ended meanwhile ({why}), so the command does not start here; start it \
                 again if it is to run once more"
            ));
        }
        Ok(())
    }

    /// Checks whether processes of the job run that have outlived the one that registered it.
    fn check_others(&mut self, refusal: &str, holder: &Holder) -> Result<(), String> {
        // Once the lease has run out, the daemon no longer knows of these processes.
        let is_last = holder.lease_left.is_none_or(|left| left <= 2 * KEY_EVERY);
        let since = *self.outlived.get_or_insert_with(Instant::now);
        if is_last || since.elapsed() >= OUTLIVED {
            return Err(format!(
                "{refusal}; processes of that job still run, so the command does not start here: end them, or wait until \
                 they have ended"
            ));
        }
        Ok(())
    }

    /// Checks whether a process renews the job's lease: the one that had the job may have been killed where this process
    /// does not see it.
    fn check_lease(&mut self, refusal: &str, holder: Holder, is_quiet: bool) -> Result<(), String> {
        let left = holder.lease_left.unwrap_or(USUAL_LEASE);
        let Some((_, until)) = &self.taken else {
            if !is_quiet {
                say(&format!("{refusal}; waits until that job's lease runs out, at most {} s", left.as_secs()));
            }
            self.taken = Some((holder.job, Instant::now() + left));
            return Ok(());
        };
        if Instant::now() >= *until + 2 * KEY_EVERY {
            return Err(not_here(refusal, "another process runs it"));
        }
        if holder.lease_left.is_some() && Instant::now() + left > *until + KEY_EVERY / 2 {
            return Err(not_here(refusal, "its process renews the lease"));
        }
        Ok(())
    }
}

fn not_here(refusal: &str, how: &str) -> String {
    format!("{refusal}; {how}, so the command does not start here")
}
