//! Polls one source, and publishes what is known.

#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use rand::TryRng;
use rand::rngs::SysRng;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::cache::{Cache, CacheProblem};
use super::state::FeedState;
use super::{CarbonProvider, ProviderError};
use crate::clock::Clock;
use crate::domain::Forecast;
use crate::units::Seconds;

/// The longest nap between looks at the clock, which may have been set meanwhile.
const LONGEST_NAP: Seconds = Seconds::new(60.0);

/// One source, polled by whoever holds it: a task ([`Feed::spawn`]), or the accelerated demo ([`Feed::poll_once`]).
pub struct Feed {
    provider: Arc<dyn CarbonProvider>,
    cache: Option<Cache>,
    sender: watch::Sender<FeedState>,
    /// The cache could not be written; said once until it can.
    cache_broken: bool,
}

/// A feed that polls itself.
#[derive(Debug)]
pub struct FeedHandle {
    /// The newest state.
    pub state: watch::Receiver<FeedState>,
    /// Ends after the token is cancelled, and never before.
    pub task: JoinHandle<()>,
    poll: Arc<Notify>,
}

impl FeedHandle {
    /// Polls as soon as possible, whatever is due.
    pub fn poll_now(&self) {
        self.poll.notify_one();
    }
}

impl Feed {
    /// Loads what an earlier run stored in `cache_dir`. Nothing is polled yet, and nothing stored without a directory.
    pub async fn start(provider: Arc<dyn CarbonProvider>, cache_dir: Option<&Path>, now: DateTime<Utc>) -> Self {
        let keeps = provider.keeps_answers();
        let cache = cache_dir.filter(|_| keeps).map(|dir| Cache::new(dir, provider.source(), provider.zone()));
        let stored = match &cache {
            Some(cache) => load(cache.clone(), now).await,
            None => None,
        };
        let state = FeedState::starting(provider.source(), provider.cadence(), stored, now);
        Self { provider, cache, sender: watch::Sender::new(state), cache_broken: false }
    }

    /// The newest state, as it changes.
    pub fn subscribe(&self) -> watch::Receiver<FeedState> {
        self.sender.subscribe()
    }

    /// What is known.
    pub fn state(&self) -> FeedState {
        self.sender.borrow().clone()
    }

    /// Asks the source once, as of `now`, and publishes what is known then.
    pub async fn poll_once(&mut self, now: DateTime<Utc>) -> FeedState {
        let answer = self.provider.fetch(now).await;
        let before = self.state();
        let after = match answer {
            Ok(answer) => {
                if before.consecutive_failures > 0 {
                    let failures = before.consecutive_failures;
                    tracing::info!(source = before.source, failures, "carbon source answers again");
                }
                let after = before.answered(answer, now, jitter());
                if let Some(forecast) = &after.forecast {
                    self.store(Arc::clone(forecast)).await;
                }
                after
            }
            Err(error) => {
                let after = before.failed(&error, now, jitter());
                log(&before, &after, &error, now);
                after
            }
        };
        self.sender.send_replace(after.clone());
        after
    }

    /// Polls until `cancel` is cancelled: at once, and then whenever the state says that it is due.
    pub async fn run(mut self, clock: Arc<dyn Clock>, cancel: CancellationToken, poll: Arc<Notify>) {
        loop {
            let state = tokio::select! {
                () = cancel.cancelled() => return,
                state = self.poll_once(clock.utc()) => state,
            };
            // On both scales: a wall clock set back by a day must not keep the feed silent for a day.
            let asleep_since = clock.monotonic();
            let planned = Seconds::from_delta(state.next_poll_at - clock.utc());
            loop {
                let by_wall = Seconds::from_delta(state.next_poll_at - clock.utc());
                let by_duration = planned - clock.monotonic().since(asleep_since);
                let nap = by_wall.min(by_duration);
                if nap <= Seconds::ZERO {
                    break;
                }
                tokio::select! {
                    () = cancel.cancelled() => return,
                    () = poll.notified() => break,
                    () = tokio::time::sleep(nap.min(LONGEST_NAP).to_std()) => {}
                }
            }
        }
    }

    /// Starts a task that polls `provider` until `cancel` is cancelled.
    pub async fn spawn(
        provider: Arc<dyn CarbonProvider>,
        cache_dir: Option<&Path>,
        clock: Arc<dyn Clock>,
        cancel: CancellationToken,
    ) -> FeedHandle {
        let feed = Self::start(provider, cache_dir, clock.utc()).await;
        let (state, poll) = (feed.subscribe(), Arc::new(Notify::new()));
        let task = tokio::spawn(feed.run(clock, cancel, Arc::clone(&poll)));
        FeedHandle { state, task, poll }
    }

    async fn store(&mut self, forecast: Arc<Forecast>) {
        let Some(cache) = self.cache.clone() else { return };
        let path = cache.path().display().to_string();
        let stored = tokio::task::spawn_blocking(move || cache.store(&forecast)).await;
        let stored = stored.unwrap_or_else(|stopped| Err(CacheProblem::Corrupt(stopped.to_string())));
        match stored {
            Ok(()) => self.cache_broken = false,
            Err(problem) if !self.cache_broken => {
                tracing::warn!(path, "carbon cache {problem}");
                self.cache_broken = true;
            }
            Err(_) => {}
        }
    }
}

async fn load(cache: Cache, now: DateTime<Utc>) -> Option<Forecast> {
    let path = cache.path().display().to_string();
    let loaded = tokio::task::spawn_blocking(move || cache.load(now)).await;
    match loaded.unwrap_or_else(|stopped| Err(CacheProblem::Corrupt(stopped.to_string()))) {
        Ok(stored) => stored,
        Err(problem) => {
            tracing::warn!(path, "carbon cache {problem}");
            None
        }
    }
}

/// Once when it begins or changes; the repetitions are for those who look closely.
fn log(before: &FeedState, after: &FeedState, error: &ProviderError, now: DateTime<Utc>) {
    let (source, failures) = (after.source, after.consecutive_failures);
    let (freshness, next) = (after.freshness(now), after.next_poll_at);
    if before.last_error == after.last_error {
        tracing::debug!(source, failures, ?freshness, %next, "carbon source still fails: {error}");
    } else {
        tracing::warn!(source, failures, ?freshness, %next, "carbon source fails: {error}");
    }
}

/// From the system, so that nodes started together still spread. Without it, the middle.
fn jitter() -> f64 {
    SysRng.try_next_u32().map_or(0.5, |n| f64::from(n) / (f64::from(u32::MAX) + 1.0))
}
