//! Use of a GPU by the processes of its jobs while several jobs hold it; the GPU's energy is split by this use.

use std::collections::BTreeMap;

use wattune_core::domain::JobId;
use wattune_core::ledger::GpuUsage;

/// Use of a GPU by each job since the GPU's last interval was closed.
#[derive(Debug, Default)]
pub(crate) struct Sharing {
    /// Last reported use by each process, cumulative; only the proportions of uses have a meaning.
    last: BTreeMap<u32, u64>,
    /// Last known job of each process; the process may have ended since.
    owners: BTreeMap<u32, JobId>,
    jobs: BTreeMap<JobId, u64>,
    others: u64,
}

impl Sharing {
    /// Adds the increase of each process's use. `use_by_process` maps process ids to cumulative use, `owners` to jobs.
    pub(crate) fn observe(&mut self, use_by_process: &BTreeMap<u32, u64>, owners: &BTreeMap<u32, JobId>) {
        for (pid, used) in use_by_process {
            let before = self.last.insert(*pid, *used).unwrap_or_default();
            let more = used.saturating_sub(before);
            if let Some(owner) = owners.get(pid) {
                self.owners.insert(*pid, owner.clone());
            }
            match self.owners.get(pid) {
                Some(job) => *self.jobs.entry(job.clone()).or_default() += more,
                None => self.others += more,
            }
        }
        self.last.retain(|pid, _| use_by_process.contains_key(pid));
        self.owners.retain(|pid, _| use_by_process.contains_key(pid));
    }

    /// Returns the use by each holder so far and clears it. Use by a job that no longer holds the GPU counts as use by
    /// others.
    pub(crate) fn take(&mut self, holders: &[JobId]) -> GpuUsage {
        let used = self.so_far(holders);
        (self.jobs, self.others) = (BTreeMap::new(), 0);
        used
    }

    /// Returns the use by each holder so far. Use by a job that no longer holds the GPU counts as use by others.
    pub(crate) fn so_far(&self, holders: &[JobId]) -> GpuUsage {
        let mut used = GpuUsage { others: self.others, ..GpuUsage::default() };
        for (job, weight) in &self.jobs {
            if holders.contains(job) { used.jobs.push((job.clone(), *weight)) } else { used.others += weight }
        }
        used
    }

    /// Clears all counts, because the GPU has no more than one holder.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_count_for_their_jobs_even_when_they_have_ended() {
        let job = |name: &str| JobId::new(name).expect("an id");
        let (a, b) = (job("a"), job("b"));
        let owners = BTreeMap::from([(1, a.clone()), (2, b.clone())]);
        let mut sharing = Sharing::default();
        sharing.observe(&BTreeMap::from([(1, 10), (2, 20), (3, 5)]), &owners);
        sharing.observe(&BTreeMap::from([(1, 40), (2, 20), (3, 6)]), &BTreeMap::new());
        let holders = [a.clone(), b.clone()];
        assert_eq!(sharing.take(&holders), GpuUsage { jobs: vec![(a.clone(), 40), (b.clone(), 20)], others: 6 });
        assert_eq!(sharing.take(&holders), GpuUsage::default());
        sharing.observe(&BTreeMap::from([(1, 41), (2, 22)]), &owners);
        assert_eq!(sharing.take(&holders[..1]), GpuUsage { jobs: vec![(a, 1)], others: 2 });
    }
}
