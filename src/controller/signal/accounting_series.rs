//! The series that the books use, and what a new answer changes in one.

use std::sync::Arc;

use chrono::TimeDelta;

use crate::providers::FeedState;
use crate::store::SourceKey;
use wattune_core::domain::{CarbonSeries, Forecast, Intensity, Origin, Slot, is_same_quantity};
use wattune_core::units::GramsPerKwh;

/// The series that the books use: all sources of one kind and scope. It is the first source's that has published anything,
/// so that an outage, in which another kind may be followed, does not change what grams mean.
#[derive(Default)]
pub(in crate::controller) struct AccountingSeries {
    /// The sources that speak of it, the preferred one first.
    sources: Vec<SourceKey>,
    /// What is known in memory.
    series: CarbonSeries,
    /// Times about which no source published anything, as the model saw them while they passed.
    modelled: CarbonSeries,
    leading: Option<Arc<Forecast>>,
}

impl AccountingSeries {
    /// The sources that speak of it, the preferred one first.
    pub(in crate::controller) fn sources(&self) -> &[SourceKey] {
        &self.sources
    }

    /// What is known in memory.
    pub(in crate::controller) fn series(&self) -> &CarbonSeries {
        &self.series
    }

    /// Takes in what the sources say now. Answers with the times of which another value is known than before; `None` if
    /// it is another series altogether.
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

    /// Has a time in it about which no source says anything. Answers with what is to be stored, and in whose name;
    /// `None` before any source has spoken.
    pub(super) fn fill(&mut self, slot: Slot, value: GramsPerKwh) -> Option<(Arc<Forecast>, (Slot, Intensity))> {
        let leading = self.leading.clone()?;
        let point = (slot, Intensity { value, origin: Origin::Fallback });
        self.modelled.insert(slot, point.1);
        self.modelled.forget_before(slot.start() - TimeDelta::days(2));
        self.series.insert(slot, point.1);
        Some((leading, point))
    }
}

/// Whether two sources speak of the same quantity; where one does not say, only of the same source and zone is known.
pub(in crate::controller) fn same_signal(a: &SourceKey, b: &SourceKey) -> bool {
    a == b || is_same_quantity((a.kind, a.scope), (b.kind, b.scope))
}

/// What `before` told of the past of which an answer speaks, and does not tell any more. One that tells of no past takes
/// nothing back, unless it is a file's that says what was expected of it: the values were blanked.
pub(super) fn withdrawn(before: &CarbonSeries, answer: &Forecast) -> Vec<(Slot, Intensity)> {
    if !answer.actual.is_empty() {
        return missing(before, &answer.actual);
    }
    let is_blank = |slot: &Slot| !answer.expected.overlapping(slot).is_empty() && slot.end() <= answer.retrieved_at;
    before.points().iter().filter(|(slot, _)| answer.is_of_file() && is_blank(slot)).copied().collect()
}

/// What `before` published of the time that `now` speaks of, and `now` does not: since its beginning, as older values only
/// fall out of view.
fn missing(before: &CarbonSeries, now: &CarbonSeries) -> Vec<(Slot, Intensity)> {
    let Some(start) = now.start() else { return Vec::new() };
    let missing = |(slot, _): &&(Slot, Intensity)| slot.start() >= start && now.overlapping(slot).is_empty();
    before.points().iter().filter(missing).copied().collect()
}

/// The points of `now` that `before` did not have.
pub(super) fn changes(now: &CarbonSeries, before: Option<&CarbonSeries>) -> Vec<(Slot, Intensity)> {
    let known = |(slot, value): &&(Slot, _)| before.and_then(|b| b.at(slot.start())) != Some(&(*slot, *value));
    now.points().iter().filter(known).copied().collect()
}
