//! What is to be done on the ledger, and what was done since the start.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, TimeDelta, Utc};

use crate::controller::signal::SignalUpdate;
use crate::controller::view::{BookedView, LedgerView, SavedView, SettledView};
use crate::store::DueReason;
use wattune_core::domain::{DeviceId, EnergySource, Slot};
use wattune_core::ledger::apportion::hours_of;
use wattune_core::ledger::chain::Digest;
use wattune_core::ledger::entry::{Entry, Lost};
use wattune_core::ledger::{self, Interval, Total};
use wattune_core::units::Millijoules;

/// The view sums up so many UTC days, today's among them.
pub(in crate::controller) const SHOWN_DAYS: i64 = 30;

/// Under which terms the books are kept.
#[derive(Clone, Debug, Default)]
pub struct Bookkeeping {
    /// `[ledger]`.
    pub settings: ledger::Settings,
    /// The host's name.
    pub host: String,
    /// The digest of everything that is set.
    pub digest: Digest,
}

/// A minute, and what this daemon had found by then.
type Counted = (DateTime<Utc>, u64, u64);

/// What is to be done on the ledger.
#[derive(Default)]
pub(in crate::controller) struct Ledger {
    pub(super) keeping: Bookkeeping,
    /// The hour in which the last block was closed.
    pub(super) closed: Option<DateTime<Utc>>,
    /// The minute in which was looked for hours that are due.
    pub(super) looked: Option<DateTime<Utc>>,
    /// Hours to be settled anew, and why; an hour may be for several reasons.
    pub(super) pending: BTreeSet<(DateTime<Utc>, DueReason)>,
    /// Hours in which something else is known than when running jobs' sums were made.
    pub(super) recount: BTreeSet<DateTime<Utc>>,
    /// Whether past hours got new values since the jobs that wait for them were looked at.
    pub(super) has_new_values: bool,
    /// What is to be noted and was not written yet.
    pub(super) notes: Vec<Entry>,
    /// What was booked since the start, by device, share and source.
    pub(super) booked: BTreeMap<(DeviceId, &'static str, EnergySource), Millijoules>,
    pub(super) gaps: u64,
    pub(super) lost: u64,
    /// Those of the last day by the books: when they were counted, how many with their energy known, and without.
    pub(super) of_the_day: Option<(Counted, u64, u64)>,
    pub(super) closed_at: Option<DateTime<Utc>>,
    pub(super) difference_mj: u64,
    pub(super) settlements: u64,
    pub(super) settled: Option<Total>,
}

impl Ledger {
    /// Counts rows that were written.
    pub(in crate::controller) fn count(&mut self, rows: &[Interval]) {
        let mut before: Option<&Interval> = None;
        for row in rows {
            let key = (row.device.clone(), row.share.name(), row.source);
            *self.booked.entry(key).or_default() += row.energy;
            // A gap is cut at full hours and shared out.
            let of_gap = |r: &Interval| r.source == EnergySource::CounterGap && r.device == row.device;
            self.gaps += u64::from(of_gap(row) && !before.is_some_and(of_gap));
            before = Some(row);
        }
    }

    /// Marks the hours with new, withdrawn or final values to be settled again.
    pub(in crate::controller) fn take_update(&mut self, update: &SignalUpdate, now: DateTime<Utc>) {
        for slot in update.reported.iter().filter(|slot| slot.start() < now) {
            self.resettle(slot, DueReason::Intensity);
            self.has_new_values = true;
        }
        for hour in &update.finalised {
            self.resettle(hour, DueReason::Intensity);
        }
    }

    /// Notes a time in which a device used energy of which nothing tells how much.
    pub(in crate::controller) fn lose(
        &mut self,
        device: &DeviceId,
        from: DateTime<Utc>,
        until: DateTime<Utc>,
        why: &str,
    ) {
        tracing::warn!("energy of {device} between {from} and {until} is in no book: {why}");
        let (device, why) = (device.clone(), why.to_owned());
        // A wall clock that was set back meanwhile must not hide it.
        let from = if from < until { from } else { until - TimeDelta::seconds(1) };
        self.notes.push(Entry::Lost(Lost { at: until, device, from, until, why }));
        self.lost += 1;
    }

    pub(in crate::controller) fn view(&self, saved: Option<SavedView>) -> LedgerView {
        let joules = |energy: Millijoules| energy.to_joules().get();
        let booked = |((device, share, source), energy): (&(DeviceId, &str, EnergySource), &Millijoules)| BookedView {
            device: device.to_string(),
            share: (*share).to_owned(),
            source: source.as_str().into(),
            energy_j: joules(*energy),
        };
        let of_gaps = self.booked.iter().filter(|((_, _, source), _)| *source == EnergySource::CounterGap);
        LedgerView {
            closed_at: self.closed_at,
            booked: self.booked.iter().map(booked).collect(),
            gaps: self.gaps,
            gap_j: joules(of_gaps.map(|(_, energy)| *energy).sum()),
            unknown_gaps: self.lost,
            gaps_last_day: self.of_the_day.map(|(_, known, _)| known),
            unknown_gaps_last_day: self.of_the_day.map(|(.., unknown)| unknown),
            difference_j: joules(Millijoules::new(self.difference_mj)),
            settlements: self.settlements,
            pending_hours: self.pending.iter().map(|(hour, _)| hour).collect::<BTreeSet<_>>().len() as u64,
            settled: self.settled.map(|total| SettledView {
                forecast_j: joules(total.forecast),
                provisional_j: joules(total.provisional),
                final_j: joules(total.final_),
                unknown_j: joules(total.unknown),
                carbon_g: total.carbon.to_grams().get(),
            }),
            saved,
        }
    }

    pub(in crate::controller) fn new(keeping: Bookkeeping) -> Self {
        Self { keeping, ..Self::default() }
    }

    /// Has the hours of a span settled anew.
    pub(in crate::controller) fn resettle(&mut self, span: &Slot, why: DueReason) {
        self.pending.extend(hours_of(span).map(|hour| (hour, why)));
    }

    /// The newest hour to be settled, and why: a correction first and by itself, as it changes nothing that is known of the
    /// grid. With energy also comes what is told of the grid.
    pub(super) fn next_pending(&self) -> Option<(DateTime<Utc>, Vec<DueReason>)> {
        let (hour, _) = *self.pending.last()?;
        let all: Vec<DueReason> = self.pending.range((hour, DueReason::Energy)..).map(|(_, why)| *why).collect();
        let correction = all.iter().rfind(|why| **why == DueReason::Correction);
        let other = all.iter().find(|why| **why != DueReason::Correction);
        Some((hour, correction.into_iter().chain(other).copied().collect()))
    }
}
