//! A job's GPUs in groups of one GPU model each, and the profile known from earlier runs.

use super::job::{Group, Job, PriorProfile, profile_key};
use crate::controller::error::ControlError;
use crate::controller::snapshot::Snapshot;
use crate::store::{StoreError, StoredJob};
use wattune_core::domain::JobSpec;
use wattune_core::profile::Record;
use wattune_core::profile::steps::GroupRange;

impl Snapshot<'_> {
    /// Makes a job from its stored data, with the profile of earlier runs.
    pub(crate) async fn make_job(&self, stored: &StoredJob) -> Result<Job, ControlError> {
        let equipment = self.equipment(&stored.spec).await?;
        let (groups, profiling) = match equipment {
            Some((groups, known)) => (groups, Some((self.profiling.clone(), known))),
            None => (Vec::new(), None),
        };
        let StoredJob { id, spec, progress, registered_at, owners, .. } = stored.clone();
        let mut job = Job::new(id, spec, groups, profiling, progress, registered_at, self.now);
        job.owners = owners;
        Ok(job)
    }

    /// Returns a job's GPUs in groups of one model each, and the profile known from earlier runs; `None` while one of
    /// the GPUs is absent or reports no limits.
    pub(crate) async fn equipment(&self, spec: &JobSpec) -> Result<Option<(Vec<Group>, PriorProfile)>, ControlError> {
        let Some(groups) = self.group(spec) else { return Ok(None) };
        let known = self.prior_profile(spec, &groups).await?;
        Ok(Some((groups, known)))
    }

    async fn prior_profile(&self, spec: &JobSpec, groups: &[Group]) -> Result<PriorProfile, ControlError> {
        let key = profile_key(spec, groups);
        let record = match self.store.profile(&key).await {
            // An unreadable profile is measured again; the job must not be refused for ever because of it.
            Err(error @ StoreError::Damaged { .. }) => {
                tracing::warn!("{error}; job {} is profiled anew", spec.name);
                Record::default()
            }
            found => found?.unwrap_or_default(),
        };
        let expected = match spec.batch_size {
            // An expected most efficient limit makes the sweep end sooner. Under a cap none is given, because lower
            // limits may be needed too.
            Some(batch_size)
                if record.closed_at.is_none()
                    && self.cap.schedule(self.gpus.maximum_limits(), self.now.utc).is_empty() =>
            {
                let neighbours = self.store.neighbouring_profiles(&key).await.unwrap_or_default();
                let known = neighbours.iter().filter_map(|(other, record)| Some((*other, record.most_efficient()?)));
                known.min_by(|a, b| octaves(a.0, batch_size).total_cmp(&octaves(b.0, batch_size))).map(|(_, l)| l)
            }
            _ => None,
        };
        Ok(PriorProfile { record, expected })
    }

    /// Returns a job's GPUs in groups by GPU model. All GPUs of a group get the same limit, so the group's ceiling is
    /// the lowest maximum usable limit among them. `None` if one of the job's GPUs is absent or has no limit to set.
    fn group(&self, spec: &JobSpec) -> Option<Vec<Group>> {
        let mut groups: Vec<Group> = Vec::new();
        for id in &spec.gpus {
            let gpu = self.gpus.get(id)?;
            let (model, range) = (gpu.handle.identity().model.clone(), gpu.range()?);
            let (ceiling, original) = (self.gpus.ceiling(id)?, self.gpus.original_limit(id));
            let clocks = gpu.lockable_clocks(self.settings.clocks);
            match groups.iter_mut().find(|g| g.model == model) {
                Some(group) => {
                    group.members.push(id.clone());
                    group.range.ceiling = group.range.ceiling.min(ceiling);
                    group.range.original = group.range.original.filter(|own| Some(*own) == original);
                    group.range.min = group.range.min.max(range.min);
                    group.range.gpus += 1;
                    group.range.clocks = group.range.clocks.take().filter(|own| Some(own) == clocks.as_ref());
                }
                None => {
                    let range = GroupRange { gpus: 1, ceiling, original, min: range.min, clocks };
                    groups.push(Group { model, members: vec![id.clone()], range });
                }
            }
        }
        groups.sort_by(|a, b| a.model.cmp(&b.model));
        self.lower_to_constant_cap(&mut groups);
        Some(groups)
    }
}

/// Returns the distance between two batch sizes, in octaves (factors of two).
#[expect(clippy::cast_precision_loss, reason = "batch sizes are far below 2^52")]
fn octaves(a: u64, b: u64) -> f64 {
    (a as f64 / b as f64).log2().abs()
}
