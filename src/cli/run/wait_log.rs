//! The log of a command's waits and stops, for the summary.

use chrono::{DateTime, Utc};
use serde::Serialize;

use super::due::Reading;
use super::hold::Reason;

/// Waiting times and suspensions of a command so far.
#[derive(Clone, Debug, Serialize)]
pub(super) struct WaitLog {
    /// Time at which the command asked for its start; `None` if it was not held.
    pub(super) asked_at: Option<DateTime<Utc>>,
    /// Time of the first start; `None` if the command was not held, or did not start.
    pub(super) started_at: Option<DateTime<Utc>>,
    /// Reason for the first start: as in the API, or `no_daemon`.
    pub(super) start_reason: Option<&'static str>,
    /// Reduction of emissions in percent that the daemon expected of the wait when it began; `None` if it was not known.
    /// If carbon and price are weighed, it may be zero or negative.
    pub(super) expected_saving_pct: Option<f64>,
    pub(super) stops: Vec<Stop>,
    /// Time in seconds for which the command has run, on the monotonic clock, which stands still while the machine sleeps.
    #[serde(skip)]
    pub(super) ran_s: f64,
}

/// One suspension.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Stop {
    /// Time at which the command was asked to save and exit.
    pub(super) asked_at: DateTime<Utc>,
    /// Time at which the command had exited; `None` if it did not exit.
    pub(super) stopped_at: Option<DateTime<Utc>>,
    pub(super) exit_code: Option<u8>,
    /// Time at which the command was started again; `None` if it was not.
    pub(super) resumed_at: Option<DateTime<Utc>>,
}

impl WaitLog {
    /// Creates the log of a command; `is_held` is true if the command waits for its start.
    pub(super) fn new(is_held: bool) -> Self {
        let asked_at = is_held.then(|| Reading::now().wall);
        Self {
            asked_at,
            started_at: None,
            start_reason: None,
            expected_saving_pct: None,
            stops: Vec::new(),
            ran_s: 0.0,
        }
    }

    /// Records the end of the wait for the start.
    pub(super) fn started(&mut self, reason: Reason) {
        (self.started_at, self.start_reason) = (Some(Reading::now().wall), Some(reason.name()));
    }

    /// Records that the command was asked to save and exit.
    pub(super) fn stop_requested(&mut self) {
        let asked_at = Reading::now().wall;
        self.stops.push(Stop { asked_at, stopped_at: None, exit_code: None, resumed_at: None });
    }

    /// Records that the command has exited after a request to save and exit.
    pub(super) fn stopped(&mut self, code: u8) {
        if let Some(stop) = self.stops.last_mut() {
            (stop.stopped_at, stop.exit_code) = (Some(Reading::now().wall), Some(code));
        }
    }

    /// Records that the command was started again.
    pub(super) fn resumed(&mut self) {
        if let Some(stop) = self.stops.last_mut() {
            stop.resumed_at = Some(Reading::now().wall);
        }
    }

    /// Returns the time in seconds for which the command was held before its start.
    pub(super) fn held_s(&self) -> Option<f64> {
        Some((self.started_at? - self.asked_at?).as_seconds_f64())
    }

    /// Returns the number of suspensions, and the total time in seconds for which the command did not run because of
    /// them.
    pub(super) fn gone_s(&self) -> (usize, f64) {
        let spans = self.stops.iter().filter_map(|stop| Some((stop.resumed_at? - stop.stopped_at?).as_seconds_f64()));
        let spans: Vec<f64> = spans.collect();
        (spans.len(), spans.iter().sum())
    }
}
