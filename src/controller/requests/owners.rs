//! Ownership of jobs: who may report for a job and end it, to whom a new one belongs, and what a caller may register.

use super::caller::{Caller, ROOT};
use crate::controller::{ControlError, Controller};
use wattune_core::domain::{GpuId, JobId, JobSpec, Owner, Owners, Processes};

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

    /// Checks that the processes of a new job are the caller's.
    ///
    /// # Errors
    /// If they are those of others, or the caller's user is unknown.
    pub(super) async fn check_processes(
        &mut self,
        processes: Option<&Processes>,
        by: &Caller,
    ) -> Result<(), ControlError> {
        let Some(processes) = processes.filter(|_| !by.may_use_all()) else { return Ok(()) };
        let checked = match by.user() {
            Some(user) => self.accounting.check_user(&node!(self), processes, user).await,
            None => Err(("pids", "the user of this request is unknown".to_owned())),
        };
        checked.map_err(|(field, why)| {
            let why = format!(
                "{why}, and this request comes from {by}, who may only name processes of their own; leave the field out, or \
                 {REMEDY}"
            );
            ControlError::NotPermitted { field, why }
        })
    }

    /// Checks that the caller may control the GPUs of a new job.
    ///
    /// # Errors
    /// If only processes of other users run on one of them.
    pub(super) async fn check_gpus(&mut self, spec: &JobSpec, by: &Caller) -> Result<(), ControlError> {
        if !spec.control {
            return Ok(());
        }
        let Some((gpu, other)) = self.gpu_of_others(&spec.gpus, by).await else { return Ok(()) };
        let index = self.gpus.get(&gpu).map(|gpu| gpu.handle.identity().index.to_string());
        let why = format!(
            "on GPU {} ({gpu}) only processes of other users run, such as one of user {other}, and this request comes from \
             {by}; register with \"control\": false to have the energy recorded without control, or {REMEDY}",
            index.unwrap_or_default()
        );
        Err(ControlError::NotPermitted { field: "control", why })
    }

    /// Returns the first of these GPUs on which only other users' processes run, and one of these users. Processes of which
    /// no user is known decide nothing; neither does root's server of CUDA's multi-process service.
    pub(super) async fn gpu_of_others(&mut self, gpus: &[GpuId], by: &Caller) -> Option<(GpuId, u32)> {
        if by.may_use_all() {
            return None;
        }
        for id in gpus {
            let listed =
                self.gpus.get(id).and_then(|gpu| gpu.observed.processes.as_ref()).map(|(_, pids)| pids.clone());
            let Some(pids) = listed.filter(|pids| !pids.is_empty()) else { continue };
            let users = self.accounting.users_of(&node!(self), pids).await;
            let mut users = users.into_iter().filter(|found| !found.serves_others).map(|found| found.user).peekable();
            let Some(first) = users.peek().copied() else { continue };
            if users.all(|user| Some(user) != by.user()) {
                return Some((id.clone(), first));
            }
        }
        None
    }
}

/// Ways to get the right to use what is not the caller's, as the end of a sentence.
pub(super) const REMEDY: &str =
    "use the Unix socket or a token with the scope gpu-control, or let root register the job";

/// Checks that the caller may give a job this priority, which lowers the limits of other users' jobs before its own.
///
/// # Errors
/// If the priority is above 0 and the caller may not control what belongs to others.
pub(super) fn check_priority(by: &Caller, priority: i32) -> Result<(), ControlError> {
    if priority <= 0 || by.may_use_all() {
        return Ok(());
    }
    let why = format!(
        "{priority} would put this job before those of others, and this request comes from {by}; give 0 or less, or {REMEDY}"
    );
    Err(ControlError::NotPermitted { field: "priority", why })
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
