//! Carbon intensities from which emissions are computed: the best ones that are known at present.

use crate::controller::error::ControlError;
use crate::controller::signal::Signal;
use crate::store::{SourceKey, Store};
use wattune_core::domain::{CarbonSeries, SignalKind, Slot};
use wattune_core::ledger::{self, Emissions, Interval};

/// Access to the carbon intensities in the database and in memory.
#[derive(Clone, Copy)]
pub(crate) struct Intensities<'a> {
    signal: &'a Signal,
    store: &'a Store,
    /// True if the database has all published values; false while it cannot be written, when only memory has the newest
    /// ones.
    is_stored: bool,
}

impl<'a> Intensities<'a> {
    pub(crate) fn new(signal: &'a Signal, store: &'a Store, is_stored: bool) -> Self {
        Self { signal, store, is_stored }
    }

    /// Returns first the emissions of rows, second the carbon intensities used: the best known ones. The intensities
    /// extend beyond the rows by half of the rows' time, since the same work may take longer at the reference (other
    /// power limits) that a job is compared with.
    pub(crate) async fn emissions_of(self, rows: &[Interval]) -> Result<(Emissions, CarbonSeries), ControlError> {
        let series = self.over(rows).await?;
        Ok((ledger::emissions(rows, &series), series))
    }

    /// Returns the best known intensities for the time of the rows and half as much time after it.
    pub(crate) async fn over(self, rows: &[Interval]) -> Result<CarbonSeries, ControlError> {
        let first = rows.iter().map(|row| row.slot.start()).min();
        let last = rows.iter().map(|row| row.slot.end()).max();
        match first.zip(last).and_then(|(first, last)| Slot::new(first, last + (last - first) / 2)) {
            Some(span) => self.for_jobs(&span).await,
            None => Ok(CarbonSeries::default()),
        }
    }

    /// Returns the best known intensities for the emissions of jobs, from the ledger's present sources and from the
    /// sources with which the hours of the span were settled (their emissions computed), so that a job's emissions
    /// equal those in reports.
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

    /// Returns the best known intensities from the ledger's present sources.
    pub(crate) async fn best(self, span: &Slot) -> Result<CarbonSeries, ControlError> {
        self.best_of(self.signal.accounting_series().sources(), span).await
    }

    /// Returns the stored intensities and, where none are stored, those in memory: the current slot may not be stored
    /// yet. While the database cannot be written, those in memory take precedence.
    async fn best_of(self, sources: &[SourceKey], span: &Slot) -> Result<CarbonSeries, ControlError> {
        let stored = self.store.intensities(sources, span).await?;
        let known = self.signal.accounting_series().series().within(span);
        let (mut series, over) = if self.is_stored { (known, stored) } else { (stored, known) };
        series.overwrite(&over);
        Ok(series)
    }
}
