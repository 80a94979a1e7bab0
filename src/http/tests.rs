//! Tests of the whole server over real connections, without a controller.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::status_events;
use super::{Ready, Server, Settings};
use crate::clock::{Clock, SystemClock};
use crate::controller::{Devices, Handle, Requests};
use crate::recurring::Recurring;
use crate::store::Store;
use wattune_core::units::Seconds;

struct Daemon {
    address: SocketAddr,
    socket: PathBuf,
    ready: Ready,
    /// The controller's end of the queue: queries wait while it exists, and are refused without it.
    requests: Option<Requests>,
    cancel: CancellationToken,
    serving: JoinHandle<()>,
    _directory: tempfile::TempDir,
}

struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).expect(&self.body)
    }

    fn detail(&self) -> String {
        assert!(self.head.contains("content-type: application/problem+json"), "{}\n{}", self.head, self.body);
        let problem = self.json();
        assert_eq!(problem["status"], self.status);
        assert_eq!(problem["type"], "about:blank");
        assert!(problem["title"].is_string());
        problem["detail"].as_str().expect("detail").to_owned()
    }
}

impl Daemon {
    async fn start(settings: Settings) -> Self {
        let directory = tempfile::tempdir().expect("directory");
        Self::over(directory, settings).await
    }

    /// Starts a daemon that continues with the directory of an earlier daemon.
    async fn over(directory: tempfile::TempDir, settings: Settings) -> Self {
        let socket = directory.path().join("wattune.sock");
        let settings = Settings {
            listen: Some("127.0.0.1:0".parse().expect("address")),
            socket: Some(socket),
            loopback_control: true,
            ..settings
        };
        let (handle, requests) = Handle::queue();
        let ready = Ready::default();
        let server = Server::bind(&settings, handle, ready.clone()).await.expect("bound");
        let cancel = CancellationToken::new();
        let store = Store::open(directory.path()).await.expect("a store");
        let recurring = Recurring::new(store, Arc::new(SystemClock::start()));
        Self {
            address: server.tcp_address().expect("TCP"),
            socket: server.socket_path().expect("socket").to_owned(),
            ready,
            requests: Some(requests),
            serving: tokio::spawn(server.serve(
                recurring,
                Devices::none(Arc::new(SystemClock::start())),
                super::ZeusSettings::default(),
                cancel.clone(),
            )),
            cancel,
            _directory: directory,
        }
    }

    /// Starts a daemon whose controller is gone.
    async fn without_controller() -> Self {
        let mut daemon = Self::start(Settings::default()).await;
        daemon.requests = None;
        daemon
    }

    async fn send(&self, request: &str) -> Answer {
        exchange(TcpStream::connect(self.address).await.expect("connected"), request).await
    }

    async fn get(&self, path: &str) -> Answer {
        self.send(&format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")).await
    }

    async fn post(&self, path: &str, body: &str) -> Answer {
        self.send(&format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        ))
        .await
    }
}

async fn exchange(mut stream: impl AsyncRead + AsyncWrite + Unpin, request: &str) -> Answer {
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).await.expect("answered");
    let (head, body) = text.split_once("\r\n\r\n").expect("head and body");
    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).expect("status");
    Answer { status, head: head.to_lowercase(), body: body.to_owned() }
}

#[tokio::test]
async fn without_a_controller_queries_are_refused_with_503() {
    let daemon = Daemon::without_controller().await;
    daemon.ready.set(true);
    let asking = ["/v1/status", "/v1/gpus", "/v1/gpus/0", "/v1/carbon", "/v1/jobs", "/v1/jobs?state=ended", "/metrics"];
    for path in asking.into_iter().chain(["/healthz", "/health", "/readyz", "/v1/carbon/history", "/v1/jobs/a/plan"]) {
        let answer = daemon.get(path).await;
        assert_eq!(answer.status, 503, "{path}");
        assert!(answer.detail().contains("try again"), "{path}: {}", answer.body);
        assert!(answer.head.contains("retry-after: 1"), "{}", answer.head);
    }
    assert_eq!(daemon.get("/").await.status, 200);
    let description = daemon.get("/openapi.json").await;
    assert_eq!((description.status, description.json()["openapi"].is_string()), (200, true));
}

#[tokio::test]
async fn the_page_is_self_contained() {
    let daemon = Daemon::without_controller().await;
    let page = daemon.get("/").await;
    let headers = [
        "content-type: text/html; charset=utf-8",
        "content-security-policy: default-src 'none'; script-src 'sha256-",
        "cache-control: no-store",
        "x-content-type-options: nosniff",
        "x-frame-options: deny",
        "referrer-policy: no-referrer",
    ];
    for header in headers {
        assert!(page.head.contains(header), "{header}: {}", page.head);
    }
    assert!(page.body.starts_with("<!doctype html>") && page.body.trim_end().ends_with("</html>"));
    assert_eq!(daemon.send("HEAD / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await.status, 200);
    assert_eq!(daemon.post("/", "{}").await.status, 405);
}

/// A client of `/v1/events` and the events it received.
struct Client {
    stream: TcpStream,
    received: String,
}

impl Client {
    async fn connect(daemon: &Daemon, headers: &str) -> Self {
        let mut stream = TcpStream::connect(daemon.address).await.expect("connected");
        let request = format!("GET /v1/events HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n");
        stream.write_all(request.as_bytes()).await.expect("sent");
        Self { stream, received: String::new() }
    }

    /// Reads until this text arrives.
    async fn read_until(&mut self, text: &str) {
        let mut buffer = [0; 4096];
        while !self.received.contains(text) {
            let read = tokio::time::timeout(Duration::from_secs(30), self.stream.read(&mut buffer)).await;
            let read = read.expect("in time").expect("read");
            assert!(read > 0, "it ended before {text:?}: {}", self.received);
            self.received.push_str(std::str::from_utf8(&buffer[..read]).expect("UTF-8"));
        }
    }
}

#[tokio::test]
async fn all_clients_share_one_query() {
    let mut daemon = Daemon::start(Settings::default()).await;
    let mut clients = Vec::new();
    for headers in ["", "last-event-id: 7\r\n", "accept: text/event-stream\r\n"] {
        let mut client = Client::connect(&daemon, headers).await;
        client.read_until("\r\n\r\n").await;
        assert!(client.received.to_lowercase().contains("content-type: text/event-stream"), "{}", client.received);
        clients.push(client);
    }
    let mut requests = daemon.requests.take().expect("taken once");
    let question = requests.next().await.expect("a question");
    // There is no further query before this one is answered.
    assert!(requests.waiting().is_none());
    drop(question);
    for client in &mut clients {
        client.read_until("event: problem\ndata: {").await;
        client.read_until("try again").await;
    }
    // An answer that equals the previous one is not sent again, and without clients there is no query.
    drop(clients);
    let mut late = Client::connect(&daemon, "").await;
    drop(requests);
    late.read_until("event: problem\ndata: {").await;
    let foreign = "GET /v1/events HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n";
    assert_eq!(daemon.send(foreign).await.status, 403);
}

#[tokio::test]
async fn clients_are_limited_and_streams_end_with_the_daemon() {
    let daemon = Daemon::without_controller().await;
    let mut clients = Vec::new();
    for _ in 0..status_events::CLIENTS_PER_USER {
        let mut client = Client::connect(&daemon, "").await;
        client.read_until("event: problem").await;
        clients.push(client);
    }
    let refused = daemon.get("/v1/events").await;
    assert_eq!((refused.status, refused.detail().contains("clients are connected already")), (503, true));
    assert_eq!(daemon.get("/").await.status, 200);
    clients.pop();
    // The place of the closed client is free as soon as the server sees the disconnect.
    let mut next = Client::connect(&daemon, "").await;
    while !next.received.contains("event: problem") {
        next = Client::connect(&daemon, "").await;
        next.read_until("HTTP/1.1 ").await;
        if next.received.contains("HTTP/1.1 200") {
            next.read_until("event: problem").await;
        }
    }
    daemon.cancel.cancel();
    for mut client in clients.into_iter().chain([next]) {
        client.stream.read_to_string(&mut client.received).await.expect("ended");
        assert!(client.received.ends_with("0\r\n\r\n"), "cut off: {}", client.received);
    }
    daemon.serving.await.expect("no panic");
}

#[tokio::test]
async fn every_refusal_is_a_problem() {
    let daemon = Daemon::without_controller().await;
    let table = [
        (daemon.get("/nowhere").await, 404, "there is no /nowhere"),
        (daemon.get("/v1/jobs/").await, 404, "there is no /v1/jobs/"),
        (daemon.get("/v1/jobs/a%20b").await, 404, "letters, digits and '-'"),
        (daemon.get("/v1/jobs/%ff").await, 400, "address cannot be read"),
        (daemon.get("/v1/jobs?state=gone").await, 422, "unknown variant `gone`, expected `open` or `ended`"),
        (daemon.get("/v1/jobs?limit=0").await, 422, "from 1 to 1000"),
        (daemon.get("/v1/jobs?status=open").await, 422, "unknown field `status`"),
        (daemon.get("/v1/carbon/history?hours=NaN").await, 422, "more than 0 and at most 744"),
        (daemon.get("/v1/carbon/history?hours=x").await, 422, "invalid float"),
        (daemon.post("/v1/jobs", "{\"name\": NaN}").await, 400, "the body is not JSON"),
        (daemon.post("/v1/jobs", "").await, 400, "the body is empty"),
        (daemon.post("/v1/jobs", &format!("\"{}\"", "x".repeat(70_000))).await, 413, "larger than 65536 bytes"),
        (daemon.post("/v1/jobs/a/progress", "{\"samples\": -1}").await, 422, "cannot be negative"),
        (daemon.post("/v1/status", "{}").await, 405, "/v1/status does not accept POST"),
    ];
    for (answer, status, detail) in table {
        assert_eq!(answer.status, status, "{}", answer.body);
        assert!(answer.detail().contains(detail), "{}", answer.body);
        assert!(answer.head.contains("x-content-type-options: nosniff"), "{}", answer.head);
    }
    let wrong_method = daemon.send("PATCH /v1/jobs/a HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await;
    assert_eq!(wrong_method.status, 405);
    assert!(wrong_method.head.contains("allow: get,head,delete"), "{}", wrong_method.head);
}

#[tokio::test]
async fn other_pages_and_forms_are_refused() {
    let daemon = Daemon::without_controller().await;
    let answer = daemon.send("GET / HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n").await;
    assert_eq!((answer.status, answer.detail().contains("evil.example")), (403, true));
    let form = "POST /v1/jobs HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: text/plain\r\n\
                content-length: 2\r\n\r\n{}";
    let answer = daemon.send(form).await;
    assert_eq!((answer.status, answer.detail().contains("must be application/json")), (415, true));
    assert!(!answer.head.contains("access-control"), "{}", answer.head);
    let own = format!(
        "GET / HTTP/1.1\r\nhost: localhost\r\norigin: http://localhost:{}\r\nconnection: close\r\n\r\n",
        daemon.address.port()
    );
    assert_eq!(daemon.send(&own).await.status, 200);
    let mut http2 = TcpStream::connect(daemon.address).await.expect("connected");
    http2.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.expect("sent");
    let mut answer = Vec::new();
    http2.read_to_end(&mut answer).await.expect("closed");
    assert!(answer.is_empty(), "HTTP/2 is not spoken: {answer:?}");
}

#[tokio::test]
async fn a_controller_that_does_not_answer_times_out() {
    let settings = Settings { request_timeout_s: Seconds::new(0.2), ..Settings::default() };
    let daemon = Daemon::start(settings).await;
    let answer = daemon.get("/v1/status").await;
    assert_eq!(answer.status, 503);
    assert!(answer.detail().contains("did not answer within 0.2 s"), "{}", answer.body);
    let healthz = daemon.get("/healthz").await;
    assert!(healthz.detail().contains("control loop does not answer"), "{}", healthz.body);
    assert!(daemon.get("/readyz").await.detail().contains("still starting"));
    let slow = "POST /v1/jobs HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
                content-length: 10\r\n\r\n{";
    let answer = daemon.send(slow).await;
    assert_eq!((answer.status, answer.detail().contains("did not arrive within")), (408, true));
}

#[tokio::test]
async fn the_socket_accepts_any_host_and_is_removed_with_the_daemon() {
    let daemon = Daemon::without_controller().await;
    let stream = UnixStream::connect(&daemon.socket).await.expect("connected");
    let answer = exchange(stream, "GET / HTTP/1.1\r\nhost: wattune\r\nconnection: close\r\n\r\n").await;
    assert_eq!(answer.status, 200);
    // An idle connection does not delay the shutdown.
    let _idle = TcpStream::connect(daemon.address).await.expect("connected");
    daemon.cancel.cancel();
    tokio::time::timeout(Duration::from_secs(3), daemon.serving).await.expect("in time").expect("no panic");
    assert!(!daemon.socket.exists());
    assert!(TcpStream::connect(daemon.address).await.is_err());
}

#[tokio::test]
async fn a_taken_port_is_reported() {
    let daemon = Daemon::without_controller().await;
    let settings = Settings { listen: Some(daemon.address), ..Settings::default() };
    let (handle, _requests) = Handle::queue();
    let refused = Server::bind(&settings, handle, Ready::default()).await.map(|_| ()).expect_err("in use").to_string();
    assert!(refused.contains("is in use") && refused.contains("ss -ltnp"), "{refused}");
}

/// Without new leases, the first request after a restart would end all trials that were silent during the downtime.
#[tokio::test]
async fn running_trials_get_new_leases_before_the_first_answer() {
    let directory = tempfile::tempdir().expect("directory");
    let store = Store::open(directory.path()).await.expect("a store");
    let clock = Arc::new(SystemClock::start());
    let ago = clock.utc() - chrono::TimeDelta::hours(2);
    let recurring = Recurring::new(store.clone(), clock);
    let name = wattune_core::domain::JobName::new("nightly").expect("a name");
    let spec = r#"{"batch_sizes":[8],"default_batch_size":8,"max_epochs":9,"target_metric":0.6,"max_power_w":300}"#;
    recurring.put(name.clone(), serde_json::from_str(spec).expect("valid"), Default::default()).await.expect("made");
    recurring.begin(&name, None, Default::default()).await.expect("begun");
    let silent = move |job: &mut wattune_core::bandit::Job| job.runs[0].lease_until = ago;
    store.change_recurring(&name, Default::default(), silent).await.expect("written");
    let listed = recurring.list("", 9).await.expect("read");
    let shown = recurring.show(&name).await.expect("read");
    assert_eq!(
        (listed[0].trials, listed[0].running, shown.running),
        (1, 0, 0),
        "the list counts as the job itself does"
    );

    let daemon = Daemon::over(directory, Settings::default()).await;
    let trials = "/v1/recurring/nightly/trials";
    let reported = daemon.post(&format!("{trials}/1/progress"), r#"{"epochs":1,"energy_j":9,"time_s":1}"#).await;
    assert_eq!(reported.status, 200, "{}", reported.body);
    assert_eq!(recurring.list("", 9).await.expect("read")[0].running, 1);
}
