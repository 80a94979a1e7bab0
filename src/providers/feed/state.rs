//! The state of a feed, and the choice of its active source: no timers, no I/O.

use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::{DateTime, Utc};

use super::source_state::{Freshness, SourceState};
use wattune_core::domain::{Forecast, SignalValue, TimeSeries, is_same_quantity};
use wattune_core::units::GramsPerKwh;

/// Difference by which the recent skill of another source in the same group must exceed that of the active source to
/// replace the active source.
const BETTER_BY: f64 = 0.05;

/// Recent skill by source name: the fraction that the source's forecast achieves of the saving with perfect foresight.
pub type Ranks = BTreeMap<&'static str, f64>;

/// The state of a feed: its sources, and the forecast of the active source (the one whose values are used).
#[derive(Clone, Debug, PartialEq)]
pub struct FeedState<V: SignalValue = GramsPerKwh> {
    /// The sources, in the order of the chain.
    pub sources: Vec<SourceState<V>>,
    /// Index of the active source; absent while none has answered.
    pub active: Option<usize>,
    /// The active source's forecast. Actual values that this source lacks are taken from other sources of the same kind
    /// and scope.
    pub forecast: Option<Arc<Forecast<V>>>,
}

impl<V: SignalValue> FeedState<V> {
    /// Returns the state before the first poll.
    pub fn starting(sources: Vec<SourceState<V>>, now: DateTime<Utc>) -> Self {
        Self { sources, active: None, forecast: None }.chosen(&Ranks::default(), now)
    }

    /// Returns the active source.
    pub fn source(&self) -> Option<&SourceState<V>> {
        self.sources.get(self.active?)
    }

    /// Returns the freshness of the active source at `now`.
    pub fn freshness(&self, now: DateTime<Utc>) -> Freshness {
        self.source().map_or(Freshness::None, |source| source.freshness(now))
    }

    /// Returns the state with one source replaced, and the active source chosen again.
    #[must_use]
    pub fn with(mut self, index: usize, source: SourceState<V>, ranks: &Ranks, now: DateTime<Utc>) -> Self {
        if let Some(place) = self.sources.get_mut(index) {
            *place = source;
        }
        self.chosen(ranks, now)
    }

    /// Returns the state with the active source chosen again for `now`.
    ///
    /// In the order of the chain: the first source whose forecast is fresh and covers now; else the first whose
    /// forecast covers now; else the source whose values reach furthest. A constant replaces no forecast of an earlier
    /// source that covers now, even if that one is stale. Within a group of the chain, sources are ordered by recent
    /// skill.
    #[must_use]
    pub fn chosen(mut self, ranks: &Ranks, now: DateTime<Utc>) -> Self {
        let order = self.order(ranks);
        let covers = |i: &&usize| self.sources[**i].covers(now);
        let fresh = |i: &&usize| covers(i) && self.sources[**i].freshness(now) == Freshness::Fresh;
        let last_word = |i: &usize| {
            let forecast = self.sources[*i].forecast.as_ref()?;
            forecast.actual.end().max(forecast.expected.end())
        };
        // If several forecasts end at the same time, the first source in the order counts: `max_by_key` takes the last,
        // so the order is reversed.
        let latest = || order.iter().rev().filter(|i| last_word(i).is_some()).max_by_key(|i| last_word(i));
        let best = order.iter().find(fresh).filter(|i| !self.sources[**i].is_constant);
        let choice = best.or_else(|| order.iter().find(covers)).or_else(latest).copied();
        self.active = choice;
        self.forecast = self.joined();
        self
    }

    /// Returns the indexes of sources in the order of choice: by group, and within a group by recent skill, to which
    /// [`BETTER_BY`] is added for the active source.
    fn order(&self, ranks: &Ranks) -> Vec<usize> {
        let rank = |i: usize| {
            let own = ranks.get(self.sources[i].source).copied().unwrap_or(0.0);
            if self.active == Some(i) { own + BETTER_BY } else { own }
        };
        let mut order: Vec<usize> = (0..self.sources.len()).collect();
        order.sort_by(|a, b| {
            let group = |i: &usize| self.sources[*i].group;
            group(a).cmp(&group(b)).then_with(|| rank(*b).total_cmp(&rank(*a)))
        });
        order
    }

    /// Returns the active source's forecast. Actual values that this source lacks are taken from other sources of the
    /// same quantity, whose kind and scope must be specified and equal.
    fn joined(&self) -> Option<Arc<Forecast<V>>> {
        let active = self.source()?.forecast.as_ref()?;
        let mut actuals = TimeSeries::default();
        for other in self.sources.iter().rev().filter_map(|s| s.forecast.as_ref()) {
            let quantity = |f: &Forecast<V>| (f.kind, f.scope);
            if !Arc::ptr_eq(other, active) && is_same_quantity(quantity(active), quantity(other)) {
                actuals.overwrite(&other.actual);
            }
        }
        if actuals.is_empty() {
            return Some(Arc::clone(active));
        }
        actuals.overwrite(&active.actual);
        if actuals == active.actual {
            return Some(Arc::clone(active));
        }
        let joined = Forecast { actual: actuals, ..Forecast::clone(active) };
        // An equal forecast keeps its `Arc`, so that comparing pointers is enough.
        match &self.forecast {
            Some(before) if **before == joined => Some(Arc::clone(before)),
            _ => Some(Arc::new(joined)),
        }
    }
}
