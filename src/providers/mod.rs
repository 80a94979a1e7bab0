//! Sources of the grid's signals, and the feed that polls them.
//!
//! A source implements [`Provider`] and turns its answers into [`Forecast`]s, units and times converted at the door.
//! The [`Feed`] polls a chain of sources, keeps what is still valid when they fail, chooses which of them to follow,
//! and publishes a [`FeedState`]. A source that fails is a state ("stale since …, using …"), never a crash and never
//! a zero.

mod abridged;
mod api;
mod auto;
mod cache;
mod carbon_aware_sdk;
mod electricity_maps;
mod energinet;
mod energy_charts;
mod error;
mod feed;
mod fetch;
pub mod file;
mod fixed;
#[doc(hidden)]
pub mod fuzz;
mod json;
mod jump;
#[cfg(test)]
mod keyless_tests;
mod place;
mod price;
mod redact;
mod secret;
mod settings;
mod source_state;
mod state;
mod time;
mod uk;
mod usage;
mod watttime;
mod zones;

use std::path::Path;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;

pub use error::ProviderError;
pub use feed::{Feed, FeedHandle, FeedOptions};
pub use file::FileProvider;
pub use fixed::FixedProvider;
pub use jump::HeldBack;
pub use price::{PriceChain, build_price};
pub use settings::{
    ApiVersion, BaseUrl, CarbonAwareSdkSettings, CarbonSettings, Chain, Contribution, Currency,
    ElectricityMapsSettings, EmissionFactors, EnerginetSettings, EnergyChartsSettings, FileSettings, FileUnit,
    FixedSettings, Headers, MapsHorizon, Postcode, PriceSettings, PriceSource, RegionId, SettingsError, Source,
    TimeZoneName, Timing, UkSettings, WattTimeHorizon, WattTimeSettings,
};
pub use state::{FeedState, Freshness, Ranks, SourceState};
pub use usage::Requests;
pub use zones::{SourceZones, ZoneName, zones};

use wattune_core::domain::{
    Forecast, Provenance, Quoted, SignalKind, SignalScope, SignalValue, Slot, TimeSeries, Zone,
};
use wattune_core::units::{GramsPerKwh, Seconds};

/// What a source said, and what was odd about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer<V = GramsPerKwh> {
    /// The forecast; it has at least one value, ahead or behind.
    pub forecast: Forecast<V>,
    /// Things an operator may want to know: gaps, overlaps, a horizon shorter than asked.
    pub notes: Vec<String>,
}

impl<V> From<Forecast<V>> for Answer<V> {
    fn from(forecast: Forecast<V>) -> Self {
        Self { forecast, notes: Vec::new() }
    }
}

/// What came, as a source knows it by now.
pub type Settled<V> = Result<Option<TimeSeries<Quoted<V>>>, ProviderError>;

/// A source of a signal for one zone.
///
/// Past slots of an answer's `expected` must be as first said, not as revised afterwards: skill is measured on them.
pub trait Provider<V: SignalValue = GramsPerKwh>: Send + Sync {
    /// The source's name in configuration and API ("file").
    fn source(&self) -> &'static str;

    /// The part of the grid it is asked for, as the settings name it; its answers carry the same.
    fn zone(&self) -> Zone;

    /// After how long a new answer is to be expected.
    fn cadence(&self) -> Seconds;

    /// What its values mean, where the settings decide it: what an earlier run kept with others is of no use then.
    fn meaning(&self) -> Option<(SignalKind, SignalScope)> {
        None
    }

    /// What of its answers is used.
    fn contributes(&self) -> Contribution {
        Contribution::Both
    }

    /// From what the newest answer, or the newest look at what came, was made.
    fn provenance(&self) -> Provenance {
        Provenance::default()
    }

    /// Whether answers are worth keeping over a restart.
    fn keeps_answers(&self) -> bool {
        true
    }

    /// How often it was asked, where that counts.
    fn requests(&self, _now: DateTime<Utc>) -> Option<Requests> {
        None
    }

    /// Asks once, without retries. `now` is the moment the answer is for.
    ///
    /// # Errors
    /// When there is no answer, or one that cannot be used; the message says what to do.
    fn fetch(&self, now: DateTime<Utc>) -> BoxFuture<'_, Result<Answer<V>, ProviderError>>;

    /// Asks what came within a past span, which may be long; the source answers with as much of it as it can tell in
    /// one go, from the start on. `None` if it cannot tell more than [`Self::fetch`] does.
    ///
    /// # Errors
    /// As [`Self::fetch`].
    fn settle(&self, _span: Slot, _now: DateTime<Utc>) -> BoxFuture<'_, Settled<V>> {
        std::future::ready(Ok(None)).boxed()
    }

    /// The age at which its values of what came change no more.
    fn final_after(&self) -> Seconds {
        Seconds::new(3.0 * 86_400.0)
    }
}

/// The chain that the settings choose: groups in order, the sources of a group being equals. Nothing is read or
/// connected yet. Requests are counted in files in `state_dir`.
///
/// # Errors
/// If a chosen source lacks a setting it needs, or settings contradict each other.
pub fn build(
    settings: &CarbonSettings,
    state_dir: Option<&Path>,
) -> Result<Vec<Vec<Arc<dyn Provider>>>, SettingsError> {
    settings.check()?;
    let groups = match &settings.source {
        Chain::Auto => auto::chain(settings),
        Chain::Listed(groups) => groups.clone(),
    };
    let group = |sources: &Vec<Source>| sources.iter().map(|source| one(*source, settings, state_dir)).collect();
    groups.iter().map(group).collect()
}

/// What would give the settings' zone a forecast, if it has none, in the user's words.
pub fn advice(settings: &CarbonSettings) -> Option<String> {
    auto::advice(settings)
}

fn one(
    source: Source,
    settings: &CarbonSettings,
    state_dir: Option<&Path>,
) -> Result<Arc<dyn Provider>, SettingsError> {
    Ok(match source {
        Source::Fixed => Arc::new(FixedProvider::new(settings)),
        Source::File => Arc::new(FileProvider::new(settings)?),
        Source::ElectricityMaps => Arc::new(electricity_maps::ElectricityMaps::new(settings, state_dir)?),
        Source::WattTime => Arc::new(watttime::WattTime::new(settings, state_dir)?),
        Source::UkCarbonIntensity => Arc::new(uk::UkProvider::new(settings, state_dir)?),
        Source::CarbonAwareSdk => Arc::new(carbon_aware_sdk::CarbonAwareSdk::new(settings, state_dir)?),
        Source::EnergyCharts => Arc::new(energy_charts::EnergyCharts::new(settings, state_dir)?),
        Source::Energinet => Arc::new(energinet::Energinet::new(settings, state_dir)?),
    })
}
