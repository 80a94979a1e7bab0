//! What clients are told while they stay connected. One producer asks the controller, and only while somebody listens;
//! all clients share its answers. A slow client misses answers, never the newest one.

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

use super::Shared;
use super::error::Problem;
use super::places::Peer;
use crate::controller::view::StatusView;

/// Time between two questions to the controller.
const PERIOD: Duration = Duration::from_secs(1);
/// An event has no more jobs than this, and no more problems: each goes to every client each second.
const LISTED: usize = 50;
/// Clients at once.
const CLIENTS: usize = 64;
/// Of one user: the others' pages still get theirs.
pub(super) const CLIENTS_EACH: usize = 32;

/// The newest answer, and who waits for it. Clones share both.
#[derive(Clone)]
pub(super) struct Live {
    newest: watch::Sender<Option<Frame>>,
    wanted: Arc<Notify>,
    listeners: Arc<Mutex<HashMap<Peer, usize>>>,
    stop: CancellationToken,
}

/// One event, ready to be sent.
#[derive(Clone, Debug)]
struct Frame {
    event: &'static str,
    data: Arc<str>,
    /// What makes it another one than the one before.
    essence: Arc<str>,
}

impl Frame {
    fn of_status(status: StatusView) -> Option<Self> {
        let status = status.at_most(LISTED);
        let data = text(&status)?;
        // That time passes is no change; but whoever listens learns what time it is once a minute.
        let minute = status.now.duration_trunc(TimeDelta::minutes(1)).unwrap_or(DateTime::<Utc>::UNIX_EPOCH);
        let essence = text(&StatusView { now: minute, ..status })?;
        Some(Self { event: "status", data, essence })
    }

    fn of_problem(problem: &Problem) -> Option<Self> {
        let data = text(problem)?;
        Some(Self { event: "problem", essence: Arc::clone(&data), data })
    }

    fn is_news_after(&self, before: Option<&Self>) -> bool {
        before.is_none_or(|b| (b.event, &b.essence) != (self.event, &self.essence))
    }
}

fn text(value: &impl Serialize) -> Option<Arc<str>> {
    serde_json::to_string(value).ok().map(Into::into)
}

impl Live {
    /// Nobody listens yet. All streams end with `stop`.
    pub(super) fn until(stop: CancellationToken) -> Self {
        Self { newest: watch::Sender::new(None), wanted: Arc::default(), listeners: Arc::default(), stop }
    }

    /// Asks the controller as long as somebody listens.
    pub(super) async fn produce(&self, shared: &Shared) -> Infallible {
        loop {
            while self.newest.receiver_count() == 0 {
                // Whoever comes next gets nothing old.
                self.newest.send_replace(None);
                self.wanted.notified().await;
            }
            let frame = match shared.status().await {
                Ok(status) => Frame::of_status(status),
                Err(problem) => Frame::of_problem(&problem),
            };
            self.newest.send_if_modified(|newest| match frame {
                Some(frame) if frame.is_news_after(newest.as_ref()) => {
                    *newest = Some(frame);
                    true
                }
                _ => false,
            });
            tokio::time::sleep(PERIOD).await;
        }
    }

    /// The newest answer and all that follow.
    ///
    /// # Errors
    /// If too many listen already.
    pub(super) fn listen(&self, peer: Peer) -> Result<impl Stream<Item = Event> + use<>, Problem> {
        let place = self.place(peer).map_err(|(all, own)| {
            let detail = format!(
                "{all} clients are listening already, {own} of them this user's, and there may be {CLIENTS} and \
                 {CLIENTS_EACH}; close a page, or ask GET /v1/status"
            );
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
        })?;
        let mut newest = self.newest.subscribe();
        newest.mark_changed();
        self.wanted.notify_one();
        Ok(stream::unfold((newest, place), next).take_until(self.stop.clone().cancelled_owned()))
    }

    /// A place for one more, or how many there are in all and of that user.
    fn place(&self, peer: Peer) -> Result<Place, (usize, usize)> {
        let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = listeners.values().sum();
        let own = listeners.get(&peer).copied().unwrap_or_default();
        if all >= CLIENTS || own >= CLIENTS_EACH {
            return Err((all, own));
        }
        listeners.insert(peer, own + 1);
        Ok(Place { listeners: Arc::clone(&self.listeners), peer })
    }
}

/// The place of one listener, free again when dropped.
struct Place {
    listeners: Arc<Mutex<HashMap<Peer, usize>>>,
    peer: Peer,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = listeners.get_mut(&self.peer) {
            *count -= 1;
        }
        listeners.retain(|_, count| *count > 0);
    }
}

type Listener = (watch::Receiver<Option<Frame>>, Place);

async fn next((mut newest, place): Listener) -> Option<(Event, Listener)> {
    loop {
        newest.changed().await.ok()?;
        let frame = newest.borrow_and_update().clone();
        if let Some(Frame { event, data, .. }) = frame {
            return Some((Event::default().event(event).data(data), (newest, place)));
        }
    }
}
