//! Sources of carbon intensity, and the feed that polls one of them.
//!
//! A source implements [`CarbonProvider`] and turns its answers into [`Forecast`]s, units and times converted at the
//! door. The [`Feed`] polls it, keeps what is still valid when it fails, and publishes a [`FeedState`]. A source that
//! fails is a state ("stale since …"), never a crash and never a zero.

mod cache;
mod error;
mod feed;
mod fetch;
pub mod file;
mod fixed;
mod settings;
mod state;
mod time;
#[cfg(test)]
pub(crate) mod traces;
mod uk;

use std::sync::Arc;

use chrono::{DateTime, Utc};
use futures_util::future::BoxFuture;

pub use error::ProviderError;
pub use feed::{Feed, FeedHandle};
pub use file::FileProvider;
pub use fixed::FixedProvider;
pub use settings::{
    BaseUrl, CarbonSettings, FileSettings, FixedSettings, Postcode, RegionId, SettingsError, Source, Timing, UkSettings,
};
pub use state::{FeedState, Freshness};
pub use uk::UkProvider;

use crate::domain::{Forecast, Zone};
use crate::units::Seconds;

/// Above this no grid's intensity lies; such a number is in another unit, or broken.
const MAX_G_PER_KWH: f64 = 20_000.0;

/// What a source said, and what was odd about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The forecast; it has at least one slot that has not ended.
    pub forecast: Forecast,
    /// Things an operator may want to know: gaps, overlaps, a horizon shorter than asked.
    pub notes: Vec<String>,
}

impl From<Forecast> for Answer {
    fn from(forecast: Forecast) -> Self {
        Self { forecast, notes: Vec::new() }
    }
}

/// A source of carbon intensity for one zone.
///
/// Past slots of an answer's `expected` must be as first said, not as revised afterwards: skill is measured on them.
pub trait CarbonProvider: Send + Sync {
    /// The source's name in configuration and API ("file").
    fn source(&self) -> &'static str;

    /// The part of the grid it is asked for.
    fn zone(&self) -> Zone;

    /// After how long a new answer is to be expected.
    fn cadence(&self) -> Seconds;

    /// Whether answers are worth keeping over a restart.
    fn keeps_answers(&self) -> bool {
        true
    }

    /// Asks once, without retries. `now` is the moment the answer is for.
    ///
    /// # Errors
    /// When there is no answer, or one that cannot be used; the message says what to do.
    fn fetch(&self, now: DateTime<Utc>) -> BoxFuture<'_, Result<Answer, ProviderError>>;
}

/// The source that the settings choose. Nothing is read or connected yet.
///
/// # Errors
/// If the chosen source lacks a setting it needs, or settings contradict each other.
pub fn build(settings: &CarbonSettings) -> Result<Arc<dyn CarbonProvider>, SettingsError> {
    settings.check()?;
    Ok(match settings.source {
        Source::Fixed => Arc::new(FixedProvider::new(settings)),
        Source::File => Arc::new(FileProvider::new(settings)?),
        Source::UkCarbonIntensity => Arc::new(UkProvider::new(settings)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_settings_choose_the_source() {
        for (text, source, zone, cadence) in [
            ("", "fixed", "fixed", 3600.0),
            ("source = \"file\"\nfile.path = \"a.csv\"", "file", "file", 300.0),
            ("source = \"uk_carbon_intensity\"", "uk_carbon_intensity", "GB", 1800.0),
            ("source = \"uk_carbon_intensity\"\nzone = \"X\"\npoll_interval_s = 60", "uk_carbon_intensity", "X", 60.0),
        ] {
            let provider = build(&toml::from_str(text).expect(text)).expect(text);
            assert_eq!((provider.source(), provider.zone().as_str()), (source, zone));
            assert_eq!(provider.cadence(), Seconds::new(cadence));
        }
        let without_path = CarbonSettings { source: Source::File, ..CarbonSettings::default() };
        assert_eq!(build(&without_path).err(), Some(SettingsError::NoPath));
    }
}
