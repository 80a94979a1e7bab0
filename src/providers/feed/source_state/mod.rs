//! The state of one source, and how an answer or a failure changes it: no timers, no randomness, no I/O.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use serde::Serialize;

use super::outliers::{Quarantined, quarantine, quarantine_past};
use crate::providers::client::quota::Requests;
use crate::providers::client::settings::Contribution;
use crate::providers::error::ProviderError;
use crate::providers::provider::{Answer, Provider};
use wattune_core::domain::{Forecast, Quoted, SignalValue, TimeSeries};
use wattune_core::units::{GramsPerKwh, Seconds};

/// Age up to which past slots are kept; the reference intensity, a mean of 30 days, needs 30 of them.
const KEPT: TimeDelta = TimeDelta::days(32);

/// Maximum number of slots kept beyond those of the newest answer: 32 days of five minutes are 9216.
const MOST_REMEMBERED: usize = 50_000;

const FIRST_BACKOFF: Seconds = Seconds::new(15.0);
const LONGEST_BACKOFF: Seconds = Seconds::new(900.0);
const REFUSED_RETRY: Seconds = Seconds::new(3600.0);
const KEY_RETRY: Seconds = Seconds::new(60.0);
const EMPTY_RETRY: Seconds = Seconds::new(3600.0);
const SHORTEST_RATE_LIMIT: Seconds = Seconds::new(60.0);

/// Number of consecutive failures after which polls are spaced out: one per [`OPEN_RETRY`], or per cadence (time
/// between polls) if that is shorter.
const BREAKER: u32 = 6;
const OPEN_RETRY: Seconds = Seconds::new(1800.0);

/// Age up to which actual values count as recent: some sources publish a day late.
const RECENT: TimeDelta = TimeDelta::hours(26);

/// Number of cadences (times between polls) for which an answer counts as fresh.
const FRESH_CADENCES: f64 = 2.0;

/// The freshness of a source's forecast.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "freshness", rename_all = "snake_case")]
pub enum Freshness {
    /// The forecast covers now (or, if the source has no forecast, its actual values are recent), and it was fetched
    /// within two cadences (times between polls). Later answers without a forecast do not count.
    Fresh,
    /// As `Fresh`, but fetched longer than two cadences ago.
    Stale {
        /// The time at which two cadences had passed since the last answer with a forecast.
        since: DateTime<Utc>,
    },
    /// No forecast covers now, and there are no recent actual values of a source without a forecast.
    None,
}

/// The state of one source.
#[derive(Clone, Debug, PartialEq)]
pub struct SourceState<V: SignalValue = GramsPerKwh> {
    /// Name of the source.
    pub source: &'static str,
    /// Position of the source's group in the chain, from 0; equals are in the same group.
    pub group: usize,
    /// Time between polls of the source.
    pub cadence: Seconds,
    /// The part of the source's answers that is used.
    pub contributes: Contribution,
    /// True if the source's forecast is one value for all times.
    pub is_constant: bool,
    /// The age from which the source's actual values are final.
    pub final_after: Seconds,
    /// Time up to which actual values are final.
    pub final_until: Option<DateTime<Utc>>,
    /// The newest answer, merged with earlier answers in slots that the newest leaves out.
    pub forecast: Option<Arc<Forecast<V>>>,
    /// The newest answer alone, without quarantined values, for measuring the source's skill.
    pub issued: Option<Arc<Forecast<V>>>,
    /// Time of the newest answer, which may lie before a restart.
    pub fetched_at: Option<DateTime<Utc>>,
    /// Time of the newest answer with a forecast of now or later. Answers since then had only actual values.
    pub forecast_at: Option<DateTime<Utc>>,
    /// The time since which the forecast is stale, determined at the last poll or at the start; absent if it was fresh
    /// then. [`Self::freshness`] determines it for any time.
    pub stale_since: Option<DateTime<Utc>>,
    /// The error of the last poll; absent after a successful poll and before the first one.
    pub last_error: Option<String>,
    /// Number of failures since the last success.
    pub consecutive_failures: u32,
    /// The time of the first failure since the last success.
    pub failing_since: Option<DateTime<Utc>>,
    /// Due time of the next poll.
    pub next_poll_at: DateTime<Utc>,
    /// Notes about the newest answer.
    pub notes: Vec<String>,
    /// Quarantined values, which are not used until the source has repeated them.
    pub quarantined: Option<Quarantined<V>>,
    /// Numbers of requests in the last hour and day, with the quota; absent if the source has no quota.
    pub requests: Option<Requests>,
    /// True if the forecast was stored by an earlier run, and no answer has arrived since the start.
    pub from_cache: bool,
}

impl<V: SignalValue> SourceState<V> {
    /// Returns the state before the first poll, which is due at once; `stored` is the forecast of an earlier run.
    pub fn starting(provider: &dyn Provider<V>, group: usize, stored: Option<Forecast<V>>, now: DateTime<Utc>) -> Self {
        let fetched_at = stored.as_ref().map(|forecast| forecast.retrieved_at.min(now));
        let mut state = Self {
            source: provider.source(),
            group,
            cadence: provider.cadence(),
            contributes: provider.contributes(),
            is_constant: provider.is_constant(),
            final_after: provider.final_after(),
            final_until: None,
            fetched_at,
            forecast_at: fetched_at,
            from_cache: stored.is_some(),
            forecast: stored.map(Arc::new),
            issued: None,
            stale_since: None,
            last_error: None,
            consecutive_failures: 0,
            failing_since: None,
            next_poll_at: now,
            notes: Vec::new(),
            quarantined: None,
            requests: provider.requests(now),
        };
        state.stale_since = state.stale_at(now);
        state
    }

    /// Returns the freshness at `now` of the forecast, or of the history of a source without forecasts.
    pub fn freshness(&self, now: DateTime<Utc>) -> Freshness {
        if !self.covers(now) && !self.has_recent_actuals(now) {
            return Freshness::None;
        }
        self.stale_at(now).map_or(Freshness::Fresh, |since| Freshness::Stale { since })
    }

    /// Returns true if there is a forecast for `now`.
    pub fn covers(&self, now: DateTime<Utc>) -> bool {
        self.forecast.as_ref().is_some_and(|forecast| forecast.expected.at(now).is_some())
    }

    /// Returns true if the source has no forecast, and its actual values reach to within the last 26 hours.
    fn has_recent_actuals(&self, now: DateTime<Utc>) -> bool {
        let Some(forecast) = &self.forecast else { return false };
        let history_only = forecast.expected.end() <= self.fetched_at;
        history_only && forecast.actual.end().is_some_and(|end| end > now - RECENT)
    }

    /// Returns true if polls are spaced out because the source has failed many times in a row.
    pub fn circuit_open(&self) -> bool {
        self.consecutive_failures >= BREAKER
    }

    fn stale_at(&self, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let answered_at = if self.covers(now) { self.forecast_at } else { self.fetched_at };
        let since = answered_at? + (self.cadence * FRESH_CADENCES).to_delta();
        (since < now).then_some(since)
    }

    /// Returns the time up to which actual values are final, at most `now` less the age of final values. A clock that
    /// ran ahead may have left a later time, before which nothing would be fetched again.
    pub(super) fn final_by(&self, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        self.final_until.map(|until| until.min(now - self.final_after.to_delta()))
    }

    /// Returns the forecast as it is stored for the next start. If the newest answers had only actual values, its time
    /// of retrieval is that of the older forecast, so that a restart does not make this one younger.
    pub(super) fn to_store(&self) -> Option<Arc<Forecast<V>>> {
        let forecast = self.forecast.as_ref()?;
        let is_in_use = forecast.expected.end() > Some(forecast.retrieved_at);
        match self.forecast_at.filter(|at| is_in_use && *at < forecast.retrieved_at) {
            Some(retrieved_at) => Some(Arc::new(Forecast { retrieved_at, ..Forecast::clone(forecast) })),
            None => Some(Arc::clone(forecast)),
        }
    }

    /// Returns the state after an answer, which is merged with earlier ones. The next poll is due just after the
    /// expected next update of the source. Values that lie more than `jump_factor` times outside the known range are
    /// quarantined; an answer that is the previous one again does not confirm them. `jitter` in [0, 1) spreads the
    /// polls of many nodes.
    #[must_use]
    pub fn answered(&self, answer: Answer<V>, now: DateTime<Utc>, jitter: f64, jump_factor: f64) -> Self {
        let mut notes = answer.notes;
        let mut newest = answer.forecast;
        let expected = newest.expected.clone();
        match self.contributes {
            Contribution::Both => {}
            Contribution::Forecast => newest.actual = TimeSeries::default(),
            Contribution::Actual => newest.expected = TimeSeries::default(),
        }
        let old = self.forecast.as_ref().filter(|old| joinable(old, &newest));
        if let (Some(known), None) = (&self.forecast, &old) {
            notes.push(format!(
                "the known values are of another zone, kind or scope ({} from {}) and were dropped",
                known.zone, known.source
            ));
        }
        // Copied before the quarantine, so that quarantined values do not count as withdrawn.
        let published = newest.actual.clone();
        // A service may repeat a slip until its next issue. A file has what its owner wrote, and no next issue.
        let is_service = self.requests.is_some();
        let is_repetition = is_service && self.issued.as_ref().is_some_and(|before| is_same_answer(before, &newest));
        let before = self.quarantined.map(|q| Quarantined { times: q.times - u32::from(is_repetition), ..q });
        let quarantined = quarantine(old.map(Arc::as_ref), &mut newest, before.as_ref(), jump_factor, now);
        notes.extend(quarantined.as_ref().map(ToString::to_string));
        // If no value of the answer can be used, the time of the earlier answer stays.
        let unusable = quarantined.is_some() && newest.expected.is_empty() && newest.actual.is_empty();
        let has_forecast = newest.expected.end().is_some_and(|end| now < end);
        let issued = Arc::new(newest.clone());
        let forecast = match old {
            Some(old) => merged(&without_withdrawn(old, &published, &expected, now), newest, now),
            None => newest,
        };
        let mut state = Self {
            forecast: Some(Arc::new(forecast)),
            issued: Some(issued),
            fetched_at: if unusable { self.fetched_at } else { Some(now) },
            forecast_at: if has_forecast { Some(now) } else { self.forecast_at },
            final_until: self.final_by(now),
            last_error: None,
            consecutive_failures: 0,
            failing_since: None,
            next_poll_at: after_next_answer(now, self.cadence, jitter),
            notes,
            quarantined,
            from_cache: false,
            ..self.clone()
        };
        state.stale_since = state.stale_at(now);
        state
    }

    /// Returns the state after a fetch of actual values: the fetched values replace known ones, and all values before
    /// the end of the fetched ones that are older than [`Self::final_after`] become final. Without fetched values, all
    /// values older than that become final.
    #[must_use]
    pub fn with_actuals(&self, actuals: &TimeSeries<Quoted<V>>, now: DateTime<Utc>, jump_factor: f64) -> Self {
        let (mut state, mut actuals) = (self.clone(), actuals.clone());
        state.final_until = self.final_by(now);
        if let Some(known) = &self.forecast {
            let mut forecast = without_withdrawn(known, &actuals, &TimeSeries::default(), now);
            let held = quarantine_past(known, &mut actuals, jump_factor, now);
            if held > 0 {
                state.notes.push(format!(
                    "{held} actual values are ignored: they lie more than {jump_factor} times outside the known range"
                ));
            }
            if !actuals.is_empty() {
                forecast.actual.overwrite(&actuals);
                forecast.actual = bounded(forecast.actual, &actuals);
            }
            forecast.actual.forget_before(now - KEPT);
            state.forecast = Some(Arc::new(forecast));
            if held > 0 {
                // The ignored values may still be confirmed or corrected, so nothing becomes final.
                return state;
            }
        }
        let end = actuals.end().unwrap_or(now).min(now - self.final_after.to_delta());
        state.final_until = state.final_until.max(Some(end));
        state
    }

    /// Returns the state after a failure: the forecast stays usable until its last slot ends.
    #[must_use]
    pub fn failed(&self, error: &ProviderError, now: DateTime<Utc>, jitter: f64) -> Self {
        let failures = self.consecutive_failures.saturating_add(1);
        let next_poll_at = match error {
            // The network works, but the source has no values yet.
            ProviderError::Empty { .. } => after_next_answer(now, self.cadence.min(EMPTY_RETRY), jitter),
            ProviderError::QuotaSpent { until, .. } => *until + TimeDelta::seconds(1),
            other => now + retry_delay(other, failures, self.cadence, jitter).to_delta(),
        };
        Self {
            stale_since: self.stale_at(now),
            last_error: Some(error.to_string()),
            consecutive_failures: failures,
            failing_since: self.failing_since.or(Some(now)),
            next_poll_at,
            ..self.clone()
        }
    }
}

/// Returns the time of the next poll. Sources are expected to publish at multiples of their cadence (time between
/// polls). The poll follows the next multiple by 2 % of the cadence (at most 30 s) plus a random part of up to 5 % (at
/// most 60 s), which `jitter` determines.
fn after_next_answer(now: DateTime<Utc>, cadence: Seconds, jitter: f64) -> DateTime<Utc> {
    let cadence = cadence.max(Seconds::new(1.0));
    let cadence_ms = cadence.to_delta().num_milliseconds();
    let until_next = cadence_ms - now.timestamp_millis().rem_euclid(cadence_ms);
    let lag = (cadence * 0.02).min(Seconds::new(30.0));
    let spread = (cadence * 0.05).min(Seconds::new(60.0)) * jitter.clamp(0.0, 1.0);
    now + TimeDelta::milliseconds(until_next) + (lag + spread).to_delta()
}

/// Returns the wait after a failure. The wait doubles from 15 s to 15 min (or to the cadence, if that is shorter), and
/// up to half of the wait is random. A refused key is tried again hourly; a wait that the source requests is respected.
fn retry_delay(error: &ProviderError, failures: u32, cadence: Seconds, jitter: f64) -> Seconds {
    let jitter = jitter.clamp(0.0, 1.0);
    let longest = cadence.min(LONGEST_BACKOFF).max(FIRST_BACKOFF);
    if failures >= BREAKER && !matches!(error, ProviderError::Unreadable { .. } | ProviderError::NoKey { .. }) {
        let wait = OPEN_RETRY.min(cadence).max(longest) * (0.75 + 0.25 * jitter);
        return wait.max(requested_retry(error));
    }
    let doubled = FIRST_BACKOFF * f64::from(failures.clamp(1, 16) - 1).exp2();
    let backoff = doubled.min(longest) * (0.5 + 0.5 * jitter);
    match error {
        // Reading a local file costs nothing.
        ProviderError::Unreadable { .. } => FIRST_BACKOFF.min(cadence.max(Seconds::new(1.0))),
        ProviderError::Refused { .. } => REFUSED_RETRY * (1.0 + 0.1 * jitter),
        // Without a key no request is made, and looking for the key costs nothing.
        ProviderError::NoKey { .. } => KEY_RETRY.min(cadence.max(Seconds::new(1.0))),
        ProviderError::RateLimited { retry_after: Some(wait) } | ProviderError::Unavailable { retry_after: wait } => {
            wait.max(Seconds::new(1.0)) * (1.0 + 0.1 * jitter)
        }
        ProviderError::RateLimited { retry_after: None } => backoff.max(SHORTEST_RATE_LIMIT * (1.0 + 0.5 * jitter)),
        _ => backoff,
    }
}

fn requested_retry(error: &ProviderError) -> Seconds {
    match error {
        ProviderError::Refused { .. } => REFUSED_RETRY,
        ProviderError::RateLimited { retry_after: Some(wait) } => *wait,
        ProviderError::Unavailable { retry_after } => *retry_after,
        _ => Seconds::ZERO,
    }
}

/// Returns true if `newest` is the answer `before` again. The digests of the responses decide; without any, the time of
/// issue does.
fn is_same_answer<V>(before: &Forecast<V>, newest: &Forecast<V>) -> bool {
    let responses = &newest.provenance.responses;
    if responses.is_empty() { before.issued_at == newest.issued_at } else { before.provenance.responses == *responses }
}

fn joinable<V>(old: &Forecast<V>, new: &Forecast<V>) -> bool {
    // The zone of coordinates is determined anew at each start. Near a border, or after the source has split a zone,
    // the same coordinates may belong to another grid than before.
    let own_zones = [old, new].map(|forecast| forecast.provenance.zone.as_ref());
    let is_same_grid = own_zones.contains(&None) || own_zones[0] == own_zones[1];
    is_same_grid && (&old.source, &old.zone, old.kind, old.scope) == (&new.source, &new.zone, new.kind, new.scope)
}

/// Drops actual values that the newest answer covers but no longer contains: the source withdrew them. The answer
/// covers all time from the first to the last slot in `published` (its actual values), and later slots in `expected`
/// (its forecast). An answer without actual values withdraws nothing, because it may be incomplete. A file, however, is
/// complete: if it has a forecast but no actual value for a past slot, the actual value was deleted.
fn without_withdrawn<V: SignalValue>(
    known: &Forecast<V>,
    published: &TimeSeries<Quoted<V>>,
    expected: &TimeSeries<Quoted<V>>,
    now: DateTime<Utc>,
) -> Forecast<V> {
    let mut known = known.clone();
    let Some(end) = published.end() else {
        let blank = expected.points().iter().filter(|(slot, _)| slot.end() <= now);
        if known.is_of_file() {
            blank.for_each(|(slot, _)| known.actual.remove(*slot));
        }
        return known;
    };
    for gap in published.gaps() {
        known.actual.remove(gap);
    }
    for (slot, _) in expected.points().iter().filter(|(slot, _)| slot.start() >= end) {
        known.actual.remove(*slot);
    }
    known
}

/// Merges the newer answer over the older one. Forecasts of past slots stay as first published, because skill is
/// measured on them; for slots that have not ended, and for actual values, the newer answer wins.
pub(super) fn merged<V: SignalValue>(old: &Forecast<V>, mut new: Forecast<V>, now: DateTime<Utc>) -> Forecast<V> {
    let new_expected = new.expected.points().iter().copied();
    let (past, ahead) = new_expected.partition(|(slot, _)| slot.end() <= now);
    let mut known = old.expected.clone();
    known.forget_before(now - KEPT);
    let (mut expected, _) = TimeSeries::from_points(past);
    expected.overwrite(&known);
    expected.overwrite(&TimeSeries::from_points(ahead).0);
    new.expected = bounded(expected, &new.expected);
    let mut actual = old.actual.clone();
    actual.forget_before(now - KEPT);
    actual.overwrite(&new.actual);
    new.actual = bounded(actual, &new.actual);
    new
}

/// Returns `known`, or only `new` if `known` has over [`MOST_REMEMBERED`] slots more than `new`: a source with
/// different slots in each answer would otherwise fill the memory.
fn bounded<V: SignalValue>(known: TimeSeries<Quoted<V>>, new: &TimeSeries<Quoted<V>>) -> TimeSeries<Quoted<V>> {
    if known.points().len() > new.points().len() + MOST_REMEMBERED { new.clone() } else { known }
}
