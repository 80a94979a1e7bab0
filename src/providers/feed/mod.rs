//! Polls the sources of a chain (sources in order of preference), each at its own interval, and publishes the known
//! values.

mod actuals;
#[cfg(any(test, feature = "fuzzing"))]
mod fuzz;
mod outliers;
mod source_state;
mod state;
#[cfg(test)]
mod tests;

use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use chrono::{DateTime, TimeDelta, Utc};
use futures_util::FutureExt;
use rand::TryRng;
use rand::rngs::SysRng;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use self::actuals::{ACTUALS_EVERY, actuals_start, fetch_actuals};
#[cfg(any(test, feature = "fuzzing"))]
pub(super) use self::fuzz::{check_series, follow, follow_rows};
pub use self::outliers::Quarantined;
pub use self::source_state::{Freshness, SourceState};
pub use self::state::{FeedState, Ranks};
use super::client::cache::{Cache, CacheProblem};
use super::client::settings::Contribution;
use super::error::ProviderError;
use super::provider::{Actuals, Answer, Provider};
use crate::clock::Clock;
use wattune_core::domain::{Forecast, Provenance, SignalValue};
use wattune_core::time::{Monotonic, Now};
use wattune_core::units::{GramsPerKwh, Seconds};

/// Longest wait between two reads of the wall clock, which may be set meanwhile.
const LONGEST_NAP: Seconds = Seconds::new(60.0);

/// Options of a [`Feed`].
#[derive(Clone, Debug)]
pub struct FeedOptions {
    /// Name of the signal in file names: "carbon" or "price".
    pub signal: &'static str,
    /// Directory in which answers are stored for the next start; they are not stored if absent.
    pub cache_dir: Option<PathBuf>,
    /// Factor by which a value must lie outside the known range to be quarantined (not used until later answers confirm
    /// it).
    pub jump_factor: f64,
    /// True if past actual values are fetched again until they are final.
    pub fetch_actuals: bool,
}

impl Default for FeedOptions {
    fn default() -> Self {
        Self { signal: "carbon", cache_dir: None, jump_factor: 4.0, fetch_actuals: false }
    }
}

/// A chain of sources, polled by its owner: a task ([`Feed::spawn`]), or the accelerated demo
/// ([`Feed::poll_due`]).
pub struct Feed<V: SignalValue = GramsPerKwh> {
    members: Vec<Member<V>>,
    options: FeedOptions,
    sender: watch::Sender<FeedState<V>>,
    ranks: Arc<Mutex<Ranks>>,
}

struct Member<V: SignalValue> {
    provider: Arc<dyn Provider<V>>,
    cache: Option<Cache>,
    /// True after the cache could not be written, which is logged once until a write succeeds.
    cache_broken: bool,
    /// True while a request to the source is under way.
    busy: bool,
    /// Due time of the next poll on the monotonic clock. The poll takes place at this time or at the due time on the
    /// wall clock, whichever comes first: a wall clock that is set back by a day must not keep the feed silent for a
    /// day.
    due: Monotonic,
    actuals_due_at: DateTime<Utc>,
    /// Time of the last answer of an earlier run, which the cache contained at the start.
    stored_at: Option<DateTime<Utc>>,
}

/// Handle of a feed that runs in a task of its own.
#[derive(Debug)]
pub struct FeedHandle<V: SignalValue = GramsPerKwh> {
    /// Receiver of the feed's newest state.
    pub state: watch::Receiver<FeedState<V>>,
    /// The feed's task, which ends after its token is cancelled, and never before.
    pub task: JoinHandle<()>,
    ranks: Arc<Mutex<Ranks>>,
}

impl<V: SignalValue> FeedHandle<V> {
    /// Returns the shared map in which the recent skill of each source is written.
    pub fn ranks(&self) -> Arc<Mutex<Ranks>> {
        Arc::clone(&self.ranks)
    }
}

enum Outcome<V: SignalValue> {
    Polled(Box<Result<Answer<V>, ProviderError>>),
    Actuals(Box<Actuals<V>>),
}

impl<V: SignalValue> Feed<V> {
    /// Makes a feed of sources, grouped in order of preference, with the forecasts that an earlier run stored. Polls
    /// nothing yet.
    pub async fn start(groups: Vec<Vec<Arc<dyn Provider<V>>>>, options: FeedOptions, now: Now) -> Self {
        let (mut members, mut states) = (Vec::new(), Vec::new());
        for (group, providers) in groups.into_iter().enumerate() {
            for provider in providers {
                let directory = options.cache_dir.as_deref().filter(|_| provider.keeps_answers());
                let cache = directory.map(|d| Cache::new(d, options.signal, provider.source(), provider.zone()));
                let stored = match &cache {
                    Some(cache) => load(cache.clone(), now.utc).await,
                    None => None,
                };
                let meant = |f: &Forecast<V>| provider.meaning().is_none_or(|meaning| meaning == (f.kind, f.scope));
                let stored = stored.filter(meant);
                let stored_at = stored.as_ref().map(|forecast| forecast.retrieved_at);
                states.push(SourceState::starting(provider.as_ref(), group, stored, now.utc));
                // Actual values are due shortly after the first poll, whose answer contains most of them.
                let actuals_due_at = now.utc + TimeDelta::seconds(20);
                members.push(Member {
                    provider,
                    cache,
                    cache_broken: false,
                    busy: false,
                    due: now.monotonic,
                    actuals_due_at,
                    stored_at,
                });
            }
        }
        let sender = watch::Sender::new(FeedState::starting(states, now.utc));
        Self { members, options, sender, ranks: Arc::default() }
    }

    /// Returns a receiver of the feed's newest state.
    pub fn subscribe(&self) -> watch::Receiver<FeedState<V>> {
        self.sender.subscribe()
    }

    /// Returns the feed's current state.
    pub fn state(&self) -> FeedState<V> {
        self.sender.borrow().clone()
    }

    /// Polls every due source once, one after the other, and publishes the state.
    pub async fn poll_due(&mut self, now: Now) -> FeedState<V> {
        for index in 0..self.members.len() {
            if self.state().sources[index].next_poll_at <= now.utc {
                let answer = self.members[index].provider.fetch(now.utc).await;
                self.take(index, answer, now).await;
            }
        }
        self.choose(now.utc);
        self.state()
    }

    /// Applies a source's answer or failure to the state, and publishes the state.
    async fn take(&mut self, index: usize, answer: Result<Answer<V>, ProviderError>, now: Now) {
        let before = self.sender.borrow().sources[index].clone();
        let provenance = self.members[index].provider.provenance();
        let answer = answer.map(|mut answer| {
            let of = &mut answer.forecast.provenance;
            *of = Provenance { model: of.model.take(), ..provenance };
            answer
        });
        let table = self.options.signal;
        let (answer, jitter) = (answer.and_then(|a| usable(a, before.contributes, table, now.utc)), jitter());
        let mut after = match answer {
            Ok(answer) => {
                if before.consecutive_failures > 0 {
                    let failures = before.consecutive_failures;
                    tracing::info!(source = before.source, failures, "{} source answers again", self.options.signal);
                }
                before.answered(answer, now.utc, jitter, self.options.jump_factor)
            }
            Err(error) => {
                let after = before.failed(&error, now.utc, jitter);
                log(&before, &after, &error, self.options.signal, now.utc);
                after
            }
        };
        after.requests = self.members[index].provider.requests(now.utc);
        if let Some(held) = after.quarantined.as_ref().filter(|h| h.since == now.utc) {
            tracing::warn!(source = after.source, "{} source: {held}", self.options.signal);
        }
        let wait = Seconds::from_delta(after.next_poll_at - now.utc).max(Seconds::ZERO);
        self.members[index].due = now.monotonic.after(wait);
        self.keep(index, &before, &after).await;
        self.publish(index, after, now.utc);
    }

    /// Applies fetched actual values of the past to the state, and publishes the state.
    async fn apply_actuals(&mut self, index: usize, actuals: Actuals<V>, now: Now) {
        let before = self.sender.borrow().sources[index].clone();
        let member = &mut self.members[index];
        let provenance = member.provider.provenance();
        member.actuals_due_at = now.utc + ACTUALS_EVERY;
        let mut after = match actuals {
            Ok(Some(actuals)) if !actuals.is_empty() => {
                let mut after = before.with_actuals(&actuals, now.utc, self.options.jump_factor);
                after.forecast = after.forecast.map(|known| {
                    let model = known.provenance.model.clone();
                    Arc::new(Forecast { provenance: Provenance { model, ..provenance }, ..Forecast::clone(&known) })
                });
                after
            }
            // The source offers history but answered without values, so nothing is known about them: none become final.
            Ok(Some(_)) => before.clone(),
            // The source offers no actual values beyond its answers; the old values among those in its answers become
            // final.
            Ok(None) => before.with_actuals(&Default::default(), now.utc, self.options.jump_factor),
            Err(error) => {
                tracing::debug!(source = before.source, "actual values cannot be fetched again: {error}");
                member.actuals_due_at = now.utc + TimeDelta::minutes(30);
                before.clone()
            }
        };
        after.requests = member.provider.requests(now.utc);
        self.keep(index, &before, &after).await;
        self.publish(index, after, now.utc);
    }

    async fn keep(&mut self, index: usize, before: &SourceState<V>, after: &SourceState<V>) {
        if before.forecast != after.forecast
            && let Some(forecast) = after.to_store()
        {
            self.members[index].store(forecast).await;
        }
    }

    fn publish(&self, index: usize, source: SourceState<V>, now: DateTime<Utc>) {
        let before = self.state();
        let after = before.clone().with(index, source, &self.ranks(), now);
        log_choice(&before, &after, self.options.signal);
        self.sender.send_replace(after);
    }

    fn ranks(&self) -> Ranks {
        self.ranks.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Chooses the active source again, because forecasts become stale and end.
    fn choose(&self, now: DateTime<Utc>) {
        let before = self.state();
        let after = before.clone().chosen(&self.ranks(), now);
        if after != before {
            log_choice(&before, &after, self.options.signal);
            self.sender.send_replace(after);
        }
    }

    /// Polls until `cancel` is cancelled: at once, and then whenever a source is due. A source that is slow to answer
    /// does not delay the others.
    pub async fn run(mut self, clock: Arc<dyn Clock>, cancel: CancellationToken) {
        let mut requests: JoinSet<(usize, Outcome<V>)> = JoinSet::new();
        loop {
            let now = clock.now();
            self.choose(now.utc);
            for index in 0..self.members.len() {
                self.ask(index, now, &mut requests);
            }
            let nap = self.until_next(clock.now()).min(LONGEST_NAP);
            tokio::select! {
                () = cancel.cancelled() => return,
                Some(finished) = requests.join_next() => {
                    // The tasks catch panics of a source, and are never cancelled.
                    let Ok((index, outcome)) = finished else { continue };
                    self.members[index].busy = false;
                    let now = clock.now();
                    match outcome {
                        Outcome::Polled(answer) => self.take(index, *answer, now).await,
                        Outcome::Actuals(actuals) => self.apply_actuals(index, *actuals, now).await,
                    }
                },
                () = tokio::time::sleep((nap / clock.speed()).to_std()) => {}
            }
        }
    }

    /// Starts the request that is due for a source, if one is due.
    fn ask(&mut self, index: usize, now: Now, requests: &mut JoinSet<(usize, Outcome<V>)>) {
        let member = &mut self.members[index];
        if member.busy {
            return;
        }
        let state = &self.sender.borrow().sources[index];
        let provider = Arc::clone(&member.provider);
        if state.next_poll_at <= now.utc || member.due <= now.monotonic {
            member.busy = true;
            requests.spawn(async move {
                let answer = AssertUnwindSafe(provider.fetch(now.utc)).catch_unwind().await;
                (index, Outcome::Polled(Box::new(answer.unwrap_or_else(|_| Err(died())))))
            });
        } else if self.options.fetch_actuals
            && state.contributes != Contribution::Forecast
            && state.consecutive_failures == 0
            // A clock that ran ahead may have left a due time that now lies far ahead.
            && (member.actuals_due_at <= now.utc || now.utc + ACTUALS_EVERY < member.actuals_due_at)
        {
            member.busy = true;
            let from = actuals_start(state, member.stored_at, now.utc);
            let known = state.forecast.clone();
            requests.spawn(async move {
                let known = known.as_ref().map(|forecast| &forecast.actual);
                let fetching = fetch_actuals(provider.as_ref(), known, from, now.utc);
                let actuals = AssertUnwindSafe(fetching).catch_unwind().await;
                (index, Outcome::Actuals(Box::new(actuals.unwrap_or_else(|_| Err(died())))))
            });
        }
    }

    /// Returns the time until the next poll is due.
    fn until_next(&self, now: Now) -> Seconds {
        let states = self.sender.borrow();
        let of = |(member, state): (&Member<V>, &SourceState<V>)| {
            let by_wall = Seconds::from_delta(state.next_poll_at - now.utc);
            by_wall.min(member.due.since(now.monotonic)).max(Seconds::ZERO)
        };
        let idle = self.members.iter().zip(&states.sources).filter(|(m, _)| !m.busy).map(of);
        idle.fold(LONGEST_NAP, Seconds::min)
    }

    /// Starts a task that polls a chain of sources until `cancel` is cancelled.
    pub async fn spawn(
        groups: Vec<Vec<Arc<dyn Provider<V>>>>,
        options: FeedOptions,
        clock: Arc<dyn Clock>,
        cancel: CancellationToken,
    ) -> FeedHandle<V> {
        let feed = Self::start(groups, options, clock.now()).await;
        let (state, ranks) = (feed.subscribe(), Arc::clone(&feed.ranks));
        let task = tokio::spawn(feed.run(clock, cancel));
        FeedHandle { state, task, ranks }
    }
}

impl<V: SignalValue> Member<V> {
    async fn store(&mut self, forecast: Arc<Forecast<V>>) {
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

/// Returns the error for a source that panicked. The source is polled again as after any other error; other sources are
/// not affected.
fn died() -> ProviderError {
    let what = "wattune's parser for this source crashed; please report it with the log".to_owned();
    ProviderError::Malformed { what, at: "the answer".to_owned() }
}

/// Refuses an answer without a usable value of the kind that `contributes` selects: any actual value, or a forecast
/// that reaches beyond now. `table` is the table of the settings that holds the source's, `carbon` or `price`.
fn usable<V: SignalValue>(
    answer: Answer<V>,
    contributes: Contribution,
    table: &str,
    now: DateTime<Utc>,
) -> Result<Answer<V>, ProviderError> {
    let forecast = &answer.forecast;
    let ahead = forecast.expected.end().is_some_and(|end| now < end);
    let usable = match contributes {
        Contribution::Forecast => ahead,
        Contribution::Actual => !forecast.actual.is_empty(),
        Contribution::Both => ahead || !forecast.actual.is_empty(),
    };
    if usable {
        return Ok(answer);
    }
    let source = &forecast.source;
    let what = match contributes {
        Contribution::Forecast => {
            format!("there is no forecast of now or later, and {table}.{source}.contributes is \"forecast\"")
        }
        Contribution::Actual => format!("there is no actual value, and {table}.{source}.contributes is \"actual\""),
        Contribution::Both => "there is neither a forecast of now or later nor an actual value".to_owned(),
    };
    Err(ProviderError::Empty { what })
}

async fn load<V: SignalValue>(cache: Cache, now: DateTime<Utc>) -> Option<Forecast<V>> {
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

/// Logs a failure as a warning when it begins or changes, and repetitions at debug level.
fn log<V: SignalValue>(
    before: &SourceState<V>,
    after: &SourceState<V>,
    error: &ProviderError,
    signal: &str,
    now: DateTime<Utc>,
) {
    let (source, failures) = (after.source, after.consecutive_failures);
    let (freshness, next_attempt) = (after.freshness(now), after.next_poll_at);
    if before.last_error == after.last_error {
        tracing::debug!(source, failures, ?freshness, %next_attempt, "{signal} source failed again: {error}");
    } else {
        tracing::warn!(source, failures, ?freshness, %next_attempt, "{signal} source failed: {error}");
    }
}

fn log_choice<V: SignalValue>(before: &FeedState<V>, after: &FeedState<V>, signal: &str) {
    let name = |state: &FeedState<V>| state.source().map(|s| s.source);
    if let (Some(from), Some(to)) = (name(before), name(after))
        && from != to
    {
        tracing::warn!(from, to, "{signal} signal: now following another source");
    }
}

/// Draws a number in [0, 1) from the system, so that nodes started together poll at different times; 0.5 if that fails.
fn jitter() -> f64 {
    SysRng.try_next_u32().map_or(0.5, |n| f64::from(n) / (f64::from(u32::MAX) + 1.0))
}
