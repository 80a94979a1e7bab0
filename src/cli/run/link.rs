//! The connection between the lifecycle of a command and its reporter: the stage of the command, and the daemon's
//! advice.

use tokio::sync::watch;
use tokio::sync::watch::error::RecvError;
use wattune_core::units::Seconds;

use super::advice::{DaemonAdvice, Stage};
use super::due::{Due, OtherClock, Reading};
use super::hold::Reason;
use crate::cli::daemon::Failure;

/// Current state of the command, for the daemon.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct StageReport {
    pub(super) stage: Stage,
    /// Reason for the stage, where it is known.
    pub(super) reason: Option<Reason>,
    /// Number of changes of the stage so far.
    pub(super) turn: u32,
}

/// The connection as the command's lifecycle uses it: reports stages, and reads the daemon's advice.
pub(super) struct DaemonChannel {
    reports: watch::Sender<StageReport>,
    newest: watch::Receiver<DaemonAdvice>,
}

impl DaemonChannel {
    /// Reports the stage that the command is in from now on.
    pub(super) fn report(&self, stage: Stage, reason: Option<Reason>) {
        self.reports.send_modify(|reported| *reported = StageReport { stage, reason, turn: reported.turn + 1 });
    }

    /// Returns the daemon's newest answer, and the failures since.
    pub(super) fn advice(&self) -> DaemonAdvice {
        self.newest.borrow().clone()
    }

    /// Waits until the advice has changed.
    ///
    /// # Errors
    /// If the reporter has ended, so that no advice will come.
    pub(super) async fn changed(&mut self) -> Result<(), RecvError> {
        self.newest.changed().await
    }

    /// Waits until the daemon has acknowledged this stage.
    pub(super) async fn acknowledged(&mut self, stage: Stage) {
        let _ = self.newest.wait_for(|advice| advice.acknowledged == Some(stage)).await;
    }
}

/// The connection as the reporter uses it, which talks to the daemon.
pub(super) struct Link {
    reports: watch::Receiver<StageReport>,
    advice: watch::Sender<DaemonAdvice>,
    /// Latest start of a command that is held.
    pub(super) latest: Option<Due>,
    /// Job and turn of the last report that the daemon has confirmed.
    confirmed: Option<(String, u32)>,
    /// The daemon's clock, if that is not this machine's.
    clock: Option<OtherClock>,
}

impl Link {
    /// Connects a command at this stage with its reporter.
    pub(super) fn new(stage: Stage, latest: Option<Due>) -> (DaemonChannel, Self) {
        let (reports, received) = watch::channel(StageReport { stage, reason: None, turn: 0 });
        let (advice, newest) = watch::channel(DaemonAdvice::default());
        let link = Self { reports: received, advice, latest, confirmed: None, clock: None };
        (DaemonChannel { reports, newest }, link)
    }

    /// Returns the newest reported stage.
    pub(super) fn reported(&self) -> StageReport {
        *self.reports.borrow()
    }

    /// Waits for the next reported stage.
    pub(super) async fn changed(&mut self) {
        if self.reports.changed().await.is_err() {
            std::future::pending().await
        }
    }

    /// Returns the reported stage if the daemon has not acknowledged it yet; `None` if it has.
    pub(super) fn unacknowledged(&self, job: &str) -> Option<StageReport> {
        let reported = self.reported();
        let is_confirmed = self.confirmed.as_ref().is_some_and(|(id, turn)| id == job && *turn == reported.turn);
        let acknowledged = self.advice.borrow().acknowledged;
        match (reported.stage, is_confirmed) {
            // Whatever the daemon has forgotten meanwhile, the command runs.
            (Stage::Running, _) => {
                acknowledged.is_some_and(|acknowledged| acknowledged != Stage::Running).then_some(reported)
            }
            (Stage::Suspended, false) => (acknowledged != Some(Stage::Suspended)).then_some(reported),
            // Another process has sent `begin` to the daemon: the command follows.
            (Stage::Suspended, true) | (Stage::Held, _) => None,
        }
    }

    /// Records that the daemon knows the reported stage, or has refused it for good.
    pub(super) fn confirm(&mut self, job: &str, reported: StageReport) {
        self.confirmed = Some((job.to_owned(), reported.turn));
    }

    /// Passes the daemon's view of a newly registered job on to the lifecycle.
    pub(super) fn registered(&mut self, job: &str, view: &serde_json::Value) {
        let job = job.to_owned();
        self.advice.send_modify(|advice| advice.job = Some(job));
        self.answered(view);
        if self.clock.is_some() {
            // The hours that the user gave are those of the daemon's clock.
            self.latest = self.advice.borrow().latest.or(self.latest);
        }
    }

    /// Sets the daemon's clock, as read from its status; `None` if it is this machine's clock.
    pub(super) fn set_clock(&mut self, clock: Option<OtherClock>) {
        self.clock = clock;
    }

    /// Returns the time on the daemon's clock until the latest start of a held command.
    pub(super) fn latest_left(&self) -> Option<Seconds> {
        let left = self.latest?.left(&Reading::now());
        // Before the daemon knows of it, the time is as the user gave it: on the daemon's clock.
        let clock = self.clock.filter(|_| self.advice.borrow().latest.is_some());
        Some(clock.map_or(left, |clock| clock.theirs(left)))
    }

    /// Passes an answer of the daemon on to the lifecycle.
    pub(super) fn answered(&self, answer: &serde_json::Value) {
        let (now, clock) = (Reading::now(), self.clock.as_ref());
        self.advice.send_modify(|advice| advice.apply(answer, &now, clock));
    }

    /// Counts a request that the daemon did not answer, or refused.
    pub(super) fn failed(&self, failure: &Failure) {
        let is_refused = matches!(failure, Failure::Refused { .. });
        self.advice.send_modify(|advice| {
            (advice.failures, advice.is_refused) = (advice.failures.saturating_add(1), is_refused)
        });
    }

    /// Counts a request that is not sent, because the daemon would refuse it again.
    pub(super) fn given_up(&self) {
        self.advice.send_modify(|advice| advice.failures = advice.failures.saturating_add(1));
    }

    /// Returns true if the daemon has answered the last request.
    pub(super) fn is_answered(&self) -> bool {
        self.advice.borrow().failures == 0
    }

    /// Returns true if the daemon's clock differs from this machine's: the daemon simulates another time or speed.
    pub(super) fn has_other_clock(&self) -> bool {
        self.clock.is_some()
    }

    /// Returns true if the daemon's last answer counted the command as running.
    pub(super) fn is_running(&self) -> bool {
        self.advice.borrow().acknowledged == Some(Stage::Running)
    }

    /// Marks the acknowledged stage as unknown until the daemon's next answer.
    pub(super) fn doubt(&self) {
        self.advice.send_modify(|advice| advice.acknowledged = None);
    }

    /// Passes on to the lifecycle whether all of the job's samples are done.
    pub(super) fn complete(&self, is_complete: bool) {
        self.advice.send_if_modified(|advice| std::mem::replace(&mut advice.is_complete, is_complete) != is_complete);
    }

    /// Passes on to the lifecycle that the daemon has acknowledged this stage.
    pub(super) fn acknowledged(&self, stage: Stage) {
        self.advice.send_modify(|advice| advice.acknowledged = Some(stage));
    }

    /// Returns the daemon's last views of the job's start (first) and of its suspensions (second).
    pub(super) fn views(&self) -> (serde_json::Value, serde_json::Value) {
        let advice = self.advice.borrow();
        (advice.start.clone(), advice.suspend.clone())
    }

    /// Passes on to the lifecycle that no job is registered any more.
    pub(super) fn lost(&self) {
        self.advice.send_modify(|advice| (advice.job, advice.acknowledged) = (None, None));
    }
}
