//! Upkeep of the ledger: closes a block each hour, computes hourly emissions when intensities are published, rolls up
//! old minutes to hours, and records changes of power limits.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, DurationRound, TimeDelta, Utc};

use super::Accounting;
use super::ledger::SHOWN_DAYS;
use crate::controller::node::Node;
use crate::controller::signal::{Signal, SignalUpdate, same_signal};
use crate::controller::view::{LedgerView, RecordedView, SavedView, SettledView};
use crate::store::{DueReason, SettlementInput, SourceKey, Store, StoreError};
use wattune_core::domain::{DeviceId, DeviceKind, EnergySource, Forecast, GpuId, JobId, PowerLimit, SignalKind, Slot};
use wattune_core::ledger;
use wattune_core::ledger::apportion::hour_of;
use wattune_core::ledger::entry::{Control, Entry};
use wattune_core::units::Millijoules;

/// Maximum number of hours whose emissions are computed in one tick.
const COMPUTED_AT_ONCE: usize = 24;
/// Maximum number of blocks (intervals between two closes) whose minutes are rolled up to hours at once.
const ROLLED_AT_ONCE: u32 = 24;
/// Maximum age of hours without final emissions whose emissions are computed again after a start.
const RECHECKED: TimeDelta = TimeDelta::days(60);

impl Accounting {
    /// Records the ledger's terms (the conditions under which it is kept) if they changed, and marks recent hours
    /// without final emissions, whose emissions are due again.
    pub(crate) async fn open_ledger(&mut self, store: &Store, now: DateTime<Utc>) -> Result<(), StoreError> {
        let terms = &self.ledger.terms;
        let terms = terms.settings.terms(now, &terms.host, terms.digest);
        let known = match store.newest_entry("terms").await? {
            Some(Entry::Terms(before)) => ledger::entry::Terms { at: now, ..before } == terms,
            _ => false,
        };
        if !known {
            store.append_entry(&Entry::Terms(terms)).await?;
        }
        let open = store.unsettled_hours(now - RECHECKED).await?;
        self.ledger.pending = open.into_iter().map(|hour| (hour, DueReason::Intensity)).collect();
        Ok(())
    }

    /// Closes the open block (the intervals since the last close) once a new hour has begun. Returns the jobs whose
    /// minutes are rolled up next, or `None` if no new hour has begun.
    pub(crate) async fn begin_hour(&mut self, node: &mut Node<'_>) -> Result<Option<Vec<JobId>>, StoreError> {
        let now = node.now().utc;
        self.write_entries(node).await?;
        if self.ledger.closed == Some(hour_of(now)) {
            return Ok(None);
        }
        self.close_block(node).await?;
        node.store.begin_day(now).await?;
        self.ledger.closed = Some(hour_of(now));
        let before = self.first_block_kept(node).await?;
        Ok(Some(node.store.jobs_to_roll_up(before, ROLLED_AT_ONCE).await?))
    }

    /// Rolls up minutes older than `ledger.keep_intervals_days` to hours.
    pub(crate) async fn roll_up(&mut self, node: &mut Node<'_>) -> Result<(), StoreError> {
        let before = self.first_block_kept(node).await?;
        node.store.roll_up(before, ROLLED_AT_ONCE, node.now().utc).await?;
        Ok(())
    }

    /// Returns the number of the first block (the intervals between two closes) whose minutes are kept.
    async fn first_block_kept(&self, node: &Node<'_>) -> Result<u64, StoreError> {
        node.store.first_block_kept(self.ledger.terms.settings.keep_days()).await
    }

    /// Counts the ledger's gaps. Once a minute, also marks the hours whose emissions are due, computes the emissions of
    /// running jobs and of the carbon budget again after a correction, and returns whether past hours got new carbon
    /// intensities since [`Self::end_new_values`]; otherwise returns false.
    pub(crate) async fn detect_due_hours(&mut self, node: &mut Node<'_>) -> Result<bool, StoreError> {
        let now = node.now().utc;
        let minute = now.duration_trunc(TimeDelta::minutes(1)).unwrap_or(now);
        self.count_gaps(node, now, minute).await?;
        if self.ledger.checked_minute == Some(minute) {
            return Ok(false);
        }
        // The current hour is due only once it is over: otherwise its emissions would have to be computed again.
        if self.add_due_hours(node, hour_of(now)).await? {
            self.recount_jobs(node).await;
        }
        self.detect_corrections(node).await?;
        self.ledger.recorded_of_jobs.retain(|id, _| node.jobs.contains(id));
        self.ledger.checked_minute = Some(minute);
        Ok(self.ledger.has_new_values)
    }

    /// After a correction, also one that was made while no daemon ran, marks the ended jobs whose energy it changed, so
    /// that their savings are estimated again.
    async fn detect_corrections(&mut self, node: &Node<'_>) -> Result<(), StoreError> {
        let newest = node.store.newest_correction().await?;
        if newest != self.ledger.newest_correction {
            self.backlog.late.extend(node.store.outdated_outcomes().await?);
            self.ledger.newest_correction = newest;
        }
        Ok(())
    }

    /// Records that the new carbon intensities of past hours have been used.
    pub(crate) const fn end_new_values(&mut self) {
        self.ledger.has_new_values = false;
    }

    /// Computes the emissions of due hours, of at most [`COMPUTED_AT_ONCE`] in one call.
    pub(crate) async fn compute_due_hours(&mut self, node: &mut Node<'_>) -> Result<(), StoreError> {
        let now = node.now().utc;
        let before = self.ledger.settlements;
        for _ in 0..COMPUTED_AT_ONCE {
            // The newest hour first, because people look at recent figures.
            let Some((hour, reasons)) = self.ledger.next_pending() else { break };
            let silent = node.signal.silent();
            for why in reasons {
                // Emissions by average intensities are computed last: that settlement removes the hour from the due
                // hours in the database.
                for (kind, sources) in accounts(node.signal).into_iter().rev() {
                    let settling = SettlementInput { kind, sources: &sources, silent: &silent, at: now, why };
                    self.ledger.settlements += u64::from(node.store.settle_hour(hour, &settling).await?);
                }
            }
            self.ledger.pending.retain(|(other, _)| *other != hour);
        }
        if self.ledger.settlements > before
            && let Ok(today) = now.duration_trunc(TimeDelta::days(1))
        {
            let first = today - TimeDelta::days(SHOWN_DAYS - 1);
            self.ledger.settled = Some(node.store.settled_since(first, SignalKind::Average).await?);
        }
        Ok(())
    }

    /// Counts the ledger's gaps (unmonitored times) of the last 24 hours: once a minute, and whenever this daemon has
    /// found another gap.
    async fn count_gaps(
        &mut self,
        node: &mut Node<'_>,
        now: DateTime<Utc>,
        minute: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        let found = (minute, self.ledger.gaps, self.ledger.lost);
        if self.ledger.gaps_last_day.is_some_and(|(at, ..)| at == found) {
            return Ok(());
        }
        let Some(day) = Slot::new(now - TimeDelta::days(1), now + TimeDelta::hours(1)) else { return Ok(()) };
        let (known, unknown): (Vec<_>, Vec<_>) =
            node.store.gaps(&day).await?.into_iter().partition(|gap| gap.energy.is_ok());
        self.ledger.gaps_last_day = Some((found, known.len() as u64, unknown.len() as u64));
        Ok(())
    }

    /// Writes the queued entries, oldest first.
    pub(crate) async fn write_entries(&mut self, node: &mut Node<'_>) -> Result<(), StoreError> {
        while let Some(entry) = self.ledger.queued.first() {
            node.store.append_entry(entry).await?;
            self.ledger.queued.remove(0);
        }
        Ok(())
    }

    /// Closes the open block (the intervals since the last close). The emissions of the block's hours are due
    /// afterwards.
    pub(crate) async fn close_block(&mut self, node: &mut Node<'_>) -> Result<(), StoreError> {
        let now = node.now().utc;
        let Some(close) = node.store.close_block(now).await? else { return Ok(()) };
        self.ledger.checked_minute = None;
        self.ledger.difference_mj += close.balances.iter().map(|b| b.difference_mj.unsigned_abs()).sum::<u64>();
        self.ledger.closed_at = Some(now);
        Ok(())
    }

    /// Marks the hours before `end` that have new or corrected rows: their emissions are due. Marks later hours too if
    /// they have corrected rows: at such an hour's end, the reason of its new energy would replace the correction.
    /// Returns true if it marked corrected rows that were not marked before.
    async fn add_due_hours(&mut self, node: &mut Node<'_>, end: DateTime<Utc>) -> Result<bool, StoreError> {
        let mut has_corrections = false;
        for (hour, why) in node.store.due_hours().await? {
            let is_correction = why == DueReason::Correction;
            if hour < end || is_correction {
                has_corrections |= self.ledger.pending.insert((hour, why)) && is_correction;
            }
        }
        Ok(has_corrections)
    }

    /// When the daemon stops: closes the open block (the intervals since the last close), and marks all hours with new
    /// or corrected rows, whose emissions are due.
    pub(crate) async fn end_block(&mut self, node: &mut Node<'_>) -> Result<(), StoreError> {
        self.close_block(node).await?;
        self.add_due_hours(node, DateTime::<Utc>::MAX_UTC).await.map(drop)
    }

    /// Stores the hours whose emissions are still due, for the next start: the daemon stops without computing them.
    pub(crate) async fn defer(&self, store: &Store) -> Result<(), StoreError> {
        store.defer(&self.ledger.pending).await
    }

    /// Queues an entry; [`Self::write_entries`] writes it.
    pub(crate) fn queue_entry(&mut self, entry: Entry) {
        self.ledger.queued.push(entry);
    }

    /// Returns the entries that are not written yet.
    pub(crate) fn queued_entries(&self) -> impl DoubleEndedIterator<Item = &Entry> {
        self.ledger.queued.iter()
    }

    /// Marks the hours whose carbon intensities are new, withdrawn or now final: their emissions are due.
    pub(crate) fn apply_update(&mut self, update: &SignalUpdate, now: DateTime<Utc>) {
        for slot in update.reported.iter().filter(|slot| slot.start() < now) {
            self.ledger.mark_due(slot, DueReason::Intensity);
            self.ledger.has_new_values = true;
        }
        for hour in &update.finalised {
            self.ledger.mark_due(hour, DueReason::Intensity);
        }
    }

    /// Returns the ledger as the API shows it.
    pub(crate) fn ledger_view(&self, saved: Option<SavedView>) -> LedgerView {
        let ledger = &self.ledger;
        let joules = |energy: Millijoules| energy.to_joules().get();
        let recorded =
            |((device, share, source), energy): (&(DeviceId, &str, EnergySource), &Millijoules)| RecordedView {
                device: device.to_string(),
                share: (*share).to_owned(),
                source: source.as_str().into(),
                energy_j: joules(*energy),
            };
        let of_job = |(id, sums): (&JobId, &BTreeMap<DeviceKind, Millijoules>)| {
            let sums = sums.iter().map(|(kind, energy)| (kind.name().to_owned(), joules(*energy)));
            (id.to_string(), sums.collect::<BTreeMap<_, _>>())
        };
        let of_gaps = ledger.recorded.iter().filter(|((_, _, source), _)| *source == EnergySource::CounterGap);
        LedgerView {
            closed_at: ledger.closed_at,
            recorded: ledger.recorded.iter().map(recorded).collect(),
            recorded_of_jobs: ledger.recorded_of_jobs.iter().map(of_job).collect(),
            gaps: ledger.gaps,
            gap_j: joules(of_gaps.map(|(_, energy)| *energy).sum()),
            unknown_gaps: ledger.lost,
            gaps_last_day: ledger.gaps_last_day.map(|(_, known, _)| known),
            unknown_gaps_last_day: ledger.gaps_last_day.map(|(.., unknown)| unknown),
            difference_j: joules(Millijoules::new(ledger.difference_mj)),
            settlements: ledger.settlements,
            pending_hours: ledger.pending.iter().map(|(hour, _)| hour).collect::<BTreeSet<_>>().len() as u64,
            settled: ledger.settled.map(|total| SettledView {
                forecast_j: joules(total.forecast),
                provisional_j: joules(total.provisional),
                final_j: joules(total.final_),
                unknown_j: joules(total.unknown),
                carbon_g: total.carbon.to_grams().get(),
            }),
            saved,
        }
    }

    /// Records a change of a GPU's power limit in the ledger: who requested it, the limit before, the requested limit,
    /// and the limit in force afterwards.
    pub(crate) fn record_control(&mut self, node: &mut Node<'_>, id: &GpuId, change: Change) {
        let who = match node.gpus.get(id) {
            _ if change.external => "an external writer".to_owned(),
            Some(gpu) => match (&gpu.manual, &gpu.owner) {
                (Some(manual), _) => format!("a manual override ({})", manual.by),
                (None, Some(job)) => format!("the plan of job {job}"),
                (None, None) => "wattune, restoring the original limit".to_owned(),
            },
            None => return,
        };
        let milliwatts = |limit: Option<PowerLimit>| limit.map(PowerLimit::milliwatts);
        self.ledger.queued.push(Entry::Control(Control {
            at: node.now().utc,
            who,
            what: change.what.into(),
            device: DeviceId::from(id),
            before_mw: milliwatts(change.before),
            asked_mw: milliwatts(change.requested),
            enforced_mw: milliwatts(change.enforced),
        }));
    }
}

/// Change of a GPU's power limit.
pub(crate) struct Change {
    pub(crate) what: &'static str,
    pub(crate) external: bool,
    pub(crate) before: Option<PowerLimit>,
    pub(crate) requested: Option<PowerLimit>,
    pub(crate) enforced: Option<PowerLimit>,
}

/// Returns the kinds of carbon intensity by which emissions are computed, each with its sources: first average, second
/// marginal. Emissions by average intensities are computed even without sources. The marginal kind has sources only if
/// a source publishes or has published marginal intensities.
fn accounts(signal: &Signal) -> Vec<(SignalKind, Vec<SourceKey>)> {
    let state = signal.state();
    let published: Vec<&Forecast> = state.sources.iter().filter_map(|s| s.forecast.as_deref()).collect();
    let of = |kinds: &[SignalKind]| -> Vec<SourceKey> {
        let leading = signal.accounting_series().sources().first().filter(|s| kinds.contains(&s.kind));
        let first =
            leading.cloned().or_else(|| published.iter().find(|f| kinds.contains(&f.kind)).map(|f| SourceKey::of(f)));
        let Some(first) = first else { return Vec::new() };
        let all = published.iter().map(|f| SourceKey::of(f));
        let mut keys: Vec<SourceKey> = all.filter(|key| same_signal(key, &first)).collect();
        if keys.is_empty() {
            keys.push(first);
        }
        keys
    };
    let average = of(&[SignalKind::Average, SignalKind::Unspecified]);
    vec![(SignalKind::Average, average), (SignalKind::Marginal, of(&[SignalKind::Marginal]))]
}
