//! Times without monitoring of a device, assembled from rows, and times with unknown energy.

use std::collections::BTreeMap;

use super::ledger_data::Gap;
use crate::domain::Slot;
use crate::ledger::Interval;
use crate::ledger::entry::Lost;
use crate::units::Millijoules;

/// Returns all gaps of a span, oldest first. `rows` are the span's rows across gaps, each with true if it is the sum of
/// a rolled-up hour; parts of one gap that were split at full hours are joined. `lost` holds the entries about lost
/// energy, oldest first.
pub fn gaps(
    rows: impl IntoIterator<Item = (Interval, bool)>,
    lost: impl IntoIterator<Item = Lost>,
    span: &Slot,
) -> Vec<Gap> {
    // A gap has one row per share.
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
    // A daemon that was killed before it recorded a loss detects it again.
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
