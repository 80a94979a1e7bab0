//! Carbon signal and electricity price: the active source, the ledger's series, and the skill of past forecasts.

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
pub use basis::BasisLevel;
pub(super) use basis::SignalBasis;
pub(super) use past_forecasts::PastForecasts;
pub(super) use scores::HORIZONS_H;
use scores::{Scores, at_hand};
pub use scores::{SharedRanks, scores};
pub(super) use stored::SignalUpdate;
use stored::StoredResponses;

use super::planning::ReplanReason;
use super::view::ScoreView;
use crate::providers::{Currency, FeedState};
use crate::store::{SourceKey, Store};
use wattune_core::domain::{Forecast, Issued};
use wattune_core::forecast::{ISSUE_LOOKBACK, Model};
use wattune_core::time::Now;
use wattune_core::units::{GramsPerKwh, PricePerMwh};

/// Electricity price: its feed and currency.
pub struct PriceSignal {
    /// State of the price feed.
    pub state: watch::Receiver<FeedState<PricePerMwh>>,
    /// Currency of the prices.
    pub currency: Currency,
}

/// Owner of the carbon signal, and of the electricity price if the settings name a source.
pub(super) struct Signal {
    feed: watch::Receiver<FeedState>,
    price: Option<PriceSignal>,
    /// Configured constant intensity, used where no data are known.
    fallback: GramsPerKwh,
    /// Newest response of the active source; `model` is fitted to this response and to the source's past forecasts.
    forecast: Option<Arc<Forecast>>,
    model: Model,
    basis: SignalBasis,
    accounting_series: AccountingSeries,
    /// Stored responses of each source of the feed.
    stored: Vec<StoredResponses>,
    past_forecasts: PastForecasts,
    scores: Scores,
}

impl Signal {
    /// Creates the owner of the signal, which has no values until the first [`Self::update`].
    pub(super) fn new(
        mut feed: watch::Receiver<FeedState>,
        price: Option<PriceSignal>,
        fallback: GramsPerKwh,
        ranks: SharedRanks,
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

    /// Processes the newest responses of the feed and stores them. A failed write is tried again with the next response
    /// or the next periodic update.
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
            if let Err(error) = stored.store_new(source, store, now.utc, update).await {
                update.faults.push(error);
            }
        }
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

    /// Fits the model to the forecast and the actual values of a response, and to the forecasts that the source issued
    /// in the last weeks.
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
        self.model = Model::fit(&newest.expected, &issues, &newest.actual, now);
    }

    /// Updates the basis of the current intensity, which changes with time because forecasts end and actual values age.
    /// If no source covers the current slot, adds the model's value for the slot to the ledger's series.
    async fn update_basis(&mut self, store: &Store, now: Now, update: &mut SignalUpdate) {
        for stored in &mut self.stored {
            if let Err(error) = stored.store_begun(now.utc, store).await {
                update.faults.push(error);
            }
        }
        if self.basis.needs_update(now) {
            let forecast = self.forecast.as_deref();
            let basis = SignalBasis::of(&self.model, forecast, &self.feed.borrow(), self.fallback, now.utc);
            if self.basis.replace(basis, now) {
                update.replan.get_or_insert(ReplanReason::AnotherBasis);
            }
        }
        let basis = self.basis;
        // The model may be that of a source of another kind, which the ledger's series never joins.
        let leading = self.accounting_series.sources().first();
        let is_joined =
            self.forecast.as_deref().zip(leading).is_none_or(|(f, lead)| same_signal(lead, &SourceKey::of(f)));
        if is_joined
            && matches!(basis.level, BasisLevel::Local | BasisLevel::DailyShape)
            && self.accounting_series.series().at(now.utc).is_none()
            && let Some((leading, point)) = self.accounting_series.fill(basis.slot, basis.value)
        {
            update.revised.push(point.0);
            if let Err(error) = store.append_intensities(&leading, &[point]).await {
                update.faults.push(error);
            }
        }
    }

    /// Returns the feed, for waiting for its next response.
    pub(super) fn feed(&self) -> watch::Receiver<FeedState> {
        self.feed.clone()
    }

    /// Returns the feed's state. While the caller holds the result, the feed cannot publish.
    pub(super) fn state(&self) -> watch::Ref<'_, FeedState> {
        self.feed.borrow()
    }

    /// Returns the newest response of the active source.
    pub(super) fn forecast(&self) -> Option<&Forecast> {
        self.forecast.as_deref()
    }

    /// Returns the model fitted to forecasts and actual values.
    pub(super) fn model(&self) -> &Model {
        &self.model
    }

    /// Returns the current intensity and its basis.
    pub(super) fn basis(&self) -> SignalBasis {
        self.basis
    }

    /// Returns the series of carbon intensities that the ledger uses.
    pub(super) fn accounting_series(&self) -> &AccountingSeries {
        &self.accounting_series
    }

    /// Returns past forecasts for the current slot and for the latest slot with an actual value.
    pub(super) fn past_forecasts(&self) -> &PastForecasts {
        &self.past_forecasts
    }

    /// Returns the scores of each source's recent forecasts.
    pub(super) fn scores(&self) -> &[ScoreView] {
        &self.scores.newest
    }

    /// Returns the configured constant intensity, used where no data are known.
    pub(super) fn fallback(&self) -> GramsPerKwh {
        self.fallback
    }

    /// Returns the electricity price; `None` if the settings name no source.
    pub(super) fn price(&self) -> Option<&PriceSignal> {
        self.price.as_ref()
    }

    /// Returns the names of the configured sources that precede, in order of preference, the first source that has
    /// responded since the daemon's start.
    pub(super) fn silent(&self) -> Vec<String> {
        let state = self.state();
        state.sources.iter().take_while(|s| s.forecast.is_none()).map(|s| s.source.to_owned()).collect()
    }
}
