//! What a block of intervals comes to: sums, and whether they are what the counters gained.

use std::collections::BTreeMap;

use super::apportion::hour_of;
use super::entry::{Balance, Cell};
use super::{Interval, Share};
use crate::domain::{DeviceId, EnergySource};
use crate::units::Millijoules;

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
        let integrated_mj = sum(&|c| c.source == EnergySource::IntegratedPower);
        let from_counter = signed(jobs_mj + idle_mj + unattributed_mj) - signed(integrated_mj);
        let difference_mj = counter_mj.map_or(0, |gained| from_counter - gained);
        Balance { device: device.clone(), counter_mj, jobs_mj, idle_mj, unattributed_mj, integrated_mj, difference_mj }
    };
    devices.into_iter().map(balance).collect()
}

fn signed(energy: Millijoules) -> i64 {
    i64::try_from(energy.get()).unwrap_or(i64::MAX)
}
