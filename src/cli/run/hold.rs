//! Decides when a command that waits is to start, and describes the wait.

use chrono::{DateTime, Local, Utc};

use super::due::{Due, Reading};
use super::wish::{Wanted, Wish};

/// Number of requests without an answer after which the planned time counts, or the daemon counts as gone.
const MISSED: u32 = 2;
/// Number of requests without an answer after which a command without a planned time does not wait any longer: a minute
/// or so, in which a daemon that is restarted has come back.
const MISSED_WITHOUT_PLAN: u32 = 30;

/// Reason why a command starts now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// The command did not offer to wait, or the user ended the wait.
    StartNow,
    /// The latest start has come.
    LatestStart,
    /// The daemon requests the start, or the planned time has come and the daemon does not answer.
    Planned,
    /// The command is started again after a suspension.
    Resumed,
    /// No daemon answers, so that none plans the start.
    NoDaemon,
}

impl Reason {
    /// Returns true if the daemon's API accepts this reason.
    pub(super) fn is_known_to_daemon(self) -> bool {
        self != Self::NoDaemon
    }

    /// Returns the reason's name in the API and in the summary.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::StartNow => "start_now",
            Self::LatestStart => "latest_start",
            Self::Planned => "planned",
            Self::Resumed => "resumed",
            Self::NoDaemon => "no_daemon",
        }
    }
}

/// Returns the reason why a waiting command is to start now; `None` if it is to wait further.
///
/// While the daemon answers, its request decides; while it does not, the last planned time does. At the latest start the
/// command starts in any case.
pub(super) fn why_start(wish: &Wish, latest: Option<&Due>, now: &Reading) -> Option<Reason> {
    if latest.is_some_and(|latest| latest.has_passed(now)) {
        return Some(Reason::LatestStart);
    }
    if wish.failures == 0 && wish.wanted == Wanted::Run {
        return Some(Reason::Planned);
    }
    match wish.planned {
        Some(planned) => (wish.failures >= MISSED && planned.has_passed(now)).then_some(Reason::Planned),
        None => (wish.failures >= MISSED_WITHOUT_PLAN).then_some(Reason::NoDaemon),
    }
}

/// Decides when a message announces a wait: once, and again when the wait changes.
#[derive(Debug)]
pub(super) struct Announcement {
    /// Smallest change of the planned time that is announced, in seconds.
    smallest_s: f64,
    /// Planned time, and whether the daemon answered, of the last announcement.
    last: Option<(Option<DateTime<Utc>>, bool)>,
}

impl Announcement {
    /// Creates the state before the first announcement. A log file gets fewer announcements than a terminal.
    pub(super) fn to(is_terminal: bool) -> Self {
        Self { smallest_s: if is_terminal { 60.0 } else { 900.0 }, last: None }
    }

    /// Returns whether this wait differs from the one that was announced last.
    pub(super) fn is_due(&mut self, wish: &Wish) -> bool {
        let new = (wish.planned.map(|planned| planned.wall()), wish.failures < MISSED);
        let is_new = match self.last {
            None => true,
            Some((_, answered)) if answered != new.1 => true,
            Some((Some(old), _)) => new.0.is_none_or(|at| (at - old).as_seconds_f64().abs() >= self.smallest_s),
            Some((None, _)) => new.0.is_some(),
        };
        if is_new {
            self.last = Some(new);
        }
        is_new
    }
}

/// Describes the wait for the start, and how the user can end it.
pub(super) fn describe_hold(wish: &Wish, latest: Option<&Due>, pid: u32) -> String {
    let number = |key: &str| wish.advice[key].as_f64();
    let staleness = describe_staleness(wish);
    let mut text = format!("held until {}{staleness}", until(wish));
    if let Some(saving) = number("expected_saving_pct").filter(|saving| staleness.is_empty() && *saving > 0.0) {
        text += &format!(", {saving:.0} % less carbon expected than now");
        if let (Some(low), Some(high)) = (number("saving_low_pct"), number("saving_high_pct")) {
            text += &format!(" (80 % interval {low:.0} to {high:.0} %)");
        }
    }
    if let Some(latest) = latest {
        text += &format!("; latest start {}", local(latest.wall()));
    }
    text + &format!("; Ctrl-C cancels, `kill -USR1 {pid}` starts now")
}

/// Describes the end of a hold. A planned start has the daemon's reason, if it gave one.
pub(super) fn describe_start(reason: Reason, wish: &Wish, is_acknowledged: bool) -> String {
    let why = match reason {
        Reason::StartNow => "as its user asked",
        Reason::LatestStart => "its latest start has come",
        Reason::Planned | Reason::Resumed => match wish.advice["reason"].as_str().filter(|reason| !reason.is_empty()) {
            Some(reason) => &format!("as planned ({})", reason.trim_end_matches('.')),
            None => "its planned start has come",
        },
        Reason::NoDaemon => "no daemon plans its start",
    };
    if is_acknowledged {
        return format!("starts the command: {why}");
    }
    format!("starts the command: {why}; the daemon {} now, and will be informed later", failing(wish))
}

/// Describes a suspension, and how the user can end it.
pub(super) fn describe_suspension(wish: &Wish, pid: u32) -> String {
    format!(
        "suspended until {}{}; Ctrl-C ends the job, `kill -USR1 {pid}` resumes now",
        until(wish),
        describe_staleness(wish)
    )
}

/// Formats the planned end of a wait.
fn until(wish: &Wish) -> String {
    wish.planned.map_or_else(|| "the daemon says when".into(), |planned| local(planned.wall()))
}

/// Describes why the planned end of a wait may be out of date; empty while the daemon answers.
fn describe_staleness(wish: &Wish) -> String {
    if wish.failures < MISSED {
        return String::new();
    }
    format!(", by the daemon's last plan; it {} now", failing(wish))
}

/// Describes what the daemon does with the command's messages while they fail.
fn failing(wish: &Wish) -> &'static str {
    if wish.is_refused { "refuses this job's messages" } else { "does not answer" }
}

/// Formats a time in the local time zone, with its offset from UTC, which distinguishes the two equal hours of a night
/// in which clocks are set back.
fn local(at: DateTime<Utc>) -> String {
    at.with_timezone(&Local).format("%a %H:%M %:z").to_string()
}

/// Formats a time that may be years away in the local time zone.
pub(super) fn local_with_date(at: DateTime<Utc>) -> String {
    at.with_timezone(&Local).format("%F %H:%M %:z").to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use wattune_core::units::Seconds;

    use super::*;

    fn now() -> Reading {
        Reading { wall: DateTime::UNIX_EPOCH, boot: Seconds::new(100.0) }
    }

    fn due(seconds: f64) -> Due {
        Due::after(&now(), Seconds::new(seconds))
    }

    #[test]
    fn a_command_starts_when_the_daemon_says_so_or_is_gone() {
        let wish = |wanted, failures, planned: Option<f64>| Wish {
            wanted,
            failures,
            planned: planned.map(due),
            ..Wish::default()
        };
        let table = [
            (wish(Wanted::Hold, 0, Some(60.0)), 99.0, None),
            (wish(Wanted::Run, 0, Some(60.0)), 99.0, Some(Reason::Planned)),
            // It plans anew, and holds past the time that it planned before.
            (wish(Wanted::Hold, 0, Some(-60.0)), 99.0, None),
            (wish(Wanted::Hold, 1, Some(-60.0)), 99.0, None),
            (wish(Wanted::Hold, 2, Some(-60.0)), 99.0, Some(Reason::Planned)),
            (wish(Wanted::Hold, 500, Some(60.0)), 99.0, None),
            (wish(Wanted::Hold, 29, None), 99.0, None),
            (wish(Wanted::Hold, 30, None), 99.0, Some(Reason::NoDaemon)),
            // The latest start counts in every case.
            (wish(Wanted::Hold, 0, Some(60.0)), 0.0, Some(Reason::LatestStart)),
            (wish(Wanted::Hold, 9, Some(60.0)), -1.0, Some(Reason::LatestStart)),
            (wish(Wanted::Suspend, 0, None), -1.0, Some(Reason::LatestStart)),
        ];
        for (wish, latest, expected) in table {
            assert_eq!(why_start(&wish, Some(&due(latest)), &now()), expected, "{wish:?}, latest in {latest} s");
        }
    }

    #[test]
    fn an_answer_is_announced_when_it_changes() {
        let wish = |seconds: f64, failures| Wish { planned: Some(due(seconds)), failures, ..Wish::default() };
        for (is_terminal, expected) in [(true, [true, false, true, true]), (false, [true, false, false, true])] {
            let mut announcement = Announcement::to(is_terminal);
            let each = [wish(0.0, 0), wish(59.0, 1), wish(600.0, 0), wish(600.0, 2)];
            assert_eq!(each.map(|wish| announcement.is_due(&wish)), expected, "terminal: {is_terminal}");
        }
    }

    #[test]
    fn a_wait_is_described() {
        let advice = json!({"expected_saving_pct": 12.3, "saving_low_pct": 8.4, "saving_high_pct": 15.6});
        let wish = Wish { planned: Some(due(60.0)), advice, ..Wish::default() };
        let text = describe_hold(&wish, Some(&due(3600.0)), 7);
        for part in ["held until ", "12 % less carbon", "interval 8 to 16 %", "latest start", "kill -USR1 7"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let silent = Wish { failures: 2, ..wish };
        assert!(describe_hold(&silent, None, 7).contains("does not answer"));
        assert!(describe_suspension(&silent, 7).contains("does not answer"));
        let text = describe_start(Reason::LatestStart, &silent, false);
        assert!(text.contains("latest start has come; the daemon does not answer now"), "{text}");
        assert!(describe_start(Reason::Planned, &silent, true).ends_with("its planned start has come"));
        // A daemon that answers, but accepts nothing.
        let refused = Wish { is_refused: true, ..silent };
        for text in [
            describe_hold(&refused, None, 7),
            describe_suspension(&refused, 7),
            describe_start(Reason::LatestStart, &refused, false),
        ] {
            assert!(text.contains("refuses this job's messages now") && !text.contains("answer"), "{text}");
        }
        let advice = json!({"reason": "Starting at once: no later start is expected to be better."});
        let text = describe_start(Reason::Planned, &Wish { advice, ..Wish::default() }, true);
        assert!(text.ends_with("as planned (Starting at once: no later start is expected to be better)"), "{text}");
    }
}
