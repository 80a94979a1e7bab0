//! The carbon signal and the price: the active source, the series that the ledger uses, and the skill of past forecasts.

mod accounting_series;
mod basis;
mod past_forecasts;
mod scores;
mod stored;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use chrono::{DateTime, Utc};
use tokio::sync::watch;

pub(super) use accounting_series::{AccountingSeries, same_signal};
pub(super) use basis::{BasisLevel, SignalBasis};
pub(super) use past_forecasts::PastForecasts;
pub(super) use scores::HORIZONS_H;
pub use scores::{RankBoard, scores};
use scores::{Scores, at_hand};
pub(super) use stored::SignalUpdate;
use stored::StoredResponses;

use super::planning::ReplanReason;
use super::view::ScoreView;
use crate::providers::{Currency, FeedState};
use crate::store::{SourceKey, Store};
use wattune_core::domain::{Forecast, Issued};
use wattune_core::forecast::{ISSUE_LOOKBACK, Model, ModelPolicy};
use wattune_core::time::Now;
use wattune_core::units::{GramsPerKwh, PricePerMwh};

/// The price and where it comes from.
pub struct PriceSignal {
    /// What its feed publishes.
    pub state: watch::Receiver<FeedState<PricePerMwh>>,
    /// What it is counted in.
    pub currency: Currency,
}

/// Owner of the carbon signal, and of the price if there is one.
pub(super) struct Signal {
    feed: watch::Receiver<FeedState>,
    price: Option<PriceSignal>,
    /// The intensity of last resort.
    fallback: GramsPerKwh,
    /// What the followed source says, and what was learnt from what came.
    forecast: Option<Arc<Forecast>>,
    model: Model,
    basis: SignalBasis,
    accounting_series: AccountingSeries,
    /// What was stored of each source of the feed.
    stored: Vec<StoredResponses>,
    past_forecasts: PastForecasts,
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
            basis: SignalBasis::unknown(now, fallback),
            accounting_series: AccountingSeries::default(),
            stored: Vec::new(),
            past_forecasts: PastForecasts::default(),
            scores: Scores::new(ranks),
        }
    }

    /// Takes in the newest answers of the feed and stores them. What could not be stored is tried again with the next
    /// answer, or when its time has come.
    pub(super) async fn update(&mut self, store: &Store, now: Now) -> SignalUpdate {
        let mut update = SignalUpdate::default();
        if self.feed.has_changed().unwrap_or(false) {
            let state = self.feed.borrow_and_update().clone();
            self.store_responses(&state, store, now, &mut update).await;
        }
        if self.basis.is_due(now) {
            self.update_basis(store, now, &mut update).await;
        }
        if let Err(error) = self.past_forecasts.update(self.forecast.as_deref(), store, now.utc).await {
            update.faults.push(error);
        }
        if self.forecast.is_some() {
            let state = self.feed.borrow().clone();
            if let Err(error) = self.scores.update(store, &state, now).await {
                update.faults.push(error);
            }
        }
        update
    }

    async fn store_responses(&mut self, state: &FeedState, store: &Store, now: Now, update: &mut SignalUpdate) {
        self.stored.resize_with(state.sources.len(), StoredResponses::default);
        for (stored, source) in self.stored.iter_mut().zip(&state.sources) {
            if let Err(error) = stored.store_new(source, store, update).await {
                update.faults.push(error);
            }
        }
        // What is new is told to the store at once, and the present is looked at anew.
        self.basis.expire();
        match self.accounting_series.update(state) {
            Some(slots) => update.revised.extend(slots),
            None => update.is_other_series = true,
        }
        let Some(newest) = state.forecast.clone() else { return };
        if self.forecast.as_ref() == Some(&newest) {
            return;
        }
        let before = self.forecast.replace(newest.clone());
        update.is_first = before.is_none();
        self.learn(&newest, store, now.utc, update).await;
        if before.is_none_or(|b| b.expected != newest.expected || b.source != newest.source) {
            update.replan = Some(ReplanReason::NewForecast);
        }
    }

    /// Fits the model to a forecast, its outcomes, and what its source issued in the last weeks.
    async fn learn(&mut self, newest: &Forecast, store: &Store, now: DateTime<Utc>, update: &mut SignalUpdate) {
        let kept = store.issued_of(&SourceKey::of(newest), now - ISSUE_LOOKBACK).await;
        let kept: Vec<Issued> = match kept {
            Ok(issued) => issued.into_iter().map(at_hand).collect(),
            Err(error) => {
                update.faults.push(error);
                Vec::new()
            }
        };
        let issues: Vec<&Issued> = kept.iter().collect();
        self.model = Model::fit(&newest.expected, &issues, &newest.actual, now, &ModelPolicy::default());
    }

    /// Sees what the present is reckoned with: forecasts end, and what came grows old. A time about which no source says
    /// anything is booked as the model sees it while it passes.
    async fn update_basis(&mut self, store: &Store, now: Now, update: &mut SignalUpdate) {
        for stored in &mut self.stored {
            if let Err(error) = stored.store_begun(now.utc, store).await {
                update.faults.push(error);
            }
        }
        let found = SignalBasis::of(&self.model, self.forecast.as_deref(), &self.feed.borrow(), self.fallback, now.utc);
        if self.basis.replace(found, now) {
            update.replan.get_or_insert(ReplanReason::AnotherBasis);
        }
        if matches!(found.level, BasisLevel::Local | BasisLevel::DailyShape)
            && self.accounting_series.series().at(now.utc).is_none()
            && let Some((leading, point)) = self.accounting_series.fill(found.slot, found.value)
        {
            update.revised.push(point.0);
            if let Err(error) = store.append_intensities(&leading, &[point]).await {
                update.faults.push(error);
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
    pub(super) fn basis(&self) -> SignalBasis {
        self.basis
    }

    /// The series that the books use.
    pub(super) fn accounting_series(&self) -> &AccountingSeries {
        &self.accounting_series
    }

    /// What was expected of the present and of the newest outcome.
    pub(super) fn past_forecasts(&self) -> &PastForecasts {
        &self.past_forecasts
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
