//! Connections: accepted, answered, and ended in time.

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::guard::Guard;
use super::listen::{self, BindError};
use super::live::Live;
use super::patience::Patient;
use super::socket::{self, Socket};
use super::{Ready, Settings, Shared, routes};
use crate::controller::Handle;
use crate::recurring::Recurring;

/// How long requests may go on after the daemon was told to stop.
const GRACE: Duration = Duration::from_secs(5);
/// So long one write may wait for a client to read; then its connection ends, and its place is free.
const PATIENCE: Duration = Duration::from_secs(30);
/// Connections at once, per address: whoever opens more must not take the files that the restore journal needs.
const CONNECTIONS: usize = 128;

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
            Some(address) => Some(listen::tcp(address).await?),
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
            header_timeout: timeout,
        };
        let on_tcp = async {
            let Some((listener, address)) = &tcp else { return pending().await };
            connections.take(listener, routes::service(shared.clone(), Guard::tcp(*address))).await
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

/// Where connections come from.
trait Listener: Sync {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    fn accept(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<TcpStream> {
        let (stream, _) = Self::accept(self).await?;
        // Answers are small; waiting to fill a packet only delays them.
        let _ = stream.set_nodelay(true);
        Ok(stream)
    }
}

impl Listener for UnixListener {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<UnixStream> {
        Self::accept(self).await.map(|(stream, _)| stream)
    }
}

struct Connections {
    tracker: TaskTracker,
    stop: CancellationToken,
    abort: CancellationToken,
    header_timeout: Duration,
}

impl Connections {
    /// Serves each connection in a task of its own.
    async fn take(&self, listener: &impl Listener, service: Router) -> Infallible {
        let places = Arc::new(Semaphore::new(CONNECTIONS));
        loop {
            let Ok(place) = Arc::clone(&places).acquire_owned().await else { return pending().await };
            match listener.accept().await {
                Ok(stream) => self.serve(stream, service.clone(), place),
                Err(error) => {
                    tracing::warn!("a connection was lost before it began: {error}");
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            }
        }
    }

    fn serve<S>(&self, stream: S, service: Router, place: OwnedSemaphorePermit)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (stop, abort) = (self.stop.clone(), self.abort.clone());
        let stream = Patient::new(stream, PATIENCE);
        let mut protocol = http1::Builder::new();
        protocol.timer(TokioTimer::new()).header_read_timeout(self.header_timeout).max_headers(64);
        self.tracker.spawn(async move {
            let _place = place;
            let mut connection =
                pin!(protocol.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service)));
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
