//! Places of open jobs: how many there are, and how many of them one user may have.

use crate::controller::{ControlError, Controller};
use crate::files;
use wattune_core::domain::{JobId, JobSpec, Owner, Owners};

/// Part of all places that one user may have, in percent. The rest is left to others.
const SHARE_PERCENT: usize = 80;

impl Controller {
    /// Checks that there is a place for a new job of `owners`, in all and on each of its GPUs.
    ///
    /// # Errors
    /// If as many jobs are open as the settings allow, or one of the owners has more than a user's share of them.
    pub(super) fn refuse_too_many(&self, spec: &JobSpec, owners: &Owners) -> Result<(), ControlError> {
        let most = self.settings.most_jobs as usize;
        let open = self.jobs.len();
        if open >= most {
            return Err(ControlError::TooMany(format!(
                "{open} jobs are open, and control.most_jobs = {most} allows no more: end jobs that are done, let their \
                 leases run out, or raise the setting"
            )));
        }
        let all = || self.jobs.iter().map(|job| &job.owners);
        refuse_one(owners, most, open, all, &format!("control.most_jobs = {most}"))?;
        let most = self.settings.most_jobs_per_gpu as usize;
        let is_held = spec.offers.start.is_some();
        for gpu in spec.gpus.iter().filter(|_| !is_held).filter_map(|id| self.gpus.get(id)) {
            let (open, index) = (gpu.holder_count(), gpu.handle.identity().index);
            if open >= most {
                return Err(ControlError::TooMany(format!(
                    "GPU {index} has {open} open jobs, and control.most_jobs_per_gpu = {most} allows no more: end jobs that are \
                     done, let their leases run out, or raise the setting"
                )));
            }
            let holders: Vec<JobId> = gpu.holders();
            let of_gpu = || holders.iter().filter_map(|id| self.jobs.get(id)).map(|job| &job.owners);
            refuse_one(owners, most, open, of_gpu, &format!("control.most_jobs_per_gpu = {most} on GPU {index}"))?;
        }
        Ok(())
    }
}

/// Returns the number of places that one user may have, of `most` places.
const fn share_of(most: usize) -> usize {
    (most * SHARE_PERCENT).div_ceil(100)
}

/// Returns the owners whose places are counted. Root and the daemon's user, who could stop the daemon, have no share.
fn counted(owners: &Owners) -> impl Iterator<Item = &Owner> {
    owners.principals().filter(|owner| **owner != Owner::ROOT && **owner != Owner::User(files::user()))
}

/// Refuses a job if one of its owners has as many of the open jobs as a user may have. `open` is the number of open jobs, and
/// `all` has the owners of each.
fn refuse_one<'a, I: Iterator<Item = &'a Owners>>(
    owners: &Owners,
    most: usize,
    open: usize,
    all: impl Fn() -> I,
    setting: &str,
) -> Result<(), ControlError> {
    let share = share_of(most);
    if open < share {
        return Ok(());
    }
    for owner in counted(owners) {
        let own = all().filter(|owners| owners.contains(owner)).count();
        if own >= share {
            return Err(ControlError::TooMany(format!(
                "{own} open jobs belong to {owner}, and one user may have {SHARE_PERCENT} % of {setting}; the rest is left to \
                 others: end jobs that are done, or raise the setting"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_leaves_a_fifth_of_the_places_to_others() {
        assert_eq!([1, 2, 3, 10, 1000].map(share_of), [1, 2, 3, 8, 800]);
        let of = |user| Owners::default().with(Owner::User(user));
        let (ada, bob) = (files::user() + 1, files::user() + 2);
        let mut open: Vec<Owners> = (0..7).map(|_| of(ada)).collect();
        let refused = |open: &[Owners], owners: &Owners| {
            refuse_one(owners, 10, open.len(), || open.iter(), "control.most_jobs = 10").err().map(|e| e.to_string())
        };
        assert_eq!(refused(&open, &of(ada)), None);
        open.push(of(ada).with(Owner::ROOT));
        let why = refused(&open, &of(ada).with(Owner::ROOT)).expect("as many as a user may have");
        assert!(why.contains("80 % of control.most_jobs = 10") && why.contains(&format!("user {ada}")), "{why}");
        for others in [of(bob), of(0), of(files::user()), Owners::default()] {
            assert_eq!(refused(&open, &others), None, "{others}");
        }
    }
}
