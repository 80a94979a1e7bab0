//! Starts the command, as often as it is resumed, with everything that finds its progress.

use std::ffi::OsString;
use std::process::Command;

use tokio::net::UnixDatagram;
use tokio::sync::mpsc::Sender;

use super::args::Args;
use super::child::Child;
use super::environment::{JOB_ID, PROGRESS_SOCKET, RESUMED, RUN_SLURM_JOB, VARIABLES, say, variable};
use super::folder::RunFolder;
use super::lines::{Latest, Relays};
use super::posts::{self, Posts};
use super::progress::Message;
use crate::cli::ask::DaemonAddress;

/// Maximum size of a progress message.
const LARGEST_MESSAGE: usize = 8192;

/// Variables of the command's environment that differ from this process's; `None` removes one.
type Variables = Vec<(&'static str, Option<OsString>)>;

/// Starts the command, once or several times. Holds everything that each start needs.
pub(super) struct Launcher<'a> {
    args: &'a Args,
    /// Addresses at which the daemon answers, or a daemon that starts later will.
    addresses: Vec<DaemonAddress>,
    variables: Variables,
    lines: Latest,
    posts: Option<Posts>,
    folder: Option<RunFolder>,
}

/// The running command, and the relay of its output if the output passes through this process.
pub(super) struct Started {
    pub(super) child: Child,
    pub(super) relays: Option<Relays>,
}

impl<'a> Launcher<'a> {
    /// Prepares the receivers of progress messages and status posts.
    pub(super) async fn prepare(
        args: &'a Args,
        addresses: Vec<DaemonAddress>,
        folder: Option<RunFolder>,
        to: &Sender<Message>,
        lines: Latest,
    ) -> Self {
        let mut variables = Variables::new();
        let posts = match &folder {
            Some(folder) => prepare(&mut variables, folder, to).await.unwrap_or_else(|error| {
                say(&unreceived(&error));
                None
            }),
            None => None,
        };
        Self { args, addresses, variables, lines, posts, folder }
    }

    /// Starts the command as this job; `resumed` is the number of earlier starts.
    ///
    /// # Errors
    /// The exit code that a shell would give, if the command cannot be started.
    pub(super) fn start(&self, job: Option<&str>, resumed: u32) -> Result<Started, u8> {
        let mut command = Command::new(&self.args.command[0]);
        command.args(&self.args.command[1..]);
        // Another run's, which `sbatch` may have passed on.
        for name in VARIABLES {
            command.env_remove(name);
        }
        command.env(RUN_SLURM_JOB, variable("SLURM_JOB_ID").unwrap_or_default());
        if let Some(job) = job {
            command.env(JOB_ID, job);
        }
        self.addresses.iter().for_each(|address| tell_address(&mut command, address));
        for (name, value) in &self.variables {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        if resumed > 0 {
            command.env(RESUMED, resumed.to_string());
        }
        let relays = self.args.log_progress.as_ref().and_then(|_| match Relays::install(&mut command, &self.lines) {
            Ok(relays) => Some(relays),
            Err(error) => {
                say(&format!("--log-progress: {error}"));
                None
            }
        });
        let started = Child::start(command);
        started.map(|child| Started { child, relays }).map_err(|(code, why)| {
            say(&why);
            code
        })
    }

    /// Removes the folder of the run. Returns the receiver of status posts, which may still have posts to forward.
    pub(super) fn finish(self) -> Option<Posts> {
        drop(self.folder);
        self.posts
    }
}

/// Tells the command where the daemon answers.
fn tell_address(command: &mut Command, address: &DaemonAddress) {
    match address {
        DaemonAddress::Socket(path) => command.env("WATTUNE_SOCKET", path),
        DaemonAddress::Tcp(address) => command.env("WATTUNE_LISTEN", address.to_string()),
    };
}

pub(super) fn unreceived(error: &anyhow::Error) -> String {
    format!("progress cannot be received, so the job is recorded without control: {error:#}")
}

/// Receives messages and status posts, and passes their addresses to the command.
async fn prepare(variables: &mut Variables, folder: &RunFolder, to: &Sender<Message>) -> anyhow::Result<Option<Posts>> {
    let socket = UnixDatagram::bind(folder.socket())?;
    tokio::spawn(receive(socket, to.clone()));
    variables.push((PROGRESS_SOCKET, Some(folder.socket().into())));
    let mut path = folder.hooks().into_os_string();
    if let Some(given) = std::env::var_os("PYTHONPATH").filter(|given| !given.is_empty()) {
        path.push(":");
        path.push(given);
    }
    variables.push(("PYTHONPATH", Some(path)));
    let (file, token) = folder.write_token()?;
    // Without the loopback interface, or with a broken TrainJob, the other sources of progress remain.
    let posts = match Posts::receive(token, to.clone()).await {
        Ok(posts) => {
            variables.push((posts::URL, Some(posts.url.clone().into())));
            variables.push((posts::TOKEN, Some(file.into())));
            variables.push((posts::CA_CERTIFICATE, None));
            avoid_proxy(variables);
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
fn avoid_proxy(variables: &mut Variables) {
    if !["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"].into_iter().any(|name| variable(name).is_some()) {
        return;
    }
    for (name, other) in [("no_proxy", "NO_PROXY"), ("NO_PROXY", "no_proxy")] {
        let given = variable(name).or_else(|| variable(other)).map(|given| given + ",").unwrap_or_default();
        variables.push((name, Some((given + "127.0.0.1").into())));
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
