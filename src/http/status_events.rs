//! The stream of status events. One producer queries the status, and only while a client is connected; all clients
//! share its results. A slow client may miss events, but never the latest one.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;
use axum::response::sse::Event;
use chrono::{DateTime, DurationRound, TimeDelta, Utc};
use futures_util::{Stream, StreamExt, stream};
use serde::Serialize;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::error::Problem;
use super::peer::PeerUser;
use crate::controller::view::StatusView;

/// The interval between queries of the status.
const PERIOD: Duration = Duration::from_secs(1);
/// The maximum number of jobs, and of problems, in an event. Events are limited because each may go to all clients
/// every second.
const MAX_LISTED: usize = 50;
/// The maximum number of connected clients.
const CLIENTS: usize = 64;
/// The maximum number of clients per user, so that one user cannot exclude others.
pub(super) const CLIENTS_PER_USER: usize = 32;

/// The latest event and its subscribers. Clones share both.
#[derive(Clone)]
pub(super) struct StatusEvents {
    newest: watch::Sender<Option<Frame>>,
    wanted: Arc<Notify>,
    listeners: Arc<Mutex<HashMap<PeerUser, usize>>>,
    stop: CancellationToken,
}

/// One event, encoded for sending.
#[derive(Clone, Debug)]
struct Frame {
    event: &'static str,
    data: Arc<str>,
    /// The content that decides if the event differs from the previous one.
    identity: Arc<str>,
}

impl Frame {
    fn of_status(status: StatusView) -> Option<Self> {
        let status = status.at_most(MAX_LISTED);
        let data = text(&status)?;
        // A new time alone is no change, except once a minute, so that clients get the time once a minute.
        let minute = status.now.duration_trunc(TimeDelta::minutes(1)).unwrap_or(DateTime::<Utc>::UNIX_EPOCH);
        let identity = text(&StatusView { now: minute, ..status })?;
        Some(Self { event: "status", data, identity })
    }

    fn of_problem(problem: &Problem) -> Option<Self> {
        let data = text(problem)?;
        Some(Self { event: "problem", identity: Arc::clone(&data), data })
    }

    fn differs_from(&self, before: Option<&Self>) -> bool {
        before.is_none_or(|b| (b.event, &b.identity) != (self.event, &self.identity))
    }
}

fn text(value: &impl Serialize) -> Option<Arc<str>> {
    serde_json::to_string(value).ok().map(Into::into)
}

impl StatusEvents {
    /// Creates a stream without clients. All clients' streams end when `stop` is cancelled.
    pub(super) fn until(stop: CancellationToken) -> Self {
        Self { newest: watch::Sender::new(None), wanted: Arc::default(), listeners: Arc::default(), stop }
    }

    /// Queries the status again and again while a client is connected, and publishes changes.
    pub(super) async fn produce<F>(&self, status: impl Fn() -> F) -> Infallible
    where
        F: Future<Output = Result<StatusView, Problem>>,
    {
        loop {
            while self.newest.receiver_count() == 0 {
                // The next client must not get an outdated event.
                self.newest.send_replace(None);
                self.wanted.notified().await;
            }
            let frame = match status().await {
                Ok(status) => Frame::of_status(status),
                Err(problem) => Frame::of_problem(&problem),
            };
            self.newest.send_if_modified(|newest| match frame {
                Some(frame) if frame.differs_from(newest.as_ref()) => {
                    *newest = Some(frame);
                    true
                }
                _ => false,
            });
            tokio::time::sleep(PERIOD).await;
        }
    }

    /// Returns a stream of the latest event and all later ones, unless too many clients are connected.
    pub(super) fn listen(&self, user: PeerUser) -> Result<impl Stream<Item = Event> + use<>, Problem> {
        let slot = self.reserve_slot(user).map_err(|(all, own)| {
            let detail = format!(
                "{all} clients are connected already, {own} of them of this user; the maximum is {CLIENTS} in total and \
                 {CLIENTS_PER_USER} per user; close a page, or use GET /v1/status"
            );
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
        })?;
        let mut newest = self.newest.subscribe();
        newest.mark_changed();
        self.wanted.notify_one();
        Ok(stream::unfold((newest, slot), next).take_until(self.stop.clone().cancelled_owned()))
    }

    /// Reserves a slot for one more client. The error holds the numbers of connected clients: first in total, second
    /// of this user.
    fn reserve_slot(&self, user: PeerUser) -> Result<ListenerSlot, (usize, usize)> {
        let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = listeners.values().sum();
        let own = listeners.get(&user).copied().unwrap_or_default();
        if all >= CLIENTS || own >= CLIENTS_PER_USER {
            return Err((all, own));
        }
        listeners.insert(user, own + 1);
        Ok(ListenerSlot { listeners: Arc::clone(&self.listeners), user })
    }
}

/// The slot of one connected client, released when dropped.
struct ListenerSlot {
    listeners: Arc<Mutex<HashMap<PeerUser, usize>>>,
    user: PeerUser,
}

impl Drop for ListenerSlot {
    fn drop(&mut self) {
        let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = listeners.get_mut(&self.user) {
            *count -= 1;
        }
        listeners.retain(|_, count| *count > 0);
    }
}

type Listener = (watch::Receiver<Option<Frame>>, ListenerSlot);

async fn next((mut newest, slot): Listener) -> Option<(Event, Listener)> {
    loop {
        newest.changed().await.ok()?;
        let frame = newest.borrow_and_update().clone();
        if let Some(Frame { event, data, .. }) = frame {
            return Some((Event::default().event(event).data(data), (newest, slot)));
        }
    }
}
