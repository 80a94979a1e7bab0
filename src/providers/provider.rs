//! The interface that every source of a signal implements, and the answers that a source returns.

use chrono::{DateTime, TimeDelta, Utc};
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
    /// The forecast, with at least one value, past or future.
    pub forecast: Forecast<V>,
    /// Notes for the operator: gaps, overlaps, a horizon shorter than requested.
    pub notes: Vec<String>,
}

impl<V> From<Forecast<V>> for Answer<V> {
    fn from(forecast: Forecast<V>) -> Self {
        Self { forecast, notes: Vec::new() }
    }
}

/// Result of a request for the actual values of a past span; `None` if the source offers no more history than its
/// [`Answer`]s contain.
pub type Actuals<V> = Result<Option<TimeSeries<Quoted<V>>>, ProviderError>;

/// Usual age from which actual values are final: the source no longer revises them.
pub(super) const FINAL_AFTER: Seconds = Seconds::new(3.0 * 86_400.0);

/// A source of a signal, such as the carbon intensity, for one zone.
///
/// In the `expected` values of an answer, past slots (spans of time with one value each) must hold the forecast as
/// first published, not as revised afterwards, because the source's skill is measured on them.
pub trait Provider<V: SignalValue = GramsPerKwh>: Send + Sync {
    /// Returns the source's name in configuration and API ("file").
    fn source(&self) -> &'static str;

    /// Returns the zone as the settings write it; the source's answers carry the same zone.
    fn zone(&self) -> Zone;

    /// Returns the time between polls.
    fn cadence(&self) -> Seconds;

    /// Returns first the kind (average or marginal), second the scope (lifecycle or operational) of the source's
    /// values; `None` if they are not known before an answer. A stored forecast of another kind or scope is dropped.
    fn meaning(&self) -> Option<(SignalKind, SignalScope)> {
        None
    }

    /// Returns the part of the source's answers that is used.
    fn contributes(&self) -> Contribution {
        Contribution::Both
    }

    /// Returns the provenance of the newest answer or of the newest fetched actual values.
    fn provenance(&self) -> Provenance {
        Provenance::default()
    }

    /// Returns true if the source's forecast is one value for all times. Such a forecast replaces no other one that
    /// covers now.
    fn is_constant(&self) -> bool {
        false
    }

    /// Returns true if answers are stored on disk for the next start.
    fn keeps_answers(&self) -> bool {
        true
    }

    /// Returns the numbers of requests in the last hour and day, with the quota; `None` if the source has no quota.
    fn requests(&self, _now: DateTime<Utc>) -> Option<Requests> {
        None
    }

    /// Requests a forecast once, without retries. `now` is the time for which the answer is requested.
    ///
    /// # Errors
    /// If there is no answer, or no usable one; the message names the remedy.
    fn fetch(&self, now: DateTime<Utc>) -> BoxFuture<'_, Result<Answer<V>, ProviderError>>;

    /// Requests actual values of a past span, which may be long; the source returns the first part of the span, as much
    /// as one request covers. Returns `None` if the source offers no more history than the answers of [`Self::fetch`]
    /// contain.
    fn fetch_actuals(&self, _span: Slot, _now: DateTime<Utc>) -> BoxFuture<'_, Actuals<V>> {
        std::future::ready(Ok(None)).boxed()
    }

    /// Returns the longest span of one request of [`Self::fetch_actuals`]; `None` if one request covers any span.
    fn actuals_window(&self) -> Option<TimeDelta> {
        None
    }

    /// Returns the age from which the source's actual values are final.
    fn final_after(&self) -> Seconds {
        FINAL_AFTER
    }
}
