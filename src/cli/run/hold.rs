//! Decides when a command that waits is to start, and describes the wait.

use chrono::{DateTime, Local, Utc};

use super::advice::{DaemonAdvice, Wanted};
use super::due::{Due, Reading};

/// Number of requests without an answer after which the planned time counts, or the daemon counts as gone.
const MISSED: u32 = 2;
/// Number of requests without an answer after which a command without a planned time does not wait any longer: a minute
/// or so, in which a daemon that is restarted has come back.
const MISSED_WITHOUT_PLAN: u32 = 30;
/// Expected change of emissions, in percent, above which it is stated: a smaller one would be shown as 0 %.
const STATED_PCT: f64 = 0.5;

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
pub(super) fn why_start(advice: &DaemonAdvice, latest: Option<&Due>, now: &Reading) -> Option<Reason> {
    if latest.is_some_and(|latest| latest.has_passed(now)) {
        return Some(Reason::LatestStart);
    }
    if advice.failures == 0 && advice.wanted == Wanted::Run {
        return Some(Reason::Planned);
    }
    match advice.planned {
        Some(planned) => (advice.failures >= MISSED && planned.has_passed(now)).then_some(Reason::Planned),
        None => (advice.failures >= MISSED_WITHOUT_PLAN).then_some(Reason::NoDaemon),
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
    pub(super) fn is_due(&mut self, advice: &DaemonAdvice) -> bool {
        let new = (advice.planned.map(|planned| planned.wall()), advice.failures < MISSED);
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
pub(super) fn describe_hold(advice: &DaemonAdvice, latest: Option<&Due>, pid: u32) -> String {
    let number = |key: &str| advice.start[key].as_f64();
    let staleness = describe_staleness(advice);
    let mut text = format!("held until {}{staleness}", until(advice));
    if let Some(saving) = number("expected_saving_pct").filter(|_| staleness.is_empty()) {
        let is_cleaner = saving > STATED_PCT;
        // Carbon and price are weighed, or other jobs come first: the daemon says which.
        if let Some(reason) = reason_of(advice).filter(|_| !is_cleaner) {
            // Without the start, which stands before the reason.
            let why = reason.split_once(": ").map_or(reason, |(_, why)| why);
            text += &format!(": {}", why.trim_end_matches('.'));
        }
        if let Some(change) = describe_change(saving) {
            text += &format!(", {change} expected than now");
        }
        let interval = number("saving_low_pct").zip(number("saving_high_pct"));
        if let Some((low, high)) = interval.filter(|_| is_cleaner) {
            text += &format!(" (80 % interval {low:.0} to {high:.0} %)");
        }
    }
    if let Some(latest) = latest {
        text += &format!("; latest start {}", local(latest.wall()));
    }
    text + &format!("; Ctrl-C cancels, `kill -USR1 {pid}` starts now")
}

/// Describes an expected saving of emissions, which is negative for a loss; `None` if it is too small to state.
pub(super) fn describe_change(saving_pct: f64) -> Option<String> {
    let less = if saving_pct < 0.0 { "more" } else { "less" };
    (saving_pct.abs() > STATED_PCT).then(|| format!("{:.0} % {less} carbon", saving_pct.abs()))
}

/// Returns the daemon's reason for the start, in one sentence; `None` if it gave none.
fn reason_of(advice: &DaemonAdvice) -> Option<&str> {
    advice.start["reason"].as_str().filter(|reason| !reason.is_empty())
}

/// Describes the end of a hold. A planned start has the daemon's reason, if it gave one.
pub(super) fn describe_start(reason: Reason, advice: &DaemonAdvice, is_acknowledged: bool) -> String {
    let why = match reason {
        Reason::StartNow => "as its user asked",
        Reason::LatestStart => "its latest start has come",
        Reason::Planned | Reason::Resumed => match reason_of(advice) {
            Some(reason) => &format!("as planned ({})", reason.trim_end_matches('.')),
            None => "its planned start has come",
        },
        Reason::NoDaemon => "no daemon plans its start",
    };
    if is_acknowledged {
        return format!("starts the command: {why}");
    }
    format!("starts the command: {why}; the daemon {} now, and will be informed later", failing(advice))
}

/// Describes a suspension, and how the user can end it.
pub(super) fn describe_suspension(advice: &DaemonAdvice, pid: u32) -> String {
    format!(
        "suspended until {}{}; Ctrl-C ends the job, `kill -USR1 {pid}` resumes now",
        until(advice),
        describe_staleness(advice)
    )
}

/// Formats the planned end of a wait.
fn until(advice: &DaemonAdvice) -> String {
    advice.planned.map_or_else(|| "the daemon says when".into(), |planned| local(planned.wall()))
}

/// Describes why the planned end of a wait may be out of date; empty while the daemon answers.
fn describe_staleness(advice: &DaemonAdvice) -> String {
    if advice.failures < MISSED {
        return String::new();
    }
    format!(", by the daemon's last plan; it {} now", failing(advice))
}

/// Describes what the daemon does with the command's messages while they fail.
fn failing(advice: &DaemonAdvice) -> &'static str {
    if advice.is_refused { "refuses this job's messages" } else { "does not answer" }
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
        let advice = |wanted, failures, planned: Option<f64>| DaemonAdvice {
            wanted,
            failures,
            planned: planned.map(due),
            ..DaemonAdvice::default()
        };
        let table = [
            (advice(Wanted::Hold, 0, Some(60.0)), 99.0, None),
            (advice(Wanted::Run, 0, Some(60.0)), 99.0, Some(Reason::Planned)),
            // It plans anew, and holds past the time that it planned before.
            (advice(Wanted::Hold, 0, Some(-60.0)), 99.0, None),
            (advice(Wanted::Hold, 1, Some(-60.0)), 99.0, None),
            (advice(Wanted::Hold, 2, Some(-60.0)), 99.0, Some(Reason::Planned)),
            (advice(Wanted::Hold, 500, Some(60.0)), 99.0, None),
            (advice(Wanted::Hold, 29, None), 99.0, None),
            (advice(Wanted::Hold, 30, None), 99.0, Some(Reason::NoDaemon)),
            // The latest start counts in every case.
            (advice(Wanted::Hold, 0, Some(60.0)), 0.0, Some(Reason::LatestStart)),
            (advice(Wanted::Hold, 9, Some(60.0)), -1.0, Some(Reason::LatestStart)),
            (advice(Wanted::Suspend, 0, None), -1.0, Some(Reason::LatestStart)),
        ];
        for (advice, latest, expected) in table {
            assert_eq!(why_start(&advice, Some(&due(latest)), &now()), expected, "{advice:?}, latest in {latest} s");
        }
    }

    #[test]
    fn an_answer_is_announced_when_it_changes() {
        let advice =
            |seconds: f64, failures| DaemonAdvice { planned: Some(due(seconds)), failures, ..DaemonAdvice::default() };
        for (is_terminal, expected) in [(true, [true, false, true, true]), (false, [true, false, false, true])] {
            let mut announcement = Announcement::to(is_terminal);
            let each = [advice(0.0, 0), advice(59.0, 1), advice(600.0, 0), advice(600.0, 2)];
            assert_eq!(each.map(|advice| announcement.is_due(&advice)), expected, "terminal: {is_terminal}");
        }
    }

    #[test]
    fn a_wait_is_described() {
        let start = json!({"expected_saving_pct": 12.3, "saving_low_pct": 8.4, "saving_high_pct": 15.6});
        let advice = DaemonAdvice { planned: Some(due(60.0)), start, ..DaemonAdvice::default() };
        let text = describe_hold(&advice, Some(&due(3600.0)), 7);
        for part in ["held until ", "12 % less carbon", "interval 8 to 16 %", "latest start", "kill -USR1 7"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let silent = DaemonAdvice { failures: 2, ..advice };
        assert!(describe_hold(&silent, None, 7).contains("does not answer"));
        assert!(describe_suspension(&silent, 7).contains("does not answer"));
        let text = describe_start(Reason::LatestStart, &silent, false);
        assert!(text.contains("latest start has come; the daemon does not answer now"), "{text}");
        assert!(describe_start(Reason::Planned, &silent, true).ends_with("its planned start has come"));
        // A daemon that answers, but accepts nothing.
        let refused = DaemonAdvice { is_refused: true, ..silent };
        for text in [
            describe_hold(&refused, None, 7),
            describe_suspension(&refused, 7),
            describe_start(Reason::LatestStart, &refused, false),
        ] {
            assert!(text.contains("refuses this job's messages now") && !text.contains("answer"), "{text}");
        }
        let start = json!({"reason": "Starting at once: no later start is expected to be better."});
        let text = describe_start(Reason::Planned, &DaemonAdvice { start, ..DaemonAdvice::default() }, true);
        assert!(text.ends_with("as planned (Starting at once: no later start is expected to be better)"), "{text}");
    }

    #[test]
    fn a_wait_that_saves_no_carbon_is_described_by_its_reason() {
        let priced = "Starting at 2026-11-26 02:10 UTC: carbon and price, as weighed, are expected to be 3.2 % lower \
                      than when starting at once.";
        let priced_why = ": carbon and price, as weighed, are expected to be 3.2 % lower than when starting at once";
        let table = [
            (12.0, priced, ", 12 % less carbon expected than now (80 % interval 1 to 2 %);".to_owned()),
            (0.5, priced, format!("{priced_why};")),
            (0.0, priced, format!("{priced_why};")),
            (-4.2, priced, format!("{priced_why}, 4 % more carbon expected than now;")),
            (-0.2, "", ";".to_owned()),
        ];
        for (saving, reason, expected) in table {
            let start = json!({
                "expected_saving_pct": saving, "saving_low_pct": 1.0, "saving_high_pct": 2.0, "reason": reason,
            });
            let advice = DaemonAdvice { planned: Some(due(60.0)), start, ..DaemonAdvice::default() };
            let until = format!("held until {}{expected} Ctrl-C", local(due(60.0).wall()));
            let text = describe_hold(&advice, None, 7);
            assert!(text.starts_with(&until), "{until}: {text}");
        }
    }
}
