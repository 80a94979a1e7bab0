//! The waits and stops of a command, for the summary.

use chrono::{DateTime, Utc};
use serde::Serialize;

use super::due::Reading;
use super::hold::Reason;

/// Waits and stops of a command so far.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Journal {
    /// Time at which the command asked for its start; `None` if it was not held.
    pub(super) asked_at: Option<DateTime<Utc>>,
    /// Time of the first start; `None` if the command was not held, or did not start.
    pub(super) started_at: Option<DateTime<Utc>>,
    /// Reason for that start, as in the API, or `no_daemon`.
    pub(super) start_reason: Option<&'static str>,
    pub(super) stops: Vec<Stop>,
}

/// One stop.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Stop {
    /// Time at which the command was asked to save and exit.
    pub(super) asked_at: DateTime<Utc>,
    /// Time at which it had exited; `None` if it did not.
    pub(super) stopped_at: Option<DateTime<Utc>>,
    pub(super) exit_code: Option<u8>,
    /// Time at which it was started again; `None` if it was not.
    pub(super) resumed_at: Option<DateTime<Utc>>,
}

impl Journal {
    /// Begins the journal of a command that is held, or is not.
    pub(super) fn new(is_held: bool) -> Self {
        let asked_at = is_held.then(|| Reading::now().wall);
        Self { asked_at, started_at: None, start_reason: None, stops: Vec::new() }
    }

    /// Records the end of the hold.
    pub(super) fn started(&mut self, reason: Reason) {
        (self.started_at, self.start_reason) = (Some(Reading::now().wall), Some(reason.name()));
    }

    /// Records that the command was asked to save and exit.
    pub(super) fn asked(&mut self) {
        let asked_at = Reading::now().wall;
        self.stops.push(Stop { asked_at, stopped_at: None, exit_code: None, resumed_at: None });
    }

    /// Records that it has exited.
    pub(super) fn stopped(&mut self, code: u8) {
        if let Some(stop) = self.stops.last_mut() {
            (stop.stopped_at, stop.exit_code) = (Some(Reading::now().wall), Some(code));
        }
    }

    /// Records that it was started again.
    pub(super) fn resumed(&mut self) {
        if let Some(stop) = self.stops.last_mut() {
            stop.resumed_at = Some(Reading::now().wall);
        }
    }

    /// Returns the time in seconds for which the command was held before its start.
    pub(super) fn held_s(&self) -> Option<f64> {
        Some((self.started_at? - self.asked_at?).as_seconds_f64())
    }

    /// Returns the number of stops, and the time in seconds for which the command was gone.
    pub(super) fn gone_s(&self) -> (usize, f64) {
        let spans = self.stops.iter().filter_map(|stop| Some((stop.resumed_at? - stop.stopped_at?).as_seconds_f64()));
        let spans: Vec<f64> = spans.collect();
        (spans.len(), spans.iter().sum())
    }
}
