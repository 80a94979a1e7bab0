//! What grams are reckoned with: the best that is known of a time.

use crate::controller::error::ControlError;
use crate::controller::signal::Signal;
use crate::store::{SourceKey, Store};
use wattune_core::domain::{CarbonSeries, SignalKind, Slot};
use wattune_core::ledger::{self, Emissions, Interval};

/// Where intensities are known from.
#[derive(Clone, Copy)]
pub(in crate::controller) struct Intensities<'a> {
    signal: &'a Signal,
    store: &'a Store,
    /// Whether the store has everything that was said: while nothing can be written, memory knows better.
    is_stored: bool,
}

impl<'a> Intensities<'a> {
    pub(in crate::controller) fn new(signal: &'a Signal, store: &'a Store, is_stored: bool) -> Self {
        Self { signal, store, is_stored }
    }

    /// What rows of the books come to with the best intensities known now, and these: they reach further by half of the
    /// time, as what the rows are compared with may have taken longer.
    pub(in crate::controller) async fn settle(
        self,
        rows: &[Interval],
    ) -> Result<(Emissions, CarbonSeries), ControlError> {
        let series = self.over(rows).await?;
        Ok((ledger::emissions(rows, &series), series))
    }

    /// The best that is known of the time of rows, and of half of it more.
    pub(in crate::controller) async fn over(self, rows: &[Interval]) -> Result<CarbonSeries, ControlError> {
        let first = rows.iter().map(|row| row.slot.start()).min();
        let last = rows.iter().map(|row| row.slot.end()).max();
        match first.zip(last).and_then(|(first, last)| Slot::new(first, last + (last - first) / 2)) {
            Some(span) => self.booked(&span).await,
            None => Ok(CarbonSeries::default()),
        }
    }

    /// What jobs' grams are reckoned with: the best that is known of a time, and where settled hours rest on other sources
    /// than those that speak now, what these said, so that a job's grams are those of reports.
    pub(in crate::controller) async fn booked(self, span: &Slot) -> Result<CarbonSeries, ControlError> {
        let sources = self.signal.accounting_series().sources();
        let is_marginal = sources.first().is_some_and(|key| key.kind == SignalKind::Marginal);
        let book = if is_marginal { SignalKind::Marginal } else { SignalKind::Average };
        let speak = match sources {
            [] => self.store.latest_sources(book).await?,
            speak => speak.to_vec(),
        };
        self.best_of(&self.store.sources_with_earlier(book, &speak, &self.signal.silent(), span).await?, span).await
    }

    /// The best that those sources know of a time that speak now.
    pub(in crate::controller) async fn best(self, span: &Slot) -> Result<CarbonSeries, ControlError> {
        self.best_of(self.signal.accounting_series().sources(), span).await
    }

    /// What the store has, as hours are settled by it, and what is in memory where it has nothing: the slot in progress
    /// may not be stored yet.
    async fn best_of(self, sources: &[SourceKey], span: &Slot) -> Result<CarbonSeries, ControlError> {
        let stored = self.store.intensities(sources, span).await?;
        let known = self.signal.accounting_series().series().within(span);
        let (mut series, over) = if self.is_stored { (known, stored) } else { (stored, known) };
        series.overwrite(&over);
        Ok(series)
    }
}
