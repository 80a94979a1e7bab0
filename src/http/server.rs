//! Accepts, serves and closes connections.

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
use tokio_rustls::TlsAcceptor;
use tokio_util::either::Either;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::access::Access;
use super::bucket::Buckets;
use super::connection::{Connection, ConnectionTable};
use super::cross_site::CrossSiteGuard;
use super::eviction::ConnectionLimits;
use super::listen::{self, BindError};
use super::peer::{self, Peer, PeerUser, TcpPeers, Transport};
use super::rate_limits::RateLimits;
use super::routes;
use super::settings::Settings;
use super::shared::{RECORDED_REFUSALS, Ready, Shared, SharedState};
use super::socket::{self, Socket, SocketRights};
use super::status_events::StatusEvents;
use super::tls::{self, MaybeTls};
use super::tracked_io::{TrackedService, TrackedStream};
use super::zeusd::{ZeusSettings, Zeusd};
use crate::controller::{Devices, Handle};
use crate::recurring::Recurring;

/// The time for which running requests may continue once the daemon stops.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(5);
/// The time that one write may wait for a client to read; then the connection is closed.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum number of connections per listening address.
const MAX_CONNECTIONS: usize = 8192;
/// The number of open files reserved for the journal, the database, the driver, and requests to carbon sources.
const RESERVED_FILES: usize = 256;
/// The maximum number of open files that the process requests from the system.
const MAX_FILES: u64 = 16_640;
/// The time for which a connection waits for another request: longer than Prometheus's usual scrape interval.
const IDLE: Duration = Duration::from_secs(90);
/// The interval between checks for connections that have waited too long.
const SWEEP: Duration = Duration::from_millis(100);
/// The maximum size in bytes of a request's head, and of the send buffer.
const BUFFER: usize = 16 << 10;

/// The API server with its open addresses, before it answers requests.
pub struct Server {
    tcp: Option<(TcpListener, SocketAddr)>,
    tls: Option<TlsAcceptor>,
    unix: Option<Socket>,
    access: Access,
    handle: Handle,
    ready: Ready,
    timeout: Duration,
    body_limit: usize,
}

impl Server {
    /// Opens the addresses. Clients can connect from then on; [`Self::serve`] answers their requests.
    ///
    /// # Errors
    /// If the settings contradict each other or an address is not available; the message says what to do.
    pub async fn bind(settings: &Settings, handle: Handle, ready: Ready) -> Result<Self, BindError> {
        settings.check().and_then(|()| settings.check_reachable()).map_err(BindError::Settings)?;
        let access = Access::new(settings).map_err(BindError::Key)?;
        let tls = acceptor(settings)?;
        let tcp = match settings.listen {
            Some(address) => Some(listen::tcp(address)?),
            None => None,
        };
        let unix = match &settings.socket {
            Some(path) => Some(socket::bind(path, &SocketRights::of(settings)).await.map_err(BindError::Socket)?),
            None => None,
        };
        let timeout = settings.request_timeout_s.to_std();
        Ok(Self { tcp, tls, unix, access, handle, ready, timeout, body_limit: settings.body_limit_bytes })
    }

    /// Returns what would keep [`Self::bind`] from opening the addresses, as far as that can be seen without opening
    /// one: the keys, the certificate, and the socket with its owner and group. Leaves nothing behind.
    pub async fn find_obstacles(settings: &Settings) -> Vec<BindError> {
        let keys = Access::new(settings).map(drop).map_err(BindError::Key);
        let certificate = acceptor(settings).map(drop);
        let rights = SocketRights::of(settings);
        let socket = match &settings.socket {
            Some(path) => socket::find_obstacles(path, &rights).await,
            None => rights.check().err().into_iter().collect(),
        };
        let others = [keys, certificate].into_iter().filter_map(Result::err);
        others.chain(socket.into_iter().map(BindError::Socket)).collect()
    }

    /// Moves the open addresses from the runtime in which they were opened to the present one.
    ///
    /// # Errors
    /// If the system refuses to watch the addresses.
    pub fn into_this_runtime(mut self) -> io::Result<Self> {
        if let Some((listener, address)) = self.tcp.take() {
            self.tcp = Some((TcpListener::from_std(listener.into_std()?)?, address));
        }
        if let Some(Socket { listener, file }) = self.unix.take() {
            self.unix = Some(Socket { listener: UnixListener::from_std(listener.into_std()?)?, file });
        }
        Ok(self)
    }

    /// Returns the TCP address, with the actual port if port 0 was configured.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        self.tcp.as_ref().map(|(_, address)| *address)
    }

    /// Returns true if the TCP address also speaks TLS.
    pub fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Returns the path of the Unix socket, if one is configured.
    pub fn socket_path(&self) -> Option<&Path> {
        self.unix.as_ref().map(|unix| unix.file.path.as_path())
    }

    /// Serves until `cancel` is cancelled, then finishes running requests for at most five seconds and removes the
    /// socket's file. Before the first answer, renews the leases of running trials (a silent trial counts as lost after
    /// its lease), because trials could not report while no daemon ran; from then on, ends trials whose lease expires.
    pub async fn serve(self, recurring: Recurring, devices: Devices, zeus: ZeusSettings, cancel: CancellationToken) {
        let bound = self.tcp_address();
        recurring.renew().await;
        tokio::spawn(recurring.clone().watch(cancel.clone()));
        let Self { tcp, tls, unix, access, handle, ready, timeout, body_limit } = self;
        let zeusd = Zeusd::new(zeus, devices, handle.clone(), timeout, cancel.clone());
        let status_events = StatusEvents::until(cancel.clone());
        let shared = Shared::from(SharedState {
            handle,
            recurring,
            ready,
            status_events,
            zeusd,
            access,
            refusals: Buckets::new(RECORDED_REFUSALS),
            timeout,
            body_limit,
        });
        let status = || {
            let shared = shared.clone();
            async move { shared.status().await }
        };
        let connections = ConnectionTasks {
            tracker: TaskTracker::new(),
            stop: cancel.clone(),
            abort: CancellationToken::new(),
            limits: limits(timeout),
        };
        // One allowance for a sender, whichever address it uses.
        let rates = RateLimits::default();
        let on_tcp = async {
            let Some((listener, address)) = &tcp else { return pending().await };
            connections
                .accept_all(
                    &Tcp { listener, peers: TcpPeers::new(), tls, handshake: timeout },
                    routes::service(shared.clone(), CrossSiteGuard::tcp(*address), rates.clone()),
                )
                .await
        };
        let on_unix = async {
            let Some(socket) = &unix else { return pending().await };
            let service = routes::service(shared.clone(), CrossSiteGuard::unix(bound), rates.clone());
            connections.accept_all(&socket.listener, service).await
        };
        tokio::select! {
            () = cancel.cancelled() => {}
            never = on_tcp => match never {},
            never = on_unix => match never {},
            never = shared.status_events.produce(status) => match never {},
        }
        // New clients are refused now, instead of left to wait.
        drop((tcp, unix));
        connections.finish().await;
    }
}

/// Reads the certificate and its key; `None` without them.
fn acceptor(settings: &Settings) -> Result<Option<TlsAcceptor>, BindError> {
    match (&settings.tls_cert, &settings.tls_key) {
        (Some(cert), Some(key)) => tls::load(cert, key).map(Some).map_err(BindError::Tls),
        _ => Ok(None),
    }
}

/// Returns the limits on connections per address, which follow from this process's limit on open files. Raises that
/// limit first, as far as the system allows.
fn limits(request: Duration) -> ConnectionLimits {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = MAX_FILES.min(maximum.unwrap_or(MAX_FILES));
    let raised = current.is_some_and(|current| current < wanted)
        && setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }).is_ok();
    let files = if raised { wanted } else { current.unwrap_or(MAX_FILES) };
    let files = usize::try_from(files).unwrap_or(usize::MAX);
    let all = (files.saturating_sub(RESERVED_FILES) / 2).clamp(32, MAX_CONNECTIONS);
    ConnectionLimits { all, each: all / 2, request, idle: IDLE }
}

/// A listening socket that accepts connections.
trait Listener: Sync {
    type Stream: Stream;

    /// Returns the next connection, with the user and the process at its other end.
    fn accept(&self) -> impl Future<Output = io::Result<(Self::Stream, Peer)>> + Send;
}

/// A connection to a client.
trait Stream: Send + 'static {
    type Open: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Waits until the client has sent something.
    fn wait(&self) -> impl Future<Output = io::Result<()>> + Send;

    /// Returns the stream of the client's requests, after the client's first bytes.
    fn open(self, connection: &Connection) -> impl Future<Output = io::Result<Self::Open>> + Send;
}

/// A TCP connection, which may begin with a TLS handshake.
struct TcpConnection {
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    handshake: Duration,
}

impl Stream for TcpConnection {
    type Open = MaybeTls;

    async fn wait(&self) -> io::Result<()> {
        self.stream.readable().await
    }

    async fn open(self, connection: &Connection) -> io::Result<Self::Open> {
        let stream = tls::accept(self.stream, self.tls.as_ref(), self.handshake).await?;
        if matches!(stream, Either::Right(_)) {
            connection.set_encrypted();
        }
        Ok(stream)
    }
}

impl Stream for UnixStream {
    type Open = Self;

    async fn wait(&self) -> io::Result<()> {
        self.readable().await
    }

    async fn open(self, _: &Connection) -> io::Result<Self> {
        Ok(self)
    }
}

/// A TCP listener, with the lookup of its clients' users, and with TLS if there is a certificate.
struct Tcp<'a> {
    listener: &'a TcpListener,
    peers: TcpPeers,
    tls: Option<TlsAcceptor>,
    /// The time limit of a TLS handshake.
    handshake: Duration,
}

impl Listener for Tcp<'_> {
    type Stream = TcpConnection;

    async fn accept(&self) -> io::Result<(TcpConnection, Peer)> {
        let (stream, client) = self.listener.accept().await?;
        // Answers are small, and waiting to fill a packet would only delay them.
        let _ = stream.set_nodelay(true);
        let peer = match stream.local_addr() {
            Ok(server) => {
                let transport = Transport::of_tcp(client, server);
                let user = match (self.peers.user(client, server), transport) {
                    (PeerUser::Unknown, Transport::Remote { .. }) => PeerUser::remote(client.ip()),
                    (known, _) => known,
                };
                Peer { transport, user, process: None }
            }
            Err(_) => {
                let transport = Transport::Remote { is_encrypted: false };
                Peer { transport, user: PeerUser::remote(client.ip()), process: None }
            }
        };
        Ok((TcpConnection { stream, tls: self.tls.clone(), handshake: self.handshake }, peer))
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

/// The tasks that serve the connections of all listeners.
struct ConnectionTasks {
    tracker: TaskTracker,
    stop: CancellationToken,
    abort: CancellationToken,
    limits: ConnectionLimits,
}

impl ConnectionTasks {
    /// Accepts connections, and serves each in a task of its own.
    async fn accept_all(&self, listener: &impl Listener, service: Router) -> Infallible {
        let table = ConnectionTable::new(self.limits);
        let mut sweep = tokio::time::interval(SWEEP);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                _ = sweep.tick() => {
                    table.expire();
                    continue;
                }
            };
            match accepted {
                Ok((stream, peer)) => self.serve(stream, service.clone(), table.admit(peer)),
                Err(error) => {
                    tracing::warn!("cannot accept a connection: {error}");
                    // The likely cause is the limit on open files, so one connection is closed.
                    table.evict();
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
        }
    }

    fn serve(&self, stream: impl Stream, service: Router, connection: Connection) {
        let (stop, abort) = (self.stop.clone(), self.abort.clone());
        let mut protocol = http1::Builder::new();
        // The eviction queue, not the HTTP library, limits the time within which a request's head must arrive.
        protocol.timer(TokioTimer::new()).header_read_timeout(None).max_headers(64).max_buf_size(BUFFER);
        self.tracker.spawn(async move {
            // Before the client's first byte, a connection needs no buffers.
            let first = tokio::select! {
                first = stream.wait() => first,
                () = connection.evicted() => return,
                () = stop.cancelled() => return,
            };
            if first.is_err() {
                return;
            }
            let opened = tokio::select! {
                opened = stream.open(&connection) => opened,
                () = connection.evicted() => return,
                () = stop.cancelled() => return,
            };
            let stream = match opened {
                Ok(stream) => TrackedStream::new(stream, connection.clone(), WRITE_TIMEOUT),
                Err(error) => return tracing::debug!("a TLS handshake failed: {error}"),
            };
            let service = TrackedService { service: TowerToHyperService::new(service), connection: connection.clone() };
            let mut serving = pin!(protocol.serve_connection(TokioIo::new(stream), service));
            let mut stopping = false;
            loop {
                tokio::select! {
                    ended = serving.as_mut() => {
                        if let Err(error) = ended {
                            tracing::debug!("a connection ended early: {error}");
                        }
                        return;
                    }
                    () = stop.cancelled(), if !stopping => {
                        stopping = true;
                        serving.as_mut().graceful_shutdown();
                    }
                    () = connection.evicted() => return,
                    () = abort.cancelled() => return,
                }
            }
        });
    }

    /// Waits for running requests to finish, and aborts those that exceed `SHUTDOWN_LIMIT`.
    async fn finish(self) {
        self.tracker.close();
        if tokio::time::timeout(SHUTDOWN_LIMIT, self.tracker.wait()).await.is_err() {
            tracing::warn!("{} connection(s) aborted at shutdown", self.tracker.len());
            self.abort.cancel();
            self.tracker.wait().await;
        }
    }
}
