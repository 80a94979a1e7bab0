//! Attribution of a device's energy to the jobs and processes that use the device; the shares add up exactly.
//! * A GPU's energy belongs to its job. Without a job it is idle, or unattributed where an unknown process runs on it.
//! * The energy of a GPU with several jobs is divided by the usage of the jobs' processes; usage by other processes is
//!   unattributed. Where usage is unknown, the jobs get equal shares.
//! * The energy of CPU packages and memory is divided by CPU time: a job's share is the CPU time of its processes over
//!   the node's capacity (cores × time). CPU time of other processes is unattributed, the rest is idle.
//!
//! Millijoules stay whole numbers: they are divided with the largest-remainder method.

use super::Share;
use super::apportion::apportion;
use crate::domain::{EnergySource, JobId};
use crate::units::Millijoules;

/// CPU time over an interval, in microseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuTime {
    /// Total capacity: cores × time.
    pub capacity: u64,
    /// CPU time used by all processes and by the kernel.
    pub busy: u64,
    /// CPU time used by each job's processes.
    pub jobs: Vec<(JobId, u64)>,
}

/// Usage of a GPU by processes over an interval; only the proportions are meaningful.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuUsage {
    /// Usage by each job on the GPU.
    pub jobs: Vec<(JobId, u64)>,
    /// Usage by processes that belong to no registered job.
    pub others: u64,
}

/// Rule by which a device's energy over an interval is divided.
#[derive(Clone, Debug)]
pub enum AttributionRule {
    /// The energy of a GPU is divided between the jobs that are registered on the GPU.
    Holders {
        /// Jobs on the GPU.
        jobs: Vec<JobId>,
        /// True if a process that belongs to no registered job runs on the GPU.
        unknown_user: bool,
        /// Measured usage of the GPU by processes; absent unless the usage is known for all jobs.
        used: Option<GpuUsage>,
    },
    /// The energy of a CPU package or of its memory is divided by the CPU time of the jobs' processes.
    CpuTime(CpuTime),
}

impl AttributionRule {
    /// Divides `energy` exactly between owners. On a GPU, energy of an unmonitored time (`source` is a counter gap) is
    /// never idle: it belongs to the jobs, or is unattributed.
    pub fn split(&self, energy: Millijoules, source: EnergySource) -> Vec<(Share, Millijoules)> {
        match self {
            Self::CpuTime(time) => by_cpu_time(energy, time),
            Self::Holders { jobs, unknown_user, .. } if jobs.is_empty() => {
                let watched = source != EnergySource::CounterGap;
                let owner = if watched && !unknown_user { Share::Idle } else { Share::Unattributed };
                vec![(owner, energy)]
            }
            Self::Holders { jobs, used, .. } => by_use(energy, jobs, used.as_ref()),
        }
    }
}

/// Divides energy by CPU time: jobs first, then unattributed, then idle. CPU times are read one after another and have
/// a coarse resolution, so that they may be inconsistent. Busy time is therefore raised to the jobs' sum, and capacity
/// to the busy time, where they are less. If capacity is zero, all energy is unattributed.
fn by_cpu_time(energy: Millijoules, time: &CpuTime) -> Vec<(Share, Millijoules)> {
    let jobs: u64 = time.jobs.iter().map(|(_, used)| used).sum();
    let busy = time.busy.max(jobs);
    let capacity = time.capacity.max(busy);
    if capacity == 0 {
        return vec![(Share::Unattributed, energy)];
    }
    let holders = time.jobs.iter().map(|(id, used)| (Share::Job(id.clone()), *used));
    shared(energy, holders.chain([(Share::Unattributed, busy - jobs), (Share::Idle, capacity - busy)]))
}

/// Divides energy between the jobs `holders` of a GPU by usage, or equally where usage is unknown or zero. Millijoules
/// left over by rounding go to the largest remainders; among equal remainders, the first jobs come first.
fn by_use(energy: Millijoules, holders: &[JobId], used: Option<&GpuUsage>) -> Vec<(Share, Millijoules)> {
    let known = used.filter(|used| used.others > 0 || used.jobs.iter().any(|(_, weight)| *weight > 0));
    let Some(used) = known else {
        return shared(energy, holders.iter().map(|id| (Share::Job(id.clone()), 1)));
    };
    let of = |id: &JobId| used.jobs.iter().filter(|(job, _)| job == id).map(|(_, weight)| weight).sum();
    let jobs = holders.iter().map(|id| (Share::Job(id.clone()), of(id)));
    shared(energy, jobs.chain([(Share::Unattributed, used.others)]))
}

fn shared(energy: Millijoules, parts: impl Iterator<Item = (Share, u64)>) -> Vec<(Share, Millijoules)> {
    let (shares, weights): (Vec<Share>, Vec<u64>) = parts.unzip();
    let rows = shares.into_iter().zip(apportion(energy.get(), &weights));
    rows.filter(|(_, part)| *part > 0).map(|(share, part)| (share, Millijoules::new(part))).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn job(name: &str) -> JobId {
        JobId::new(name).expect("an id")
    }

    fn millijoules(rows: Vec<(Share, Millijoules)>) -> Vec<(Share, u64)> {
        rows.into_iter().map(|(share, energy)| (share, energy.get())).collect()
    }

    #[test]
    fn energy_is_divided_by_cpu_time_and_the_rest_is_idle() {
        let second = 1_000_000;
        let time = CpuTime {
            capacity: 40 * second,
            busy: 30 * second,
            jobs: vec![(job("a"), 10 * second), (job("b"), 5 * second)],
        };
        let rows = millijoules(by_cpu_time(Millijoules::new(1000), &time));
        let expected = [(Share::Job(job("a")), 250), (Share::Job(job("b")), 125), (Share::Unattributed, 375)];
        assert_eq!(rows[..3], expected);
        assert_eq!(rows[3..], [(Share::Idle, 250)]);
        // The jobs used more CPU time than the node was busy.
        let ahead = CpuTime { busy: 14 * second, ..time.clone() };
        assert_eq!(millijoules(by_cpu_time(Millijoules::new(400), &ahead))[2], (Share::Idle, 250));
        let beyond = CpuTime { capacity: second, ..ahead };
        let rows = millijoules(by_cpu_time(Millijoules::new(900), &beyond));
        assert_eq!(rows, [(Share::Job(job("a")), 600), (Share::Job(job("b")), 300)]);
        let unknown = by_cpu_time(Millijoules::new(7), &CpuTime::default());
        assert_eq!(millijoules(unknown), [(Share::Unattributed, 7)]);
    }

    #[test]
    fn a_shared_gpu_is_divided_by_usage_or_equally() {
        let holders = [job("a"), job("b")];
        let used = GpuUsage { jobs: vec![(job("a"), 60), (job("b"), 20)], others: 20 };
        let rows = millijoules(by_use(Millijoules::new(1000), &holders, Some(&used)));
        assert_eq!(rows, [(Share::Job(job("a")), 600), (Share::Job(job("b")), 200), (Share::Unattributed, 200)]);
        let equal = [(Share::Job(job("a")), 54), (Share::Job(job("b")), 53)];
        assert_eq!(millijoules(by_use(Millijoules::new(107), &holders, None)), equal);
        assert_eq!(millijoules(by_use(Millijoules::new(107), &holders, Some(&GpuUsage::default()))), equal);
    }

    proptest! {
        #[test]
        fn shares_add_up_to_the_meter(
            energy in 0..u64::MAX / 2, capacity in 0..1_u64 << 50, busy in 0..1_u64 << 50,
            used in prop::collection::vec(0..1_u64 << 50, 0..6)
        ) {
            let jobs: Vec<_> = used.iter().enumerate().map(|(i, used)| (job(&format!("j{i}")), *used)).collect();
            let others = busy;
            let (holders, used) = (jobs.iter().map(|(id, _)| id.clone()).collect::<Vec<_>>(), GpuUsage { jobs: jobs.clone(), others });
            let time = CpuTime { capacity, busy, jobs };
            let holders = AttributionRule::Holders { jobs: holders, unknown_user: false, used: Some(used) };
            for rule in [AttributionRule::CpuTime(time), holders] {
                let rows = rule.split(Millijoules::new(energy), EnergySource::Counter);
                prop_assert_eq!(rows.iter().map(|(_, e)| e.get()).sum::<u64>(), energy);
            }
        }
    }
}
