//! The series of intensities that the ledger uses, and the changes by a new response.

use std::sync::Arc;

use chrono::TimeDelta;

use crate::providers::FeedState;
use crate::store::SourceKey;
use wattune_core::domain::{CarbonSeries, Forecast, Intensity, Origin, Slot, is_same_quantity};
use wattune_core::units::GramsPerKwh;

/// Series of intensities that the ledger uses: all sources of one kind and scope, those of the first source with any
/// response. An outage, in which a source of another kind may be active, then does not change the meaning of emissions.
#[derive(Default)]
pub(crate) struct AccountingSeries {
    /// Sources of it, the preferred one first.
    sources: Vec<SourceKey>,
    /// Values in memory.
    series: CarbonSeries,
    /// Values of the model for times without a source, made while they passed.
    modelled: CarbonSeries,
    leading: Option<Arc<Forecast>>,
}

impl AccountingSeries {
    /// Returns its sources, the preferred one first.
    pub(crate) fn sources(&self) -> &[SourceKey] {
        &self.sources
    }

    /// Returns the values in memory.
    pub(crate) fn series(&self) -> &CarbonSeries {
        &self.series
    }

    /// Takes in the sources' newest responses. Returns the slots with changed values; `None` if the sources themselves
    /// changed.
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

    /// Fills a slot without a source. Returns the point to store and the source in whose name; `None` before any response.
    pub(super) fn fill(&mut self, slot: Slot, value: GramsPerKwh) -> Option<(Arc<Forecast>, (Slot, Intensity))> {
        let leading = self.leading.clone()?;
        let point = (slot, Intensity { value, origin: Origin::Fallback });
        self.modelled.insert(slot, point.1);
        self.modelled.forget_before(slot.start() - TimeDelta::days(2));
        self.series.insert(slot, point.1);
        Some((leading, point))
    }
}

/// Returns whether two sources publish the same quantity; without a stated kind and scope, only one source and zone does.
pub(crate) fn same_signal(a: &SourceKey, b: &SourceKey) -> bool {
    a == b || is_same_quantity((a.kind, a.scope), (b.kind, b.scope))
}

/// Returns the actual values of `before` that a response covers but no longer contains. A response without actual values
/// withdraws none, unless it is a file with forecasts for their time: then the values were blanked.
pub(super) fn withdrawn(before: &CarbonSeries, answer: &Forecast) -> Vec<(Slot, Intensity)> {
    if !answer.actual.is_empty() {
        return missing(before, &answer.actual);
    }
    let is_blank = |slot: &Slot| !answer.expected.overlapping(slot).is_empty() && slot.end() <= answer.retrieved_at;
    before.points().iter().filter(|(slot, _)| answer.is_of_file() && is_blank(slot)).copied().collect()
}

/// Returns the points of `before` that are missing in `now`, since its beginning: older values only left its window.
fn missing(before: &CarbonSeries, now: &CarbonSeries) -> Vec<(Slot, Intensity)> {
    let Some(start) = now.start() else { return Vec::new() };
    let missing = |(slot, _): &&(Slot, Intensity)| slot.start() >= start && now.overlapping(slot).is_empty();
    before.points().iter().filter(missing).copied().collect()
}

/// Returns the points of `now` that `before` did not have.
pub(super) fn changes(now: &CarbonSeries, before: Option<&CarbonSeries>) -> Vec<(Slot, Intensity)> {
    let known = |(slot, value): &&(Slot, _)| before.and_then(|b| b.at(slot.start())) != Some(&(*slot, *value));
    now.points().iter().filter(known).copied().collect()
}
