//! Settings of the day-ahead price, a second signal beside the carbon intensity (`[price]`).

use serde::{Deserialize, Serialize};

use crate::providers::error::SettingsError;
use crate::providers::sources::file::Settings as FileSettings;
use wattune_core::units::PricePerMwh;

/// The source of day-ahead prices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PriceSource {
    /// Plans use no electricity prices.
    #[default]
    None,
    /// Prices come from a CSV or JSON file, per MWh.
    File,
    /// Prices come from Energy-Charts, always in EUR, with the settings of `[carbon.energy_charts]`.
    EnergyCharts,
}

/// A currency as its three-letter code (ISO 4217).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Currency(String);

impl Currency {
    /// Returns the currency's three letters, in capitals.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the euro, the currency of Energy-Charts' prices.
    pub fn euro() -> Self {
        Self("EUR".to_owned())
    }
}

impl TryFrom<String> for Currency {
    type Error = &'static str;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        let letters = text.trim().to_ascii_uppercase();
        let three = letters.len() == 3 && letters.chars().all(|c| c.is_ascii_uppercase());
        if three { Ok(Self(letters)) } else { Err("write the currency's three letters, like \"EUR\"") }
    }
}

impl From<Currency> for String {
    fn from(currency: Currency) -> String {
        currency.0
    }
}

/// Settings of the table `[price]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PriceSettings {
    /// The source of day-ahead prices.
    pub source: PriceSource,
    /// The currency of the file's prices.
    pub currency: Currency,
    /// Settings of the file, for `source = "file"`; `kind` and `scope` do not apply to prices.
    pub file: FileSettings,
}

impl Default for PriceSettings {
    fn default() -> Self {
        Self { source: PriceSource::None, currency: Currency::euro(), file: FileSettings::default() }
    }
}

impl PriceSettings {
    /// Returns the currency of all prices: EUR for Energy-Charts, else the configured one.
    pub fn counted_in(&self) -> Currency {
        if self.source == PriceSource::EnergyCharts { Currency::euro() } else { self.currency.clone() }
    }

    /// Checks for settings that are valid singly but contradict each other.
    pub fn check(&self) -> Result<(), SettingsError> {
        self.file.check_for::<PricePerMwh>(self.source == PriceSource::File)
    }
}
