//! Fetches past actual values, which sources may revise until they are final.

use chrono::{DateTime, TimeDelta, Utc};

use super::source_state::SourceState;
use crate::providers::provider::{Actuals, Provider};
use wattune_core::domain::{SignalValue, Slot, TimeSeries};

/// Time between fetches of past actual values, which are requested in addition to those in each answer, because sources
/// often revise values late.
pub(super) const ACTUALS_EVERY: TimeDelta = TimeDelta::hours(6);

/// Span up to now whose actual values are fetched if they are not known, because the local forecaster learns from them.
const HISTORY: TimeDelta = TimeDelta::days(28);

/// Maximum number of requests per fetch of actual values: the spans that some sources return are short.
const MOST_WINDOWS: usize = 12;

/// Returns the start of the span up to now whose actual values are fetched. It is the time up to which values are final
/// or, if earlier, the start of a gap of a day or more (in which the daemon did not run), but at most four weeks ago,
/// plus the age of final values. If no values older than 26 days are known, it is four weeks ago.
///
/// A fetch makes all values before its end final, so before the first fetch of a run it also includes the values that
/// the earlier run last read before they were old enough. `stored_at` is the time of the earlier run's last answer.
pub(super) fn actuals_start<V: SignalValue>(
    state: &SourceState<V>,
    stored_at: Option<DateTime<Utc>>,
    now: DateTime<Utc>,
) -> DateTime<Utc> {
    let (history, final_after) = (now - HISTORY, state.final_after.to_delta());
    let Some(actual) = state.forecast.as_ref().map(|f| &f.actual) else { return history };
    if actual.start().is_none_or(|start| start > history + TimeDelta::days(2)) {
        return history;
    }
    let (not_final, margin) = match state.final_until {
        Some(until) => (until, TimeDelta::zero()),
        // The earlier run last fetched up to `ACTUALS_EVERY` before its last answer. If later runs ended before their
        // first fetch, only the gap shows when values were last read.
        None => (stored_at.map_or(now, |at| at.min(now) - ACTUALS_EVERY) - final_after, final_after),
    };
    let hole = actual.gaps().find(|gap| gap.end() > history && gap.end() - gap.start() >= TimeDelta::days(1));
    hole.map_or(not_final, |hole| not_final.min(hole.start() - margin)).max(history - final_after)
}

/// Requests actual values from `from` to `now`, span by span.
pub(super) async fn fetch_actuals<V: SignalValue>(
    provider: &dyn Provider<V>,
    from: DateTime<Utc>,
    now: DateTime<Utc>,
) -> Actuals<V> {
    let mut actuals = TimeSeries::default();
    let mut at = from;
    for _ in 0..MOST_WINDOWS {
        let Some(span) = Slot::new(at, now) else { break };
        let part = match provider.fetch_actuals(span, now).await {
            Ok(Some(part)) => part,
            Ok(None) => return Ok(None),
            // Values that were fetched before the error are kept.
            Err(error) if actuals.is_empty() => return Err(error),
            Err(_) => break,
        };
        let Some(end) = part.end().filter(|end| *end > at) else { break };
        actuals.overwrite(&part);
        at = end;
    }
    Ok(Some(actuals))
}
