//! What a feed knows, and how an answer or a failure changes it: no timers, no randomness, no I/O.

use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use serde::Serialize;

use super::{Answer, ProviderError};
use crate::domain::{CarbonSeries, Forecast, Slot};
use crate::units::Seconds;

/// How long past slots are kept: the reference intensity looks back 30 days.
const KEPT: TimeDelta = TimeDelta::days(32);

const FIRST_BACKOFF: Seconds = Seconds::new(15.0);
const LONGEST_BACKOFF: Seconds = Seconds::new(900.0);
const REFUSED_RETRY: Seconds = Seconds::new(3600.0);
const EMPTY_RETRY: Seconds = Seconds::new(3600.0);
const SHORTEST_RATE_LIMIT: Seconds = Seconds::new(60.0);

/// An answer counts as fresh for this many cadences.
const FRESH_CADENCES: f64 = 2.0;

/// Whether the forecast can be relied on now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "freshness", rename_all = "snake_case")]
pub enum Freshness {
    /// Covers now, and was fetched within two cadences.
    Fresh,
    /// Covers now, but is older than that.
    Stale {
        /// When two cadences had passed without an answer.
        since: DateTime<Utc>,
    },
    /// Nothing covers now.
    None,
}

/// What a feed knows.
#[derive(Clone, Debug, PartialEq)]
pub struct FeedState {
    /// The source's name.
    pub source: &'static str,
    /// After how long a new answer is to be expected.
    pub cadence: Seconds,
    /// The newest answer, merged over what earlier ones said about times that it leaves out.
    pub forecast: Option<Arc<Forecast>>,
    /// When the newest answer came, which may have been before a restart.
    pub fetched_at: Option<DateTime<Utc>>,
    /// Since when the forecast is stale, as of the last poll; [`Self::freshness`] says it for any moment.
    pub stale_since: Option<DateTime<Utc>>,
    /// Why the last poll failed; absent after a success.
    pub last_error: Option<String>,
    /// Failures since the last success.
    pub consecutive_failures: u32,
    /// When the next poll is due.
    pub next_poll_at: DateTime<Utc>,
    /// What was odd about the newest answer.
    pub notes: Vec<String>,
    /// No answer has come since the start; what there is was stored by an earlier run.
    pub from_cache: bool,
}

impl FeedState {
    /// Before the first poll, which is due at once. `stored` is what an earlier run kept.
    pub fn starting(source: &'static str, cadence: Seconds, stored: Option<Forecast>, now: DateTime<Utc>) -> Self {
        let mut state = Self {
            source,
            cadence,
            fetched_at: stored.as_ref().map(|forecast| forecast.retrieved_at),
            from_cache: stored.is_some(),
            forecast: stored.map(Arc::new),
            stale_since: None,
            last_error: None,
            consecutive_failures: 0,
            next_poll_at: now,
            notes: Vec::new(),
        };
        state.stale_since = state.stale_at(now);
        state
    }

    /// Whether the forecast can be relied on at `now`.
    pub fn freshness(&self, now: DateTime<Utc>) -> Freshness {
        if self.forecast.as_ref().and_then(|forecast| forecast.best_at(now)).is_none() {
            return Freshness::None;
        }
        self.stale_at(now).map_or(Freshness::Fresh, |since| Freshness::Stale { since })
    }

    fn stale_at(&self, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let since = self.fetched_at? + (self.cadence * FRESH_CADENCES).to_delta();
        (since < now).then_some(since)
    }

    /// After an answer: it is merged over what was known, and the next poll is due just after the source's next one.
    /// `jitter` in [0, 1) spreads the polls of many nodes.
    #[must_use]
    pub fn answered(&self, answer: Answer, now: DateTime<Utc>, jitter: f64) -> Self {
        let mut notes = answer.notes;
        let forecast = match &self.forecast {
            Some(old) if joinable(old, &answer.forecast) => merged(old, answer.forecast, now),
            Some(old) => {
                notes.push(format!(
                    "what was known is of another zone, kind or scope ({} from {}) and was dropped",
                    old.zone, old.source
                ));
                answer.forecast
            }
            None => answer.forecast,
        };
        Self {
            forecast: Some(Arc::new(forecast)),
            fetched_at: Some(now),
            stale_since: None,
            last_error: None,
            consecutive_failures: 0,
            next_poll_at: after_next_answer(now, self.cadence, jitter),
            notes,
            from_cache: false,
            ..self.clone()
        }
    }

    /// After a failure: what is known stays, usable until its last slot.
    #[must_use]
    pub fn failed(&self, error: &ProviderError, now: DateTime<Utc>, jitter: f64) -> Self {
        let failures = self.consecutive_failures.saturating_add(1);
        let next_poll_at = match error {
            // Not the network's fault: the source has nothing yet.
            ProviderError::Empty { .. } => after_next_answer(now, self.cadence.min(EMPTY_RETRY), jitter),
            other => now + retry_delay(other, failures, self.cadence, jitter).to_delta(),
        };
        Self {
            stale_since: self.stale_at(now),
            last_error: Some(error.to_string()),
            consecutive_failures: failures,
            next_poll_at,
            ..self.clone()
        }
    }
}

/// Sources renew at multiples of their cadence, so ask a little after the next one: 2 % of the cadence (30 s at the
/// most), and up to 5 % (60 s at the most) of jitter.
fn after_next_answer(now: DateTime<Utc>, cadence: Seconds, jitter: f64) -> DateTime<Utc> {
    let cadence = cadence.max(Seconds::new(1.0));
    let cadence_ms = cadence.to_delta().num_milliseconds();
    let until_next = cadence_ms - now.timestamp_millis().rem_euclid(cadence_ms);
    let lag = (cadence * 0.02).min(Seconds::new(30.0));
    let spread = (cadence * 0.05).min(Seconds::new(60.0)) * jitter.clamp(0.0, 1.0);
    now + TimeDelta::milliseconds(until_next) + (lag + spread).to_delta()
}

/// Doubling from 15 s to 15 min (or the cadence, if that is shorter), of which up to the half is jitter. A refused key
/// is tried hourly; a source that asks for patience gets it.
fn retry_delay(error: &ProviderError, failures: u32, cadence: Seconds, jitter: f64) -> Seconds {
    let jitter = jitter.clamp(0.0, 1.0);
    let longest = cadence.min(LONGEST_BACKOFF).max(FIRST_BACKOFF);
    let doubled = FIRST_BACKOFF * f64::from(failures.clamp(1, 16) - 1).exp2();
    let backoff = doubled.min(longest) * (0.5 + 0.5 * jitter);
    match error {
        // A look at a local file costs nothing.
        ProviderError::Unreadable { .. } => FIRST_BACKOFF.min(cadence.max(Seconds::new(1.0))),
        ProviderError::Refused { .. } => REFUSED_RETRY * (1.0 + 0.1 * jitter),
        ProviderError::RateLimited { retry_after: Some(wait) } => wait.max(Seconds::new(1.0)) * (1.0 + 0.1 * jitter),
        ProviderError::RateLimited { retry_after: None } => backoff.max(SHORTEST_RATE_LIMIT * (1.0 + 0.5 * jitter)),
        _ => backoff,
    }
}

fn joinable(old: &Forecast, new: &Forecast) -> bool {
    (&old.source, &old.zone, old.kind, old.scope) == (&new.source, &new.zone, new.kind, new.scope)
}

/// The newer answer over the older one. Values expected of past slots stay as they were first said, because skill is
/// measured on them; of slots that have not ended, and of what came, the newer answer knows better.
fn merged(old: &Forecast, mut new: Forecast, now: DateTime<Utc>) -> Forecast {
    let mut expected = old.expected.clone();
    expected.forget_before(now - KEPT);
    for (slot, value) in new.expected.points() {
        if slot.end() > now {
            expected.insert(*slot, *value);
        } else {
            for free in uncovered(&expected, slot) {
                expected.insert(free, *value);
            }
        }
    }
    let mut actual = old.actual.clone();
    actual.forget_before(now - KEPT);
    actual.overwrite(&new.actual);
    new.expected = expected;
    new.actual = actual;
    new
}

/// The parts of `slot` about which `series` says nothing.
fn uncovered(series: &CarbonSeries, slot: &Slot) -> Vec<Slot> {
    let (mut free, mut at) = (Vec::new(), slot.start());
    for (taken, _) in series.overlapping(slot) {
        free.extend(Slot::new(at, taken.start()));
        at = at.max(taken.end());
    }
    free.extend(Slot::new(at, slot.end()));
    free
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::domain::{Intensity, Origin, SignalKind, SignalScope, Zone};
    use crate::units::GramsPerKwh;

    const CADENCE: Seconds = Seconds::new(1800.0);

    fn at(minutes: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::days(20_000) + TimeDelta::minutes(minutes)
    }

    fn half_hours(from: i64, to: i64, value: f64) -> CarbonSeries {
        let slots = (from..to).filter_map(|i| Slot::new(at(30 * i), at(30 * i + 30)));
        let intensity = Intensity { value: GramsPerKwh::new(value), origin: Origin::Forecast };
        CarbonSeries::from_points(slots.map(|slot| (slot, intensity)).collect()).0
    }

    fn forecast(now: i64, expected: CarbonSeries, actual: CarbonSeries) -> Forecast {
        Forecast {
            zone: Zone::new("GB").expect("a zone"),
            source: "test".to_owned(),
            kind: SignalKind::Average,
            scope: SignalScope::Operational,
            issued_at: at(now),
            retrieved_at: at(now),
            expected,
            actual,
        }
    }

    fn unreachable() -> ProviderError {
        ProviderError::Unreachable { host: "host".to_owned(), why: "refused".to_owned() }
    }

    fn fed() -> FeedState {
        let first = forecast(0, half_hours(0, 6, 1.0), half_hours(-2, 0, 9.0));
        FeedState::starting("test", CADENCE, None, at(0)).answered(first.into(), at(0), 0.0)
    }

    fn values(series: &CarbonSeries) -> Vec<f64> {
        series.points().iter().map(|(_, i)| i.value.get()).collect()
    }

    #[test]
    fn a_newer_answer_wins_ahead_but_not_behind() {
        let mut second = forecast(60, half_hours(2, 4, 3.0), half_hours(-1, 2, 8.0));
        second.expected.insert(Slot::new(at(0), at(30)).expect("a slot"), half_hours(0, 1, 7.0).points()[0].1);
        second.expected.insert(Slot::new(at(-30), at(0)).expect("a slot"), half_hours(0, 1, 7.0).points()[0].1);
        let state = fed().answered(second.into(), at(60), 0.0);
        let known = state.forecast.clone().expect("two answers");
        assert_eq!(values(&known.expected), [7.0, 1.0, 1.0, 3.0, 3.0, 1.0, 1.0], "only the hole behind is filled");
        assert_eq!(values(&known.actual), [9.0, 8.0, 8.0, 8.0], "what came may be revised");
        assert_eq!((state.fetched_at, known.retrieved_at), (Some(at(60)), at(60)));
    }

    #[test]
    fn series_of_different_kinds_are_never_joined() {
        let mut second = forecast(60, half_hours(2, 4, 3.0), CarbonSeries::default());
        second.kind = SignalKind::Marginal;
        let state = fed().answered(second.into(), at(60), 0.0);
        assert_eq!(values(&state.forecast.expect("the second").expected), [3.0, 3.0]);
        assert!(state.notes[0].contains("another zone, kind or scope"));
    }

    #[test]
    fn a_failure_keeps_what_is_known_and_says_since_when_it_is_stale() {
        let state = fed();
        assert_eq!(state.freshness(at(60)), Freshness::Fresh);
        let state = state.failed(&unreachable(), at(31), 0.5);
        assert_eq!((state.consecutive_failures, state.stale_since), (1, None));
        assert_eq!(state.freshness(at(31)), Freshness::Fresh, "one failure does not make it old");
        let state = state.failed(&unreachable(), at(70), 0.5);
        assert_eq!((state.consecutive_failures, state.stale_since), (2, Some(at(60))));
        assert_eq!(state.freshness(at(70)), Freshness::Stale { since: at(60) });
        assert_eq!(state.freshness(at(180)), Freshness::None, "the last slot has ended");
        assert!(state.last_error.as_deref().is_some_and(|e| e.contains("cannot be reached")));
        assert!(state.forecast.is_some());

        let again = state.answered(forecast(75, half_hours(2, 4, 3.0), CarbonSeries::default()).into(), at(75), 0.0);
        assert_eq!((again.consecutive_failures, again.stale_since, &again.last_error), (0, None, &None));
    }

    #[test]
    fn a_stored_forecast_keeps_its_age() {
        let stored = forecast(-120, half_hours(-4, 6, 1.0), CarbonSeries::default());
        let state = FeedState::starting("test", CADENCE, Some(stored), at(0));
        assert!(state.from_cache && state.next_poll_at == at(0));
        assert_eq!(state.freshness(at(0)), Freshness::Stale { since: at(-60) });
        assert_eq!(state.stale_since, Some(at(-60)));
    }

    #[test]
    fn polls_come_just_after_the_source_renews() {
        let due = |now: i64, jitter| {
            fed()
                .answered(forecast(now, half_hours(0, 6, 1.0), CarbonSeries::default()).into(), at(now), jitter)
                .next_poll_at
        };
        assert_eq!(due(0, 0.0), at(30) + TimeDelta::seconds(30));
        assert_eq!(due(29, 1.0), at(30) + TimeDelta::seconds(90));
        let empty = ProviderError::Empty { what: "nothing".to_owned() };
        assert_eq!(fed().failed(&empty, at(10), 0.0).next_poll_at, at(30) + TimeDelta::seconds(30));
    }

    #[test]
    fn patience_fits_the_failure() {
        let wait = |error: &ProviderError| (fed().failed(error, at(0), 0.0).next_poll_at - at(0)).num_seconds();
        assert_eq!(wait(&ProviderError::Refused { status: 401, message: String::new() }), 3600);
        assert_eq!(wait(&ProviderError::RateLimited { retry_after: Some(Seconds::new(120.0)) }), 120);
        assert_eq!(wait(&ProviderError::RateLimited { retry_after: None }), 60);
        assert_eq!(wait(&unreachable()), 7);
        let missing = ProviderError::Unreadable { path: "carbon.csv".to_owned(), why: "not found".to_owned() };
        assert_eq!(wait(&missing), 15);
    }

    proptest! {
        #[test]
        fn backoff_stays_within_its_bounds(failures in 1u32..100_000, jitter in 0.0f64..1.0, cadence in 1.0f64..90_000.0) {
            let delay = retry_delay(&unreachable(), failures, Seconds::new(cadence), jitter).get();
            let longest = cadence.clamp(15.0, 900.0);
            prop_assert!((7.5..=longest).contains(&delay));
            if failures > 10 {
                prop_assert!(delay >= longest / 2.0);
            }
        }

        #[test]
        fn the_next_poll_lies_ahead(seconds in 0i64..4_000_000_000, jitter in 0.0f64..1.0, cadence in 0.0f64..90_000.0) {
            let now = DateTime::UNIX_EPOCH + TimeDelta::seconds(seconds);
            let wait = (after_next_answer(now, Seconds::new(cadence), jitter) - now).as_seconds_f64();
            prop_assert!(wait > 0.0 && wait <= cadence.max(1.0) + 90.0);
        }

        #[test]
        fn merging_covers_what_either_covered(a in 0i64..20, n in 1i64..20, b in 0i64..20, m in 1i64..20, now in 0i64..600) {
            let old = forecast(0, half_hours(a, a + n, 1.0), CarbonSeries::default());
            let new = forecast(now, half_hours(b, b + m, 2.0), CarbonSeries::default());
            let known = merged(&old, new.clone(), at(now)).expected;
            for i in 0..40 {
                let t = at(30 * i + 1);
                let said = known.at(t).map(|(_, v)| v.value.get());
                let (first, second) = (old.expected.at(t), new.expected.at(t));
                let right = match (first, second) {
                    (Some(_), Some(_)) if 30 * i + 30 <= now => Some(1.0),
                    (_, Some(_)) => Some(2.0),
                    (Some(_), None) => Some(1.0),
                    (None, None) => None,
                };
                prop_assert_eq!(said, right);
            }
        }
    }
}
