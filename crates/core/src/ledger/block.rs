//! Energy sums of a block (the intervals between two close entries of the ledger), and their comparison with the
//! hardware counters.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};

use super::apportion::{day_of, hour_of};
use super::entry::{Balance, Cell};
use super::meter::signed;
use super::{Interval, Share};
use crate::domain::{DeviceId, Slot};
use crate::units::Millijoules;

/// Maximum delay between the end of an hour and the close of the block with the hour's intervals. The balances have no
/// time but that of the close, so a block that a stop of the daemon closes in these minutes counts for the hour before.
const MAX_CLOSE_DELAY: TimeDelta = TimeDelta::minutes(10);

/// Returns the UTC day to which a block (intervals of about an hour) belongs that was closed at `at`: a close up to ten
/// minutes after midnight counts for the day before.
pub fn day_of_close(at: DateTime<Utc>) -> DateTime<Utc> {
    day_of(at - MAX_CLOSE_DELAY - TimeDelta::microseconds(1))
}

/// Returns the range `(after, until)` in which the blocks (intervals of about an hour each) of a span are closed: later
/// than `after`, and at `until` at the latest.
pub fn closes_of(span: &Slot) -> (DateTime<Utc>, DateTime<Utc>) {
    (span.start() + MAX_CLOSE_DELAY, span.end() + MAX_CLOSE_DELAY)
}

/// Energy of a device as the device's energy counter shows it, to be compared with the sum of the device's recorded
/// rows; in millijoules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter {
    /// Last reading whose energy is recorded in rows.
    pub reading: i64,
    /// Sum of all changes of the reading that were not recorded as energy from the counter, for example by resets.
    pub rebased: i64,
    /// Reading less `rebased`, both as they were when the ledger last closed a block (intervals of about an hour).
    pub base: i64,
}

impl Counter {
    /// Returns the state of a counter that shows `reading` at present; `recorded` is the energy from this counter in
    /// the rows of the open block (intervals since the last close).
    pub fn with_recorded(reading: i64, rebased: i64, recorded: i64) -> Self {
        Self { reading, rebased, base: reading - rebased - recorded }
    }

    /// Returns the counter's increase since the ledger last closed a block (intervals of about an hour), without
    /// resets, in millijoules.
    pub fn gained(&self) -> i64 {
        self.reading - self.rebased - self.base
    }

    /// Returns the counter's state after the close of the open block (intervals since the last close).
    #[must_use]
    pub fn closed(self) -> Self {
        Self { base: self.reading - self.rebased, ..self }
    }
}

/// Energy recorded for a device compared with the device's energy counter, summed over several blocks (intervals of
/// about an hour each).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceBalance {
    /// Device whose energy is compared.
    pub device: DeviceId,
    /// Increase of the device's energy counter, without resets; absent if the device has no counter.
    pub counter_mj: Option<i64>,
    /// Energy recorded for jobs.
    pub jobs: Millijoules,
    /// Energy recorded as idle.
    pub idle: Millijoules,
    /// Energy recorded as unattributed.
    pub unattributed: Millijoules,
    /// Part of the recorded energy that was integrated from power readings instead of read from the counter.
    pub integrated: Millijoules,
    /// Number of blocks (of about an hour each) whose recorded energy differs from the counter's increase.
    pub unequal_blocks: u64,
    /// Energy recorded from the counter less the counter's increase; zero unless the ledger is wrong.
    pub difference_mj: i64,
}

impl From<&Balance> for DeviceBalance {
    fn from(of: &Balance) -> Self {
        Self {
            device: of.device.clone(),
            counter_mj: of.counter_mj,
            jobs: of.jobs_mj,
            idle: of.idle_mj,
            unattributed: of.unattributed_mj,
            integrated: of.integrated_mj,
            unequal_blocks: u64::from(of.difference_mj != 0),
            difference_mj: of.difference_mj,
        }
    }
}

impl DeviceBalance {
    /// Adds the sums of further blocks (intervals of about an hour each) of the same device. Blocks in which the device
    /// had no counter do not change the counter's increase.
    pub fn add(&mut self, more: &Self) {
        self.counter_mj = match (self.counter_mj, more.counter_mj) {
            (Some(a), Some(b)) => Some(a + b),
            (a, b) => a.or(b),
        };
        self.jobs += more.jobs;
        self.idle += more.idle;
        self.unattributed += more.unattributed;
        self.integrated += more.integrated;
        self.unequal_blocks += more.unequal_blocks;
        self.difference_mj += more.difference_mj;
    }
}

/// Returns the energy of rows, summed by hour, device, share (owner) and method of measurement. Each row lies within
/// one hour.
pub fn cells<'a>(rows: impl IntoIterator<Item = &'a Interval>) -> Vec<Cell> {
    let mut sums: BTreeMap<_, Millijoules> = BTreeMap::new();
    for row in rows {
        *sums.entry((hour_of(row.slot.start()), &row.device, &row.share, row.source)).or_default() += row.energy;
    }
    let cell = |((hour, device, share, source), energy_mj): ((_, &DeviceId, &Share, _), _)| {
        let (device, share) = (device.clone(), share.clone());
        Cell { hour, device, share, source, energy_mj }
    };
    sums.into_iter().map(cell).collect()
}

/// Compares the recorded energy of each device with its energy counter. `gained` holds the increase of each counter in
/// the block (intervals since the last close), in millijoules and without resets; `None` for a device without a
/// counter.
pub fn balances(cells: &[Cell], gained: &BTreeMap<DeviceId, Option<i64>>) -> Vec<Balance> {
    let mut devices: BTreeMap<&DeviceId, Option<i64>> = gained.iter().map(|(device, mj)| (device, *mj)).collect();
    for cell in cells {
        devices.entry(&cell.device).or_default();
    }
    let balance = |(device, counter_mj): (&DeviceId, Option<i64>)| {
        let sum = |counts: &dyn Fn(&Cell) -> bool| -> Millijoules {
            cells.iter().filter(|c| c.device == *device && counts(c)).map(|c| c.energy_mj).sum()
        };
        let jobs_mj = sum(&|c| matches!(c.share, Share::Job(_)));
        let (idle_mj, unattributed_mj) = (sum(&|c| c.share == Share::Idle), sum(&|c| c.share == Share::Unattributed));
        let integrated_mj = sum(&|c| !c.source.is_of_counter());
        let from_counter = signed(jobs_mj + idle_mj + unattributed_mj) - signed(integrated_mj);
        let difference_mj = counter_mj.map_or(0, |gained| from_counter - gained);
        Balance { device: device.clone(), counter_mj, jobs_mj, idle_mj, unattributed_mj, integrated_mj, difference_mj }
    };
    devices.into_iter().map(balance).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(minutes: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::minutes(minutes)
    }

    #[test]
    fn a_block_closed_soon_after_midnight_belongs_to_the_day_before() {
        let (day, next) = (at(0), at(24 * 60));
        assert_eq!([24 * 60, 24 * 60 + 10].map(|minutes| day_of_close(at(minutes))), [day; 2]);
        assert_eq!(day_of_close(at(24 * 60 + 11)), next);
        let (after, through) = closes_of(&Slot::new(day, next).expect("a day"));
        for minute in 0..48 * 60 {
            let close = at(minute);
            assert_eq!(after < close && close <= through, day_of_close(close) == day, "{close}");
        }
    }

    #[test]
    fn a_counter_gains_the_recorded_energy() {
        let counter = Counter::with_recorded(1_000, 100, 30);
        assert_eq!((counter.gained(), counter.closed().gained()), (30, 0));
        assert_eq!(Counter { reading: 1_070, ..counter.closed() }.gained(), 70);
    }

    #[test]
    fn blocks_without_a_counter_do_not_change_its_gain() {
        let balance = |counter_mj, difference_mj| {
            let mj = Millijoules::new;
            let device = DeviceId::new("GPU-0").expect("an id");
            let (jobs_mj, idle_mj, unattributed_mj, integrated_mj) = (mj(1), mj(2), mj(3), mj(4));
            Balance { device, counter_mj, jobs_mj, idle_mj, unattributed_mj, integrated_mj, difference_mj }
        };
        let sum = |all: &[(Option<i64>, i64)]| {
            let mut each = all.iter().map(|(counter, off)| DeviceBalance::from(&balance(*counter, *off)));
            let mut sum = each.next().expect("one at least");
            each.for_each(|more| sum.add(&more));
            sum
        };
        let mixed = sum(&[(None, 0), (Some(5), -2), (None, 0), (Some(6), 3)]);
        assert_eq!((mixed.counter_mj, mixed.unequal_blocks, mixed.difference_mj), (Some(11), 2, 1));
        assert_eq!((mixed.jobs.get(), mixed.integrated.get()), (4, 16));
        assert_eq!(sum(&[(None, 0), (None, 0)]).counter_mj, None);
    }
}
