//! Emissions of energy that no settlement (stored emissions of an hour) contains yet, computed in memory for reports.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};

use super::ledger_data::{LedgerData, Sum};
use crate::domain::{Origin, SignalKind, Slot};
use crate::ledger::apportion::hour_of;
use crate::ledger::due::DueReason;
use crate::ledger::entry::Factor;
use crate::ledger::settlement::parts;
use crate::ledger::{Interval, Total};

/// Returns the number of the last block (intervals of about an hour) whose energy the hour's settlement (stored
/// emissions) contains; `None` if the settlement contains all energy of the hour. Later blocks may have energy that the
/// settlement lacks. `through_block` is the settlement's last block; without a settlement, the result is 0. `why` is
/// the reason why the hour waits for a new settlement.
pub fn unsettled_after(why: DueReason, through_block: Option<u64>) -> Option<u64> {
    why.is_of_energy().then(|| through_block.unwrap_or_default())
}

/// Ledger rows whose energy is in no settlement (stored emissions of an hour), by hour.
#[derive(Clone, Debug, Default)]
pub struct Unsettled(BTreeMap<DateTime<Utc>, Vec<Interval>>);

impl Unsettled {
    /// Groups rows by the start of their UTC hour.
    pub fn of(rows: &[Interval]) -> Self {
        let mut hours: BTreeMap<DateTime<Utc>, Vec<Interval>> = BTreeMap::new();
        for row in rows {
            hours.entry(hour_of(row.slot.start())).or_default().push(row.clone());
        }
        Self(hours)
    }

    /// Returns the starts of the hours with rows that no settlement contains, oldest first.
    pub fn hours(&self) -> impl DoubleEndedIterator<Item = DateTime<Utc>> + '_ {
        self.0.keys().copied()
    }

    /// Returns the time from the start of the first to the end of the last hour with rows that no settlement contains;
    /// `None` if there are no such rows.
    pub fn span(&self) -> Option<Slot> {
        let (first, last) = self.hours().next().zip(self.hours().next_back())?;
        Slot::new(first, last + TimeDelta::hours(1))
    }
}

impl LedgerData {
    /// Adds energy and emissions of rows that no settlement (stored emissions of an hour) contains, with the carbon
    /// intensities `factors` of one kind.
    pub fn add_emissions(&mut self, unsettled: &Unsettled, kind: SignalKind, factors: &[Factor]) {
        self.synthetic |= factors.iter().any(|factor| factor.origin == Origin::Synthetic);
        for (hour, rows) in &unsettled.0 {
            let Some(period) = self.periods.iter_mut().find(|period| period.span.contains(*hour)) else { continue };
            for part in parts(rows, factors) {
                let total = Total::of(&part, factors);
                period.sums.push(Sum::of(*hour, part.device, &part.share, kind, total));
            }
        }
    }

    /// Adds the hours of rows that no settlement (stored emissions of an hour) contains. Of these hours, `settled` have
    /// a settlement for other energy and are counted already. `now` is the current time, at which the last hour ends if
    /// it is not over.
    pub fn add_hours(&mut self, unsettled: &Unsettled, settled: u64, now: DateTime<Utc>) {
        self.hours_with_energy += (unsettled.0.len() as u64).saturating_sub(settled);
        let present = unsettled.span().and_then(|span| Slot::new(span.start(), span.end().min(now)));
        self.recorded_span = match (self.recorded_span, present) {
            (Some(a), Some(b)) => Slot::new(a.start().min(b.start()), a.end().max(b.end())),
            (a, b) => a.or(b),
        };
    }
}
