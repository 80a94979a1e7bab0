//! The grid's signals as they come in: what is followed, what the books use, and what is known of how good it is.

use std::sync::{Arc, Mutex, PoisonError};

use chrono::{DateTime, TimeDelta, Utc};
use tokio::sync::watch;

use super::Controller;
use super::view::ScoreView;
use crate::clock::Monotonic;
use crate::domain::{CarbonSeries, Forecast, Intensity, Issued, Origin, SignalKind, SignalScope, Slot};
use crate::forecast::{Basis, HorizonPolicy, Model, ModelPolicy, score_issued};
use crate::providers::{Currency, FeedState, Ranks, SourceState};
use crate::store::{SourceKey, Store, StoreError};
use crate::units::{GramsPerKwh, PricePerMwh, Seconds};

/// Time between two looks at what the present rests on.
const LOOK: Seconds = Seconds::new(5.0);

/// Time between two scorings.
const SCORE: Seconds = Seconds::new(3600.0);

/// How far back forecasts are scored.
const SCORED: TimeDelta = TimeDelta::days(14);

/// The horizons that are scored, in hours.
const HORIZONS_H: [f64; 2] = [1.0, 24.0];

/// The price and where it comes from.
pub struct PriceSignal {
    /// What its feed publishes.
    pub state: watch::Receiver<FeedState<PricePerMwh>>,
    /// What it is counted in.
    pub currency: Currency,
}

/// What the present is reckoned with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    /// What the followed source says.
    Source,
    /// The local forecaster.
    Local,
    /// The last known shape of a day.
    DailyShape,
    /// The configured constant.
    Constant,
}

impl Level {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Local => "local",
            Self::DailyShape => "daily_shape",
            Self::Constant => "constant",
        }
    }
}

/// What the present is reckoned with, and since when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    pub(super) level: Level,
    pub(super) source: Option<&'static str>,
    pub(super) value: GramsPerKwh,
    pub(super) since: DateTime<Utc>,
    looked_at: Option<Monotonic>,
}

impl Standing {
    pub(super) fn unknown(now: DateTime<Utc>, fallback: GramsPerKwh) -> Self {
        Self { level: Level::Constant, source: None, value: fallback, since: now, looked_at: None }
    }
}

/// The series that the books use: all sources of one kind and scope. It is the first source's that has said anything,
/// so that an outage, in which another kind may be followed, does not change what grams mean.
#[derive(Default)]
pub(super) struct Book {
    /// The sources that speak of it, the preferred one first.
    pub(super) sources: Vec<SourceKey>,
    /// What is known in memory.
    pub(super) series: CarbonSeries,
    /// Times about which no source said anything, as the model saw them while they passed.
    modelled: CarbonSeries,
    leading: Option<Arc<Forecast>>,
}

impl Book {
    fn take(&mut self, state: &FeedState) {
        let said: Vec<&Arc<Forecast>> = state.sources.iter().filter_map(|s| s.forecast.as_ref()).collect();
        let Some(leading) = said.first() else { return };
        if self.leading.as_ref().is_some_and(|l| !same_signal(l, leading)) {
            self.modelled = CarbonSeries::default();
        }
        let alike: Vec<&Arc<Forecast>> =
            said.iter().filter(|f| Arc::ptr_eq(f, leading) || same_signal(f, leading)).copied().collect();
        self.sources = alike.iter().map(|f| key(f)).collect();
        let mut series = self.modelled.clone();
        for forecast in alike.iter().rev() {
            series.overwrite(&forecast.expected);
        }
        for forecast in alike.iter().rev() {
            series.overwrite(&forecast.actual);
        }
        self.series = series;
        self.leading = Some(Arc::clone(leading));
    }

    fn fill(&mut self, slot: Slot, value: GramsPerKwh) -> Option<(Arc<Forecast>, (Slot, Intensity))> {
        let leading = self.leading.clone()?;
        let point = (slot, Intensity { value, origin: Origin::Fallback });
        self.modelled.insert(slot, point.1);
        self.modelled.forget_before(slot.start() - TimeDelta::days(2));
        self.series.insert(slot, point.1);
        Some((leading, point))
    }
}

fn key(forecast: &Forecast) -> SourceKey {
    SourceKey { source: forecast.source.clone(), zone: forecast.zone.clone() }
}

/// Whether two sources speak of the same quantity; where one does not say, only of the same source and zone is known.
fn same_signal(a: &Forecast, b: &Forecast) -> bool {
    if (a.kind, a.scope) != (b.kind, b.scope) {
        return false;
    }
    let said = a.kind != SignalKind::Unspecified && a.scope != SignalScope::Unspecified;
    said || (&a.source, &a.zone) == (&b.source, &b.zone)
}

/// What was taken of a source's states.
#[derive(Clone, Default)]
pub(super) struct Taken {
    forecast: Option<Arc<Forecast>>,
    issued: Option<Arc<Forecast>>,
    final_until: Option<DateTime<Utc>>,
}

impl Controller {
    /// Takes in the newest answers of the feed: stores them and has everything planned anew where that matters.
    pub(super) async fn take_signal(&mut self) {
        if self.signal.has_changed().unwrap_or(false) {
            let state = self.signal.borrow_and_update().clone();
            self.take_answers(&state).await;
        }
        self.look_at_the_present().await;
        self.score_sources().await;
    }

    async fn take_answers(&mut self, state: &FeedState) {
        self.taken.resize_with(state.sources.len(), Taken::default);
        for (index, source) in state.sources.iter().enumerate() {
            if let Err(error) = self.store_answers(index, source).await {
                self.note_store_fault(&error);
            }
        }
        let first = self.forecast.is_none();
        self.book.take(state);
        let Some(newest) = state.forecast.clone() else { return self.recount_jobs().await };
        if self.forecast.as_ref() == Some(&newest) {
            return;
        }
        let before = self.forecast.replace(newest.clone());
        if first {
            self.recount_jobs().await;
        }
        self.model = Model::fit(&newest.expected, &newest.actual, self.now().utc, &ModelPolicy::default());
        self.standing.looked_at = None;
        if before.is_none_or(|b| b.expected != newest.expected || b.source != newest.source) {
            self.replan_all("a new forecast");
        }
    }

    /// Stores what a source said that it had not said before: intensities with their provenance, its newest forecast
    /// as it was issued, and what is final.
    async fn store_answers(&mut self, index: usize, source: &SourceState) -> Result<(), StoreError> {
        let Some(newest) = &source.forecast else { return Ok(()) };
        let taken = &self.taken[index];
        if taken.forecast.as_ref() != Some(newest) {
            let before = taken.forecast.as_ref().filter(|b| key(b) == key(newest));
            let mut news = changes(&newest.expected, before.map(|b| &b.expected));
            news.extend(changes(&newest.actual, before.map(|b| &b.actual)));
            self.store.append_intensities(newest, &news).await?;
            self.taken[index].forecast = Some(Arc::clone(newest));
        }
        let issued = source.issued.as_ref().filter(|i| !i.expected.is_empty());
        let said = |forecast: Option<&Arc<Forecast>>| forecast.map(|f| f.expected.clone());
        if let Some(issued) = issued
            && said(Some(issued)) != said(self.taken[index].issued.as_ref())
        {
            self.store.append_issued(issued).await?;
            self.taken[index].issued = Some(Arc::clone(issued));
        }
        if source.final_until > self.taken[index].final_until
            && let Some(until) = source.final_until
        {
            self.store.settle(&key(newest), until).await?;
            self.taken[index].final_until = source.final_until;
        }
        Ok(())
    }

    /// Sees what the present is reckoned with: forecasts end, and what came grows old. A time about which no source says
    /// anything is booked as the model sees it while it passes.
    async fn look_at_the_present(&mut self) {
        let now = self.now();
        if self.standing.looked_at.is_some_and(|at| now.monotonic.since(at) < LOOK) {
            return;
        }
        let policy = HorizonPolicy { fallback: self.carbon.fallback_g_per_kwh, ..HorizonPolicy::default() };
        let nothing = CarbonSeries::default();
        let expected = self.forecast.as_ref().map_or(&nothing, |f| &f.expected);
        let horizon = self.model.outlook(expected, now.utc, now.utc + TimeDelta::hours(1), &policy);
        let Some(present) = horizon.slots.first().copied() else { return };
        let made_up = |forecast: &Arc<Forecast>| {
            forecast.best_at(now.utc).is_some_and(|(_, intensity)| intensity.origin == Origin::Fallback)
        };
        let level = match present.basis {
            Basis::Local => Level::Local,
            Basis::DailyShape => Level::DailyShape,
            Basis::Constant => Level::Constant,
            // A constant that nobody chose is a source in form only.
            _ if self.forecast.as_ref().is_some_and(made_up) => Level::Constant,
            _ => Level::Source,
        };
        let source = self.signal.borrow().source().map(|s| s.source);
        let before = self.standing;
        let changed = (before.level, before.source) != (level, source);
        let since = if changed { now.utc } else { before.since };
        self.standing = Standing { level, source, value: present.intensity, since, looked_at: Some(now.monotonic) };
        if changed {
            let (from, to) = (before.level.name(), level.name());
            tracing::info!(from, to, source, "carbon signal: the present now rests on another basis");
            self.replan_all("the signal rests on another basis");
        }
        if matches!(level, Level::Local | Level::DailyShape)
            && self.book.series.at(now.utc).is_none()
            && let Some((leading, point)) = self.book.fill(present.slot, present.intensity)
            && let Err(error) = self.store.append_intensities(&leading, &[point]).await
        {
            self.note_store_fault(&error);
        }
    }

    /// Scores the sources now and then, and tells the feed, which orders equals by it.
    async fn score_sources(&mut self) {
        let now = self.now();
        if self.scored_at.is_some_and(|at| now.monotonic.since(at) < SCORE) || self.forecast.is_none() {
            return;
        }
        self.scored_at = Some(now.monotonic);
        match scores(&self.store, now.utc).await {
            Ok(scores) => {
                let state = self.signal.borrow().clone();
                let caught = |source: &SourceState| {
                    let of = scores.iter().find(|s| s.source == source.source && s.horizon_h == HORIZONS_H[1])?;
                    Some((source.source, of.caught_gain?))
                };
                *self.ranks.lock().unwrap_or_else(PoisonError::into_inner) =
                    state.sources.iter().filter_map(caught).collect();
                self.scores = scores;
            }
            Err(error) => self.note_store_fault(&error),
        }
    }
}

/// How well each source forecast over the last fortnight, from what the store knows.
///
/// # Errors
/// If it cannot be read.
pub async fn scores(store: &Store, now: DateTime<Utc>) -> Result<Vec<ScoreView>, StoreError> {
    let since = now - SCORED;
    let issued = store.issued_since(since).await?;
    let mut left: Vec<&Issued> = issued.iter().collect();
    let mut scores = Vec::new();
    while let Some(first) = left.first().copied() {
        let (alike, others): (Vec<&Issued>, Vec<&Issued>) = left.into_iter().partition(|i| i.is_like(first));
        left = others;
        let Some(span) = Slot::new(since, now) else { break };
        let key = SourceKey { source: first.source.clone(), zone: first.zone.clone() };
        let mut came = store.intensities(std::slice::from_ref(&key), &span).await?;
        came = CarbonSeries::from_points(
            came.points().iter().filter(|(_, i)| i.origin >= Origin::Estimated).copied().collect(),
        )
        .0;
        let alike: Vec<Issued> = alike.into_iter().cloned().collect();
        for horizon_h in HORIZONS_H {
            let score = score_issued(&alike, &came, now, Seconds::new(horizon_h * 3600.0));
            scores.push(ScoreView::new(&first.source, first.zone.as_str(), horizon_h, &score));
        }
    }
    Ok(scores)
}

/// Where the ranks of the feed are kept.
pub type RankBoard = Arc<Mutex<Ranks>>;

/// The points of `now` that `before` did not have.
fn changes(now: &CarbonSeries, before: Option<&CarbonSeries>) -> Vec<(Slot, Intensity)> {
    let known = |(slot, value): &&(Slot, _)| before.and_then(|b| b.at(slot.start())) != Some(&(*slot, *value));
    now.points().iter().filter(known).copied().collect()
}
