//! The daemon's advice to a command that offered to wait or to stop, as of its last answer.

use serde_json::Value;

use super::due::{Due, OtherClock, Reading};
use crate::cli::values::time_of;

/// Stage of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The command has not begun, and waits for its start.
    Held,
    /// The command runs.
    Running,
    /// The command has saved its state and exited, and waits until it is started again.
    Suspended,
}

impl Stage {
    /// Reads the stage from a job's phase.
    pub(super) fn of_phase(phase: &Value) -> Self {
        match phase.as_str() {
            Some("held") => Self::Held,
            Some("suspended") => Self::Suspended,
            _ => Self::Running,
        }
    }
}

/// The daemon's request to the command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Wanted {
    /// The command is not to run now.
    Hold,
    /// The command is to run.
    #[default]
    Run,
    /// The command is to save its state and exit.
    Suspend,
}

/// The daemon's last answer about the command, which the command follows while the daemon answers, and the number of
/// failed requests since.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct DaemonAdvice {
    pub(super) wanted: Wanted,
    /// Planned time of the next change; `None` if the daemon did not name one.
    pub(super) planned: Option<Due>,
    /// Latest start that the daemon knows, which may be that of an earlier job with the same key.
    pub(super) latest: Option<Due>,
    /// Id of the job; `None` if none is registered.
    pub(super) job: Option<String>,
    /// The stage that the daemon has acknowledged; `None` without a job.
    pub(super) acknowledged: Option<Stage>,
    /// True if all of the job's samples are done.
    pub(super) is_complete: bool,
    /// Number of requests since the last answer that the daemon did not answer, or refused.
    pub(super) failures: u32,
    /// True if the daemon refused the last of these requests, and so is there.
    pub(super) is_refused: bool,
    /// The chosen start, as in `start` of the job's view; null if there is none.
    pub(super) start: Value,
    /// The stops so far, as in `suspend` of the job's view; null if there are none.
    pub(super) suspend: Value,
}

impl DaemonAdvice {
    /// Applies an answer of the daemon: a job's view, or the answer to a report. `clock` is the daemon's clock if it
    /// differs from this machine's.
    pub(super) fn apply(&mut self, answer: &Value, now: &Reading, clock: Option<&OtherClock>) {
        (self.failures, self.is_refused) = (0, false);
        if answer["phase"].is_string() {
            self.acknowledged = Some(Stage::of_phase(&answer["phase"]));
        }
        for (kept, key) in [(&mut self.start, "start"), (&mut self.suspend, "suspend")] {
            if answer[key].is_object() {
                *kept = answer[key].clone();
            }
        }
        self.wanted = match answer["wanted"].as_str() {
            Some("hold") => Wanted::Hold,
            Some("suspend") => Wanted::Suspend,
            Some(_) => Wanted::Run,
            // A view says it by the job's phase.
            None if matches!(self.acknowledged, Some(Stage::Held | Stage::Suspended)) => Wanted::Hold,
            None => Wanted::Run,
        };
        let until = time_of(&answer["until"]).or_else(|| match self.acknowledged? {
            Stage::Held => time_of(&answer["start"]["start_at"]),
            Stage::Suspended => time_of(&answer["suspend"]["resume_at"]),
            Stage::Running => None,
        });
        let here = |theirs| clock.map_or_else(|| Due::at(now, theirs), |clock| clock.here(theirs));
        self.planned = until.map(here);
        let latest = time_of(&answer["latest_start"]).or_else(|| time_of(&answer["start"]["latest_start"]));
        self.latest = latest.map(here).or(self.latest);
    }
}

#[cfg(test)]
mod tests {
    use chrono::{DateTime, TimeDelta};
    use serde_json::json;
    use wattune_core::units::Seconds;

    use super::*;

    #[test]
    fn answers_are_read() {
        let now = Reading { wall: DateTime::UNIX_EPOCH, boot: Seconds::new(9.0) };
        let table = [
            (json!({"phase": "held", "wanted": "hold", "until": "1970-01-01T01:00:00Z"}), Wanted::Hold, Some(3600.0)),
            (json!({"phase": "held", "start": {"start_at": "1970-01-01T02:00:00Z"}}), Wanted::Hold, Some(7200.0)),
            (json!({"phase": "suspended", "suspend": {"resume_at": null}}), Wanted::Hold, None),
            (json!({"phase": "planned", "wanted": "suspend", "until": null}), Wanted::Suspend, None),
            (json!({"phase": "planned", "wanted": "something new"}), Wanted::Run, None),
            (json!({"phase": "waiting"}), Wanted::Run, None),
        ];
        for (answer, wanted, planned) in table {
            let mut advice = DaemonAdvice { failures: 3, is_refused: true, ..DaemonAdvice::default() };
            advice.apply(&answer, &now, None);
            assert_eq!((advice.wanted, advice.failures, advice.is_refused), (wanted, 0, false), "{answer}");
            assert_eq!(advice.planned.map(|due| due.left(&now).get()), planned, "{answer}");
        }
        // A daemon whose clock is a year ahead.
        let mut advice = DaemonAdvice::default();
        let ahead = OtherClock::of(&json!({"now": "1971-01-01T00:00:00Z"}), now);
        advice.apply(&json!({"phase": "held", "until": "1971-01-01T00:01:00Z"}), &now, ahead.as_ref());
        assert_eq!(advice.planned.map(|due| due.wall()), Some(now.wall + TimeDelta::minutes(1)));
    }
}
