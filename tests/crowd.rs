//! A crowd that takes all connections that there may be: whoever works with the daemon does not notice.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinSet;

use crate::support::{Daemon, FakeDriver, LONG, eventually};

/// What those of a crowd say before they fall silent.
const OPENINGS: [&str; 4] = [
    "",
    "GET /v1/status HTTP/1.1\r\nhost: localhost\r\nx-slow: ",
    "POST /v1/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 60000\r\n\r\n{",
    // Answered, and kept.
    "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n",
];

#[derive(Clone)]
enum Address {
    Tcp(String),
    Unix(PathBuf),
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

impl Address {
    async fn connect(&self) -> std::io::Result<Box<dyn Stream>> {
        Ok(match self {
            Self::Tcp(address) => Box::new(TcpStream::connect(address).await?),
            Self::Unix(path) => Box::new(UnixStream::connect(path).await?),
        })
    }

    /// Asks on a connection of its own.
    async fn ask(&self, head: &str, body: &str) -> String {
        let mut stream = self.connect().await.expect("connected");
        let request = format!(
            "{head} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut answer = String::new();
        tokio::time::timeout(LONG, stream.read_to_string(&mut answer)).await.expect("in time").expect("answered");
        answer
    }
}

/// Holds connections, and takes another one two seconds after one is closed, until it is dropped. All places of a user then
/// change hands about twice a second: a busy machine must accept a connection and read its request within that time.
struct Crowd {
    _tasks: JoinSet<()>,
    opened: Arc<AtomicUsize>,
}

impl Crowd {
    fn gather(address: &Address, count: usize) -> Self {
        let (mut tasks, opened) = (JoinSet::new(), Arc::<AtomicUsize>::default());
        for number in 0..count {
            let (address, opened) = (address.clone(), opened.clone());
            tasks.spawn(async move {
                loop {
                    if let Ok(mut stream) = address.connect().await {
                        let said = stream.write_all(OPENINGS[number % OPENINGS.len()].as_bytes()).await;
                        opened.fetch_add(1, Ordering::Relaxed);
                        let mut end = Vec::new();
                        let _ = (said, stream.read_to_end(&mut end).await);
                    }
                    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
                }
            });
        }
        Self { _tasks: tasks, opened }
    }
}

/// A daemon that may open 600 files: 172 connections at each address, 86 of one user.
fn with_few_files(command: &Command) -> Command {
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -n 600; exec \"$0\" \"$@\""]).arg(command.get_program()).args(command.get_args());
    limited.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    limited
}

async fn start(driver: &FakeDriver, state: &Path, socket: &Path) -> Daemon {
    let mut command = Daemon::command(driver, state);
    command.arg("--socket").arg(socket);
    Daemon::start(with_few_files(&command), state).await
}

#[tokio::test]
async fn a_crowd_at_both_addresses_takes_nobodys_place_who_works() {
    let driver = FakeDriver::new(&[json!({})]);
    let state = tempfile::tempdir().expect("a directory");
    let place = tempfile::tempdir().expect("a directory");
    let socket = place.path().join("wattune.sock");
    let daemon = start(&driver, state.path(), &socket).await;
    let tcp = Address::Tcp(daemon.base().trim_start_matches("http://").to_owned());
    let addresses = [tcp.clone(), Address::Unix(socket)];
    let id = daemon.register(&json!({"name": "trained", "gpus": [0], "lease_s": 3600})).await;
    // One connection that a job reports through, and one that follows the events.
    let mut reporting = tcp.connect().await.expect("connected");
    let mut events = tcp.connect().await.expect("connected");
    events.write_all(b"GET /v1/events HTTP/1.1\r\nhost: localhost\r\n\r\n").await.expect("sent");
    let mut report = async |samples: u64| {
        let body = format!("{{\"samples\":{samples}}}");
        let head = format!("POST /v1/jobs/{id}/progress HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json");
        let request = format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        reporting.write_all(request.as_bytes()).await.expect("sent");
        let mut answer = [0; 4096];
        let length = reporting.read(&mut answer).await.expect("answered");
        let answer = String::from_utf8_lossy(&answer[..length]).into_owned();
        assert!(answer.starts_with("HTTP/1.1 200"), "{samples}: {answer}");
    };
    report(1).await;
    let crowds = addresses.clone().map(|address| Crowd::gather(&address, 300));
    for crowd in &crowds {
        eventually("a crowd", LONG, async || (crowd.opened.load(Ordering::Relaxed) >= 300).then_some(())).await;
    }
    for samples in 2..12 {
        for address in &addresses {
            let answer = address.ask("GET /v1/status", "").await;
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
            let answer = address.ask(&format!("GET /v1/jobs/{id}"), "").await;
            assert!(answer.contains("\"trained\""), "{answer}");
        }
        report(samples * 100).await;
    }
    // The events have come all the while: a heartbeat at the least.
    let mut text = [0; 1 << 16];
    let length = events.read(&mut text).await.expect("open");
    assert!(text[..length].starts_with(b"HTTP/1.1 200"));
    drop(crowds);
    assert!(daemon.stop("TERM").await.success());
}

#[tokio::test]
async fn a_place_at_the_events_is_for_those_who_read_them() {
    let driver = FakeDriver::new(&[json!({})]);
    let state = tempfile::tempdir().expect("a directory");
    let daemon = Daemon::start(Daemon::command(&driver, state.path()), state.path()).await;
    let ask = async |pairs: &[(&str, &str)]| {
        let request = daemon.client().get(format!("{}/v1/events", daemon.base())).timeout(LONG);
        pairs
            .iter()
            .fold(request, |request, (name, value)| request.header(*name, *value))
            .send()
            .await
            .expect("answered")
    };
    let image =
        [("accept", "image/avif,image/webp,*/*;q=0.8"), ("sec-fetch-dest", "image"), ("sec-fetch-mode", "no-cors")];
    for site in ["same-site", "cross-site", "same-origin", "none"] {
        let answer = ask(&[&image[..], &[("sec-fetch-site", site)]].concat()).await;
        assert!([403, 406].contains(&answer.status().as_u16()), "{site}: {}", answer.status());
    }
    assert_eq!(ask(&image[..1]).await.status(), 406, "a browser that says nothing of itself");
    let link = [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document")];
    assert_eq!(ask(&link).await.status(), 406, "a link of another site");
    // The page's own way, and that of programs.
    let page = [("accept", "text/event-stream"), ("sec-fetch-site", "same-origin"), ("sec-fetch-dest", "empty")];
    let mut listening = Vec::new();
    for pairs in [&page[..], &[]].into_iter().cycle().take(32) {
        let answer = ask(pairs).await;
        assert_eq!(answer.status(), 200);
        listening.push(answer);
    }
    let answer = ask(&page).await;
    assert_eq!(answer.status(), 503);
    assert!(answer.text().await.expect("a body").contains("32 clients are connected already"));
    listening.pop();
    eventually("a place that is free again", LONG, async || (ask(&page).await.status() == 200).then_some(())).await;
}
