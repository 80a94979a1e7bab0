//! What a block of intervals comes to: sums, and whether they are what the counters gained.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};

use super::apportion::{day_of, hour_of};
use super::entry::{Balance, Cell};
use super::{Interval, Share};
use crate::domain::{DeviceId, Slot};
use crate::units::Millijoules;

/// Time after the end of an hour within which its block is closed.
const CLOSED_WITHIN: TimeDelta = TimeDelta::minutes(10);

/// Returns the UTC day of a block by the time of its close.
pub fn day_of_close(at: DateTime<Utc>) -> DateTime<Utc> {
    day_of(at - CLOSED_WITHIN - TimeDelta::microseconds(1))
}

/// Returns the time after which, and the time up to which, the blocks of a span are closed.
pub fn closes_of(span: &Slot) -> (DateTime<Utc>, DateTime<Utc>) {
    (span.start() + CLOSED_WITHIN, span.end() + CLOSED_WITHIN)
}

/// Returns the first and the last of the closed blocks whose rows may be rolled up: those before the first that was closed
/// at `before` or later. `closes` has the number and the time of each close from
/// the first block with rows on, in order.
pub fn to_roll_up(closes: impl IntoIterator<Item = (i64, DateTime<Utc>)>, before: DateTime<Utc>) -> Option<(i64, i64)> {
    let mut old = closes.into_iter().take_while(|(_, at)| *at < before).map(|(block, _)| block);
    let first = old.next()?;
    Some((first, old.last().unwrap_or(first)))
}

/// Position of a device's counter against its rows, in millijoules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter {
    /// The last reading that rows reach up to.
    pub reading: i64,
    /// The sum of the moves of its readings by resets.
    pub rebased: i64,
    /// Reading less resets at the last close.
    pub base: i64,
}

impl Counter {
    /// Returns the counter at a reading up to which rows of the open block reach; `booked` is the energy of those that are of
    /// the counter.
    pub fn with_booked(reading: i64, rebased: i64, booked: i64) -> Self {
        Self { reading, rebased, base: reading - rebased - booked }
    }

    /// Returns what it gained since the last close.
    pub fn gained(&self) -> i64 {
        self.reading - self.rebased - self.base
    }

    /// Returns the same counter after a close.
    #[must_use]
    pub fn closed(self) -> Self {
        Self { base: self.reading - self.rebased, ..self }
    }
}

/// A device's books against its counter, over several blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceBalance {
    /// The device.
    pub device: DeviceId,
    /// What its counter gained; absent if it has none.
    pub counter_mj: Option<i64>,
    /// Booked to jobs.
    pub jobs: Millijoules,
    /// Booked as idle.
    pub idle: Millijoules,
    /// Booked as nobody's who can be named.
    pub unattributed: Millijoules,
    /// Of all of that, what was integrated from power.
    pub integrated: Millijoules,
    /// Blocks whose books were not what the counter gained.
    pub unequal_blocks: u64,
    /// Booked less integrated less the counter's gain.
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
    /// Adds further blocks of the same device. Blocks without a counter add nothing to what it gained.
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

/// The sums of rows that each lie in one hour, by hour, device, share and source.
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

/// Each device's sums against what its counter gained in the block, in millijoules and less what resets moved it by;
/// `None` for a device without a counter.
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

pub(super) fn signed(energy: Millijoules) -> i64 {
    i64::try_from(energy.get()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(minutes: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::minutes(minutes)
    }

    #[test]
    fn a_block_closed_soon_after_midnight_is_of_the_day_before() {
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
    fn blocks_are_rolled_up_up_to_the_first_that_is_too_new() {
        let closes = [(4, at(240)), (5, at(300)), (6, at(360))];
        assert_eq!(to_roll_up(closes, at(360)), Some((4, 5)));
        assert_eq!(to_roll_up(closes, at(361)), Some((4, 6)));
        assert_eq!(to_roll_up(closes, at(240)), None);
        // A clock that was set back: what follows a new block waits with it.
        assert_eq!(to_roll_up([(4, at(500)), (5, at(300))], at(400)), None);
    }

    #[test]
    fn a_counter_gains_what_is_booked_of_it() {
        let counter = Counter::with_booked(1_000, 100, 30);
        assert_eq!((counter.gained(), counter.closed().gained()), (30, 0));
        assert_eq!(Counter { reading: 1_070, ..counter.closed() }.gained(), 70);
    }

    #[test]
    fn blocks_without_a_counter_add_nothing_to_its_gain() {
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
