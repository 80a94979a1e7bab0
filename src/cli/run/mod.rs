//! `wattune run`: runs a command as a job, without any change to the command.

mod args;
mod child;
mod daemon;
mod environment;
mod folder;
mod gpus;
mod lines;
mod posts;
mod progress;
mod reporter;
mod request;
mod summary;

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::Duration;

use tokio::net::UnixDatagram;
use tokio::sync::mpsc::{self, Sender};
use tokio::sync::oneshot;
use tokio::time::timeout;

pub(super) use self::args::Args;
use self::child::{Child, Signals};
use self::daemon::Daemon;
pub(super) use self::environment::VARIABLES;
use self::environment::{JOB_ID, PROGRESS_SOCKET, say};
use self::folder::RunFolder;
use self::gpus::Visible;
use self::lines::{Latest, Relays};
use self::posts::Posts;
use self::progress::Message;
use self::reporter::{Outcome, Registered, Reporter};
use self::request::Registration;
use self::summary::Summary;
use super::ask::DaemonAddress;
use super::output::{Exit, check_writable, deliver};
use crate::clock::shared_monotonic;

/// Longest time that the start of the command waits for the daemon.
const REGISTRATION: Duration = Duration::from_secs(3);
/// Longest time that this process waits for the daemon after the command's end.
const ENDING: Duration = Duration::from_secs(5);
/// Longest time without output that this process waits for the end of the output after the command's end.
const LAST_OUTPUT: Duration = Duration::from_secs(2);
/// Number of progress messages that wait to be read.
const MESSAGES: usize = 1024;
/// Maximum size of a progress message.
const LARGEST_MESSAGE: usize = 8192;
/// Exit code for wrong use.
const WRONG_USE: u8 = 2;

/// Runs the command and returns its exit code. Where this process lacks what it needs, such as file descriptors, the
/// command takes its place.
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
    let prepared = args.addresses().map_err(anyhow::Error::msg).and_then(|addresses| {
        check_writable("--json", args.json.as_deref())?;
        let registration = Registration::of(args, |name| std::env::var(name).ok())?;
        Ok((addresses, registration))
    });
    let (addresses, registration) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => {
            say(&format!("{error:#}"));
            return Ok(Exit::Code(WRONG_USE));
        }
    };
    let mut signals = Signals::catch()?;
    let begun = shared_monotonic();
    if let Some(why) = why_unregistered() {
        tracing::debug!("{why}");
        let mut command = Command::new(&args.command[0]);
        command.args(&args.command[1..]);
        let (Ok(code) | Err(code)) = attend(command, &mut signals).await;
        return Ok(Exit::Code(code));
    }
    let (to, messages) = mpsc::channel(MESSAGES);
    let lines = Latest::of(args.log_progress.clone());
    let folder = RunFolder::create().map_err(|error| say(&unreceived(&error.into()))).ok();
    let daemon = Daemon::at(addresses.clone())?;
    let job_file = folder.as_ref().map(RunFolder::job);
    let mut reporter = Reporter::new(daemon, registration, Visible::read(), lines.clone(), job_file, args.quiet);
    let registered = tokio::select! {
        registered = timeout(REGISTRATION, reporter.register()) => registered.ok().flatten(),
        // The user gave up before the command began.
        code = signals.ending() => {
            let _ = timeout(ENDING, reporter.run(messages, at_once())).await;
            return Ok(Exit::Code(code));
        }
    };
    let (end, ending) = oneshot::channel();
    let reporting = tokio::spawn(reporter.run(messages, ending));
    let (ended, posts) = train(args, &addresses, registered.as_ref(), folder, to, &lines, &mut signals).await;
    let _ = end.send(());
    let outcome = tokio::select! {
        outcome = timeout(ENDING, reporting) => outcome.ok().and_then(Result::ok).unwrap_or_default(),
        _ = signals.ending() => Outcome::default(),
    };
    if let Some(posts) = posts {
        posts.finish(ENDING).await;
    }
    let wall_s = (shared_monotonic() - begun).get();
    let (Ok(code) | Err(code)) = ended;
    let summary = Summary { command: &args.command, exit_code: code, wall_s, outcome: &outcome };
    if let Some(text) = summary.text().filter(|_| !args.quiet && ended.is_ok()) {
        let _ = writeln!(std::io::stderr(), "wattune: {text}");
    }
    if let Some(path) = &args.json {
        let text = format!("{:#}\n", summary.json());
        if let Err(error) = deliver(text.as_bytes(), Some(path)) {
            say(&format!("--json: {error:#}"));
        }
    }
    Ok(Exit::Code(code))
}

/// Returns a signal to end that has been given.
fn at_once() -> oneshot::Receiver<()> {
    let (end, ending) = oneshot::channel();
    let _ = end.send(());
    ending
}

/// Returns why this process registers no job; `None` if it does.
fn why_unregistered() -> Option<&'static str> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let answers = |path: String| std::os::unix::net::UnixDatagram::unbound().and_then(|s| s.connect(path)).is_ok();
    if variable(PROGRESS_SOCKET).is_some_and(answers) {
        return Some("another `wattune run` registers the job");
    }
    let rank: Option<u32> = variable("LOCAL_RANK").and_then(|rank| rank.parse().ok());
    rank.is_some_and(|rank| rank > 0).then_some("the process with local rank 0 registers the job with all GPUs")
}

/// Runs the command with everything that finds its progress. Returns its exit code, as
/// an error if it cannot be started, and the receiver of status posts.
async fn train(
    args: &Args,
    addresses: &[DaemonAddress],
    registered: Option<&Registered>,
    folder: Option<RunFolder>,
    to: Sender<Message>,
    lines: &Latest,
    signals: &mut Signals,
) -> (Result<u8, u8>, Option<Posts>) {
    let mut command = Command::new(&args.command[0]);
    command.args(&args.command[1..]);
    match registered {
        Some(Registered { job, address }) => {
            command.env(JOB_ID, job);
            tell_address(&mut command, address);
        }
        None => {
            command.env_remove(JOB_ID);
            // A daemon that starts later answers at one of these.
            addresses.iter().for_each(|address| tell_address(&mut command, address));
        }
    }
    let posts = match &folder {
        Some(folder) => prepare(&mut command, folder, &to).await.unwrap_or_else(|error| {
            say(&unreceived(&error));
            None
        }),
        None => None,
    };
    let relays = args.log_progress.as_ref().and_then(|_| match Relays::install(&mut command, lines) {
        Ok(relays) => Some(relays),
        Err(error) => {
            say(&format!("--log-progress: {error}"));
            None
        }
    });
    let code = attend(command, signals).await;
    if let Some(relays) = relays {
        tokio::select! {
            () = relays.finish(LAST_OUTPUT) => {}
            _ = signals.ending() => {}
        }
    }
    drop(folder);
    (code, posts)
}

/// Tells the command where the daemon answers.
fn tell_address(command: &mut Command, address: &DaemonAddress) {
    match address {
        DaemonAddress::Socket(path) => command.env("WATTUNE_SOCKET", path),
        DaemonAddress::Tcp(address) => command.env("WATTUNE_LISTEN", address.to_string()),
    };
}

fn unreceived(error: &anyhow::Error) -> String {
    format!("progress cannot be received, so the job is recorded without control: {error:#}")
}

/// Receives messages and status posts, and tells the command where.
async fn prepare(command: &mut Command, folder: &RunFolder, to: &Sender<Message>) -> anyhow::Result<Option<Posts>> {
    let socket = UnixDatagram::bind(folder.socket())?;
    tokio::spawn(receive(socket, to.clone()));
    command.env(PROGRESS_SOCKET, folder.socket());
    let mut path = folder.hooks().into_os_string();
    if let Some(given) = std::env::var_os("PYTHONPATH").filter(|given| !given.is_empty()) {
        path.push(":");
        path.push(given);
    }
    command.env("PYTHONPATH", path);
    let (file, token) = folder.write_token()?;
    // Without the loopback interface, or with a broken TrainJob, the other sources of progress remain.
    let posts = match Posts::receive(token, to.clone()).await {
        Ok(posts) => {
            command.env(posts::URL, &posts.url).env(posts::TOKEN, file).env_remove(posts::CA_CERTIFICATE);
            avoid_proxy(command);
            Some(posts)
        }
        Err(error) => {
            say(&format!("status posts of the Hugging Face Trainer are not received: {error:#}"));
            None
        }
    };
    Ok(posts)
}

/// Has the command reach this machine without a proxy, if it uses one: status posts would otherwise go there, and the
/// training thread would wait for it.
fn avoid_proxy(command: &mut Command) {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    if !["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"].into_iter().any(|name| variable(name).is_some()) {
        return;
    }
    for (name, other) in [("no_proxy", "NO_PROXY"), ("NO_PROXY", "no_proxy")] {
        let given = variable(name).or_else(|| variable(other)).map(|given| given + ",").unwrap_or_default();
        command.env(name, given + "127.0.0.1");
    }
}

/// Receives progress messages for as long as the run lasts. Ignores what is no message.
async fn receive(socket: UnixDatagram, to: Sender<Message>) {
    let mut buffer = [0; LARGEST_MESSAGE];
    while let Ok(length) = socket.recv(&mut buffer).await {
        if let Ok(message) = serde_json::from_slice::<Message>(&buffer[..length]) {
            // If the channel is full, a later message has the newer count.
            let _ = to.try_send(message);
        }
    }
}

/// Runs the command, passes signals on, and returns its exit code; as an error, that of a command that cannot be started.
async fn attend(command: Command, signals: &mut Signals) -> Result<u8, u8> {
    let mut child = match Child::start(command) {
        Ok(child) => child,
        Err((code, why)) => {
            say(&why);
            return Err(code);
        }
    };
    loop {
        tokio::select! {
            code = child.ended() => return Ok(code),
            origin = signals.next() => child.pass(&origin),
        }
    }
}
