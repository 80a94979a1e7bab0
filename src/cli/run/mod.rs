//! `wattune run`: runs a command as a job, without any change to the command.

mod advice;
mod allocation;
mod args;
mod child;
mod due;
mod environment;
mod folder;
mod gpus;
mod hold;
mod key_lock;
mod key_wait;
mod launch;
mod lifecycle;
mod lines;
mod link;
mod offers;
mod posts;
mod preparation;
mod progress;
mod ranks;
mod release;
mod reporter;
mod request;
mod summary;
mod wait_log;

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use self::advice::{DaemonAdvice, Stage};
use self::allocation::Allocation;
pub(super) use self::args::Args;
use self::child::{Child, Signals};
pub(super) use self::environment::VARIABLES;
use self::environment::{PROGRESS_SOCKET, is_of_another_slurm_job, say, say_lines, variable};
use self::folder::RunFolder;
use self::gpus::Visible;
use self::key_wait::KeyWait;
use self::launch::{Launcher, unreceived};
use self::lifecycle::{Ended, Lifecycle};
use self::lines::Latest;
use self::link::{DaemonChannel, Link};
use self::preparation::Preparation;
use self::progress::Message;
use self::ranks::Ranks;
use self::reporter::{Answer, End, Outcome, Reporter};
use self::request::Registration;
use self::summary::Summary;
use self::wait_log::WaitLog;
use super::ask::DaemonAddress;
use super::daemon::Daemon;
use super::output::{Exit, check_writable, deliver, to_json};
use crate::clock::shared_monotonic;
use wattune_core::units::Seconds;

/// Longest time that the start of the command waits for the daemon.
const REGISTRATION: Duration = Duration::from_secs(3);
/// Longest time that this process waits for the daemon after the command's end.
const ENDING: Duration = Duration::from_secs(5);
/// Time between two attempts to register with a daemon that is being restarted.
const RESTART_EVERY: Duration = Duration::from_millis(500);
/// Number of progress messages that wait to be read.
const MESSAGES: usize = 1024;
/// Exit code of a command whose batch script Slurm starts again later (`EX_TEMPFAIL`): the rest of the script is not to run.
const REQUEUED: u8 = 75;
/// Exit code for wrong use.
const WRONG_USE: u8 = 2;

/// Runs the command and returns its exit code. If this process cannot work, for example because it has no file
/// descriptors left, the command replaces it (`exec`) and runs without wattune.
pub(super) fn run(args: &Args) -> anyhow::Result<Exit> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let attempt = runtime.map_err(anyhow::Error::from).and_then(|runtime| runtime.block_on(run_as_job(args)));
    attempt.or_else(|error| {
        say(&format!("the command runs without wattune: {error:#}"));
        let error = Command::new(&args.command[0]).args(&args.command[1..]).exec();
        let (code, why) = child::describe_failed_start(&args.command[0], &error);
        say(&why);
        Ok(Exit::Code(code))
    })
}

/// Runs the command as a job.
///
/// # Errors
/// If the command cannot be started from this process; it has not run then.
async fn run_as_job(args: &Args) -> anyhow::Result<Exit> {
    let (addresses, registration) = match read(args) {
        Ok(read) => read,
        Err(error) => {
            say_lines(format!("{error:#}").trim_end());
            return Ok(Exit::Code(WRONG_USE));
        }
    };
    let mut signals = Signals::catch()?;
    let begun = shared_monotonic();
    let daemon = Daemon::at(addresses.clone())?;
    if let Some(exit) = release_waiting(args, &daemon).await {
        return Ok(exit);
    }
    if let Some(why) = why_unregistered() {
        return Ok(run_unregistered(args, why, &mut signals, begun).await);
    }
    let preparation = match Preparation::of(args, &addresses, &registration) {
        Ok(preparation) => preparation,
        Err(why) => return Ok(wrong_use(&why)),
    };
    let registered = match register(args, &preparation, daemon, addresses, registration, &mut signals).await {
        Ok(registered) => registered,
        Err(exit) => return Ok(exit),
    };
    let followed = follow(args, &preparation, registered, &mut signals).await;
    Ok(finish(args, followed, &mut signals, begun).await)
}

/// Parts of a run once its registration has been attempted.
struct Registered {
    /// True if a daemon has registered the job.
    is_registered: bool,
    /// Addresses at which the daemon answers, or a daemon that starts later will.
    addresses: Vec<DaemonAddress>,
    reporter: Reporter,
    daemon: DaemonChannel,
    folder: Option<RunFolder>,
    lines: Latest,
    progress: (mpsc::Sender<Message>, mpsc::Receiver<Message>),
}

/// Registers the job, or finds that the command runs without one, at least at first.
///
/// # Errors
/// The result of the run, if the command is not to run.
async fn register(
    args: &Args,
    preparation: &Preparation,
    daemon: Daemon,
    addresses: Vec<DaemonAddress>,
    registration: Registration,
    signals: &mut Signals,
) -> Result<Registered, Exit> {
    let stage = preparation.stage;
    let (to, messages) = mpsc::channel(MESSAGES);
    let lines = Latest::of(args.log_progress.clone());
    let folder = RunFolder::create().map_err(|error| say(&unreceived(&error.into()))).ok();
    let job_file = folder.as_ref().map(RunFolder::job);
    let (channel, link) = Link::new(stage, preparation.latest);
    let mut reporter = Reporter::new(daemon, registration, Visible::read(), lines.clone(), job_file, link, args.quiet);
    let answer = tokio::select! {
        answer = find_daemon(&mut reporter, stage, args.quiet) => answer,
        // The user gave up before the command began.
        code = signals.ending() => {
            let _ = timeout(ENDING, reporter.run(messages, at_once())).await;
            return Err(Exit::Code(code));
        }
    };
    let answering = answer.map_err(|why| wrong_use(&why))?;
    let is_registered = answering.is_some();
    if stage == Stage::Held && !is_registered && !args.quiet {
        say("no daemon plans the start, so the command starts at once");
    }
    let addresses = answering.map_or(addresses, |address| vec![address]);
    Ok(Registered { is_registered, addresses, reporter, daemon: channel, folder, lines, progress: (to, messages) })
}

/// Parts of a run once its command has ended, or is not to start in this process.
struct Followed<'a> {
    ended: Ended,
    wait_log: WaitLog,
    last_advice: DaemonAdvice,
    reporting: JoinHandle<Outcome>,
    launcher: Launcher<'a>,
}

/// Runs the command to its end, while the reporter passes its progress on, and has the reporter end the job.
async fn follow<'a>(
    args: &'a Args,
    preparation: &Preparation,
    registered: Registered,
    signals: &mut Signals,
) -> Followed<'a> {
    let Registered { is_registered, addresses, reporter, daemon, folder, lines, progress: (to, messages) } = registered;
    let stage = preparation.stage;
    let (end, ending) = oneshot::channel();
    let reporting = tokio::spawn(reporter.run(messages, ending));
    let launcher = Launcher::prepare(args, addresses, folder, &to, lines).await;
    let mut lifecycle = Lifecycle {
        launcher: &launcher,
        daemon,
        signals,
        latest: preparation.latest,
        stops: preparation.stops,
        allocation: if preparation.has_offer && is_registered { find_allocation(args.quiet).await } else { None },
        is_quiet: args.quiet,
        wait_log: WaitLog::new(stage == Stage::Held),
        ignored: 0,
    };
    let ended = lifecycle.follow(stage, args.start.start_now || !is_registered).await;
    let (wait_log, last_advice) = (lifecycle.wait_log, lifecycle.daemon.advice());
    let _ = end.send(if ended == Ended::Requeued { End::Left } else { End::Over });
    Followed { ended, wait_log, last_advice, reporting, launcher }
}

/// Waits for the job's account, and for status posts that are still to be forwarded. Prints the summary, and writes it
/// to the file that `--json` names.
async fn finish(args: &Args, followed: Followed<'_>, signals: &mut Signals, begun: Seconds) -> Exit {
    let Followed { ended, wait_log, last_advice, reporting, launcher } = followed;
    let outcome = tokio::select! {
        outcome = timeout(ENDING, reporting) => outcome.ok().and_then(Result::ok),
        _ = signals.ending() => None,
    };
    let outcome = outcome.unwrap_or_else(|| unanswered(last_advice));
    if let Some(posts) = launcher.finish() {
        posts.finish(ENDING).await;
    }
    let wall_s = (shared_monotonic() - begun).get();
    let exit_code = match ended {
        Ended::Done(code) | Ended::NotStarted(code) => code,
        Ended::Requeued => REQUEUED,
    };
    let summary = Summary { command: &args.command, exit_code, wall_s, outcome: &outcome, wait_log: &wait_log };
    if let Some(text) = summary.text().filter(|_| !args.quiet && matches!(ended, Ended::Done(_))) {
        let _ = writeln!(std::io::stderr(), "wattune: {text}");
    }
    write_json(args, &summary);
    Exit::Code(exit_code)
}

/// Returns the addresses of the daemon, and the registration of the command.
fn read(args: &Args) -> anyhow::Result<(Vec<DaemonAddress>, Registration)> {
    let addresses = args.daemon.addresses().map_err(anyhow::Error::msg)?;
    check_writable("--json", args.json.as_deref())?;
    let registration = Registration::of(args, |name| std::env::var(name).ok())?;
    Ok((addresses, registration))
}

/// Says why the command does not run.
fn wrong_use(why: &str) -> Exit {
    say(why);
    Exit::Code(WRONG_USE)
}

/// Returns the result of a run at whose end the daemon did not answer.
fn unanswered(last_advice: DaemonAdvice) -> Outcome {
    let DaemonAdvice { job, start, suspend, .. } = last_advice;
    let problem = Some("the daemon does not answer; the job ends when its lease expires".to_owned());
    Outcome { jobs: job.into_iter().collect(), start, suspend, problem, ..Outcome::default() }
}

/// Starts another terminal's command that waits with this key, if `--start-now` is given. Returns `None` if this process
/// has a command of its own to run.
async fn release_waiting(args: &Args, daemon: &Daemon) -> Option<Exit> {
    let key = args.start.key.as_deref().filter(|_| args.start.start_now)?;
    match release::release(daemon, key).await {
        Ok(Some(message)) => {
            say(&message);
            Some(Exit::Done)
        }
        released if args.command.is_empty() => {
            let none = format!("no job with the key {key} waits");
            say(&released.err().map_or(none, |failure| failure.to_string()));
            Some(Exit::Failed)
        }
        _ => None,
    }
}

/// Runs the command without a job, because another process reports for it or it is not to be registered.
async fn run_unregistered(args: &Args, why: &str, signals: &mut Signals, begun: Seconds) -> Exit {
    tracing::debug!("{why}");
    let mut command = Command::new(&args.command[0]);
    command.args(&args.command[1..]);
    let exit_code = attend(command, signals).await;
    let outcome = Outcome { problem: Some(format!("not registered: {why}")), ..Outcome::default() };
    let wall_s = (shared_monotonic() - begun).get();
    let wait_log = WaitLog::new(false);
    write_json(args, &Summary { command: &args.command, exit_code, wall_s, outcome: &outcome, wait_log: &wait_log });
    Exit::Code(exit_code)
}

/// Writes the summary to the file that `--json` names.
fn write_json(args: &Args, summary: &Summary<'_>) {
    let Some(path) = &args.json else { return };
    if let Err(error) = to_json(&summary.json()).and_then(|text| deliver(&text, Some(path))) {
        say(&format!("--json: {error:#}"));
    }
}

/// Registers the job, and returns the address of its daemon; `None` if the command runs without a job, at least at
/// first. Tries again while a daemon is being restarted, or another job is about to free the key.
///
/// # Errors
/// The reason why the command is not to run: a value that the user gave is wrong, or another process runs the job.
async fn find_daemon(reporter: &mut Reporter, stage: Stage, is_quiet: bool) -> Result<Option<DaemonAddress>, String> {
    let begun = Instant::now();
    let mut key_wait = KeyWait::default();
    loop {
        match timeout(REGISTRATION, reporter.register()).await {
            Ok(Answer::Registered(address)) => return Ok(Some(address)),
            Ok(Answer::Wrong(why)) => return Err(why),
            Ok(Answer::Taken(why, holder)) => key_wait.pause(&why, holder, reporter, is_quiet).await?,
            // A command that may wait also waits for a daemon that is being restarted.
            Ok(Answer::Alone) if stage == Stage::Held && !reporter.gave_up && begun.elapsed() < REGISTRATION => {
                sleep(RESTART_EVERY).await;
            }
            Ok(Answer::Alone) | Err(_) => return Ok(None),
        }
    }
}

/// Finds the Slurm job of this run if Slurm can requeue it.
async fn find_allocation(is_quiet: bool) -> Option<Allocation> {
    Allocation::find(|name| std::env::var(name).ok()).await.unwrap_or_else(|why| {
        if !is_quiet {
            say(&format!("{why}; the Slurm job keeps its allocation while the command waits"));
        }
        None
    })
}

/// Returns a signal to end that has been given.
fn at_once() -> oneshot::Receiver<End> {
    let (end, ending) = oneshot::channel();
    let _ = end.send(End::Over);
    ending
}

/// Returns why this process registers no job; `None` if it does.
fn why_unregistered() -> Option<&'static str> {
    let get = |name: &str| std::env::var(name).ok();
    let answers = |path: String| std::os::unix::net::UnixDatagram::unbound().and_then(|s| s.connect(path)).is_ok();
    if variable(PROGRESS_SOCKET).is_some_and(answers) && !is_of_another_slurm_job(get) {
        return Some("another `wattune run` registers the job");
    }
    let rank = Ranks::detect(get).local_rank;
    (rank > 0).then_some("the process with local rank 0 registers the job with all GPUs")
}

/// Runs the command, passes signals on, and returns its exit code.
async fn attend(command: Command, signals: &mut Signals) -> u8 {
    let mut child = match Child::start(command) {
        Ok(child) => child,
        Err((code, why)) => {
            say(&why);
            return code;
        }
    };
    loop {
        tokio::select! {
            code = child.ended() => return code,
            origin = signals.next() => child.forward(&origin),
        }
    }
}
