//! Fetches past actual values, which sources may revise until they are final.

use chrono::{DateTime, TimeDelta, Utc};

use super::source_state::SourceState;
use crate::providers::client::quota::Requests;
use crate::providers::error::ProviderError;
use crate::providers::provider::{Actuals, Provider};
use wattune_core::domain::{Quoted, SignalValue, Slot, TimeSeries};

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
    let (not_final, margin) = match state.final_by(now) {
        Some(until) => (until, TimeDelta::zero()),
        // The earlier run last fetched up to `ACTUALS_EVERY` before its last answer. If later runs ended before their
        // first fetch, only the gap shows when values were last read.
        None => (stored_at.map_or(now, |at| at.min(now) - ACTUALS_EVERY) - final_after, final_after),
    };
    let hole = actual.gaps().find(|gap| gap.end() > history && gap.end() - gap.start() >= TimeDelta::days(1));
    hole.map_or(not_final, |hole| not_final.min(hole.start() - margin)).max(history - final_after)
}

/// Returns the maximum number of requests of a fetch that begins now: half of those that the source's quota still
/// allows, so that polls go on.
fn most_requests<V: SignalValue>(provider: &dyn Provider<V>, now: DateTime<Utc>) -> usize {
    let spare = |quota: Requests| quota.allowed_per_hour.saturating_sub(quota.last_hour) as usize / 2;
    provider.requests(now).map_or(MOST_WINDOWS, |quota| spare(quota).clamp(1, MOST_WINDOWS))
}

/// Requests actual values from `from` to `now`, window by window. A window may be empty because the source's history
/// begins later, or has a hole after an outage, so the fetch goes on with the next one; in empty windows between others
/// the `known` values stay, because nothing shows that the source withdrew them.
pub(super) async fn fetch_actuals<V: SignalValue>(
    provider: &dyn Provider<V>,
    known: Option<&TimeSeries<Quoted<V>>>,
    from: DateTime<Utc>,
    now: DateTime<Utc>,
) -> Actuals<V> {
    let (mut actuals, mut empty) = (TimeSeries::default(), Vec::new());
    let mut at = from;
    for _ in 0..most_requests(provider, now) {
        let Some(span) = Slot::new(at, now) else { break };
        let part = match provider.fetch_actuals(span, now).await {
            Ok(Some(part)) => part,
            Ok(None) => return Ok(None),
            Err(ProviderError::Empty { .. }) => TimeSeries::default(),
            // Values that were fetched before the error are kept.
            Err(error) if actuals.is_empty() => return Err(error),
            Err(_) => break,
        };
        if let Some(end) = part.end().filter(|end| *end > at) {
            actuals.overwrite(&part);
            at = end;
        } else {
            let Some(next) = provider.actuals_window().and_then(|window| at.checked_add_signed(window)) else { break };
            empty.extend(Slot::new(at, next));
            at = next;
        }
    }
    if let (Some(known), Some(end)) = (known, actuals.end()) {
        // Whole slots, over which the fetched ones win: windows begin at any time, and would cut known slots in two.
        let windows = empty.iter().filter(|window| window.start() < end);
        let (mut kept, _) = TimeSeries::from_points(windows.flat_map(|w| known.overlapping(w).to_vec()).collect());
        kept.overwrite(&actuals);
        actuals = kept;
    }
    Ok(Some(actuals))
}
