//! The interface between a source's folder and the rest of `providers`.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use crate::providers::client::SharedSettings;
use crate::providers::error::{ProviderError, SettingsError};
use crate::providers::place::{Place, ZoneName};
use crate::providers::provider::Provider;

/// Facts about a source that do not depend on settings.
#[derive(Debug)]
pub(in crate::providers) struct Descriptor {
    /// Name of the source in configuration and API, which is also the name of its folder.
    pub(in crate::providers) name: &'static str,
    /// Text for the list of zones: the kind of the source's values, and whether they need a key; absent for sources
    /// without zones.
    pub(in crate::providers) summary: Option<&'static str>,
    /// Rank in the automatic choice, lowest first; sources of the same rank are equals. 0: a file. 1: a service at the
    /// user's own address. 2: needs a key. 3: needs no key. 4: publishes marginal intensities. Absent if the source is
    /// never chosen automatically.
    pub(in crate::providers) rank: Option<u8>,
    /// Countries that the source serves without a key, ISO 3166-1 alpha-2.
    pub(in crate::providers) countries: &'static [&'static str],
    /// Fuzz targets: the source's parsers.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(in crate::providers) fuzz: &'static [FuzzTarget],
}

/// A fuzz target: the parsers of one kind of body, which are run on generated bodies.
#[cfg(any(test, feature = "fuzzing"))]
#[derive(Clone, Copy, Debug)]
pub struct FuzzTarget {
    /// Name of the fuzz target, and of the folder with the target's bodies in `tests/fuzz/corpus`.
    pub name: &'static str,
    /// Runs the parsers on a body; panics if they accept values that are out of order or out of range.
    pub parse: fn(&[u8]),
}

/// The settings table of a source, which builds the source.
pub(in crate::providers) trait Table {
    /// Builds the source. Reads no file and makes no request yet.
    ///
    /// # Errors
    /// If a setting is missing, or the source does not serve the place.
    fn build(&self, shared: &SharedSettings<'_>) -> Result<Arc<dyn Provider>, SettingsError>;

    /// Checks for settings that are valid singly but contradict each other; `is_listed` is true if `carbon.source`
    /// names the source.
    fn check(&self, _is_listed: bool) -> Result<(), SettingsError> {
        Ok(())
    }

    /// Returns true if the settings hold what the source needs for a place: a file, an address, a key, an account.
    fn is_set_up(&self, _place: Option<&Place>) -> bool {
        false
    }

    /// Lists the zones that the source serves, with a request to the source where that is needed. `shared.zone` is any
    /// zone: sources that send the request must be built with one, but the list does not depend on it.
    fn zones<'a>(
        &'a self,
        _shared: SharedSettings<'a>,
        _now: DateTime<Utc>,
    ) -> BoxFuture<'a, Result<Vec<ZoneName>, ZonesError>> {
        std::future::ready(Ok(Vec::new())).boxed()
    }
}

/// Reason why a source's zones are not known, with the remedy.
#[derive(Clone, Debug, thiserror::Error)]
pub(in crate::providers) enum ZonesError {
    /// The settings hold no key, account or address yet.
    #[error("{0}")]
    NotSetUp(String),
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error(transparent)]
    Provider(#[from] ProviderError),
}
