//! Connections: accepted, answered, and ended in time.

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::guard::Guard;
use super::listen::{self, BindError};
use super::live::Live;
use super::patience::Patient;
use super::peer::{self, TcpPeers};
use super::places::{Limits, Peer};
use super::seat::{Seat, Seated, SeatedService, Seats};
use super::socket::{self, Socket};
use super::{Ready, Settings, Shared, routes};
use crate::controller::Handle;
use crate::recurring::Recurring;

/// How long requests may go on after the daemon was told to stop.
const GRACE: Duration = Duration::from_secs(5);
/// So long one write may wait for a client to read; then its connection ends, and its place is free.
const PATIENCE: Duration = Duration::from_secs(30);
/// The most connections at once, per address.
const CONNECTIONS: usize = 8192;
/// Files that are left for everything else: the journal, the database, the driver, requests to sources.
const OTHER_FILES: usize = 256;
/// The most files that are asked for.
const FILES: u64 = 16_640;
/// A connection is kept so long for another request: for longer than Prometheus usually waits between two.
const IDLE: Duration = Duration::from_secs(90);
/// Time between two looks for connections that wait for their clients for too long.
const SWEEP: Duration = Duration::from_millis(100);
/// The most bytes of a request's head, and of an answer that waits to be sent.
const BUFFER: usize = 16 << 10;

/// The API with its addresses taken, before it answers.
pub struct Server {
    tcp: Option<(TcpListener, SocketAddr)>,
    unix: Option<Socket>,
    handle: Handle,
    ready: Ready,
    timeout: Duration,
    body_limit: usize,
}

impl Server {
    /// Takes the addresses. Clients can connect from then on; they are answered by [`Self::serve`].
    ///
    /// # Errors
    /// If the settings contradict themselves or an address cannot be had; the text says what to do.
    pub async fn bind(settings: &Settings, handle: Handle, ready: Ready) -> Result<Self, BindError> {
        settings.check().map_err(BindError::Settings)?;
        let tcp = match settings.listen {
            Some(address) => Some(listen::tcp(address)?),
            None => None,
        };
        let unix = match &settings.socket {
            Some(path) => Some(socket::bind(path, settings.socket_group.as_deref()).await?),
            None => None,
        };
        let timeout = settings.request_timeout_s.to_std();
        Ok(Self { tcp, unix, handle, ready, timeout, body_limit: settings.body_limit_bytes })
    }

    /// The TCP address, with the port that was found if 0 was asked for.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        self.tcp.as_ref().map(|(_, address)| *address)
    }

    /// The Unix socket's path.
    pub fn socket_path(&self) -> Option<&Path> {
        self.unix.as_ref().map(|unix| unix.file.path.as_path())
    }

    /// Answers until `cancel`, and then for at most five seconds what is under way. The socket's file is gone
    /// afterwards. Who comes at once waits until running trials have their leases anew; silent ones are ended meanwhile.
    pub async fn serve(self, recurring: Recurring, cancel: CancellationToken) {
        let bound = self.tcp_address();
        recurring.renew().await;
        tokio::spawn(recurring.clone().watch(cancel.clone()));
        let Self { tcp, unix, handle, ready, timeout, body_limit } = self;
        let live = Live::until(cancel.clone());
        let shared = Shared { handle, recurring, ready, live, timeout, body_limit };
        let connections = Connections {
            tracker: TaskTracker::new(),
            stop: cancel.clone(),
            abort: CancellationToken::new(),
            limits: limits(timeout),
        };
        let on_tcp = async {
            let Some((listener, address)) = &tcp else { return pending().await };
            connections
                .take(&Tcp(listener, TcpPeers::new()), routes::service(shared.clone(), Guard::tcp(*address)))
                .await
        };
        let on_unix = async {
            let Some(socket) = &unix else { return pending().await };
            connections.take(&socket.listener, routes::service(shared.clone(), Guard::unix(bound))).await
        };
        tokio::select! {
            () = cancel.cancelled() => {}
            never = on_tcp => match never {},
            never = on_unix => match never {},
            never = shared.live.produce(&shared) => match never {},
        }
        // Whoever comes now is refused instead of left waiting.
        drop((tcp, unix));
        connections.finish().await;
    }
}

/// How many connections there may be at each of the two addresses: as many as the files that this process may open allow,
/// of which it takes what it can get.
fn limits(request: Duration) -> Limits {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = FILES.min(maximum.unwrap_or(FILES));
    let raised = current.is_some_and(|current| current < wanted)
        && setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }).is_ok();
    let files = if raised { wanted } else { current.unwrap_or(FILES) };
    let files = usize::try_from(files).unwrap_or(usize::MAX);
    let all = (files.saturating_sub(OTHER_FILES) / 2).clamp(32, CONNECTIONS);
    Limits { all, each: all / 2, request, idle: IDLE }
}

/// Where connections come from.
trait Listener: Sync {
    type Stream: Stream;

    /// The next connection, and whose it is.
    fn accept(&self) -> impl Future<Output = io::Result<(Self::Stream, Peer)>> + Send;
}

/// A connection.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// Waits for its client to send something.
    fn wait(&self) -> impl Future<Output = io::Result<()>> + Send;
}

impl Stream for TcpStream {
    async fn wait(&self) -> io::Result<()> {
        self.readable().await
    }
}

impl Stream for UnixStream {
    async fn wait(&self) -> io::Result<()> {
        self.readable().await
    }
}

/// A TCP listener, its address, and how to learn who connects.
struct Tcp<'a>(&'a TcpListener, TcpPeers);

impl Listener for Tcp<'_> {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<(TcpStream, Peer)> {
        let (stream, client) = self.0.accept().await?;
        // Answers are small; waiting to fill a packet only delays them.
        let _ = stream.set_nodelay(true);
        let peer = stream.local_addr().map_or(Peer::Unknown, |server| self.1.user(client, server));
        Ok((stream, peer))
    }
}

impl Listener for UnixListener {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<(UnixStream, Peer)> {
        let (stream, _) = Self::accept(self).await?;
        let peer = peer::of_unix(&stream);
        Ok((stream, peer))
    }
}

struct Connections {
    tracker: TaskTracker,
    stop: CancellationToken,
    abort: CancellationToken,
    limits: Limits,
}

impl Connections {
    /// Serves each connection in a task of its own.
    async fn take(&self, listener: &impl Listener, service: Router) -> Infallible {
        let seats = Seats::new(self.limits);
        let mut sweep = tokio::time::interval(SWEEP);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                _ = sweep.tick() => {
                    seats.expire();
                    continue;
                }
            };
            match accepted {
                Ok((stream, peer)) => self.serve(stream, service.clone(), seats.admit(peer)),
                Err(error) => {
                    tracing::warn!("a connection was lost before it began: {error}");
                    // Most likely there are no more files.
                    seats.give_away();
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
        }
    }

    fn serve(&self, stream: impl Stream, service: Router, seat: Seat) {
        let (stop, abort) = (self.stop.clone(), self.abort.clone());
        let mut protocol = http1::Builder::new();
        // The table of places says when a head has taken too long.
        protocol.timer(TokioTimer::new()).header_read_timeout(None).max_headers(64).max_buf_size(BUFFER);
        self.tracker.spawn(async move {
            // Until it says something a connection has no buffers.
            let first = tokio::select! {
                first = stream.wait() => first,
                () = seat.gone() => return,
                () = stop.cancelled() => return,
            };
            if first.is_err() {
                return;
            }
            let stream = Seated::new(Patient::new(stream, PATIENCE), seat.clone());
            let service = SeatedService { service: TowerToHyperService::new(service), seat: seat.clone() };
            let mut connection = pin!(protocol.serve_connection(TokioIo::new(stream), service));
            let mut stopping = false;
            loop {
                tokio::select! {
                    ended = connection.as_mut() => {
                        if let Err(error) = ended {
                            tracing::debug!("a connection ended early: {error}");
                        }
                        return;
                    }
                    () = stop.cancelled(), if !stopping => {
                        stopping = true;
                        connection.as_mut().graceful_shutdown();
                    }
                    () = seat.gone() => return,
                    () = abort.cancelled() => return,
                }
            }
        });
    }

    /// Lets what is under way end, for a while.
    async fn finish(self) {
        self.tracker.close();
        if tokio::time::timeout(GRACE, self.tracker.wait()).await.is_err() {
            tracing::warn!("{} request(s) were cut off at shutdown", self.tracker.len());
            self.abort.cancel();
            self.tracker.wait().await;
        }
    }
}
