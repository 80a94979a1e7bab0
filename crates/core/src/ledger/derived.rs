//! Expected contents of the database tables that are derived from the ledger, recomputed from its entries.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};

use super::block::{DeviceBalance, day_of_close};
use super::chain::Digest;
use super::entry::{Balance, Close, Correction, Entry, RollUp, Settlement};
use super::hour::TotalsChange;
use super::meter::signed;
use super::{Share, Total};
use crate::domain::{DeviceId, EnergySource, JobId};

/// Key of a sum of energy: start of the hour, device, share (owner) and method of measurement.
pub type CellKey = (DateTime<Utc>, DeviceId, Share, EnergySource);

/// Newest settlement of an hour for one kind of carbon intensity. A settlement is a ledger entry with the emissions
/// computed for the hour's recorded energy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewestSettlement {
    /// Sequence number of the settlement in the ledger.
    pub entry: u64,
    /// Version of the hour's settlement, counted from 1.
    pub version: u32,
    /// Number of the last block (intervals of about an hour) whose energy is included.
    pub through_block: u64,
    /// True if all of the hour's energy has a final carbon intensity.
    pub is_final: bool,
    /// Sources of the carbon intensities used, as in [`Settlement::sources`].
    pub sources: String,
    /// Total energy and emissions of the hour.
    pub total: Total,
}

/// Second or later version of an hour's settlement (stored emissions).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaterVersion {
    /// Time at which this version was computed.
    pub at: DateTime<Utc>,
    /// Reason for this version, for people.
    pub reason: String,
    /// Change of the hour's totals from the previous version.
    pub change: TotalsChange,
}

/// Expected rows of all derived tables (database tables that follow from the ledger's entries) after the entries
/// applied so far. The kind of carbon intensity is named as in [`SignalKind::as_str`].
///
/// [`SignalKind::as_str`]: crate::domain::SignalKind::as_str
#[derive(Clone, Debug, Default)]
pub struct Derived {
    /// Newest settlements (stored emissions of an hour), by hour and kind of carbon intensity.
    pub settled: BTreeMap<(DateTime<Utc>, &'static str), NewestSettlement>,
    /// Second and later versions of settlements (stored emissions of an hour), by hour, kind of carbon intensity and
    /// version.
    pub restated: BTreeMap<(DateTime<Utc>, &'static str, u32), LaterVersion>,
    /// Comparisons of recorded energy with the energy counter, by block (intervals of about an hour) and device. First
    /// value: time of the block's close; second: the comparison.
    pub balances: BTreeMap<(u64, DeviceId), (DateTime<Utc>, Balance)>,
    /// Sums of the comparisons in `balances`, by UTC day and device.
    pub balance_days: BTreeMap<(DateTime<Utc>, DeviceId), DeviceBalance>,
    /// Energy of rolled-up rows in millijoules, where corrected rows count for the share that the newest correction
    /// gave them.
    pub rolled_up: BTreeMap<CellKey, i64>,
    /// Share that the newest correction gave to rows that are not rolled up, by row number.
    pub corrected: BTreeMap<u64, Share>,
    /// Digests of the jobs' data at registration.
    pub registered: BTreeMap<JobId, Digest>,
    /// Digests of the jobs' data at their end.
    pub ended: BTreeMap<JobId, Digest>,
    entries: u64,
    /// Blocks (intervals of about an hour each) that are not rolled up, by the number of their last row.
    blocks: BTreeMap<u64, Block>,
    last_row: u64,
}

#[derive(Clone, Debug)]
struct Block {
    number: u64,
    cells: BTreeMap<CellKey, i64>,
}

impl Derived {
    /// Applies the next entry of the ledger and returns the entry's number.
    pub fn apply(&mut self, entry: &Entry) -> u64 {
        self.entries += 1;
        match entry {
            Entry::Close(close) => self.close(close),
            Entry::Settlement(settled) => self.apply_settlement(settled),
            Entry::Correction(correction) => self.correct(correction),
            Entry::RollUp(rolled) => self.roll_up(rolled),
            Entry::Registered(of) => drop(self.registered.insert(of.job.clone(), of.facts)),
            Entry::Ended(of) => drop(self.ended.insert(of.job.clone(), of.facts)),
            Entry::Terms(_)
            | Entry::Control(_)
            | Entry::Lost(_)
            | Entry::Counterfactual(_)
            | Entry::Outcome(_)
            | Entry::StartRequest(_)
            | Entry::Presence(_) => {}
        }
        self.entries
    }

    fn close(&mut self, close: &Close) {
        for balance in &close.balances {
            self.balances.insert((close.block, balance.device.clone()), (close.at, balance.clone()));
            let more = DeviceBalance::from(balance);
            let day = (day_of_close(close.at), balance.device.clone());
            self.balance_days.entry(day).and_modify(|sum| sum.add(&more)).or_insert(more);
        }
        self.last_row += close.rows;
        let mut block = Block { number: close.block, cells: BTreeMap::new() };
        for cell in &close.cells {
            let key = (cell.hour, cell.device.clone(), cell.share.clone(), cell.source);
            *block.cells.entry(key).or_default() += signed(cell.energy_mj);
        }
        self.blocks.insert(self.last_row, block);
    }

    fn apply_settlement(&mut self, settled: &Settlement) {
        let (hour, kind, total) = (settled.hour, settled.kind.as_str(), settled.total());
        let newest = NewestSettlement {
            entry: self.entries,
            version: settled.version,
            through_block: settled.through_block,
            is_final: settled.is_final(),
            sources: settled.sources(),
            total,
        };
        if let Some(before) = self.settled.insert((hour, kind), newest) {
            let change = TotalsChange::of(&before.total, &total);
            let later = LaterVersion { at: settled.at, reason: settled.reason.clone(), change };
            self.restated.insert((hour, kind, settled.version), later);
        }
    }

    fn correct(&mut self, correction: &Correction) {
        for row in &correction.rows {
            self.corrected.insert(row.row, correction.to.clone());
            if let Some((_, block)) = self.blocks.range_mut(row.row..).next() {
                for (share, sign) in [(&correction.from, -1), (&correction.to, 1)] {
                    let key = (row.hour, row.device.clone(), share.clone(), row.source);
                    *block.cells.entry(key).or_default() += sign * signed(row.energy_mj);
                }
            }
        }
    }

    fn roll_up(&mut self, rolled: &RollUp) {
        while let Some(block) = self.blocks.first_entry() {
            if !(rolled.first_block..=rolled.last_block).contains(&block.get().number) {
                break;
            }
            let (last_row, block) = block.remove_entry();
            self.corrected = self.corrected.split_off(&(last_row + 1));
            for (key, energy) in block.cells {
                *self.rolled_up.entry(key).or_default() += energy;
            }
        }
    }
}

#[cfg(test)]
#[path = "derived_tests.rs"]
mod tests;
