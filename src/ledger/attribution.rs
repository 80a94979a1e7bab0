//! Whose energy it is where a device serves several at once: shares by stated rules that sum exactly.
//!
//! * CPU packages and DRAM ([`by_cpu_time`]): of the energy of an interval, a job has the part that its processes' CPU
//!   time is of the node's (cores × time). Other processes' part is unattributed, the rest is idle.
//! * A GPU with several jobs ([`by_use`]): by what their processes used of it, or in equal shares where that is not known.
//!
//! Both hand out whole millijoules by the largest remainder.

use super::Share;
use crate::domain::JobId;
use crate::units::Millijoules;

/// Splits energy by weights: each part gets its whole millijoules, and what is left over goes one by one to the
/// largest fractions, the first ones of equal fractions. The parts sum to `energy` exactly; they are all zero only if
/// the weights are.
pub fn apportion(energy: Millijoules, weights: &[u64]) -> Vec<Millijoules> {
    let sum: u128 = weights.iter().map(|w| u128::from(*w)).sum();
    if sum == 0 {
        return vec![Millijoules::ZERO; weights.len()];
    }
    let product = |weight: &u64| u128::from(energy.get()) * u128::from(*weight);
    #[expect(clippy::cast_possible_truncation, reason = "no part is larger than the whole")]
    let mut parts: Vec<u64> = weights.iter().map(|w| (product(w) / sum) as u64).collect();
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by_key(|i| std::cmp::Reverse(product(&weights[*i]) % sum));
    let left = energy.get() - parts.iter().sum::<u64>();
    for i in order.into_iter().cycle().take(usize::try_from(left).unwrap_or(usize::MAX)) {
        parts[i] += 1;
    }
    parts.into_iter().map(Millijoules::new).collect()
}

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

/// Splits the energy of a CPU package or of memory over an interval: jobs first, then unattributed, then idle; parts
/// without energy are left out. Counters are read one after another and tick coarsely: where jobs used more than was
/// busy, that much was busy, and where more was busy than there was, there was that much. Energy of a time of which
/// nothing is known is unattributed.
pub fn by_cpu_time(energy: Millijoules, time: &CpuTime) -> Vec<(Share, Millijoules)> {
    let jobs: u64 = time.jobs.iter().map(|(_, used)| used).sum();
    let busy = time.busy.max(jobs);
    let capacity = time.capacity.max(busy);
    if capacity == 0 {
        return vec![(Share::Unattributed, energy)];
    }
    let holders = time.jobs.iter().map(|(id, used)| (Share::Job(id.clone()), *used));
    shared(energy, holders.chain([(Share::Unattributed, busy - jobs), (Share::Idle, capacity - busy)]))
}

/// What the processes on a board used of it over an interval; only proportions mean something.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Use {
    /// Of each job on the board.
    pub jobs: Vec<(JobId, u64)>,
    /// Of processes of nobody who is registered.
    pub others: u64,
}

/// Splits the energy of a board with several holders by what was used of it; what others used is unattributed. Without
/// any use, or where it is not known (`None`), the holders have equal shares, the first ones getting the odd millijoules.
pub fn by_use(energy: Millijoules, holders: &[JobId], used: Option<&Use>) -> Vec<(Share, Millijoules)> {
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
    let rows = shares.into_iter().zip(apportion(energy, &weights));
    rows.filter(|(_, energy)| *energy > Millijoules::ZERO).collect()
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
        fn parts_sum_exactly_and_are_within_one_of_their_quota(
            energy in 0..u64::MAX / 2, weights in prop::collection::vec(0..u64::MAX / 64, 1..20)
        ) {
            let parts = apportion(Millijoules::new(energy), &weights);
            let sum: u128 = weights.iter().map(|w| u128::from(*w)).sum();
            if sum > 0 {
                prop_assert_eq!(parts.iter().map(|p| p.get()).sum::<u64>(), energy);
            }
            for (part, weight) in parts.iter().zip(&weights).filter(|_| sum > 0) {
                let quota = u128::from(energy) * u128::from(*weight) / sum;
                prop_assert!([quota, quota + 1].contains(&u128::from(part.get())), "{part:?} of {quota}");
                prop_assert!(*weight > 0 || part.get() == 0);
            }
        }

        #[test]
        fn any_times_sum_to_the_meter(
            energy in 0..u64::MAX / 2, capacity in 0..1_u64 << 50, busy in 0..1_u64 << 50,
            used in prop::collection::vec(0..1_u64 << 50, 0..6)
        ) {
            let jobs: Vec<_> = used.iter().enumerate().map(|(i, used)| (job(&format!("j{i}")), *used)).collect();
            let rows = by_cpu_time(Millijoules::new(energy), &CpuTime { capacity, busy, jobs });
            prop_assert_eq!(rows.iter().map(|(_, e)| e.get()).sum::<u64>(), energy);
        }
    }
}
