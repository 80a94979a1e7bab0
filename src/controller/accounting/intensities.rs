//! Intensities that emissions are computed with: the best known ones of a time.

use crate::controller::error::ControlError;
use crate::controller::signal::Signal;
use crate::store::{SourceKey, Store};
use wattune_core::domain::{CarbonSeries, SignalKind, Slot};
use wattune_core::ledger::{self, Emissions, Interval};

/// Sources of intensities.
#[derive(Clone, Copy)]
pub(crate) struct Intensities<'a> {
    signal: &'a Signal,
    store: &'a Store,
    /// True if the store has all published values; while it cannot be written, memory has more.
    is_stored: bool,
}

impl<'a> Intensities<'a> {
    pub(crate) fn new(signal: &'a Signal, store: &'a Store, is_stored: bool) -> Self {
        Self { signal, store, is_stored }
    }

    /// Returns the emissions of rows with the best intensities known now, and these. They extend further by half of the
    /// time, since the reference that the rows are compared with may have taken longer.
    pub(crate) async fn emissions_of(self, rows: &[Interval]) -> Result<(Emissions, CarbonSeries), ControlError> {
        let series = self.over(rows).await?;
        Ok((ledger::emissions(rows, &series), series))
    }

    /// Returns the best known intensities of the time of rows, and of half of it more.
    pub(crate) async fn over(self, rows: &[Interval]) -> Result<CarbonSeries, ControlError> {
        let first = rows.iter().map(|row| row.slot.start()).min();
        let last = rows.iter().map(|row| row.slot.end()).max();
        match first.zip(last).and_then(|(first, last)| Slot::new(first, last + (last - first) / 2)) {
            Some(span) => self.for_jobs(&span).await,
            None => Ok(CarbonSeries::default()),
        }
    }

    /// Returns the intensities for emissions of jobs: the best known ones, and where computed hours rest on other sources
    /// than the active ones, theirs, so that a job's emissions equal those of reports.
    pub(crate) async fn for_jobs(self, span: &Slot) -> Result<CarbonSeries, ControlError> {
        let sources = self.signal.accounting_series().sources();
        let is_marginal = sources.first().is_some_and(|key| key.kind == SignalKind::Marginal);
        let kind = if is_marginal { SignalKind::Marginal } else { SignalKind::Average };
        let active = match sources {
            [] => self.store.latest_sources(kind).await?,
            active => active.to_vec(),
        };
        self.best_of(&self.store.sources_with_earlier(kind, &active, &self.signal.silent(), span).await?, span).await
    }

    /// Returns the best known intensities of the active sources.
    pub(crate) async fn best(self, span: &Slot) -> Result<CarbonSeries, ControlError> {
        self.best_of(self.signal.accounting_series().sources(), span).await
    }

    /// Returns the stored values, with which hourly emissions are computed, and those in memory where there are none: the
    /// slot in progress may not be stored yet.
    async fn best_of(self, sources: &[SourceKey], span: &Slot) -> Result<CarbonSeries, ControlError> {
        let stored = self.store.intensities(sources, span).await?;
        let known = self.signal.accounting_series().series().within(span);
        let (mut series, over) = if self.is_stored { (known, stored) } else { (stored, known) };
        series.overwrite(&over);
        Ok(series)
    }
}
