//! Placeholder.

use std::path::Path;

use chrono::{DateTime, Utc};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::api::Api;
use super::{Answer, CarbonSettings, Contribution, Provider, ProviderError, Requests, SettingsError, Source};
use crate::domain::Zone;
use crate::units::Seconds;

/// The source.
#[derive(Debug)]
pub struct CarbonAwareSdk {
    api: Api,
}

impl CarbonAwareSdk {
    /// Connects to nothing yet.
    ///
    /// # Errors
    /// Without a place.
    pub fn new(settings: &CarbonSettings, state_dir: Option<&Path>) -> Result<Self, SettingsError> {
        let own = (settings.carbon_aware_sdk.common(), &settings.carbon_aware_sdk.base_url);
        let api = Api::new(Source::CarbonAwareSdk, settings, own, None, Seconds::new(1800.0), state_dir)?;
        Ok(Self { api })
    }
}

impl Provider for CarbonAwareSdk {
    fn source(&self) -> &'static str {
        self.api.source()
    }

    fn zone(&self) -> Zone {
        self.api.zone()
    }

    fn cadence(&self) -> Seconds {
        self.api.cadence()
    }

    fn contributes(&self) -> Contribution {
        self.api.contributes()
    }

    fn requests(&self, now: DateTime<Utc>) -> Option<Requests> {
        Some(self.api.requests(now))
    }

    fn fetch(&self, _now: DateTime<Utc>) -> BoxFuture<'_, Result<Answer, ProviderError>> {
        std::future::ready(Err(ProviderError::Empty { what: "nothing yet".to_owned() })).boxed()
    }
}
