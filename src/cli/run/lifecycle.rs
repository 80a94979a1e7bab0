//! The lifecycle of a command that may wait for its start and be stopped meanwhile: held, run, suspended, resumed,
//! ended.

use std::io::IsTerminal as _;
use std::time::Duration;

use signal_hook::consts::SIGUSR1;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::advice::{DaemonAdvice, Stage, Wanted};
use super::allocation::Allocation;
use super::child::{self, Signals, children, is_ending, of_signal};
use super::due::{Due, Reading};
use super::environment::say;
use super::hold::{Announcement, Reason, describe_hold, describe_start, describe_suspension, why_start};
use super::launch::{Launcher, Started};
use super::link::DaemonChannel;
use super::wait_log::WaitLog;

/// Time between two readings of the clocks while the command waits.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// Longest time that a start or a stop waits until the daemon has acknowledged it.
const ACKNOWLEDGING: Duration = Duration::from_secs(2);
/// Time before its latest start at which a command begins to start: a daemon that does not answer delays it by
/// [`ACKNOWLEDGING`].
const STARTING: Duration = Duration::from_secs(3);
/// Time without output after the command's end after which this process stops waiting for more output.
const LAST_OUTPUT: Duration = Duration::from_secs(2);
/// Time in which the last progress of a command that has exited arrives: lines are searched once a second.
const LAST_PROGRESS: Duration = Duration::from_secs(2);
/// Number of requests to exit after which a command that ignores them is not asked again.
const MOST_IGNORED: u32 = 2;
/// Time after a start that SIGUSR1 caused in which that signal is not passed on: users and schedulers repeat it, and it ends
/// a command that does not handle it.
const REPEATED: Duration = Duration::from_secs(5);
/// Shortest wait for which a Slurm job is requeued, in seconds.
const SHORTEST_REQUEUE_S: f64 = 30.0;

/// Offer of the command to be suspended: to save its state and exit when it is asked to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stops {
    /// Number of the signal that asks the command to save and exit.
    pub(super) signal: i32,
    /// Time after the signal after which a command that still runs is considered not to react.
    pub(super) grace: Duration,
}

/// Result of [`Lifecycle::follow`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The command ended with this exit code.
    Done(u8),
    /// The command did not start; contains the exit code for that.
    NotStarted(u8),
    /// Slurm starts the command again later, in another process.
    Requeued,
}

/// Command, with its offers to wait for its start and to be suspended.
pub(super) struct Lifecycle<'a> {
    pub(super) launcher: &'a Launcher<'a>,
    pub(super) daemon: DaemonChannel,
    pub(super) signals: &'a mut Signals,
    /// Latest start; `None` for a command that is not held.
    pub(super) latest: Option<Due>,
    pub(super) stops: Option<Stops>,
    /// Slurm job that this process runs in, if the job can be requeued.
    pub(super) allocation: Option<Allocation>,
    pub(super) is_quiet: bool,
    pub(super) wait_log: WaitLog,
    /// Number of requests to exit that the command has ignored.
    pub(super) ignored: u32,
}

/// Start of the command.
#[derive(Clone, Copy, Debug, Default)]
struct Start {
    /// Reason for the start; `None` for a command that is not held.
    reason: Option<Reason>,
    /// True if this process has waited for the start.
    has_waited: bool,
}

/// End of a wait.
enum Waited {
    Start(Reason),
    Cancelled(u8),
    Requeued,
}

/// End of a process of the command.
enum Exited {
    /// The command ended by itself, or after a signal from its user.
    OfItself(u8),
    /// The command saved its state and exited, as the daemon requested.
    OnRequest(u8),
}

/// Request that the running command stop.
#[derive(Clone, Copy, Debug, PartialEq)]
enum StopRequest {
    /// There is none, or the command has ignored it.
    None,
    /// The daemon's, passed on to the command at this time.
    Sent(Instant),
    /// The user's. Contains the time of the daemon's request before it, unless the command has ignored that one.
    ByUser(Option<Instant>),
}

impl StopRequest {
    /// Returns the time of the daemon's request, to which the command is still to react.
    fn sent_at(self) -> Option<Instant> {
        match self {
            Self::None => None,
            Self::Sent(at) => Some(at),
            Self::ByUser(sent_at) => sent_at,
        }
    }

    /// Returns the state after a request of the user, which is for good.
    fn by_user(self) -> Self {
        Self::ByUser(self.sent_at())
    }

    /// Returns the state after the time in which the command was to react to the daemon's request.
    fn ignored(self) -> Self {
        match self {
            Self::None | Self::Sent(_) => Self::None,
            Self::ByUser(_) => Self::ByUser(None),
        }
    }
}

impl Lifecycle<'_> {
    /// Holds the command if `stage` says so, runs it, and does what the daemon requests until the command's end. With
    /// `start_now`, the command is not held.
    pub(super) async fn follow(&mut self, stage: Stage, start_now: bool) -> Ended {
        let mut start = Start::default();
        if stage == Stage::Held {
            start = match self.hold(start_now).await {
                Ok(start) => start,
                Err(ended) => return ended,
            };
        }
        // A job that another process has left was stopped before.
        let before = self.daemon.advice().suspend["stops"].as_u64().and_then(|stops| u32::try_from(stops).ok());
        let first = before.unwrap_or(0);
        let mut resumed = first;
        loop {
            let is_first = resumed == first;
            let without_start = |code| if is_first { Ended::NotStarted(code) } else { Ended::Done(code) };
            let is_acknowledged = self.report_stage(Stage::Running, start.reason).await;
            if let Some(why) = start.reason.filter(|_| is_first && start.has_waited) {
                self.say(&describe_start(why, &self.daemon.advice(), is_acknowledged));
            }
            // The user gave up while the daemon or Slurm was asked.
            if let Some(code) = self.signals.has_ended() {
                return without_start(code);
            }
            if start.reason.is_some() {
                // These asked for the start that happens now.
                self.signals.discard(SIGUSR1);
            }
            let job = self.daemon.advice().job;
            let started = match self.launcher.start(job.as_deref(), resumed) {
                Ok(started) => started,
                Err(code) => return without_start(code),
            };
            // Without a wait, the reason is the flag `--start-now`.
            let is_signalled = start.has_waited && start.reason == Some(Reason::StartNow);
            let code = match self.attend(started, is_signalled).await {
                Exited::OfItself(code) => return Ended::Done(code),
                Exited::OnRequest(code) => code,
            };
            self.wait_log.stopped(code);
            self.report_stage(Stage::Suspended, None).await;
            let reason = match self.wait(Stage::Suspended).await {
                Waited::Start(Reason::Planned) => Reason::Resumed,
                Waited::Start(reason) => reason,
                Waited::Cancelled(code) => return Ended::Done(code),
                Waited::Requeued => return Ended::Requeued,
            };
            start = Start { reason: Some(reason), has_waited: true };
            resumed += 1;
            self.wait_log.resumed();
            self.say(&format!("resumes the command, for the {} time", ordinal(resumed)));
        }
    }

    /// Holds the command until its start. With `start_now`, and in a batch script that Slurm has kept until the planned
    /// time, the start is at once.
    ///
    /// # Errors
    /// The end, if the command does not start in this process.
    async fn hold(&mut self, start_now: bool) -> Result<Start, Ended> {
        let is_again = self.allocation.as_ref().is_some_and(|allocation| allocation.is_restarted);
        let at_once = if start_now { Some(Reason::StartNow) } else { is_again.then_some(Reason::Planned) };
        let reason = match at_once {
            Some(reason) => reason,
            None => match self.wait(Stage::Held).await {
                Waited::Start(reason) => reason,
                Waited::Cancelled(code) => return Err(Ended::NotStarted(code)),
                Waited::Requeued => return Err(Ended::Requeued),
            },
        };
        self.wait_log.started(reason);
        Ok(Start { reason: Some(reason), has_waited: at_once.is_none() })
    }

    /// Reports to the daemon what the command does. Returns false if the daemon has not acknowledged it in time.
    async fn report_stage(&mut self, stage: Stage, reason: Option<Reason>) -> bool {
        self.daemon.report(stage, reason);
        if self.daemon.advice().job.is_none() {
            return false;
        }
        let has_offer = self.latest.is_some() || self.stops.is_some();
        !has_offer || timeout(ACKNOWLEDGING, self.daemon.acknowledged(stage)).await.is_ok()
    }

    /// Waits until the command is to start.
    async fn wait(&mut self, stage: Stage) -> Waited {
        let mut announcement = Announcement::to(std::io::stderr().is_terminal());
        // What the daemon said before it knew of the stop is no word about the resumption.
        let mut is_known = stage == Stage::Held;
        loop {
            let (advice, now) = (self.daemon.advice(), Reading::now());
            is_known |= advice.acknowledged == Some(Stage::Suspended) || advice.failures > 0;
            // The earlier one counts: a job that continues an earlier one keeps that one's latest start.
            let both = self.latest.into_iter().chain(advice.latest).filter(|_| stage == Stage::Held);
            let latest = both.min_by(|a, b| a.left(&now).get().total_cmp(&b.left(&now).get()));
            let begin = latest.map(|latest| latest.before(STARTING));
            if let Some(reason) = why_start(&advice, begin.as_ref(), &now).filter(|_| is_known) {
                return Waited::Start(reason);
            }
            if is_known && self.requeue(&advice, &now).await {
                return Waited::Requeued;
            }
            if is_known && announcement.is_due(&advice) {
                let pid = std::process::id();
                if stage == Stage::Held {
                    let expected = advice.start["expected_saving_pct"].as_f64();
                    self.wait_log.expected_saving_pct = self.wait_log.expected_saving_pct.or(expected);
                }
                self.say(&match stage {
                    Stage::Held => describe_hold(&advice, latest.as_ref(), pid),
                    _ => describe_suspension(&advice, pid),
                });
            }
            tokio::select! {
                () = sleep(CHECK_EVERY) => {}
                changed = self.daemon.changed() => if changed.is_err() { sleep(CHECK_EVERY).await },
                origin = self.signals.next() => match origin.signal {
                    SIGUSR1 => return Waited::Start(Reason::StartNow),
                    number if is_ending(number) => return Waited::Cancelled(of_signal(number)),
                    _ => {}
                },
            }
        }
    }

    /// Has Slurm start the batch script again at the planned time, so that the allocation is free meanwhile.
    async fn requeue(&mut self, advice: &DaemonAdvice, now: &Reading) -> bool {
        let Some(planned) = advice.planned.filter(|planned| planned.left(now).get() >= SHORTEST_REQUEUE_S) else {
            return false;
        };
        let Some(allocation) = self.allocation.take() else { return false };
        match allocation.requeue(planned.left(now), self.signals).await {
            Ok(message) => {
                self.say(&message);
                true
            }
            Err(why) => {
                self.say(&format!("{why}; the job waits in its allocation"));
                false
            }
        }
    }

    /// Waits for the end of the running command, passes signals on, and asks it to save and exit when the daemon wants that.
    /// `is_signalled` says that SIGUSR1 caused the start.
    async fn attend(&mut self, started: Started, is_signalled: bool) -> Exited {
        let Started { mut child, relays } = started;
        let begun = Instant::now();
        let mut request = StopRequest::None;
        let code = loop {
            let grace = self.stops.map_or(Duration::MAX, |stops| stops.grace);
            let sent_at = request.sent_at();
            let overdue = async {
                match sent_at {
                    Some(at) => sleep_until(at + grace).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                code = child.ended() => break code,
                origin = self.signals.next() => {
                    if is_ending(origin.signal) {
                        request = request.by_user();
                    }
                    let is_repeated = is_signalled && origin.signal == SIGUSR1 && begun.elapsed() < REPEATED;
                    if !is_repeated {
                        child.forward(&origin);
                    }
                }
                changed = self.daemon.changed() => {
                    if changed.is_err() {
                        sleep(CHECK_EVERY).await;
                    }
                    let advice = self.daemon.advice();
                    let is_wanted = advice.failures == 0 && advice.wanted == Wanted::Suspend;
                    let may_ask = request == StopRequest::None && self.ignored < MOST_IGNORED;
                    if let Some(stops) = self.stops.filter(|_| is_wanted && may_ask) {
                        self.say("asks the command to save and exit, to go on at a better time");
                        self.wait_log.stop_requested();
                        child.send(stops.signal);
                        request = StopRequest::Sent(Instant::now());
                    }
                }
                () = overdue => {
                    // What it does from here on, it does by itself.
                    (request, self.ignored) = (request.ignored(), self.ignored + 1);
                    self.say(&format!("the command has not exited within {} s, and keeps running", grace.as_secs()));
                }
            }
        };
        if let (StopRequest::Sent(_), Some(stops)) = (request, self.stops)
            && self.end_the_rest(stops).await
        {
            request = request.by_user();
        }
        self.wait_log.ran_s += begun.elapsed().as_secs_f64();
        if let Some(relays) = relays {
            tokio::select! {
                () = relays.finish(LAST_OUTPUT) => {}
                _ = self.signals.ending() => request = request.by_user(),
            }
        }
        if !matches!(request, StopRequest::Sent(_)) {
            return Exited::OfItself(code);
        }
        sleep(LAST_PROGRESS).await;
        // It was about to end anyway.
        if self.daemon.advice().is_complete { Exited::OfItself(code) } else { Exited::OnRequest(code) }
    }

    /// Asks the processes that the command has left behind, such as those of a shell script, to save and exit, and waits for
    /// them. Returns true if the user ended the job meanwhile.
    async fn end_the_rest(&mut self, stops: Stops) -> bool {
        let left = children();
        for pid in &left {
            let _ = child::send(*pid, stops.signal);
        }
        let until = Instant::now() + stops.grace;
        while !children().is_empty() {
            tokio::select! {
                () = sleep(CHECK_EVERY / 10) => {}
                origin = self.signals.next() => {
                    for pid in &left {
                        let _ = child::send(*pid, origin.signal);
                    }
                    if is_ending(origin.signal) {
                        return true;
                    }
                }
            }
            child::collect();
            if Instant::now() >= until {
                self.say(&format!("processes of the command still run: {:?}", children()));
                return false;
            }
        }
        false
    }

    fn say(&self, message: &str) {
        if !self.is_quiet {
            say(message);
        }
    }
}

fn ordinal(number: u32) -> String {
    let end = match (number % 10, number % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    format!("{number}{end}")
}
