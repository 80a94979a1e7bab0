//! The interface between a source's folder and the rest of the room.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use crate::providers::client::SharedSettings;
use crate::providers::error::{ProviderError, SettingsError};
use crate::providers::place::{Place, ZoneName};
use crate::providers::provider::Provider;

/// The facts about a source that do not depend on settings.
#[derive(Debug)]
pub(in crate::providers) struct Descriptor {
    /// Name in configuration and API, which the folder bears too.
    pub(in crate::providers) name: &'static str,
    /// Kind of its values and condition of access, for the list of zones; absent for sources without zones.
    pub(in crate::providers) summary: Option<&'static str>,
    /// Place in the automatic choice, lowest first; sources of one rank are equals: 0 a file, 1 an address of the user's
    /// own, 2 a key, 3 no key, 4 a marginal signal. Absent: never chosen.
    pub(in crate::providers) rank: Option<u8>,
    /// Countries that it serves without a key, ISO 3166-1 alpha-2.
    pub(in crate::providers) countries: &'static [&'static str],
    /// Entry points for made-up bodies.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(in crate::providers) fuzz: &'static [FuzzTarget],
}

/// The parsers of one kind of body, for made-up ones.
#[cfg(any(test, feature = "fuzzing"))]
#[derive(Clone, Copy, Debug)]
pub struct FuzzTarget {
    /// Name, which the folder of bodies in `tests/fuzz/corpus` bears.
    pub name: &'static str,
    /// Runs the parsers on a body; panics if they accept values that are out of order or out of range.
    pub parse: fn(&[u8]),
}

/// A source's table of settings, which makes the source.
pub(in crate::providers) trait Table {
    /// Makes the source. Nothing is read or connected yet.
    ///
    /// # Errors
    /// If a setting is missing, or the source does not serve the place.
    fn build(&self, shared: &SharedSettings<'_>) -> Result<Arc<dyn Provider>, SettingsError>;

    /// Looks for settings that are right one by one but not together; `is_listed` if `carbon.source` names the source.
    fn check(&self, _is_listed: bool) -> Result<(), SettingsError> {
        Ok(())
    }

    /// Returns true if the settings hold what the source needs for a place: a file, an address, a key, an account.
    fn is_set_up(&self, _place: Option<&Place>) -> bool {
        false
    }

    /// Lists the zones that the source serves, from the source itself where it has to be asked. `shared.zone` is a
    /// place that any source accepts.
    fn zones<'a>(
        &'a self,
        _shared: SharedSettings<'a>,
        _now: DateTime<Utc>,
    ) -> BoxFuture<'a, Result<Vec<ZoneName>, ZonesError>> {
        std::future::ready(Ok(Vec::new())).boxed()
    }
}

/// The reason why a source's zones are not known, and the remedy.
#[derive(Clone, Debug, thiserror::Error)]
pub(in crate::providers) enum ZonesError {
    /// There is no key, account or address yet.
    #[error("{0}")]
    NotSetUp(String),
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error(transparent)]
    Provider(#[from] ProviderError),
}
