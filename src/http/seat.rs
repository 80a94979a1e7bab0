//! The seat of a connection: reports the connection's state to the table of places (`places.rs`), and closes the
//! connection if it loses its place in the table, or if its client does not read.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use futures_util::future::BoxFuture;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::{Method, Request, Response};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};
use tokio_util::sync::CancellationToken;

use super::peer::{Visitor, Way};
use super::places::{Id, Limits, Peer, Places};
use wattune_core::domain::Process;

/// The seats of one listener's connections.
#[derive(Clone, Debug)]
pub(super) struct Seats(Arc<Mutex<Taken>>);

#[derive(Debug)]
struct Taken {
    places: Places,
    ends: HashMap<Id, CancellationToken>,
}

impl Taken {
    fn end(&mut self, id: Id) {
        if let Some(end) = self.ends.remove(&id) {
            end.cancel();
        }
    }
}

impl Seats {
    pub(super) fn new(limits: Limits) -> Self {
        Self(Arc::new(Mutex::new(Taken { places: Places::new(limits), ends: HashMap::new() })))
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a new connection a seat; closes another connection if there are too many.
    pub(super) fn admit(&self, visitor: Visitor) -> Seat {
        let evicted = CancellationToken::new();
        let mut taken = self.taken();
        let (id, displaced) = taken.places.admit(visitor.peer, Instant::now());
        taken.ends.insert(id, evicted.clone());
        if let Some(other) = displaced {
            taken.end(other);
        }
        drop(taken);
        Seat(Arc::new(Inner { seats: self.clone(), id, visitor, is_encrypted: AtomicBool::new(false), evicted }))
    }

    /// Closes one connection, because the system allows no more open files.
    pub(super) fn evict(&self) {
        let mut taken = self.taken();
        if let Some(id) = taken.places.evict() {
            taken.end(id);
        }
    }

    /// Closes connections that have waited too long for their clients.
    pub(super) fn expire(&self) {
        let mut taken = self.taken();
        for id in taken.places.expire(Instant::now()) {
            taken.end(id);
        }
    }
}

/// The seat of one connection, released when the last clone is dropped.
#[derive(Clone, Debug)]
pub(super) struct Seat(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    seats: Seats,
    id: Id,
    visitor: Visitor,
    is_encrypted: AtomicBool,
    evicted: CancellationToken,
}

impl Drop for Inner {
    fn drop(&mut self) {
        let mut taken = self.seats.taken();
        taken.places.remove(self.id);
        taken.ends.remove(&self.id);
    }
}

impl Seat {
    /// Returns the user at the other end of the connection.
    pub(super) fn peer(&self) -> Peer {
        self.0.visitor.peer
    }

    /// Returns the user id of the client; `None` if the kernel does not report the user.
    pub(super) fn user(&self) -> Option<u32> {
        match self.0.visitor.peer {
            Peer::User(user) => Some(user),
            Peer::Remote(_) | Peer::Unknown => None,
        }
    }

    /// Returns the address of a client on another machine.
    pub(super) fn address(&self) -> Option<IpAddr> {
        match self.0.visitor.peer {
            Peer::Remote(address) => Some(address),
            Peer::User(_) | Peer::Unknown => None,
        }
    }

    /// Returns true if the connection is encrypted.
    pub(super) fn is_encrypted(&self) -> bool {
        self.0.is_encrypted.load(Ordering::Relaxed)
    }

    /// Returns the way by which the client is connected.
    pub(super) fn way(&self) -> Way {
        match self.0.visitor.way {
            Way::Remote { .. } => Way::Remote { is_encrypted: self.0.is_encrypted.load(Ordering::Relaxed) },
            local => local,
        }
    }

    /// Records that the connection is encrypted.
    pub(super) fn encrypt(&self) {
        self.0.is_encrypted.store(true, Ordering::Relaxed);
    }

    /// Returns the process at the other end of the connection; `None` over TCP, and for processes of other namespaces.
    pub(super) fn process(&self) -> Option<Process> {
        self.0.visitor.process
    }

    /// Completes when the connection has lost its place and must be closed.
    pub(super) async fn evicted(&self) {
        self.0.evicted.cancelled().await;
    }

    /// Records that a running job has reported through the connection.
    pub(super) fn reported(&self) {
        self.report(|places, id, _| places.reported(id));
    }

    fn report(&self, what: impl FnOnce(&mut Places, Id, Instant)) {
        what(&mut self.0.seats.taken().places, self.0.id, Instant::now());
    }
}

/// A stream that reports to its seat when the client sends, and when the client stops or resumes reading. If one write
/// waits too long, the stream fails, so that a client that does not read loses its place.
pub(super) struct Seated<S> {
    stream: S,
    seat: Seat,
    is_stalled: bool,
    limit: Duration,
    /// The time limit of the write that waits at present; `None` if no write waits.
    wait: Option<Pin<Box<Sleep>>>,
}

impl<S> Seated<S> {
    /// Wraps a stream. `limit` is the longest time that one write may wait.
    pub(super) fn new(stream: S, seat: Seat, limit: Duration) -> Self {
        Self { stream, seat, is_stalled: false, limit, wait: None }
    }

    /// Returns the result of a write, or a time-out error if the write has waited too long.
    fn within_limit<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.wait = None;
            return written;
        }
        let limit = self.limit;
        let wait = self.wait.get_or_insert_with(|| Box::pin(sleep(limit)));
        ready!(wait.as_mut().poll(context));
        let why = format!("no write succeeded for {} s", limit.as_secs());
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, why)))
    }

    fn observe<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        let written = self.within_limit(context, written);
        if written.is_pending() != self.is_stalled {
            self.is_stalled = written.is_pending();
            let stalled = self.is_stalled;
            self.seat.report(|places, id, now| places.stall(id, stalled, now));
        }
        written
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Seated<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, into);
        if into.filled().len() > before {
            self.seat.report(Places::receive);
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Seated<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.observe(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.observe(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.within_limit(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(context);
        self.within_limit(context, shut)
    }
}

/// The HTTP service of one connection: reports each request and answer to the seat, and adds the seat to the request.
pub(super) struct SeatedService {
    pub(super) service: TowerToHyperService<Router>,
    pub(super) seat: Seat,
}

impl hyper::service::Service<Request<Incoming>> for SeatedService {
    type Response = Response<SeatedBody<axum::body::Body>>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        let seat = self.seat.clone();
        seat.report(Places::begin);
        if request.body().is_end_stream() {
            seat.report(Places::arrived);
        }
        request.extensions_mut().insert(seat.clone());
        let received = seat.clone();
        let request = request.map(|body| SeatedBody { body, end: Some(End { seat: received, is_answer: false }) });
        let is_end = request.method() == Method::DELETE;
        let answer = hyper::service::Service::call(&self.service, request);
        // A client that waits no longer, such as `wattune run` at its end, may have sent its request while this process was
        // stopped. What ends something counts all the same, although the connection is closed as soon as that is seen.
        let answer = if is_end { Ok(tokio::spawn(answer)) } else { Err(answer) };
        Box::pin(async move {
            let answer = match answer {
                Err(answer) => answer.await?,
                Ok(task) => match task.await {
                    Ok(answer) => answer?,
                    Err(died) => match died.try_into_panic() {
                        Ok(panic) => std::panic::resume_unwind(panic),
                        // The runtime is stopping.
                        Err(_) => std::future::pending().await,
                    },
                },
            };
            // The answer is ready, so the rest of the request's body is not needed.
            seat.report(Places::arrived);
            Ok(answer.map(|body| SeatedBody { body, end: Some(End { seat, is_answer: true }) }))
        })
    }
}

/// The end of the body of a request or an answer, which is reported to the seat once.
struct End {
    seat: Seat,
    is_answer: bool,
}

impl End {
    fn reached(self) {
        if self.is_answer {
            self.seat.report(Places::answered);
        } else {
            self.seat.report(Places::arrived);
        }
    }
}

/// A body that reports its end to the seat, also if it is dropped early.
pub(super) struct SeatedBody<B> {
    body: B,
    end: Option<End>,
}

impl<B> Drop for SeatedBody<B> {
    fn drop(&mut self) {
        // A request that is refused before its body was read is answered soon, so it counts as complete.
        if let Some(end) = self.end.take() {
            end.reached();
        }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for SeatedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        let is_last = matches!(frame, Poll::Ready(None | Some(Err(_)))) || self.body.is_end_stream();
        if is_last
            && !frame.is_pending()
            && let Some(end) = self.end.take_if(|end| !end.is_answer)
        {
            end.reached();
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const LIMIT: Duration = Duration::from_millis(50);

    #[tokio::test]
    async fn a_client_that_stops_reading_is_disconnected() {
        let (ours, mut theirs) = tokio::io::duplex(16);
        let minute = Duration::from_secs(60);
        let seats = Seats::new(Limits { all: 1, each: 1, request: minute, idle: minute });
        let mut ours =
            Seated::new(ours, seats.admit(Visitor { way: Way::Loopback, peer: Peer::Unknown, process: None }), LIMIT);
        let sent: Vec<u8> = (0..200).collect();
        let mut got = vec![0; sent.len()];
        let (written, read) = tokio::join!(ours.write_all(&sent), theirs.read_exact(&mut got));
        written.expect("written");
        read.expect("read");
        assert_eq!(got, sent);
        let error = ours.write_all(&sent).await.expect_err("the client does not read");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
        drop(theirs);
    }
}
