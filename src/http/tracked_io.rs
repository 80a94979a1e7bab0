//! Streams, services and bodies that record in the eviction queue how far the exchange with the client is. A stream also
//! ends the connection of a client that does not read.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use futures_util::future::BoxFuture;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::{Method, Request, Response};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use super::connection::Connection;
use super::eviction::EvictionQueue;

/// A stream that records when the client sends, and when the client stops or resumes reading. If one write waits too
/// long, the stream fails, so that a client that does not read is disconnected.
pub(super) struct TrackedStream<S> {
    stream: S,
    connection: Connection,
    is_stalled: bool,
    limit: Duration,
    /// The time limit of the write that waits at present; `None` if no write waits.
    wait: Option<Pin<Box<Sleep>>>,
}

impl<S> TrackedStream<S> {
    /// Wraps a stream. `limit` is the longest time that one write may wait.
    pub(super) fn new(stream: S, connection: Connection, limit: Duration) -> Self {
        Self { stream, connection, is_stalled: false, limit, wait: None }
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
            let is_stalled = self.is_stalled;
            self.connection.update(|queue, id, now| queue.set_stalled(id, is_stalled, now));
        }
        written
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TrackedStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, into);
        if into.filled().len() > before {
            self.connection.update(EvictionQueue::receive_bytes);
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TrackedStream<S> {
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

/// The HTTP service of one connection: records each request and answer, and adds the connection to the request.
pub(super) struct TrackedService {
    pub(super) service: TowerToHyperService<Router>,
    pub(super) connection: Connection,
}

impl hyper::service::Service<Request<Incoming>> for TrackedService {
    type Response = Response<TrackedBody<axum::body::Body>>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        let connection = self.connection.clone();
        connection.update(EvictionQueue::begin_request);
        if request.body().is_end_stream() {
            connection.update(EvictionQueue::complete_request);
        }
        request.extensions_mut().insert(connection.clone());
        let end = Some(BodyEnd { connection: connection.clone(), is_answer: false });
        let request = request.map(|body| TrackedBody { body, end });
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
            connection.update(EvictionQueue::complete_request);
            Ok(answer.map(|body| TrackedBody { body, end: Some(BodyEnd { connection, is_answer: true }) }))
        })
    }
}

/// The end of the body of a request or an answer, which is recorded once.
struct BodyEnd {
    connection: Connection,
    is_answer: bool,
}

impl BodyEnd {
    fn record(self) {
        if self.is_answer {
            self.connection.update(EvictionQueue::complete_answer);
        } else {
            self.connection.update(EvictionQueue::complete_request);
        }
    }
}

/// A body that records its end, also if it is dropped early.
pub(super) struct TrackedBody<B> {
    body: B,
    end: Option<BodyEnd>,
}

impl<B> Drop for TrackedBody<B> {
    fn drop(&mut self) {
        // A request that is refused before its body was read is answered soon, so it counts as complete.
        if let Some(end) = self.end.take() {
            end.record();
        }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for TrackedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        let is_last = matches!(frame, Poll::Ready(None | Some(Err(_)))) || self.body.is_end_stream();
        if is_last
            && !frame.is_pending()
            && let Some(end) = self.end.take_if(|end| !end.is_answer)
        {
            end.record();
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

    use super::super::connection::ConnectionTable;
    use super::super::eviction::ConnectionLimits;
    use super::super::peer::{Peer, PeerUser, Transport};
    use super::*;

    const LIMIT: Duration = Duration::from_millis(50);

    #[tokio::test]
    async fn a_client_that_stops_reading_is_disconnected() {
        let (ours, mut theirs) = tokio::io::duplex(16);
        let minute = Duration::from_secs(60);
        let table = ConnectionTable::new(ConnectionLimits { all: 1, each: 1, request: minute, idle: minute });
        let peer = Peer { transport: Transport::Loopback, user: PeerUser::Unknown, process: None };
        let mut ours = TrackedStream::new(ours, table.admit(peer), LIMIT);
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
