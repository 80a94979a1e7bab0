//! Ownership of jobs: who may report for a job and end it, and to whom a new one belongs.

use super::caller::Caller;
use crate::controller::{ControlError, Controller};
use wattune_core::domain::{JobId, Owner, Owners};

/// Number of the user root, who may register jobs for others over every connection: root could become any user.
const ROOT: u32 = 0;

impl Controller {
    /// Checks that the caller may report for a job and end it.
    ///
    /// # Errors
    /// If the job does not exist or belongs to others, or if the database cannot be read.
    pub async fn check_owner(&self, id: &JobId, by: &Caller) -> Result<(), ControlError> {
        let owners = match self.jobs.get(id) {
            Some(job) => job.owners.clone(),
            None => match self.store.job(id).await? {
                Some(ended) => ended.owners,
                None => return Err(self.snapshot().no_such_job(id).await),
            },
        };
        if by.may_change(&owners) {
            return Ok(());
        }
        Err(ControlError::Forbidden(format!(
            "job {id} belongs to {owners}, and this request comes from {by}; to change the jobs of others, use the Unix socket \
             or a token with the scope gpu-control, or set http.loopback_control = true"
        )))
    }
}

/// Returns the owners of a new job: the caller, and the user for whom the caller registers it.
pub(super) fn owners_of(by: &Caller, user: Option<u32>) -> Result<Owners, ControlError> {
    let Some(user) = user else { return Ok(by.owners()) };
    let owner = Owner::User(user);
    let may_name = match by {
        Caller::Local => true,
        Caller::Client(client) | Caller::Zeus(client) => {
            client.has_control || [Some(ROOT), Some(user)].contains(&client.user)
        }
    };
    if may_name {
        return Ok(by.owners().with(owner));
    }
    Err(ControlError::Forbidden(format!(
        "a job for {owner} can be registered by that user, by root, over the Unix socket, or with a token of the scope \
         gpu-control; this request comes from {by}: leave \"uid\" out to register it for yourself"
    )))
}
