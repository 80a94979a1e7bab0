//! Whose energy it is where a device serves several at once: shares by stated rules that sum exactly.
//!
//! * A GPU is its job's; without one it is idle, or unattributed where an unknown process runs on it.
//! * A GPU with several jobs: by what their processes used of it, what others used being unattributed; in equal shares
//!   where that is not known.
//! * CPU packages and memory: of the energy of an interval, a job has the part that its processes' CPU time is of the
//!   node's (cores × time). Other processes' part is unattributed, the rest is idle.
//!
//! Whole millijoules are handed out by the largest remainder.

use super::Share;
use super::apportion::apportion;
use crate::domain::{EnergySource, JobId};
use crate::units::Millijoules;

/// CPU time over an interval, in microseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuTime {
    /// All there was: cores × time.
    pub capacity: u64,
    /// What all processes used of it, and the kernel for them.
    pub busy: u64,
    /// What each job's processes used.
    pub jobs: Vec<(JobId, u64)>,
}

/// What the processes on a board used of it over an interval; only proportions mean something.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Use {
    /// Of each job on the board.
    pub jobs: Vec<(JobId, u64)>,
    /// Of processes of nobody who is registered.
    pub others: u64,
}

/// The rule that a device's energy of an interval is split by.
#[derive(Clone, Debug)]
pub enum Rule {
    /// A board's: by those who hold it.
    Holders {
        /// Who they are.
        jobs: Vec<JobId>,
        /// Whether something runs on it that nobody registered.
        unknown_user: bool,
        /// What was used of it, where that is known of all holders.
        used: Option<Use>,
    },
    /// A processor package's, or its memory's.
    CpuTime(CpuTime),
}

impl Rule {
    /// The parts of `energy`, which add up to it exactly. Energy over unwatched time is nobody's but the holders'.
    pub fn split(&self, energy: Millijoules, source: EnergySource) -> Vec<(Share, Millijoules)> {
        match self {
            Self::CpuTime(time) => by_cpu_time(energy, time),
            Self::Holders { jobs, unknown_user, .. } if jobs.is_empty() => {
                let watched = source != EnergySource::CounterGap;
                let nobody = if watched && !unknown_user { Share::Idle } else { Share::Unattributed };
                vec![(nobody, energy)]
            }
            Self::Holders { jobs, used, .. } => by_use(energy, jobs, used.as_ref()),
        }
    }
}

/// Jobs first, then unattributed, then idle. Counters are read one after another and tick coarsely: where jobs used more
/// than was busy, that much was busy, and where more was busy than there was, there was that much. Energy of a time of
/// which nothing is known is unattributed.
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

/// By use; without any, or where it is not known, in equal shares, the first ones getting the odd millijoules.
fn by_use(energy: Millijoules, holders: &[JobId], used: Option<&Use>) -> Vec<(Share, Millijoules)> {
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

    fn told(rows: Vec<(Share, Millijoules)>) -> Vec<(Share, u64)> {
        rows.into_iter().map(|(share, energy)| (share, energy.get())).collect()
    }

    #[test]
    fn cpu_time_decides_and_idle_energy_is_idle() {
        let second = 1_000_000;
        let time = CpuTime {
            capacity: 40 * second,
            busy: 30 * second,
            jobs: vec![(job("a"), 10 * second), (job("b"), 5 * second)],
        };
        let rows = told(by_cpu_time(Millijoules::new(1000), &time));
        let expected = [(Share::Job(job("a")), 250), (Share::Job(job("b")), 125), (Share::Unattributed, 375)];
        assert_eq!(rows[..3], expected);
        assert_eq!(rows[3..], [(Share::Idle, 250)]);
        // Jobs whose counters ran ahead of the node's.
        let ahead = CpuTime { busy: 14 * second, ..time.clone() };
        assert_eq!(told(by_cpu_time(Millijoules::new(400), &ahead))[2], (Share::Idle, 250));
        let beyond = CpuTime { capacity: second, ..ahead };
        let rows = told(by_cpu_time(Millijoules::new(900), &beyond));
        assert_eq!(rows, [(Share::Job(job("a")), 600), (Share::Job(job("b")), 300)]);
        let unknown = by_cpu_time(Millijoules::new(7), &CpuTime::default());
        assert_eq!(told(unknown), [(Share::Unattributed, 7)]);
    }

    #[test]
    fn a_shared_board_is_split_by_use_or_equally() {
        let holders = [job("a"), job("b")];
        let used = Use { jobs: vec![(job("a"), 60), (job("b"), 20)], others: 20 };
        let rows = told(by_use(Millijoules::new(1000), &holders, Some(&used)));
        assert_eq!(rows, [(Share::Job(job("a")), 600), (Share::Job(job("b")), 200), (Share::Unattributed, 200)]);
        let equal = [(Share::Job(job("a")), 54), (Share::Job(job("b")), 53)];
        assert_eq!(told(by_use(Millijoules::new(107), &holders, None)), equal);
        assert_eq!(told(by_use(Millijoules::new(107), &holders, Some(&Use::default()))), equal);
    }

    proptest! {
        #[test]
        fn any_split_sums_to_the_meter(
            energy in 0..u64::MAX / 2, capacity in 0..1_u64 << 50, busy in 0..1_u64 << 50,
            used in prop::collection::vec(0..1_u64 << 50, 0..6)
        ) {
            let jobs: Vec<_> = used.iter().enumerate().map(|(i, used)| (job(&format!("j{i}")), *used)).collect();
            let others = busy;
            let (holders, used) = (jobs.iter().map(|(id, _)| id.clone()).collect::<Vec<_>>(), Use { jobs: jobs.clone(), others });
            let time = CpuTime { capacity, busy, jobs };
            let holders = Rule::Holders { jobs: holders, unknown_user: false, used: Some(used) };
            for rule in [Rule::CpuTime(time), holders] {
                let rows = rule.split(Millijoules::new(energy), EnergySource::Counter);
                prop_assert_eq!(rows.iter().map(|(_, e)| e.get()).sum::<u64>(), energy);
            }
        }
    }
}
