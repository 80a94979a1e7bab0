//! One board under control: whose it is, what is wanted of it, and what the hardware says to that.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};

use super::astray::Astray;
use super::limit_history::LimitHistory;
use super::locked_clock::Clocks;
use super::sharing::Sharing;
use crate::controller::requests::Caller;
use crate::gpu::journal::{self, ExternalLimit, Journal, JournalError, ObservedLimit, RestoreAction};
use crate::gpu::thread::GpuHandle;
use crate::gpu::{GpuError, Observation, Write};
use wattune_core::domain::{GpuId, JobId, LimitRange, PowerLimit, SetPoint};
use wattune_core::ledger::{Metered, OpenInterval};
use wattune_core::time::{Monotonic, Now};
use wattune_core::units::Seconds;

/// Somebody's wish by hand, until it expires.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Override {
    /// The limit.
    pub limit: PowerLimit,
    /// Until when on the duration clock.
    pub until: Monotonic,
    /// The same on the wall clock, for people.
    pub until_utc: DateTime<Utc>,
    /// Who asked for it.
    pub by: Caller,
}

/// A found limit that the driver refused to take back is offered again this often.
const RETRY_REFUSED: Seconds = Seconds::new(10.0);
/// One that does not come back is tried so often at once before that.
const AT_ONCE: u32 = 3;

/// A board as the controller knows it.
pub struct Gpu {
    /// The way to the hardware.
    pub handle: GpuHandle,
    /// What it said last.
    pub seen: Observation,
    /// The job that controls it, if any.
    pub owner: Option<JobId>,
    /// Jobs that are booked on it without controlling it.
    pub guests: Vec<JobId>,
    /// Of its jobs those that came since its books turned last, where that is too early to turn them again.
    pub(in crate::controller) newcomers: BTreeSet<JobId>,
    /// A manual override.
    pub manual: Option<Override>,
    /// Somebody else's limit, which is respected.
    pub foreign: Option<ExternalLimit>,
    /// How often somebody else's limit was met since the daemon started.
    pub yields: u32,
    /// Why the found limit did not come back when it was to, and has not come back since, in words.
    pub not_back: Option<String>,
    /// Why the last limit that was wanted could not be noted in the journal, and so was not set.
    pub unjournalled: Option<String>,
    /// How often that happened since the daemon started.
    pub restore_failures: u32,
    /// Why writing limits is not possible, once it was tried.
    pub denied: Option<GpuError>,
    /// Why persistence mode cannot be changed, once it was tried.
    pub persistence_denied: Option<GpuError>,
    /// The open interval of its books; none before the board answered for the first time.
    pub books: Option<OpenInterval>,
    /// When its books were opened, and what its meter said then.
    pub(in crate::controller) opened: Option<(Now, Metered)>,
    /// Whether the time before that was called lost, as nothing tells of it yet.
    pub(in crate::controller) is_given_up: bool,
    /// What resets of its counter moved readings by before this daemon's meter began, in millijoules.
    pub(in crate::controller) rebased_before: i64,
    /// What was done to it last, for people.
    pub remark: Option<String>,
    pub(in crate::controller) clocks: Clocks,
    pub(in crate::controller) history: LimitHistory,
    pub(in crate::controller) sharing: Sharing,
    pub(in crate::controller) astray: Option<Astray>,
    /// Why the last write of a limit failed; none if it did not.
    pub(in crate::controller) write_error: Option<GpuError>,
    pub(in crate::controller) denied_since: Option<Monotonic>,
    held: Option<WrittenLimit>,
    in_flight: Option<(Write, Monotonic)>,
    /// What the last finished write of a limit was, for the ledger: the limit before, the one asked for, the one shown.
    pub(in crate::controller) written: Option<Written>,
    before: Option<PowerLimit>,
    last_asked: Option<Monotonic>,
    /// The limit that was written last, whatever came of it.
    last_limit: Option<PowerLimit>,
    /// [`Observation::restarts`] when the board last showed the limit it is held at.
    restarts_seen: u32,
    pub(in crate::controller) cap: Option<PowerLimit>,
    /// The limit that it told last, whatever became of it since.
    told: Option<PowerLimit>,
    /// Whether the last write of a limit failed.
    failed: bool,
    /// Whether the last write of a limit was to give the found one back.
    giving_back: bool,
    /// Whether it came after the start, and wattune has set nothing on it since: its default limit is then nobody's wish.
    pub(in crate::controller) came_late: bool,
    /// How often in a row that did not bring it back.
    in_vain: u32,
    /// Whether a limit was written that the journal does not know to be done.
    unconfirmed: bool,
}

/// The limit at which wattune holds a board: because it wrote it, or because it was there already.
#[derive(Clone, Copy, Debug)]
struct WrittenLimit {
    asked: PowerLimit,
    /// What the board showed right after the write: some round, some ignore.
    shown: Option<PowerLimit>,
}

/// A write of a limit that came to its end.
#[derive(Clone, Copy, Debug)]
pub(in crate::controller) struct Written {
    pub(in crate::controller) before: Option<PowerLimit>,
    pub(in crate::controller) asked: PowerLimit,
    pub(in crate::controller) shown: Option<PowerLimit>,
    pub(in crate::controller) failed: bool,
}

/// What acting on a board came to.
#[derive(Debug, PartialEq)]
pub enum Act {
    /// Nothing to do, or nothing that can be done now.
    Nothing,
    /// A write was asked for.
    Asked {
        /// The limit before.
        from: PowerLimit,
        /// The limit asked for.
        to: PowerLimit,
    },
    /// A write to its clocks was asked for, in words.
    Clocks(String),
    /// Somebody else's limit was found.
    Yielded(ExternalLimit),
    /// The found limit is back, and the journal's entry gone.
    GivenBack(PowerLimit),
}

impl Gpu {
    /// A board that nobody holds.
    pub fn new(handle: GpuHandle) -> Self {
        let seen = handle.observe();
        Self {
            handle,
            seen,
            owner: None,
            guests: Vec::new(),
            newcomers: BTreeSet::new(),
            manual: None,
            foreign: None,
            yields: 0,
            not_back: None,
            unjournalled: None,
            restore_failures: 0,
            denied: None,
            persistence_denied: None,
            books: None,
            opened: None,
            is_given_up: false,
            rebased_before: 0,
            remark: None,
            clocks: Clocks::default(),
            history: LimitHistory::default(),
            sharing: Sharing::default(),
            astray: None,
            write_error: None,
            denied_since: None,
            held: None,
            in_flight: None,
            written: None,
            before: None,
            last_asked: None,
            last_limit: None,
            restarts_seen: 0,
            cap: None,
            told: None,
            failed: false,
            giving_back: false,
            came_late: false,
            in_vain: 0,
            unconfirmed: false,
        }
    }

    /// Its identity.
    pub fn id(&self) -> &GpuId {
        &self.handle.board().id
    }

    /// Takes in what the hardware says now.
    pub fn observe(&mut self) {
        self.handle.refresh();
        self.seen = self.handle.observe();
        self.notice_cap();
        self.told = self.shown().or(self.told);
        self.observe_clocks();
        let Some((write, asked_at)) = self.in_flight else { return };
        let Some(outcome) = self.seen.last_write.as_ref().filter(|o| o.write == write && o.at.monotonic >= asked_at)
        else {
            return;
        };
        self.in_flight = None;
        let outcome = outcome.clone();
        if let Err(error @ GpuError::LimitChanged { .. }) = &outcome.result {
            // Nothing was written; what was found there is looked at with everything else that the board shows.
            self.remark = Some(error.to_string());
            return;
        }
        if let Write::PowerLimit(asked) = write {
            let (before, shown, failed) = (self.before, outcome.shown, outcome.result.is_err());
            self.written = Some(Written { before, asked, shown, failed });
        }
        match (&outcome.result, write) {
            (result, Write::LockClocks(_) | Write::ResetClocks) => self.take_clock_outcome(write, result),
            (Ok(()), Write::PowerLimit(asked)) => {
                self.denied = None;
                self.write_error = None;
                self.failed = false;
                self.unconfirmed = !self.giving_back;
                match outcome.shown.filter(|shown| self.giving_back && !shown.same_as(asked)) {
                    Some(shown) => self.note_not_back(asked, format!("the driver accepted it, and it shows {shown}")),
                    None => self.note_back(),
                }
                self.held = Some(WrittenLimit { asked, shown: outcome.shown });
                self.restarts_seen = self.seen.restarts();
                self.came_late = false;
            }
            (Ok(()), Write::Persistence(_)) => {}
            (Err(error), Write::Persistence(_)) => self.persistence_denied = Some(error.clone()),
            (Err(error), Write::PowerLimit(asked)) => {
                self.failed = true;
                self.write_error = Some(error.clone());
                self.remark = Some(error.to_string());
                if self.giving_back {
                    let shown = outcome.shown.map_or(String::new(), |shown| format!(", and it shows {shown}"));
                    self.note_not_back(asked, format!("{error}{shown}"));
                }
                if matches!(error, GpuError::NoPermission { .. }) || error.is_unsupported() {
                    self.deny(error.clone(), outcome.at.monotonic);
                }
            }
        }
    }

    fn note_not_back(&mut self, found: PowerLimit, why: String) {
        let words = format!("its found limit of {found} is not back: {why}; it is tried again every few seconds");
        tracing::error!(gpu.uuid = %self.id(), "GPU {}: {words}", self.id());
        self.remark = Some(words.clone());
        self.not_back = Some(words);
        self.restore_failures += 1;
        self.in_vain += 1;
    }

    fn note_back(&mut self) {
        self.not_back = None;
        self.in_vain = 0;
    }

    /// Asks what processes use of it while it has several holders, and takes in what it said.
    pub fn observe_sharing(&mut self, owners: &BTreeMap<u32, JobId>) {
        let shared = self.holder_count() > 1;
        self.handle.watch_processes(shared);
        match &self.seen.process_use {
            Some(Ok(used)) if shared => self.sharing.observe(used, owners),
            _ => self.sharing.clear(),
        }
    }

    /// Whether a write is under way.
    pub fn is_writing(&self) -> bool {
        self.in_flight.is_some()
    }

    /// The range it accepts, if limits can be set at all.
    pub fn range(&self) -> Option<LimitRange> {
        self.handle.capabilities().limits.as_ref().ok().copied()
    }

    /// The limit it had before wattune touched it; the present one if wattune has not.
    pub fn found(&self, journal: &Journal) -> Option<PowerLimit> {
        journal.original_limit(self.id()).or(self.seen.reading.requested)
    }

    /// The highest limit that wattune may set on it (`planning.md` §5).
    pub fn ceiling(&self, journal: &Journal) -> Option<PowerLimit> {
        Some(self.range()?.ceiling(self.found(journal)?))
    }

    /// An out-of-band cap that is stricter than what was asked for when it was last seen.
    pub fn out_of_band_cap(&self) -> Option<PowerLimit> {
        self.cap
    }

    /// The limit that it shows, of what it was asked for and what it enforces the larger.
    fn shown(&self) -> Option<PowerLimit> {
        self.seen.reading.requested.max(self.seen.reading.enforced)
    }

    /// The most that its limit may be now: what it shows or told last, what is on its way to it, and, of a board that is
    /// lost, the default that it may come back with. `None` if it never told a limit.
    pub fn in_force(&self) -> Option<PowerLimit> {
        let known = self.shown().or(self.told)?;
        let coming = match self.in_flight {
            Some((Write::PowerLimit(limit), _)) => Some(limit),
            _ => None,
        };
        let lost = matches!(self.seen.fault, Some((GpuError::Lost { .. }, _)));
        let back = self.range().filter(|_| lost).map(|range| range.default);
        [Some(known), coming, back].into_iter().flatten().max()
    }

    /// Whether it may stay above what it is asked for: the last write failed, or it shows more than it was told.
    pub fn is_unyielding(&self) -> bool {
        let told = self.held.zip(self.seen.reading.requested);
        self.failed || told.is_some_and(|(held, shown)| shown > held.asked)
    }

    /// Brings the board nearer to `wanted`; with `None`, nearer to what was found. Called at each tick; the next tick
    /// is the retry.
    ///
    /// # Errors
    /// If the journal cannot be written: then the board was not.
    pub fn act(&mut self, wanted: Option<SetPoint>, journal: &mut Journal, now: Now) -> Result<Act, JournalError> {
        if self.in_flight.is_some() || self.seen.fault.is_some() {
            return Ok(Act::Nothing);
        }
        let Some(current) = self.seen.reading.requested else { return Ok(Act::Nothing) };
        if let Some(foreign) = self.notice_foreign(current, now) {
            journal.yield_to_external(&self.id().clone(), foreign)?;
            return Ok(Act::Yielded(foreign));
        }
        if let Some(foreign) = self.disown_foreign(current, journal, now)? {
            return Ok(Act::Yielded(foreign));
        }
        let confirmed = self.confirm(current, journal);
        let wanted = wanted.filter(|_| self.why_no_control().is_none());
        self.compare(wanted.map(|set| set.limit), current, now);
        let Some(set) = wanted else {
            // Clocks first: a board whose limit is not to be had back keeps no lock for that.
            return match self.pursue_clocks(None, current, journal, now)? {
                Act::Nothing => {
                    let done = self.give_back(current, journal, now)?;
                    if done == Act::Nothing && journal.entry(self.id()).is_none() {
                        self.probe_denial(current, now);
                    }
                    Ok(done)
                }
                unlocking => Ok(unlocking),
            };
        };
        confirmed?;
        match self.pursue(set.limit, current, journal, now)? {
            Act::Nothing => self.pursue_clocks(set.clock, current, journal, now),
            setting => Ok(setting),
        }
    }

    /// Has the journal know that the last write was done. What stood there before is nobody's any more.
    fn confirm(&mut self, current: PowerLimit, journal: &mut Journal) -> Result<(), JournalError> {
        if self.unconfirmed && self.held.is_some_and(|held| held.shown.is_some_and(|shown| shown.same_as(current))) {
            journal.record_written(&self.id().clone(), current)?;
            self.unconfirmed = false;
        }
        Ok(())
    }

    /// Has the journal keep the original limit of a GPU that a job controls, for as long as it does.
    ///
    /// # Errors
    /// If the journal cannot be written.
    pub(in crate::controller) fn keep_original(&self, journal: &mut Journal, now: Now) -> Result<(), JournalError> {
        let is_free_to_set = self.owner.is_some() && self.in_flight.is_none() && self.why_no_control().is_none();
        match self.seen.reading.requested.filter(|_| is_free_to_set) {
            Some(current) => journal.record_original(self.id(), current, self.seen.counter, now.utc),
            None => Ok(()),
        }
    }

    /// Leaves the board to whoever had set it when an earlier daemon ended.
    pub(in crate::controller) fn leave_as_before(&mut self, journal: &Journal) {
        let default = self.range().map(|range| range.default);
        self.foreign = journal.external_limit(self.id(), self.seen.reading.requested, default);
    }

    /// Leaves the board as it is for now: what is wanted has to wait. Somebody else's limit is noticed all the same.
    ///
    /// # Errors
    /// If the journal cannot be written.
    pub fn wait(&mut self, journal: &mut Journal, now: Now) -> Result<Act, JournalError> {
        self.astray = None;
        let current = self.seen.reading.requested.filter(|_| self.in_flight.is_none() && self.seen.fault.is_none());
        let Some(current) = current else { return Ok(Act::Nothing) };
        if let Some(foreign) = self.notice_foreign(current, now) {
            return journal.yield_to_external(&self.id().clone(), foreign).map(|()| Act::Yielded(foreign));
        }
        Ok(self.disown_foreign(current, journal, now)?.map_or(Act::Nothing, Act::Yielded))
    }

    /// A limit other than the one it is held at is somebody else's, unless it is the default after a restart. Whoever
    /// has the board may change it again.
    fn notice_foreign(&mut self, current: PowerLimit, now: Now) -> Option<ExternalLimit> {
        if let Some(foreign) = self.foreign.as_mut().filter(|foreign| !foreign.limit.same_as(current)) {
            *foreign = ExternalLimit { limit: current, since: now.utc };
        }
        let held = self.held?;
        if current.same_as(held.asked) || held.shown.is_some_and(|s| s.same_as(current)) {
            self.restarts_seen = self.seen.restarts();
            return None;
        }
        self.held = None;
        if self.has_restarted() && self.range().is_some_and(|r| r.default.same_as(current)) {
            return None;
        }
        self.manual = None;
        self.remark = Some(format!("somebody else set {current} over wattune's {}", held.asked));
        Some(self.take_for_foreign(current, now))
    }

    fn take_for_foreign(&mut self, limit: PowerLimit, now: Now) -> ExternalLimit {
        let foreign = ExternalLimit { limit, since: now.utc };
        self.foreign = Some(foreign);
        self.yields += 1;
        self.note_back();
        foreign
    }

    /// What an earlier daemon left in the journal for a board that somebody else has set since is nothing to restore. On
    /// a board whose job goes on, that limit is respected like one that is set while the daemon looks.
    fn disown_foreign(
        &mut self,
        current: PowerLimit,
        journal: &mut Journal,
        now: Now,
    ) -> Result<Option<ExternalLimit>, JournalError> {
        let id = self.id().clone();
        let Some(entry) = journal.restore_entry(&id).filter(|_| self.held.is_none()) else { return Ok(None) };
        let default = self.range().map(|r| r.default);
        let board = ObservedLimit { current, default, counter: self.seen.counter, restarted: self.has_restarted() };
        match journal::restore_action(&entry, journal.boot_id(), &board) {
            RestoreAction::LeaveExternal(limit) if self.owner.is_some() && self.manual.is_none() => {
                let foreign = self.take_for_foreign(limit, now);
                journal.yield_to_external(&id, foreign)?;
                Ok(Some(foreign))
            }
            RestoreAction::LeaveExternal(limit) => journal.yield_limit(&id, limit).map(|()| None),
            RestoreAction::AlreadyRestored | RestoreAction::Write(_) => Ok(None),
        }
    }

    /// Whether the board or its driver may have started anew since it last showed wattune's limit.
    fn has_restarted(&self) -> bool {
        self.came_late || self.seen.restarts() > self.restarts_seen
    }

    fn pursue(
        &mut self,
        limit: PowerLimit,
        current: PowerLimit,
        journal: &mut Journal,
        now: Now,
    ) -> Result<Act, JournalError> {
        if current.same_as(limit) {
            // Nothing to write, but from here on a change is somebody else's.
            self.held.get_or_insert(WrittenLimit { asked: limit, shown: Some(current) });
            return Ok(Act::Nothing);
        }
        let is_asked = self.held.is_some_and(|h| h.asked == limit);
        if is_asked {
            self.remark = Some(format!("the board was set to {limit} and shows {current}"));
        }
        // Rounded, or tried in vain a moment ago.
        let has_failed = is_asked || (self.failed && self.last_limit == Some(limit));
        if (is_asked && self.astray.is_none()) || (has_failed && self.waits_to_write_again(now)) {
            return Ok(Act::Nothing);
        }
        let id = self.id().clone();
        journal.record_write(&id, current, limit, self.seen.counter, now.utc)?;
        self.giving_back = false;
        self.ask(Write::PowerLimit(limit), now);
        Ok(Act::Asked { from: current, to: limit })
    }

    fn give_back(&mut self, current: PowerLimit, journal: &mut Journal, now: Now) -> Result<Act, JournalError> {
        let id = self.id().clone();
        let Some(mut entry) = journal.restore_entry(&id) else {
            self.held = None;
            return Ok(Act::Nothing);
        };
        let is_ours = journal.entry(&id).is_some();
        if is_ours && self.held.is_some_and(|held| held.shown.is_some_and(|shown| shown.same_as(current))) {
            // What a board made of the last write is wattune's, also before the journal knows.
            entry.written.push(current);
        }
        let default = self.range().map(|r| r.default);
        let board = ObservedLimit { current, default, counter: self.seen.counter, restarted: self.has_restarted() };
        match journal::restore_action(&entry, journal.boot_id(), &board) {
            RestoreAction::AlreadyRestored if !is_ours => {
                self.held = None;
                self.forget_original(journal).map(|()| Act::Nothing)
            }
            RestoreAction::AlreadyRestored => match entry.original_persistence {
                Some(on) if self.seen.reading.persistence == Some(!on) && self.persistence_denied.is_none() => {
                    self.ask(Write::Persistence(on), now);
                    Ok(Act::Nothing)
                }
                // A lock that could not be taken away yet.
                _ if entry.holds_lock(journal.boot_id()) => Ok(Act::Nothing),
                _ => {
                    journal.forget(&id)?;
                    self.forget_original(journal)?;
                    self.held = None;
                    self.note_back();
                    Ok(Act::GivenBack(current))
                }
            },
            RestoreAction::LeaveExternal(limit) => {
                journal.yield_limit(&id, limit)?;
                self.held = None;
                self.yields += 1;
                self.note_back();
                Ok(Act::Yielded(ExternalLimit { limit, since: now.utc }))
            }
            // What was refused may be allowed again; asking at every tick would only fill the log.
            RestoreAction::Write(_) if (self.denied.is_some() || self.in_vain >= AT_ONCE) && self.asked_lately(now) => {
                Ok(Act::Nothing)
            }
            RestoreAction::Write(found) => {
                self.held = None;
                self.giving_back = true;
                self.ask(Write::PowerLimit(found), now);
                Ok(Act::Asked { from: current, to: found })
            }
        }
    }

    /// The original limit is of no more use once no job controls the board.
    fn forget_original(&self, journal: &mut Journal) -> Result<(), JournalError> {
        match self.owner {
            Some(_) => Ok(()),
            None => journal.forget_original(self.id()),
        }
    }

    /// Turns persistence mode on, if it is off and may be.
    ///
    /// # Errors
    /// If the journal cannot be written: then the board was not.
    pub fn persist(&mut self, journal: &mut Journal, now: Now) -> Result<(), JournalError> {
        let (off, limit) = (self.seen.reading.persistence == Some(false), self.seen.reading.requested);
        let id = self.id().clone();
        let tried = journal.entry(&id).is_some_and(|e| e.original_persistence.is_some());
        let hindered = tried || self.persistence_denied.is_some() || self.why_no_control().is_some();
        if let Some(limit) = limit.filter(|_| off && !hindered && self.in_flight.is_none()) {
            journal.record_persistence(&id, false, limit, now.utc)?;
            self.ask(Write::Persistence(true), now);
        }
        Ok(())
    }

    pub(in crate::controller) fn asked_lately(&self, now: Now) -> bool {
        self.asked_within(RETRY_REFUSED, now)
    }

    pub(in crate::controller) fn asked_within(&self, span: Seconds, now: Now) -> bool {
        self.last_asked.is_some_and(|at| now.monotonic.since(at) < span)
    }

    pub(in crate::controller) fn ask(&mut self, write: Write, now: Now) {
        self.last_asked = Some(now.monotonic);
        if self.handle.request(write, self.seen.reading.requested) {
            self.in_flight = Some((write, now.monotonic));
            if let Write::PowerLimit(limit) = write {
                self.last_limit = Some(limit);
                self.before = self.seen.reading.requested;
                self.remark = Some(format!("set to {limit} at {}", now.utc.format("%FT%TZ")));
            }
            // Boards without a thread of their own have done it already.
            self.observe_outcome();
        }
    }

    fn observe_outcome(&mut self) {
        let seen = self.handle.observe();
        if seen.last_write.is_some() && seen.last_write != self.seen.last_write {
            self.seen = seen;
        }
    }
}
