//! Presence of a job: held until its start, on its GPUs, or suspended; and the request to the program that starts the job.

use chrono::{DateTime, TimeDelta, Utc};

use super::choice::{StartChoice, Wanted};
use super::job::{Elapsed, Job, Phase};
use super::reports::ReceivedReports;
use crate::controller::planning::ReplanReason;
use crate::store::Absence;
use wattune_core::domain::{Activity, Continuation, Objective, Offers, StartOffer, StopCosts, SuspendOffer};
use wattune_core::plan::JobActivity;
use wattune_core::time::Now;
use wattune_core::units::{GramsCo2e, GramsPerKwh, Samples, Seconds, Watts};

/// Time after which a job that does not suspend although it is asked counts as unable to: this factor times the
/// expected checkpoint time, and `PATIENCE` more.
const CHECKPOINTS: f64 = 3.0;
const PATIENCE: Seconds = Seconds::new(600.0);

impl Job {
    /// Returns true if the job is held or suspended, so that it holds no GPU.
    pub(crate) fn is_absent(&self) -> bool {
        self.progress.presence.is_absent()
    }

    pub(crate) fn is_held(&self) -> bool {
        self.progress.presence.is_held()
    }

    /// Returns true if GPUs are reserved for the absent job: their idle energy then belongs to the job.
    pub(crate) fn reserves(&self) -> bool {
        let offers = &self.spec.offers;
        match self.progress.presence.absence {
            Some(Absence::HeldSince(_)) => offers.start.is_some_and(|start| start.idle_power > Watts::ZERO),
            Some(Absence::SuspendedSince(_)) => {
                offers.suspend.as_ref().is_some_and(|suspend| suspend.idle_power > Watts::ZERO)
            }
            None => false,
        }
    }

    /// Returns true if wattune may set the limits of the job's GPUs while the job is on them.
    pub(crate) fn controls(&self) -> bool {
        self.spec.control && !self.progress.presence.is_guest
    }

    /// Returns the offer to be held, while the job is held.
    pub(crate) fn held_offer(&self) -> Option<&StartOffer> {
        self.spec.offers.start.as_ref().filter(|_| self.is_held())
    }

    /// Returns the offer to be suspended, if suspensions of the job are planned.
    pub(crate) fn suspend_offer(&self) -> Option<&SuspendOffer> {
        let presence = &self.progress.presence;
        self.spec.offers.suspend.as_ref().filter(|_| !presence.is_deaf && !presence.is_guest)
    }

    /// Returns the time at which the job was first requested: its registration or, for a job that continues an earlier
    /// one, the registration of the first job with its key.
    pub(crate) fn asked_at(&self) -> DateTime<Utc> {
        self.spec.offers.continues.as_ref().map_or(self.registered_at, |earlier| earlier.asked_at)
    }

    /// Returns the samples that earlier jobs with the same key completed.
    pub(crate) fn done_before(&self) -> Samples {
        self.spec.offers.continues.as_ref().map_or(Samples::ZERO, |earlier| earlier.done)
    }

    /// Returns the emissions of the GPUs of earlier jobs with the same key.
    pub(crate) fn emitted_before(&self) -> GramsCo2e {
        self.spec.offers.continues.as_ref().map_or(GramsCo2e::ZERO, |earlier| earlier.emitted)
    }

    /// Returns the latest start of a held job; `None` for others.
    pub(crate) fn latest_start(&self) -> Option<DateTime<Utc>> {
        let offer = self.held_offer()?;
        Some(self.start.as_ref().map_or(offer.latest, |choice| choice.latest.min(offer.latest)))
    }

    /// Returns the objective with which the job is planned. For a job that offers to be suspended, pauses are
    /// suspensions, with their costs.
    pub(crate) fn planned_objective(&self) -> Objective {
        let Some(offer) = self.suspend_offer() else { return self.spec.objective };
        let presence = &self.progress.presence;
        let checkpoint = presence.checkpoints.estimate(offer.checkpoint);
        let restart = presence.restarts.estimate(offer.restart);
        let costs = StopCosts::new(checkpoint, restart);
        let Ok(pausing) = costs.map(|costs| costs.pausing(offer.idle_power)) else { return self.spec.objective };
        let pausable = Some(pausing);
        Objective { pausable, ..self.spec.objective }
    }

    /// Returns the daemon's current request to the program that starts and stops the job (first), and the time of the
    /// next planned change (second; `None` if no change is planned).
    pub(crate) fn wanted_now(&self, now: Now) -> (Wanted, Option<DateTime<Utc>>) {
        if let Some(offer) = self.held_offer() {
            let start = self.start.as_ref().map(|choice| choice.start);
            let is_due =
                now.utc >= self.latest_start().unwrap_or(offer.latest) || start.is_some_and(|at| at <= now.utc);
            return if is_due { (Wanted::Run, None) } else { (Wanted::Hold, start) };
        }
        if self.suspend_offer().is_none() {
            return (Wanted::Run, None);
        }
        let pauses_until = self.planned_pause(now);
        if self.is_absent() {
            // Without a plan that says otherwise, the job goes on: its promises about time come first.
            return pauses_until.map_or((Wanted::Run, None), |until| (Wanted::Suspend, Some(until)));
        }
        match pauses_until.filter(|_| self.is_asked_to_suspend()) {
            Some(until) => (Wanted::Suspend, Some(until)),
            None => (Wanted::Run, self.next_planned_pause(now)),
        }
    }

    /// Returns true if the job is on its GPUs and the daemon asks it to suspend.
    pub(crate) fn is_asked_to_suspend(&self) -> bool {
        self.progress.presence.suspend_asked_at.is_some() && !self.is_absent()
    }

    /// Returns the end of the pause that the plan has now; `None` if it has none.
    fn planned_pause(&self, now: Now) -> Option<DateTime<Utc>> {
        let ahead = self.plan.iter().flat_map(|plan| &plan.segments).filter(|s| s.slot.end() > now.utc);
        let pauses = ahead.take_while(|s| s.slot.start() <= now.utc || s.activity == JobActivity::Paused);
        pauses.take_while(|s| s.activity == JobActivity::Paused).last().map(|s| s.slot.end())
    }

    fn next_planned_pause(&self, now: Now) -> Option<DateTime<Utc>> {
        if !matches!(self.phase, Phase::Planned) {
            return None;
        }
        let ahead = self.plan.iter().flat_map(|plan| &plan.segments);
        ahead.filter(|s| s.slot.start() > now.utc).find(|s| s.activity == JobActivity::Paused).map(|s| s.slot.start())
    }

    /// Asks the job to suspend while its plan pauses it, and withdraws the request afterwards. If the job does not
    /// react for too long, it is planned without suspensions from then on.
    pub(super) fn ask_to_suspend(&mut self, is_planned: bool, now: Now) {
        let Some(offer) = self.suspend_offer().filter(|_| !self.is_absent()) else { return };
        let declared = offer.checkpoint;
        let presence = &mut self.progress.presence;
        match (presence.suspend_asked_at, is_planned) {
            (None, true) => {
                (presence.suspend_asked_at, self.unsaved) = (Some(now.utc), true);
                self.asked_for = Some(Elapsed::since(now.utc, now));
            }
            (Some(_), false) => {
                (presence.suspend_asked_at, self.unsaved) = (None, true);
                self.asked_for = None;
            }
            (Some(since), true) => {
                let patience = presence.checkpoints.estimate(declared) * CHECKPOINTS + PATIENCE;
                if self.asked_for.get_or_insert(Elapsed::since(since, now)).until(now) > patience {
                    (presence.suspend_asked_at, presence.is_deaf) = (None, true);
                    (self.asked_for, self.unsaved) = (None, true);
                    self.replan = Some(ReplanReason::Resumed);
                    tracing::warn!(job.id = %self.id, "job {} did not suspend although it was asked to", self.id);
                }
            }
            (None, false) => {}
        }
    }

    /// Lets a held job wait for the first forecast until this time, or until its latest start.
    pub(crate) fn await_forecast(&mut self, until: DateTime<Utc>) {
        let Some(latest) = self.held_offer().map(|offer| offer.latest) else { return };
        let reason = format!("Waits for the first forecast, at most until {}.", until.format("%FT%H:%MZ"));
        self.reason.clone_from(&reason);
        // The start is chosen before this one comes.
        let start = latest.min(until + TimeDelta::minutes(1));
        self.start =
            Some(StartChoice { start, decide_at: until, latest, saving: None, reason, kind: None, caveat: None });
    }

    /// Returns the offers for a job that replaces this one and makes no offers itself, such as a script that registers
    /// itself under `wattune run`. The job runs already, so its start is not offered again.
    pub(crate) fn inherited_offers(&self, may_suspend: bool, fallback: GramsPerKwh) -> Offers {
        let own = &self.spec.offers;
        if own.is_empty() {
            return Offers::default();
        }
        let first = own.continues.as_ref().map(|before| before.first().clone());
        let emitted = self.emitted_before() + self.emissions.sum().estimate(fallback);
        let (job, asked_at, done) = (self.id.clone(), self.asked_at(), self.done_before());
        let continues = Some(Continuation { job, asked_at, done, emitted, first });
        Offers { key: own.key.clone(), start: None, suspend: own.suspend.clone().filter(|_| may_suspend), continues }
    }

    /// Records that the job has begun, for the first time or after a suspension. `is_guest` is true if another job
    /// controls one of its GPUs. Returns false, and changes nothing, if the job is on its GPUs already.
    pub(crate) fn begin(&mut self, is_guest: bool, now: Now) -> bool {
        let Some(absence) = self.progress.presence.absence.take() else { return false };
        match absence {
            Absence::HeldSince(_) => {
                self.progress.presence.begun_at = Some(now.utc);
                self.progress.presence.chosen = self.start.as_ref().and_then(StartChoice::stored);
            }
            Absence::SuspendedSince(since) => {
                self.count_absent_time(now);
                let presence = &mut self.progress.presence;
                presence.stops += 1;
                presence.suspended_for += Seconds::from_delta(now.utc - since).max(Seconds::ZERO);
                presence.restarted_at = Some(now.utc);
                self.restarting_for = Some(Elapsed::since(now.utc, now));
                self.progress.activity = Some(Activity::RunningSince(now.utc));
            }
        }
        let presence = &mut self.progress.presence;
        presence.is_guest = is_guest;
        presence.present_since = Some(now.utc);
        presence.suspend_asked_at = None;
        self.asked_for = None;
        self.received_reports = ReceivedReports::of(None);
        self.renew_lease(now);
        self.applied = None;
        self.replan = Some(ReplanReason::Resumed);
        self.unsaved = true;
        true
    }

    /// Records that the job has saved its state, exited and left its GPUs. The job may do so without a request. Returns
    /// false, and changes nothing, if the job is absent already.
    pub(crate) fn suspend(&mut self, now: Now) -> bool {
        if self.is_absent() {
            return false;
        }
        self.count_absent_time(now);
        let presence = &mut self.progress.presence;
        if let Some(asked) = presence.suspend_asked_at.take() {
            let took = self.asked_for.take().unwrap_or(Elapsed::since(asked, now)).until(now);
            presence.checkpoints.observe(took);
            presence.stop_time += took;
        }
        presence.absence = Some(Absence::SuspendedSince(now.utc));
        (presence.is_deaf, presence.is_guest, presence.restarted_at) = (false, false, None);
        self.restarting_for = None;
        self.progress.activity = Some(Activity::PausedSince(now.utc));
        // Like a newly registered job, the job counts as running only once it has reported again.
        self.last_report_at = None;
        self.renew_lease(now);
        self.applied = None;
        self.unsaved = true;
        true
    }

    /// Counts the time since the last report as time without work that wattune caused.
    fn count_absent_time(&mut self, now: Now) {
        let Some(passed) = self.since_last_report(now) else { return };
        self.stalls.count_idle_time(passed);
        self.account_for(passed, Samples::ZERO);
        if let Some(last) = &mut self.progress.last {
            (last.at_s, last.received) = (None, now.utc);
        }
    }

    /// Returns the expected time until a job that was started again makes progress; zero for other jobs.
    pub(crate) fn restart_left(&self, now: Now) -> Seconds {
        let restarts = &self.progress.presence.restarts;
        let restarting = self.restarting_for.zip(self.spec.offers.suspend.as_ref());
        let left = |(passed, offer): (Elapsed, &SuspendOffer)| restarts.estimate(offer.restart) - passed.until(now);
        restarting.map_or(Seconds::ZERO, left).max(Seconds::ZERO)
    }

    /// Records that the job has restarted: it made progress beyond that before the last suspension.
    pub(super) fn note_restarted(&mut self, now: Now) {
        if let Some(passed) = self.restarting_for.take() {
            let presence = &mut self.progress.presence;
            let took = passed.until(now);
            presence.restarted_at = None;
            presence.restarts.observe(took);
            presence.stop_time += took;
            self.unsaved = true;
            // The plan still has the rest of the expected time to restart.
            self.replan.get_or_insert(ReplanReason::Resumed);
        }
    }

    /// Returns the time for which a suspended job has been absent and which its account does not contain yet.
    pub(super) fn absent_time(&self, now: Now) -> Option<Seconds> {
        self.progress.presence.suspended_since()?;
        let last = self.progress.last?;
        Some(Seconds::from_delta(now.utc - last.received).max(Seconds::ZERO))
    }

    /// Returns the phase of an absent job and the reason for it; `None` for a job on its GPUs.
    pub(super) fn absent_phase(&self) -> Option<(Phase, String)> {
        match self.progress.presence.absence? {
            Absence::HeldSince(_) => {
                let reason = self.start.as_ref().map(|choice| choice.reason.clone());
                Some((Phase::Held, reason.unwrap_or_else(|| "its start is not chosen yet".into())))
            }
            Absence::SuspendedSince(since) => {
                let until = self.plan.as_ref().and_then(|plan| plan.segments.first()).map(|s| s.reason.to_string());
                let why = until.map_or_else(String::new, |why| format!(". {why}"));
                Some((Phase::Suspended, format!("Suspended since {}: its GPUs are free{why}", since.format("%FT%TZ"))))
            }
        }
    }

    /// Returns warnings about the job's start and suspensions, in one sentence each.
    pub(super) fn presence_warnings(&self) -> Vec<String> {
        let presence = &self.progress.presence;
        let caveat = self.start.as_ref().filter(|_| self.is_held()).and_then(|choice| choice.caveat.clone());
        let guest = presence.is_guest.then(|| {
            "another job controlled one of its GPUs when it began: its energy is recorded, its limits are not controlled"
                .to_owned()
        });
        let deaf = presence
            .is_deaf
            .then(|| "it was asked to suspend and did not: it is planned without suspensions from now on".to_owned());
        caveat.into_iter().chain(guest).chain(deaf).collect()
    }
}
