//! Rights to recurring jobs and their trials.

use super::error::RecurringError;
use wattune_core::domain::{Actor, JobName, Owners};

/// Checks that `by` may change a recurring job with these owners and members.
///
/// # Errors
/// If the caller is neither an owner nor, unless `as_owner`, a member of the job.
pub(super) fn of_user(
    name: &JobName,
    owners: &Owners,
    members: &Owners,
    by: &Actor,
    as_owner: bool,
) -> Result<(), RecurringError> {
    if by.may_change(owners) || (!as_owner && by.may_change(members)) {
        return Ok(());
    }
    let what = if as_owner { "deletes it" } else { "has trials of it" };
    Err(RecurringError::Forbidden(format!(
        "recurring job {:?} belongs to {owners}, and this request comes from {}: only an owner {what}{}",
        name.as_str(),
        by.owners,
        if as_owner { "" } else { ", or a user who has registered it with the same specification" }
    )))
}

/// Checks that `by` may report for a trial and end it: the `trial` with this number and these owners, of a recurring job
/// with these owners and members.
///
/// # Errors
/// If the caller did not begin the trial. A trial without a known owner belongs to the owners of its recurring job.
pub(super) fn of_trial(
    name: &JobName,
    owners: &Owners,
    members: &Owners,
    (number, own): (u32, &Owners),
    by: &Actor,
) -> Result<(), RecurringError> {
    let own = if own.is_empty() { owners } else { own };
    if by.may_change(own) {
        return Ok(());
    }
    of_user(name, owners, members, by, false)?;
    Err(RecurringError::Forbidden(format!(
        "trial {number} of recurring job {:?} belongs to {own}, and this request comes from {}: only who began a trial \
         reports for it and ends it",
        name.as_str(),
        by.owners
    )))
}
