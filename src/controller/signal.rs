//! The grid's signals as they come in: what is followed, what the books use, and what is known of how good it is.

use std::sync::{Arc, Mutex, PoisonError};

use chrono::{DateTime, TimeDelta, Utc};
use tokio::sync::watch;

use super::Controller;
use super::job::A_NEW_FORECAST;
use super::view::ScoreView;
use crate::providers::{Contribution, Currency, FeedState, Ranks, SourceState};
use crate::store::{SourceKey, Store, StoreError, Why};
use wattune_core::domain::{CarbonSeries, Forecast, Intensity, Issued, Origin, Slot, is_same_quantity};
use wattune_core::forecast::{Basis, HorizonPolicy, ISSUES_LEARNT_FROM, Model, ModelPolicy, score_issued};
use wattune_core::time::Monotonic;
use wattune_core::units::{GramsPerKwh, PricePerMwh, Seconds};

/// Time between two looks at what the present rests on.
const LOOK: Seconds = Seconds::new(5.0);

/// Time between two scorings.
const SCORE: Seconds = Seconds::new(3600.0);

/// How far back forecasts are scored.
const SCORED: TimeDelta = TimeDelta::days(14);

/// The horizons at which forecasts are held against what came, in hours.
pub(super) const HORIZONS_H: [f64; 2] = [1.0, 24.0];

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
    /// For how long from now on it holds.
    slot: Slot,
    pub(super) since: DateTime<Utc>,
    looked_at: Option<Monotonic>,
}

impl Standing {
    pub(super) fn unknown(now: DateTime<Utc>, fallback: GramsPerKwh) -> Self {
        let slot = Slot::new(now, now + LOOK.to_delta()).expect("LOOK is more than nothing");
        Self { level: Level::Constant, source: None, value: fallback, slot, since: now, looked_at: None }
    }

    /// What `now` is reckoned with.
    pub(super) fn of(
        model: &Model,
        forecast: Option<&Forecast>,
        state: &FeedState,
        fallback: GramsPerKwh,
        now: DateTime<Utc>,
    ) -> Self {
        let policy = HorizonPolicy { fallback, ..HorizonPolicy::default() };
        let nothing = CarbonSeries::default();
        let expected = forecast.map_or(&nothing, |f| &f.expected);
        let horizon = model.outlook(expected, now, now + TimeDelta::hours(1), &policy);
        let Some(present) = horizon.slots.first() else { return Self::unknown(now, fallback) };
        let made_up = |f: &Forecast| f.best_at(now).is_some_and(|(_, i)| i.origin == Origin::Fallback);
        let level = match present.basis {
            Basis::Local => Level::Local,
            Basis::DailyShape => Level::DailyShape,
            Basis::Constant => Level::Constant,
            // Nobody says anything about now: it is filled from other days or from around it.
            _ if forecast.is_none_or(|f| f.best_at(now).is_none()) => Level::DailyShape,
            // A constant that nobody chose is a source in form only.
            _ if forecast.is_some_and(made_up) => Level::Constant,
            _ => Level::Source,
        };
        let source = state.source().map(|s| s.source);
        Self { level, source, value: present.intensity, slot: present.slot, since: now, looked_at: None }
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
        let key = SourceKey::of(leading);
        if self.leading.as_ref().is_some_and(|l| !same_signal(&SourceKey::of(l), &key)) {
            self.modelled = CarbonSeries::default();
        }
        let alike: Vec<&Arc<Forecast>> =
            said.iter().filter(|f| same_signal(&SourceKey::of(f), &key)).copied().collect();
        self.sources = alike.iter().map(|f| SourceKey::of(f)).collect();
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

/// Whether two sources speak of the same quantity; where one does not say, only of the same source and zone is known.
pub(super) fn same_signal(a: &SourceKey, b: &SourceKey) -> bool {
    a == b || is_same_quantity((a.kind, a.scope), (b.kind, b.scope))
}

/// What was taken of a source's states.
#[derive(Clone, Default)]
pub(super) struct Taken {
    forecast: Option<Arc<Forecast>>,
    issued: Option<Arc<Forecast>>,
    final_until: Option<DateTime<Utc>>,
    /// What was expected of slots that began up to here is stored.
    begun_until: Option<DateTime<Utc>>,
}

impl Controller {
    /// Takes in the newest answers of the feed: stores them and has everything planned anew where that matters.
    pub(super) async fn take_signal(&mut self) {
        if self.signal.has_changed().unwrap_or(false) {
            let state = self.signal.borrow_and_update().clone();
            self.take_answers(&state).await;
        }
        self.look_at_the_present().await;
        self.recount_hours().await;
        self.look_back().await;
        self.score_sources().await;
    }

    async fn take_answers(&mut self, state: &FeedState) {
        self.taken.resize_with(state.sources.len(), Taken::default);
        for (index, source) in state.sources.iter().enumerate() {
            if let Err(error) = self.store_answers(index, source).await {
                self.note_store_fault(&error);
            }
        }
        // What is new is told to the store at once, and the present is looked at anew.
        self.standing.looked_at = None;
        let first = self.forecast.is_none();
        let (sources, series) = (self.book.sources.clone(), self.book.series.clone());
        self.book.take(state);
        if self.book.sources == sources {
            let mut news = changes(&self.book.series, Some(&series));
            news.extend(gone(&series, &self.book.series));
            self.recount_in(news.iter().map(|(slot, _)| slot));
        } else {
            self.recount_everything();
        }
        let Some(newest) = state.forecast.clone() else { return };
        if self.forecast.as_ref() == Some(&newest) {
            return;
        }
        let before = self.forecast.replace(newest.clone());
        if first {
            self.recount_jobs().await;
        }
        self.learn(&newest).await;
        if before.is_none_or(|b| b.expected != newest.expected || b.source != newest.source) {
            self.replan_all(A_NEW_FORECAST);
        }
    }

    /// Fits the model to a forecast, its outcomes, and what its source issued in the last weeks.
    async fn learn(&mut self, newest: &Forecast) {
        let now = self.now().utc;
        let kept = self.store.issued_of(&SourceKey::of(newest), now - ISSUES_LEARNT_FROM).await;
        let kept: Vec<Issued> = match kept {
            Ok(issued) => issued.into_iter().map(at_hand).collect(),
            Err(error) => {
                self.note_store_fault(&error);
                Vec::new()
            }
        };
        let issues: Vec<&Issued> = kept.iter().collect();
        self.model = Model::fit(&newest.expected, &issues, &newest.actual, now, &ModelPolicy::default());
    }

    /// Stores what a source said that it had not said before: what came with its provenance, its newest forecast as it
    /// was issued, and what is final.
    async fn store_answers(&mut self, index: usize, source: &SourceState) -> Result<(), StoreError> {
        let Some(newest) = &source.forecast else { return Ok(()) };
        let taken = &self.taken[index];
        if taken.forecast.as_ref() != Some(newest) {
            let before = taken.forecast.as_ref().filter(|b| SourceKey::of(b) == SourceKey::of(newest));
            let mut news = changes(&newest.actual, before.map(|b| &b.actual));
            let withdrawn = match before {
                Some(before) => withdrawn(&before.actual, newest),
                // What is not asked for was not taken back.
                None if source.contributes == Contribution::Forecast => Vec::new(),
                None => self.withdrawn_since(newest).await?,
            };
            if before.is_none() {
                news = self.not_stored(newest, news).await?;
                self.taken[index].begun_until = None;
            }
            self.store.withdraw_intensities(newest, &withdrawn).await?;
            self.store.append_intensities(newest, &news).await?;
            self.told(&news);
            self.told(&withdrawn);
            self.taken[index].forecast = Some(Arc::clone(newest));
        }
        let issued = source.issued.as_ref().filter(|i| !i.expected.is_empty());
        if let Some(issued) = issued
            && self.taken[index].issued.as_ref().is_none_or(|before| before.expected != issued.expected)
        {
            self.store.append_issued(issued).await?;
            self.taken[index].issued = Some(Arc::clone(issued));
        }
        if source.final_until > self.taken[index].final_until
            && let Some(until) = source.final_until
        {
            let key = SourceKey::of(newest);
            let before = self.store.settled_until(&key).await?;
            self.store.settle(&key, until).await?;
            for hour in self.store.unsettled_hours(before.unwrap_or_default() - TimeDelta::hours(1)).await? {
                if hour < until
                    && let Some(hour) = Slot::new(hour, hour + TimeDelta::hours(1))
                {
                    self.ledger.resettle(&hour, Why::Intensity);
                }
            }
            self.taken[index].final_until = source.final_until;
        }
        Ok(())
    }

    /// Those points that the store does not have: an earlier run may have stored what the cache gave back.
    async fn not_stored(
        &self,
        newest: &Forecast,
        points: Vec<(Slot, Intensity)>,
    ) -> Result<Vec<(Slot, Intensity)>, StoreError> {
        let span = points.first().zip(points.last()).and_then(|(a, b)| Slot::new(a.0.start(), b.0.end()));
        let Some(span) = span else { return Ok(points) };
        let stored = self.store.intensities(&[SourceKey::of(newest)], &span).await?;
        Ok(points.into_iter().filter(|p| stored.at(p.0.start()) != Some(p)).collect())
    }

    /// What an earlier run stored of the past that a source does not say any more.
    async fn withdrawn_since(&self, newest: &Forecast) -> Result<Vec<(Slot, Intensity)>, StoreError> {
        let said = if newest.actual.is_empty() { &newest.expected } else { &newest.actual };
        let span = said.start().zip(said.end()).and_then(|(start, end)| Slot::new(start, end));
        let Some(span) = span else { return Ok(Vec::new()) };
        let stored = self.store.intensities(&[SourceKey::of(newest)], &span).await?;
        let came = stored.points().iter().filter(|(_, i)| i.origin.is_outcome()).copied().collect();
        Ok(withdrawn(&CarbonSeries::from_points(came).0, newest))
    }

    /// Stores what is expected of slots as they begin: whether what came will ever be told is not known then. Later ones
    /// stand in the forecasts as they were issued.
    async fn store_begun(&mut self, now: DateTime<Utc>) -> Result<(), StoreError> {
        for index in 0..self.taken.len() {
            let Taken { forecast: Some(forecast), begun_until, .. } = self.taken[index].clone() else { continue };
            let points = forecast.expected.points();
            let from = begun_until.map_or(0, |until| points.partition_point(|(slot, _)| slot.start() <= until));
            let to = points.partition_point(|(slot, _)| slot.start() <= now);
            let mut begun = points.get(from..to).unwrap_or_default().to_vec();
            // A generated grid's expectation would take the place of what it has told already.
            let told = |slot: &Slot| forecast.actual.at(slot.start()).is_some();
            begun.retain(|(slot, i)| !told(slot) || (begun_until.is_some() && i.origin != Origin::Synthetic));
            if begun_until.is_none() {
                begun = self.not_stored(&forecast, begun).await?;
            }
            if !begun.is_empty() {
                self.store.append_intensities(&forecast, &begun).await?;
            }
            self.taken[index].begun_until = Some(now);
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
        if let Err(error) = self.store_begun(now.utc).await {
            self.note_store_fault(&error);
        }
        let fallback = self.carbon.fallback_g_per_kwh;
        let found = Standing::of(&self.model, self.forecast.as_deref(), &self.signal.borrow(), fallback, now.utc);
        let before = self.standing;
        let (level, source) = (found.level, found.source);
        let changed = (before.level, before.source) != (level, source);
        let since = if changed { now.utc } else { before.since };
        self.standing = Standing { since, looked_at: Some(now.monotonic), ..found };
        if changed {
            let (from, to) = (before.level.name(), level.name());
            tracing::info!(from, to, source, "carbon signal: the present now rests on another basis");
            self.replan_all("the signal rests on another basis");
        }
        if matches!(level, Level::Local | Level::DailyShape)
            && self.book.series.at(now.utc).is_none()
            && let Some((leading, point)) = self.book.fill(found.slot, found.value)
        {
            self.recount_in([&point.0]);
            if let Err(error) = self.store.append_intensities(&leading, &[point]).await {
                self.note_store_fault(&error);
            }
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

/// As of when it could be used: what was made earlier than it was fetched was of no use before.
fn at_hand(issued: Issued) -> Issued {
    Issued { issued_at: issued.issued_at.max(issued.retrieved_at), ..issued }
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
        let (source, zone) = (first.source.clone(), first.zone.clone());
        let key = SourceKey { source, zone, kind: first.kind, scope: first.scope };
        let mut came = store.intensities(std::slice::from_ref(&key), &span).await?;
        came =
            CarbonSeries::from_points(came.points().iter().filter(|(_, i)| i.origin.is_outcome()).copied().collect()).0;
        let alike: Vec<Issued> = alike.into_iter().cloned().map(at_hand).collect();
        for horizon_h in HORIZONS_H {
            let score = score_issued(&alike, &came, now, Seconds::new(horizon_h * 3600.0));
            scores.push(ScoreView::new(&first.source, first.zone.as_str(), horizon_h, &score));
        }
    }
    Ok(scores)
}

/// Where the ranks of the feed are kept.
pub type RankBoard = Arc<Mutex<Ranks>>;

/// What `before` told of the past of which an answer speaks, and does not tell any more. One that tells of no past takes
/// nothing back, unless it is a file's that says what was expected of it: the values were blanked.
fn withdrawn(before: &CarbonSeries, answer: &Forecast) -> Vec<(Slot, Intensity)> {
    if !answer.actual.is_empty() {
        return gone(before, &answer.actual);
    }
    let is_blank = |slot: &Slot| !answer.expected.overlapping(slot).is_empty() && slot.end() <= answer.retrieved_at;
    before.points().iter().filter(|(slot, _)| answer.is_of_file() && is_blank(slot)).copied().collect()
}

/// What `before` said of the time that `now` speaks of, and `now` does not: since its beginning, as older values only
/// fall out of view.
fn gone(before: &CarbonSeries, now: &CarbonSeries) -> Vec<(Slot, Intensity)> {
    let Some(start) = now.start() else { return Vec::new() };
    let gone = |(slot, _): &&(Slot, Intensity)| slot.start() >= start && now.overlapping(slot).is_empty();
    before.points().iter().filter(gone).copied().collect()
}

/// The points of `now` that `before` did not have.
fn changes(now: &CarbonSeries, before: Option<&CarbonSeries>) -> Vec<(Slot, Intensity)> {
    let known = |(slot, value): &&(Slot, _)| before.and_then(|b| b.at(slot.start())) != Some(&(*slot, *value));
    now.points().iter().filter(known).copied().collect()
}
