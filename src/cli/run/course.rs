//! The course of a command that may wait for its start and be stopped meanwhile: held, run, suspended, resumed, ended.

use std::io::IsTerminal as _;
use std::time::Duration;

use signal_hook::consts::SIGUSR1;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::allocation::Allocation;
use super::child::{self, Signals, children, is_ending, of_signal};
use super::due::{Due, Reading};
use super::environment::say;
use super::hold::{Announcement, Reason, describe_hold, describe_start, describe_suspension, why_start};
use super::journal::Journal;
use super::launch::{Launcher, Started};
use super::link::Guide;
use super::wish::{Stage, Wanted, Wish};

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

/// Result of [`Course::follow`].
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
pub(super) struct Course<'a> {
    pub(super) launcher: &'a Launcher<'a>,
    pub(super) guide: Guide,
    pub(super) signals: &'a mut Signals,
    /// Latest start; `None` for a command that is not held.
    pub(super) latest: Option<Due>,
    pub(super) stops: Option<Stops>,
    /// Slurm job that this process runs in, if the job can be requeued.
    pub(super) allocation: Option<Allocation>,
    pub(super) is_quiet: bool,
    pub(super) journal: Journal,
    /// Number of requests to exit that the command has ignored.
    pub(super) ignored: u32,
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

impl Course<'_> {
    /// Holds the command if `stage` says so, runs it, and does what the daemon requests until the command's end. With
    /// `start_now`, the command is not held.
    pub(super) async fn follow(&mut self, stage: Stage, start_now: bool) -> Ended {
        let mut reason = None;
        let mut held = None;
        if stage == Stage::Held {
            let is_again = self.allocation.as_ref().is_some_and(|allocation| allocation.is_restarted);
            let waited = match start_now {
                true => Waited::Start(Reason::StartNow),
                // Slurm has kept it until the planned time.
                false if is_again => Waited::Start(Reason::Planned),
                false => {
                    let waited = self.wait(Stage::Held).await;
                    if let Waited::Start(reason) = waited {
                        held = Some(reason);
                    }
                    waited
                }
            };
            reason = match waited {
                Waited::Start(reason) => Some(reason),
                Waited::Cancelled(code) => return Ended::NotStarted(code),
                Waited::Requeued => return Ended::Requeued,
            };
            self.journal.started(reason.unwrap_or(Reason::Planned));
        }
        // A job that another process has left was stopped before.
        let before = self.guide.wish().stops["stops"].as_u64().and_then(|stops| u32::try_from(stops).ok());
        let first = before.unwrap_or(0);
        let mut resumed = first;
        loop {
            let is_acknowledged = self.report_stage(Stage::Running, reason).await;
            // At the first start, the reason may also be the flag `--start-now`, with which there is no hold.
            let is_signalled = reason == Some(Reason::StartNow) && (held.is_some() || resumed > first);
            if let Some(why) = held.take() {
                self.say(&describe_start(why, &self.guide.wish(), is_acknowledged));
            }
            // The user gave up while the daemon or Slurm was asked.
            if let Some(code) = self.signals.has_ended() {
                return if resumed == first { Ended::NotStarted(code) } else { Ended::Done(code) };
            }
            if reason.is_some() {
                // These asked for the start that happens now.
                self.signals.discard(SIGUSR1);
            }
            let job = self.guide.wish().job;
            let started = match self.launcher.start(job.as_deref(), resumed) {
                Ok(started) => started,
                Err(code) if resumed == first => return Ended::NotStarted(code),
                Err(code) => return Ended::Done(code),
            };
            let code = match self.attend(started, is_signalled).await {
                Exited::OfItself(code) => return Ended::Done(code),
                Exited::OnRequest(code) => code,
            };
            self.journal.stopped(code);
            self.report_stage(Stage::Suspended, None).await;
            reason = match self.wait(Stage::Suspended).await {
                Waited::Start(Reason::Planned) => Some(Reason::Resumed),
                Waited::Start(reason) => Some(reason),
                Waited::Cancelled(code) => return Ended::Done(code),
                Waited::Requeued => return Ended::Requeued,
            };
            resumed += 1;
            self.journal.resumed();
            self.say(&format!("resumes the command, for the {} time", ordinal(resumed)));
        }
    }

    /// Reports to the daemon what the command does. Returns false if the daemon has not acknowledged it in time.
    async fn report_stage(&mut self, stage: Stage, reason: Option<Reason>) -> bool {
        self.guide.report(stage, reason);
        if self.guide.wish().job.is_none() {
            return false;
        }
        let has_offer = self.latest.is_some() || self.stops.is_some();
        !has_offer || timeout(ACKNOWLEDGING, self.guide.acknowledged(stage)).await.is_ok()
    }

    /// Waits until the command is to start.
    async fn wait(&mut self, stage: Stage) -> Waited {
        let mut announcement = Announcement::to(std::io::stderr().is_terminal());
        // What the daemon said before it knew of the stop is no word about the resumption.
        let mut is_known = stage == Stage::Held;
        loop {
            let (wish, now) = (self.guide.wish(), Reading::now());
            is_known |= wish.acknowledged == Some(Stage::Suspended) || wish.failures > 0;
            // The earlier one counts: a job that continues an earlier one keeps that one's latest start.
            let both = self.latest.into_iter().chain(wish.latest).filter(|_| stage == Stage::Held);
            let latest = both.min_by(|a, b| a.left(&now).get().total_cmp(&b.left(&now).get()));
            let begin = latest.map(|latest| latest.before(STARTING));
            if let Some(reason) = why_start(&wish, begin.as_ref(), &now).filter(|_| is_known) {
                return Waited::Start(reason);
            }
            if is_known && self.requeue(&wish, &now).await {
                return Waited::Requeued;
            }
            if is_known && announcement.is_due(&wish) {
                let pid = std::process::id();
                if stage == Stage::Held {
                    let expected = wish.advice["expected_saving_pct"].as_f64();
                    self.journal.expected_saving_pct = self.journal.expected_saving_pct.or(expected);
                }
                self.say(&match stage {
                    Stage::Held => describe_hold(&wish, latest.as_ref(), pid),
                    _ => describe_suspension(&wish, pid),
                });
            }
            tokio::select! {
                () = sleep(CHECK_EVERY) => {}
                changed = self.guide.wishes.changed() => if changed.is_err() { sleep(CHECK_EVERY).await },
                origin = self.signals.next() => match origin.signal {
                    SIGUSR1 => return Waited::Start(Reason::StartNow),
                    number if is_ending(number) => return Waited::Cancelled(of_signal(number)),
                    _ => {}
                },
            }
        }
    }

    /// Has Slurm start the batch script again at the planned time, so that the allocation is free meanwhile.
    async fn requeue(&mut self, wish: &Wish, now: &Reading) -> bool {
        let Some(planned) = wish.planned.filter(|planned| planned.left(now).get() >= SHORTEST_REQUEUE_S) else {
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
        let (mut asked, mut is_users_end) = (None, false);
        let code = loop {
            let grace = self.stops.map_or(Duration::MAX, |stops| stops.grace);
            let overdue = async {
                match asked {
                    Some(at) => sleep_until(at + grace).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                code = child.ended() => break code,
                origin = self.signals.next() => {
                    is_users_end |= is_ending(origin.signal);
                    let is_repeated = is_signalled && origin.signal == SIGUSR1 && begun.elapsed() < REPEATED;
                    if !is_repeated {
                        child.forward(&origin);
                    }
                }
                changed = self.guide.wishes.changed() => {
                    if changed.is_err() {
                        sleep(CHECK_EVERY).await;
                    }
                    let wish = self.guide.wish();
                    let is_wanted = wish.failures == 0 && wish.wanted == Wanted::Suspend;
                    let is_asked = asked.is_some() || is_users_end || self.ignored >= MOST_IGNORED;
                    if let Some(stops) = self.stops.filter(|_| is_wanted && !is_asked) {
                        self.say("asks the command to save and exit: the grid will be cleaner later");
                        self.journal.stop_requested();
                        child.send(stops.signal);
                        asked = Some(Instant::now());
                    }
                }
                () = overdue => {
                    // What it does from here on, it does by itself.
                    (asked, self.ignored) = (None, self.ignored + 1);
                    self.say(&format!("the command has not exited within {} s, and keeps running", grace.as_secs()));
                }
            }
        };
        if let (Some(stops), false) = (self.stops.filter(|_| asked.is_some()), is_users_end) {
            is_users_end = self.end_the_rest(stops).await;
        }
        self.journal.ran_s += begun.elapsed().as_secs_f64();
        if let Some(relays) = relays {
            tokio::select! {
                () = relays.finish(LAST_OUTPUT) => {}
                _ = self.signals.ending() => is_users_end = true,
            }
        }
        if asked.is_none() || is_users_end {
            return Exited::OfItself(code);
        }
        sleep(LAST_PROGRESS).await;
        // It was about to end anyway.
        if self.guide.wish().is_complete { Exited::OfItself(code) } else { Exited::OnRequest(code) }
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
