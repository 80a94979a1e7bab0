//! Series of carbon intensities that the ledger uses, and the changes that a source's new response makes to the series.

use std::sync::Arc;

use chrono::TimeDelta;

use crate::providers::FeedState;
use crate::store::SourceKey;
use wattune_core::domain::{CarbonSeries, Forecast, Intensity, Origin, Slot, is_same_quantity};
use wattune_core::units::GramsPerKwh;

/// Series of carbon intensities that the ledger uses, merged from all sources that publish the same quantity (kind and
/// scope) as the most preferred source that has responded. So emissions keep their meaning during an outage, when a
/// source of another quantity is active.
#[derive(Default)]
pub(crate) struct AccountingSeries {
    /// Sources of the series, the preferred one first.
    sources: Vec<SourceKey>,
    /// Values in memory.
    series: CarbonSeries,
    /// Values that the forecast model computed for slots (time steps) that no source covers, each while the slot was
    /// current.
    modelled: CarbonSeries,
    leading: Option<Arc<Forecast>>,
}

impl AccountingSeries {
    /// Returns the series' sources, the preferred one first.
    pub(crate) fn sources(&self) -> &[SourceKey] {
        &self.sources
    }

    /// Returns the values in memory.
    pub(crate) fn series(&self) -> &CarbonSeries {
        &self.series
    }

    /// Updates the series from the sources' newest responses. Returns the slots with changed values; `None` if the set
    /// or the order of the series' sources changed.
    pub(super) fn update(&mut self, state: &FeedState) -> Option<Vec<Slot>> {
        let published: Vec<&Arc<Forecast>> = state.sources.iter().filter_map(|s| s.forecast.as_ref()).collect();
        let Some(leading) = published.first() else { return Some(Vec::new()) };
        let key = SourceKey::of(leading);
        if self.leading.as_ref().is_some_and(|l| !same_signal(&SourceKey::of(l), &key)) {
            self.modelled = CarbonSeries::default();
        }
        let alike: Vec<&Arc<Forecast>> =
            published.iter().filter(|f| same_signal(&SourceKey::of(f), &key)).copied().collect();
        let sources: Vec<SourceKey> = alike.iter().map(|f| SourceKey::of(f)).collect();
        let mut series = self.modelled.clone();
        for forecast in alike.iter().rev() {
            series.overwrite(&forecast.expected);
        }
        for forecast in alike.iter().rev() {
            series.overwrite(&forecast.actual);
        }
        let mut update = changes(&series, Some(&self.series));
        update.extend(missing(&self.series, &series));
        let is_other = self.sources != sources;
        (self.sources, self.series) = (sources, series);
        self.leading = Some(Arc::clone(leading));
        (!is_other).then(|| update.into_iter().map(|(slot, _)| slot).collect())
    }

    /// Fills a slot that no source covers with `value`. Returns what to store: first a response, under whose source
    /// the point is stored, second the point (slot and intensity). Returns `None` before any source has responded.
    pub(super) fn fill(&mut self, slot: Slot, value: GramsPerKwh) -> Option<(Arc<Forecast>, (Slot, Intensity))> {
        let leading = self.leading.clone()?;
        let point = (slot, Intensity { value, origin: Origin::Fallback });
        self.modelled.insert(slot, point.1);
        self.modelled.forget_before(slot.start() - TimeDelta::days(2));
        self.series.insert(slot, point.1);
        Some((leading, point))
    }
}

/// Returns whether two sources publish the same quantity. If kind or scope is unspecified, the keys must be equal.
pub(crate) fn same_signal(a: &SourceKey, b: &SourceKey) -> bool {
    a == b || is_same_quantity((a.kind, a.scope), (b.kind, b.scope))
}

/// Returns the actual values of `before` that the response `answer` covers but no longer contains. A response without
/// any actual values withdraws none, unless the response is a file that has forecasts for the time of the values: then
/// the values were deleted from the file.
pub(super) fn withdrawn(before: &CarbonSeries, answer: &Forecast) -> Vec<(Slot, Intensity)> {
    if !answer.actual.is_empty() {
        return missing(before, &answer.actual);
    }
    let is_blank = |slot: &Slot| !answer.expected.overlapping(slot).is_empty() && slot.end() <= answer.retrieved_at;
    before.points().iter().filter(|(slot, _)| answer.is_of_file() && is_blank(slot)).copied().collect()
}

/// Returns the points of `before` that `now` lacks. Points before the start of `now` do not count, because `now` does
/// not cover their time.
fn missing(before: &CarbonSeries, now: &CarbonSeries) -> Vec<(Slot, Intensity)> {
    let Some(start) = now.start() else { return Vec::new() };
    let missing = |(slot, _): &&(Slot, Intensity)| slot.start() >= start && now.overlapping(slot).is_empty();
    before.points().iter().filter(missing).copied().collect()
}

/// Returns the points of `now` that are new or changed since `before`.
pub(super) fn changes(now: &CarbonSeries, before: Option<&CarbonSeries>) -> Vec<(Slot, Intensity)> {
    let known = |(slot, value): &&(Slot, _)| before.and_then(|b| b.at(slot.start())) != Some(&(*slot, *value));
    now.points().iter().filter(known).copied().collect()
}
