//! State of the ledger's upkeep: hours whose emissions are due, entries to write, and totals since the daemon's start.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, TimeDelta, Utc};

use crate::store::DueReason;
use wattune_core::domain::{DeviceId, DeviceKind, EnergySource, JobId, Slot};
use wattune_core::ledger::apportion::hours_of;
use wattune_core::ledger::chain::Digest;
use wattune_core::ledger::entry::{Entry, Lost};
use wattune_core::ledger::{self, Interval, Total};
use wattune_core::units::Millijoules;

/// Number of UTC days over which the API sums up energy and savings, today included.
pub(crate) const SHOWN_DAYS: i64 = 30;

/// Data of the ledger's entry `terms`: the conditions under which the ledger is kept.
#[derive(Clone, Debug, Default)]
pub struct LedgerTerms {
    /// Settings in `[ledger]`.
    pub settings: ledger::Settings,
    /// Name of the host.
    pub host: String,
    /// SHA-256 of all settings.
    pub digest: Digest,
}

/// State at a count of gaps: first the minute of the count; second and third the numbers of gaps (unmonitored times
/// with known energy) and of losses (times with unknown energy) that this daemon had found by then.
type Counted = (DateTime<Utc>, u64, u64);

/// State of the ledger's upkeep.
#[derive(Default)]
pub(crate) struct Ledger {
    pub(super) terms: LedgerTerms,
    /// Hour in which the last block (intervals of about an hour) was closed.
    pub(super) closed: Option<DateTime<Utc>>,
    /// Minute of the last check for hours whose emissions are due.
    pub(super) checked_minute: Option<DateTime<Utc>>,
    /// Hours whose emissions are to be computed, each with a reason; an hour may have several reasons.
    pub(super) pending: BTreeSet<(DateTime<Utc>, DueReason)>,
    /// Hours whose carbon intensities changed since the hour's emissions were counted for running jobs and the carbon
    /// budget.
    pub(super) recount: BTreeSet<DateTime<Utc>>,
    /// True if past hours got new carbon intensities since the savings of ended jobs that wait for intensities were
    /// last estimated.
    pub(super) has_new_values: bool,
    /// Entries of the ledger that are not written to the database yet, oldest first.
    pub(super) queued: Vec<Entry>,
    /// Energy recorded since the daemon's start, by device, share (kind of owner) and source (method of measurement).
    pub(super) recorded: BTreeMap<(DeviceId, &'static str, EnergySource), Millijoules>,
    /// Energy recorded for each open job by kind of device. Corrections do not lower it, since a counter must not fall.
    pub(super) recorded_of_jobs: BTreeMap<JobId, BTreeMap<DeviceKind, Millijoules>>,
    /// Number of the newest correction's entry at the last check; `None` before the first correction.
    pub(super) newest_correction: Option<u64>,
    pub(super) gaps: u64,
    pub(super) lost: u64,
    /// Gaps of the last 24 hours: first the state at the count, second the number of gaps with known energy, third the
    /// number with unknown energy. `None` before the first count.
    pub(super) gaps_last_day: Option<(Counted, u64, u64)>,
    pub(super) closed_at: Option<DateTime<Utc>>,
    pub(super) difference_mj: u64,
    pub(super) settlements: u64,
    pub(super) settled: Option<Total>,
}

impl Ledger {
    /// Adds written rows to the totals since the daemon's start.
    pub(crate) fn count(&mut self, rows: &[Interval]) {
        let mut before: Option<&Interval> = None;
        for row in rows {
            let key = (row.device.clone(), row.share.name(), row.source);
            *self.recorded.entry(key).or_default() += row.energy;
            // A gap is split into several rows at full hours and by share (owner of the energy); these rows count as
            // one gap.
            let of_gap = |r: &Interval| r.source == EnergySource::CounterGap && r.device == row.device;
            self.gaps += u64::from(of_gap(row) && !before.is_some_and(of_gap));
            before = Some(row);
        }
    }

    /// Raises the energy recorded for a job to `sums`, its energy in the ledger, where that is more.
    pub(super) fn raise_recorded(&mut self, job: &JobId, sums: &BTreeMap<DeviceKind, Millijoules>) {
        let recorded = self.recorded_of_jobs.entry(job.clone()).or_default();
        for (kind, energy) in sums {
            let before = recorded.entry(*kind).or_default();
            *before = (*before).max(*energy);
        }
    }

    /// Records a time in which a device used an unknown amount of energy.
    pub(crate) fn record_lost(&mut self, device: &DeviceId, from: DateTime<Utc>, until: DateTime<Utc>, why: &str) {
        // Record the loss even if the wall clock was set back meanwhile.
        let from = if from < until { from } else { until - TimeDelta::seconds(1) };
        tracing::warn!("energy of {device} between {from} and {until} is lost: {why}");
        let (device, why) = (device.clone(), why.to_owned());
        self.queued.push(Entry::Lost(Lost { at: until, device, from, until, why }));
        self.lost += 1;
    }

    pub(crate) fn new(terms: LedgerTerms) -> Self {
        Self { terms, ..Self::default() }
    }

    /// Marks the emissions of all hours of a span as due.
    pub(crate) fn mark_due(&mut self, span: &Slot, why: DueReason) {
        self.pending.extend(hours_of(span).map(|hour| (hour, why)));
    }

    /// Returns the newest hour whose emissions are due, with the reasons, each of which causes a computation. A
    /// correction comes first and by itself, since it keeps the hour's carbon intensities. If the hour is due for new
    /// energy and for new intensities, only the reason of new energy is returned, since for either the intensities are
    /// read again.
    pub(super) fn next_pending(&self) -> Option<(DateTime<Utc>, Vec<DueReason>)> {
        let (hour, _) = *self.pending.last()?;
        let all: Vec<DueReason> = self.pending.range((hour, DueReason::Energy)..).map(|(_, why)| *why).collect();
        let correction = all.iter().rfind(|why| **why == DueReason::Correction);
        let other = all.iter().find(|why| **why != DueReason::Correction);
        Some((hour, correction.into_iter().chain(other).copied().collect()))
    }
}
