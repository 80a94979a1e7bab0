//! The interface of a source, and its answers.

use chrono::{DateTime, Utc};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::client::quota::Requests;
use super::client::settings::Contribution;
use super::error::ProviderError;
use wattune_core::domain::{
    Forecast, Provenance, Quoted, SignalKind, SignalScope, SignalValue, Slot, TimeSeries, Zone,
};
use wattune_core::units::{GramsPerKwh, Seconds};

/// A source's response: a forecast, and notes about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer<V = GramsPerKwh> {
    /// The forecast; it has at least one value, ahead or behind.
    pub forecast: Forecast<V>,
    /// Findings for the operator: gaps, overlaps, a horizon shorter than asked.
    pub notes: Vec<String>,
}

impl<V> From<Forecast<V>> for Answer<V> {
    fn from(forecast: Forecast<V>) -> Self {
        Self { forecast, notes: Vec::new() }
    }
}

/// Actual values of a past span, as far as the source knows them; `None` if it offers no history.
pub type Actuals<V> = Result<Option<TimeSeries<Quoted<V>>>, ProviderError>;

/// The usual age from which actual values are final.
pub(super) const FINAL_AFTER: Seconds = Seconds::new(3.0 * 86_400.0);

/// A source of a signal for one zone.
///
/// Past slots of an answer's `expected` must be as first published, not as revised afterwards: skill is measured on
/// them.
pub trait Provider<V: SignalValue = GramsPerKwh>: Send + Sync {
    /// Returns the source's name in configuration and API ("file").
    fn source(&self) -> &'static str;

    /// Returns the part of the grid as the settings name it; answers carry the same.
    fn zone(&self) -> Zone;

    /// Returns the time between new answers.
    fn cadence(&self) -> Seconds;

    /// Returns the kind and scope of its values where the settings decide them: a forecast stored with others is
    /// dropped.
    fn meaning(&self) -> Option<(SignalKind, SignalScope)> {
        None
    }

    /// Returns the part of its answers that is used.
    fn contributes(&self) -> Contribution {
        Contribution::Both
    }

    /// Returns the provenance of the newest answer or of the newest actual values.
    fn provenance(&self) -> Provenance {
        Provenance::default()
    }

    /// Returns true if answers are worth storing for the next start.
    fn keeps_answers(&self) -> bool {
        true
    }

    /// Returns the number of requests, where there is a quota.
    fn requests(&self, _now: DateTime<Utc>) -> Option<Requests> {
        None
    }

    /// Requests a forecast once, without retries. `now` is the time that the answer is for.
    ///
    /// # Errors
    /// If there is no answer, or one that cannot be used; the message names the remedy.
    fn fetch(&self, now: DateTime<Utc>) -> BoxFuture<'_, Result<Answer<V>, ProviderError>>;

    /// Requests actual values of a past span, which may be long; the source answers with as much of it as one request
    /// covers, from the start on. `None` if it offers no more than [`Self::fetch`].
    fn fetch_actuals(&self, _span: Slot, _now: DateTime<Utc>) -> BoxFuture<'_, Actuals<V>> {
        std::future::ready(Ok(None)).boxed()
    }

    /// Returns the age from which its actual values are final.
    fn final_after(&self) -> Seconds {
        FINAL_AFTER
    }
}
