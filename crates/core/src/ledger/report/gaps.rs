//! Incompleteness of a report: times without monitoring or with unknown energy, and hours whose published emissions
//! were changed (restated) by a later version.

use std::collections::BTreeMap;

use super::ledger_data::{Gap, Restatement};
use crate::domain::{SignalKind, Slot};
use crate::ledger::Interval;
use crate::ledger::entry::{Lost, Settlement};
use crate::ledger::hour::TotalsChange;
use crate::units::{Micrograms, Millijoules};

/// Returns all gaps of a span, oldest first. `rows` holds the span's ledger rows with energy of gaps; each has a flag
/// that is true if the row is the sum of a rolled-up hour. Parts of one gap that were split at full hours are joined.
/// `lost` holds the ledger entries about unknown energy, oldest first.
pub fn gaps(
    rows: impl IntoIterator<Item = (Interval, bool)>,
    lost: impl IntoIterator<Item = Lost>,
    span: &Slot,
) -> Vec<Gap> {
    // A gap has one row for each owner of its energy.
    let mut periods: BTreeMap<_, (Millijoules, bool)> = BTreeMap::new();
    for (row, is_rolled_up) in rows {
        let period = periods.entry((row.device, row.slot)).or_default();
        period.0 += row.energy;
        period.1 |= is_rolled_up;
    }
    let mut found: Vec<Gap> = Vec::new();
    for ((device, slot), (energy, is_rolled_up)) in periods {
        match found.last_mut() {
            Some(Gap { device: of, slot: before, energy: Ok(sum), is_rolled_up: part })
                if *of == device && before.end() == slot.start() =>
            {
                *sum += energy;
                *part |= is_rolled_up;
                *before = Slot::new(before.start(), slot.end()).unwrap_or(*before);
            }
            _ => found.push(Gap { device, slot, is_rolled_up, energy: Ok(energy) }),
        }
    }
    // A loss may be in two entries: if a daemon is killed early, the next one detects the loss again. The later entry
    // counts.
    let mut unknown = BTreeMap::new();
    for lost in lost {
        if let Some(slot) = Slot::new(lost.from, lost.until).filter(|slot| slot.end() > span.start()) {
            let (device, energy) = (lost.device.clone(), Err(lost.why));
            unknown.insert((lost.device, lost.from), Gap { device, slot, is_rolled_up: false, energy });
        }
    }
    found.extend(unknown.into_values());
    found.sort_by_key(|gap| gap.slot);
    found
}

/// Maximum number of restatements (changes of published emissions) that a report lists; further ones are only counted.
const MAX_LISTED: usize = 500;

/// Returns the emissions that the energy of the previous version has with the carbon intensities of the version
/// `version`. Energy that was added in this version does not count as a restatement, because it makes no earlier figure
/// wrong. `change` is the change of the hour's totals; `versions` are all versions of the hour, of all kinds of
/// intensity.
pub fn carbon_after(change: &TotalsChange, kind: SignalKind, version: u32, versions: &[Settlement]) -> Micrograms {
    let of = |version: u32| versions.iter().find(|settled| (settled.kind, settled.version) == (kind, version));
    match of(version.saturating_sub(1)).zip(of(version)) {
        Some((before, after)) if change.moved_energy() => after.carbon_of(before),
        _ => change.carbon,
    }
}

/// Returns true if emissions changed by more than `by_pct` percent of `before`, or from above zero to zero.
pub fn is_restated(before: Micrograms, after: Micrograms, by_pct: f64) -> bool {
    let (before, after) = (before.get(), after.get());
    let is_gone = after == 0 && before > 0;
    is_gone || after.abs_diff(before) as f64 * 100.0 > by_pct * before as f64
}

/// Restatements (changes of published emissions) of a report, newest hour first, and the number of those that are not
/// listed.
#[derive(Debug, Default)]
pub struct Restatements {
    /// Restatements that the report lists, at most 500.
    pub listed: Vec<Restatement>,
    /// Number of further restatements, which are not listed.
    pub left_out: u64,
}

impl Restatements {
    /// Adds the next restatement, or only counts it if 500 are listed already.
    pub fn push<E>(&mut self, make: impl FnOnce() -> Result<Restatement, E>) -> Result<(), E> {
        if self.listed.len() < MAX_LISTED {
            self.listed.push(make()?);
        } else {
            self.left_out += 1;
        }
        Ok(())
    }
}
