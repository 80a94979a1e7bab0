//! The ledger beside the intervals: blocks closed each hour, hours settled as the grid's values come, minutes rolled up,
//! and who changed which limit.

use chrono::{DateTime, DurationRound, TimeDelta, Utc};

use super::Accounting;
use super::ledger::SHOWN_DAYS;
use crate::controller::node::Node;
use crate::controller::signal::{Signal, SignalUpdate, same_signal};
use crate::controller::view::{LedgerView, SavedView};
use crate::store::{DueReason, SettlementInput, SourceKey, Store, StoreError};
use wattune_core::domain::{DeviceId, Forecast, GpuId, JobId, PowerLimit, SignalKind, Slot};
use wattune_core::ledger;
use wattune_core::ledger::apportion::hour_of;
use wattune_core::ledger::entry::{Control, Entry};

/// So many hours are settled in one tick.
const SETTLED_AT_ONCE: usize = 24;
/// So many blocks are rolled up at once.
const ROLLED_AT_ONCE: u32 = 24;
/// Hours whose values may still come are looked at again so far back after a start.
const LOOK_BACK: TimeDelta = TimeDelta::days(60);

impl Accounting {
    /// Notes the terms under which books are kept, unless they stand there already, and which hours may still change.
    ///
    /// # Errors
    /// If the ledger cannot be read or written.
    pub(in crate::controller) async fn open_ledger(
        &mut self,
        store: &Store,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        let keeping = &self.ledger.keeping;
        let terms = keeping.settings.terms(now, &keeping.host, keeping.digest);
        let known = match store.newest_entry("terms").await? {
            Some(Entry::Terms(before)) => ledger::entry::Terms { at: now, ..before } == terms,
            _ => false,
        };
        if !known {
            store.append_entry(&Entry::Terms(terms)).await?;
        }
        let open = store.unsettled_hours(now - LOOK_BACK).await?;
        self.ledger.pending = open.into_iter().map(|hour| (hour, DueReason::Intensity)).collect();
        Ok(())
    }

    /// Closes the block of the hour before in a new hour. Answers with the jobs whose minutes are rolled up next, if it is
    /// one.
    pub(in crate::controller) async fn begin_hour(
        &mut self,
        node: &mut Node<'_>,
    ) -> Result<Option<Vec<JobId>>, StoreError> {
        let now = node.now().utc;
        self.write_notes(node).await?;
        if self.ledger.closed == Some(hour_of(now)) {
            return Ok(None);
        }
        self.close_block(node).await?;
        self.ledger.closed = Some(hour_of(now));
        Ok(Some(node.store.jobs_to_roll_up(now - self.ledger.keeping.settings.keep(), ROLLED_AT_ONCE).await?))
    }

    /// Rolls up minutes that are kept no longer.
    pub(in crate::controller) async fn roll_up(&mut self, node: &mut Node<'_>) -> Result<(), StoreError> {
        let now = node.now().utc;
        node.store.roll_up(now - self.ledger.keeping.settings.keep(), ROLLED_AT_ONCE, now).await?;
        Ok(())
    }

    /// Counts the gaps, and once a minute takes up the hours that are due. Answers whether something was told of the past
    /// since.
    pub(in crate::controller) async fn look_for_due(&mut self, node: &mut Node<'_>) -> Result<bool, StoreError> {
        let now = node.now().utc;
        let minute = now.duration_trunc(TimeDelta::minutes(1)).unwrap_or(now);
        self.count_gaps(node, now, minute).await?;
        if self.ledger.looked == Some(minute) {
            return Ok(false);
        }
        // The hour in progress waits: it would only be settled again.
        self.take_due(node, hour_of(now)).await?;
        self.ledger.looked = Some(minute);
        Ok(std::mem::take(&mut self.ledger.has_new_values))
    }

    /// Settles some of the hours that wait for it.
    pub(in crate::controller) async fn settle_hours(&mut self, node: &mut Node<'_>) -> Result<(), StoreError> {
        let now = node.now().utc;
        let before = self.ledger.settlements;
        for _ in 0..SETTLED_AT_ONCE {
            // The newest first: what people look at.
            let Some((hour, reasons)) = self.ledger.next_pending() else { break };
            let silent = node.signal.silent();
            for why in reasons {
                // The book of averages last: it takes the hour off the list of those that are due.
                for (book, sources) in books(node.signal).into_iter().rev() {
                    let settling = SettlementInput { kind: book, sources: &sources, silent: &silent, at: now, why };
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

    /// Counts the gaps of the last day, each minute and whenever one was found.
    async fn count_gaps(
        &mut self,
        node: &mut Node<'_>,
        now: DateTime<Utc>,
        minute: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        let found = (minute, self.ledger.gaps, self.ledger.lost);
        if self.ledger.of_the_day.is_some_and(|(at, ..)| at == found) {
            return Ok(());
        }
        let Some(day) = Slot::new(now - TimeDelta::days(1), now + TimeDelta::hours(1)) else { return Ok(()) };
        let (known, unknown): (Vec<_>, Vec<_>) =
            node.store.gaps(&day).await?.into_iter().partition(|gap| gap.energy.is_ok());
        self.ledger.of_the_day = Some((found, known.len() as u64, unknown.len() as u64));
        Ok(())
    }

    /// Writes what was noted, oldest first.
    pub(in crate::controller) async fn write_notes(&mut self, node: &mut Node<'_>) -> Result<(), StoreError> {
        while let Some(note) = self.ledger.notes.first() {
            node.store.append_entry(note).await?;
            self.ledger.notes.remove(0);
        }
        Ok(())
    }

    /// Ends the open block: its hours are due to be settled.
    pub(in crate::controller) async fn close_block(&mut self, node: &mut Node<'_>) -> Result<(), StoreError> {
        let now = node.now().utc;
        let Some(close) = node.store.close_block(now).await? else { return Ok(()) };
        self.ledger.looked = None;
        self.ledger.difference_mj += close.balances.iter().map(|b| b.difference_mj.unsigned_abs()).sum::<u64>();
        self.ledger.closed_at = Some(now);
        Ok(())
    }

    /// Takes up the hours before `end` that are due because of what was booked or corrected, by whomever.
    async fn take_due(&mut self, node: &mut Node<'_>, end: DateTime<Utc>) -> Result<(), StoreError> {
        for (hour, why) in node.store.due_hours().await? {
            if hour < end {
                self.ledger.pending.insert((hour, why));
            }
        }
        Ok(())
    }

    /// At the end: closes the block and takes up all hours that are due.
    pub(in crate::controller) async fn end_block(&mut self, node: &mut Node<'_>) -> Result<(), StoreError> {
        self.close_block(node).await?;
        self.take_due(node, DateTime::<Utc>::MAX_UTC).await
    }

    /// Leaves the hours that are not settled yet to the next start: whoever stops a daemon waits for it.
    pub(in crate::controller) async fn defer(&self, store: &Store) -> Result<(), StoreError> {
        store.defer(&self.ledger.pending).await
    }

    /// Notes an entry; it is written with the next ones.
    pub(in crate::controller) fn note(&mut self, entry: Entry) {
        self.ledger.notes.push(entry);
    }

    /// Entries that are not written yet.
    pub(in crate::controller) fn notes(&self) -> impl DoubleEndedIterator<Item = &Entry> {
        self.ledger.notes.iter()
    }

    /// Marks the hours with new, withdrawn or final values to be settled again.
    pub(in crate::controller) fn take_update(&mut self, update: &SignalUpdate, now: DateTime<Utc>) {
        self.ledger.take_update(update, now);
    }

    /// The ledger as the API shows it.
    pub(in crate::controller) fn ledger_view(&self, saved: Option<SavedView>) -> LedgerView {
        self.ledger.view(saved)
    }

    /// Notes a change of a limit for whoever asks later: who wanted it, and what came of it.
    pub(in crate::controller) fn note_control(&mut self, node: &mut Node<'_>, id: &GpuId, change: Change) {
        let who = match node.gpus.get(id) {
            _ if change.foreign => "somebody outside".to_owned(),
            Some(gpu) => match (gpu.manual, &gpu.owner) {
                (Some(manual), _) => format!("a manual override ({})", manual.by),
                (None, Some(job)) => format!("the plan of job {job}"),
                (None, None) => "nobody: it goes back to what was found".to_owned(),
            },
            None => return,
        };
        let milliwatts = |limit: Option<PowerLimit>| limit.map(PowerLimit::milliwatts);
        self.ledger.notes.push(Entry::Control(Control {
            at: node.now().utc,
            who,
            what: change.what.into(),
            device: DeviceId::from(id),
            before_mw: milliwatts(change.before),
            asked_mw: milliwatts(change.asked),
            enforced_mw: milliwatts(change.enforced),
        }));
    }
}

/// A change of a board's limit.
pub(in crate::controller) struct Change {
    pub(in crate::controller) what: &'static str,
    pub(in crate::controller) foreign: bool,
    pub(in crate::controller) before: Option<PowerLimit>,
    pub(in crate::controller) asked: Option<PowerLimit>,
    pub(in crate::controller) enforced: Option<PowerLimit>,
}

/// The books and whose intensities they use: the one of averages always, so that energy is settled even where nothing
/// is known of the grid; the one of marginal intensities where a source gives them, or gave them.
fn books(signal: &Signal) -> Vec<(SignalKind, Vec<SourceKey>)> {
    let state = signal.state();
    let said: Vec<&Forecast> = state.sources.iter().filter_map(|s| s.forecast.as_deref()).collect();
    let of = |kinds: &[SignalKind]| -> Vec<SourceKey> {
        let leading = signal.accounting_series().sources().first().filter(|s| kinds.contains(&s.kind));
        let first =
            leading.cloned().or_else(|| said.iter().find(|f| kinds.contains(&f.kind)).map(|f| SourceKey::of(f)));
        let Some(first) = first else { return Vec::new() };
        let all = said.iter().map(|f| SourceKey::of(f));
        let mut keys: Vec<SourceKey> = all.filter(|key| same_signal(key, &first)).collect();
        if keys.is_empty() {
            keys.push(first);
        }
        keys
    };
    let average = of(&[SignalKind::Average, SignalKind::Unspecified]);
    vec![(SignalKind::Average, average), (SignalKind::Marginal, of(&[SignalKind::Marginal]))]
}
