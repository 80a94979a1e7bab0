//! The grid's signals as they come in: what is followed, what the books use, and what is known of how good it is.

mod book;
mod hindsight;
mod scores;
mod standing;
mod taken;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use chrono::{DateTime, Utc};
use tokio::sync::watch;

pub(super) use book::{Book, same_signal};
pub(super) use hindsight::Hindsight;
pub(super) use scores::HORIZONS_H;
pub use scores::{RankBoard, scores};
use scores::{Scores, at_hand};
pub(super) use standing::{Level, Standing};
use taken::Taken;

use super::replan::ReplanReason;
use super::view::ScoreView;
use crate::providers::{Currency, FeedState};
use crate::store::{SourceKey, Store, StoreError};
use wattune_core::domain::{Forecast, Issued, Slot};
use wattune_core::forecast::{ISSUES_LEARNT_FROM, Model, ModelPolicy};
use wattune_core::time::Now;
use wattune_core::units::{GramsPerKwh, PricePerMwh};

/// The price and where it comes from.
pub struct PriceSignal {
    /// What its feed publishes.
    pub state: watch::Receiver<FeedState<PricePerMwh>>,
    /// What it is counted in.
    pub currency: Currency,
}

/// What came in since the last activation, for those whom it concerns.
#[derive(Debug, Default)]
pub(super) struct News {
    /// Times of which sources told something new: their hours are settled and counted anew.
    pub(super) told: Vec<Slot>,
    /// Times of which another value is known: their hours are counted anew.
    pub(super) known: Vec<Slot>,
    /// The books use another series: all hours are counted anew.
    pub(super) another_series: bool,
    /// Hours that have become final.
    pub(super) finals: Vec<Slot>,
    /// For the first time since the start something is forecast.
    pub(super) first: bool,
    /// Why everything is planned anew.
    pub(super) replan: Option<ReplanReason>,
    /// What could not be read or written.
    pub(super) faults: Vec<StoreError>,
}

/// Owns what is known of the grid: the carbon signal, and the price if there is one.
pub(super) struct Signal {
    feed: watch::Receiver<FeedState>,
    price: Option<PriceSignal>,
    /// The intensity of last resort.
    fallback: GramsPerKwh,
    /// What the followed source says, and what was learnt from what came.
    forecast: Option<Arc<Forecast>>,
    model: Model,
    standing: Standing,
    book: Book,
    /// What was stored of each source of the feed.
    taken: Vec<Taken>,
    hindsight: Hindsight,
    scores: Scores,
}

impl Signal {
    /// Nothing is known before the first [`Self::take`].
    pub(super) fn new(
        mut feed: watch::Receiver<FeedState>,
        price: Option<PriceSignal>,
        fallback: GramsPerKwh,
        ranks: RankBoard,
        now: DateTime<Utc>,
    ) -> Self {
        feed.mark_changed();
        Self {
            feed,
            price,
            fallback,
            forecast: None,
            model: Model::default(),
            standing: Standing::unknown(now, fallback),
            book: Book::default(),
            taken: Vec::new(),
            hindsight: Hindsight::default(),
            scores: Scores::new(ranks),
        }
    }

    /// Takes in the newest answers of the feed and stores them. What could not be stored is tried again with the next
    /// answer, or when its time has come.
    pub(super) async fn take(&mut self, store: &Store, now: Now) -> News {
        let mut news = News::default();
        if self.feed.has_changed().unwrap_or(false) {
            let state = self.feed.borrow_and_update().clone();
            self.take_answers(&state, store, now, &mut news).await;
        }
        if self.standing.is_due(now) {
            self.look_at_the_present(store, now, &mut news).await;
        }
        if let Err(error) = self.hindsight.look_back(self.forecast.as_deref(), store, now.utc).await {
            news.faults.push(error);
        }
        if self.forecast.is_some() {
            let state = self.feed.borrow().clone();
            if let Err(error) = self.scores.keep(store, &state, now).await {
                news.faults.push(error);
            }
        }
        news
    }

    async fn take_answers(&mut self, state: &FeedState, store: &Store, now: Now, news: &mut News) {
        self.taken.resize_with(state.sources.len(), Taken::default);
        for (taken, source) in self.taken.iter_mut().zip(&state.sources) {
            if let Err(error) = taken.take(source, store, news).await {
                news.faults.push(error);
            }
        }
        // What is new is told to the store at once, and the present is looked at anew.
        self.standing.doubt();
        match self.book.take(state) {
            Some(slots) => news.known.extend(slots),
            None => news.another_series = true,
        }
        let Some(newest) = state.forecast.clone() else { return };
        if self.forecast.as_ref() == Some(&newest) {
            return;
        }
        let before = self.forecast.replace(newest.clone());
        news.first = before.is_none();
        self.learn(&newest, store, now.utc, news).await;
        if before.is_none_or(|b| b.expected != newest.expected || b.source != newest.source) {
            news.replan = Some(ReplanReason::NewForecast);
        }
    }

    /// Fits the model to a forecast, its outcomes, and what its source issued in the last weeks.
    async fn learn(&mut self, newest: &Forecast, store: &Store, now: DateTime<Utc>, news: &mut News) {
        let kept = store.issued_of(&SourceKey::of(newest), now - ISSUES_LEARNT_FROM).await;
        let kept: Vec<Issued> = match kept {
            Ok(issued) => issued.into_iter().map(at_hand).collect(),
            Err(error) => {
                news.faults.push(error);
                Vec::new()
            }
        };
        let issues: Vec<&Issued> = kept.iter().collect();
        self.model = Model::fit(&newest.expected, &issues, &newest.actual, now, &ModelPolicy::default());
    }

    /// Sees what the present is reckoned with: forecasts end, and what came grows old. A time about which no source says
    /// anything is booked as the model sees it while it passes.
    async fn look_at_the_present(&mut self, store: &Store, now: Now, news: &mut News) {
        for taken in &mut self.taken {
            if let Err(error) = taken.store_begun(now.utc, store).await {
                news.faults.push(error);
            }
        }
        let found = Standing::of(&self.model, self.forecast.as_deref(), &self.feed.borrow(), self.fallback, now.utc);
        if self.standing.take(found, now) {
            news.replan.get_or_insert(ReplanReason::AnotherBasis);
        }
        if matches!(found.level, Level::Local | Level::DailyShape)
            && self.book.series().at(now.utc).is_none()
            && let Some((leading, point)) = self.book.fill(found.slot, found.value)
        {
            news.known.push(point.0);
            if let Err(error) = store.append_intensities(&leading, &[point]).await {
                news.faults.push(error);
            }
        }
    }

    /// The feed, for waiting for its next answer.
    pub(super) fn feed(&self) -> watch::Receiver<FeedState> {
        self.feed.clone()
    }

    /// What the feed published last. Holds up the feed while it is held.
    pub(super) fn state(&self) -> watch::Ref<'_, FeedState> {
        self.feed.borrow()
    }

    /// What the followed source says.
    pub(super) fn forecast(&self) -> Option<&Forecast> {
        self.forecast.as_deref()
    }

    /// What was learnt from forecasts and what came.
    pub(super) fn model(&self) -> &Model {
        &self.model
    }

    /// What the present is reckoned with.
    pub(super) fn standing(&self) -> Standing {
        self.standing
    }

    /// The series that the books use.
    pub(super) fn book(&self) -> &Book {
        &self.book
    }

    /// What was expected of the present and of the newest outcome.
    pub(super) fn hindsight(&self) -> &Hindsight {
        &self.hindsight
    }

    /// How well each source forecast lately.
    pub(super) fn scores(&self) -> &[ScoreView] {
        &self.scores.newest
    }

    /// The intensity of last resort.
    pub(super) fn fallback(&self) -> GramsPerKwh {
        self.fallback
    }

    /// The price, if the settings name a source.
    pub(super) fn price(&self) -> Option<&PriceSignal> {
        self.price.as_ref()
    }

    /// Sources of the settings that have said nothing since the start and stand before those that have.
    pub(super) fn silent(&self) -> Vec<String> {
        let state = self.state();
        state.sources.iter().take_while(|s| s.forecast.is_none()).map(|s| s.source.to_owned()).collect()
    }
}
