//! Scores of each source's recent forecasts.

use std::sync::{Arc, Mutex, PoisonError};

use chrono::{DateTime, TimeDelta, Utc};

use crate::blocking;
use crate::controller::view::ScoreView;
use crate::providers::{FeedState, Ranks, SourceState};
use crate::store::{SourceKey, Store, StoreError};
use wattune_core::domain::{CarbonSeries, Issued, Slot};
use wattune_core::forecast::score_issued;
use wattune_core::time::{Monotonic, Now};
use wattune_core::units::Seconds;

/// Time between two computations of the scores.
const SCORE: Seconds = Seconds::new(3600.0);

/// Maximum age of the past forecasts that are scored.
const SCORED: TimeDelta = TimeDelta::days(14);

/// Horizons of scored forecasts, in hours.
pub(crate) const HORIZONS_H: [f64; 2] = [1.0, 24.0];

/// Ranks of the feed's sources, shared with the feed.
pub type SharedRanks = Arc<Mutex<Ranks>>;

/// Newest scores, and the ranks by forecast skill with which the feed chooses among sources that are equal otherwise.
pub(super) struct Scores {
    pub(super) newest: Vec<ScoreView>,
    scored_at: Option<Monotonic>,
    ranks: SharedRanks,
}

impl Scores {
    pub(super) fn new(ranks: SharedRanks) -> Self {
        Self { newest: Vec::new(), scored_at: None, ranks }
    }

    /// Scores the sources' recent forecasts and ranks the sources by them, if the last scores are older than `SCORE`.
    pub(super) async fn update(&mut self, store: &Store, state: &FeedState, now: Now) -> Result<(), StoreError> {
        if self.scored_at.is_some_and(|at| now.monotonic.since(at) < SCORE) {
            return Ok(());
        }
        self.scored_at = Some(now.monotonic);
        let scores = scores(store, now.utc).await?;
        let caught = |source: &SourceState| {
            let of = scores.iter().find(|s| s.source == source.source && s.horizon_h == HORIZONS_H[1])?;
            Some((source.source, of.caught_gain?))
        };
        *self.ranks.lock().unwrap_or_else(PoisonError::into_inner) = state.sources.iter().filter_map(caught).collect();
        self.newest = scores;
        Ok(())
    }
}

/// Returns the forecast with its time of issue moved to its time of retrieval if that is later, because only from then
/// on could the daemon use the forecast.
pub(super) fn at_hand(issued: Issued) -> Issued {
    Issued { issued_at: issued.issued_at.max(issued.retrieved_at), ..issued }
}

/// Returns the scores of each source's forecasts over the last fortnight, from the store.
pub async fn scores(store: &Store, now: DateTime<Utc>) -> Result<Vec<ScoreView>, StoreError> {
    let since = now - SCORED;
    let issued = store.issued_since(since).await?;
    let mut left: Vec<&Issued> = issued.iter().collect();
    let mut scores = Vec::new();
    while let Some(first) = left.first().copied() {
        let (alike, others): (Vec<&Issued>, Vec<&Issued>) = left.into_iter().partition(|i| i.is_like(first));
        left = others;
        let Some(span) = Slot::new(since, now) else { break };
        let (source, zone) = (first.source.clone(), first.zone.clone());
        let key = SourceKey { source, zone, kind: first.kind, scope: first.scope };
        let mut actual = store.intensities(std::slice::from_ref(&key), &span).await?;
        actual =
            CarbonSeries::from_points(actual.points().iter().filter(|(_, i)| i.origin.is_actual()).copied().collect())
                .0;
        let alike: Vec<Issued> = alike.into_iter().cloned().map(at_hand).collect();
        for horizon_h in HORIZONS_H {
            let lead = Seconds::new(horizon_h * 3600.0);
            let score = blocking::in_place(|| score_issued(&alike, &actual, now, lead));
            scores.push(ScoreView::new(&first.source, first.zone.as_str(), horizon_h, &score));
        }
    }
    Ok(scores)
}
