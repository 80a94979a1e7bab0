//! Evaluates the driver's samples of how much each process uses a GPU.

use std::collections::BTreeMap;

use crate::gpu::ProcessUse;

/// One of the driver's samples of a process's use of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    /// The time of the sample in microseconds, by the driver's clock.
    pub(super) at: u64,
    pub(super) pid: u32,
    pub(super) percent: u32,
}

/// Returns first the mean use of each process over its samples that are newer than `seen`, and second the time of the
/// newest sample. Skips empty list entries and uses above 100 %, both of which drivers return.
pub(super) fn since(seen: u64, samples: impl Iterator<Item = Sample>) -> (Vec<ProcessUse>, u64) {
    let mut newest = seen;
    let mut sums: BTreeMap<u32, (u32, u32)> = BTreeMap::new();
    for sample in samples.filter(|s| s.at > seen && s.pid != 0 && s.percent <= 100) {
        newest = newest.max(sample.at);
        let (sum, count) = sums.entry(sample.pid).or_default();
        (*sum, *count) = (*sum + sample.percent, *count + 1);
    }
    let used = sums.into_iter().map(|(pid, (sum, count))| ProcessUse { pid, percent: sum.div_ceil(count) });
    (used.filter(|used| used.percent > 0).collect(), newest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_new_and_valid_samples_count() {
        let sample = |at, pid, percent| Sample { at, pid, percent };
        let list = [
            sample(5, 1, 90),
            sample(11, 1, 40),
            sample(12, 1, 60),
            sample(12, 2, 0),
            sample(13, 0, 50),
            sample(14, 3, 4_000_000),
        ];
        let expected = (vec![ProcessUse { pid: 1, percent: 50 }], 12);
        assert_eq!(since(10, list.into_iter()), expected);
        assert_eq!(since(12, list[..4].iter().copied()), (Vec::new(), 12));
    }
}
