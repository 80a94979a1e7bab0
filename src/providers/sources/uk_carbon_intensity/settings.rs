//! Settings of the UK Carbon Intensity API.

use serde::{Deserialize, Serialize};

use crate::providers::client::{network_settings, number_setting};

network_settings! {
    /// Settings of the table `[carbon.uk_carbon_intensity]`.
    at "https://api.carbonintensity.org.uk", at most 60 an hour;
    /// One of the seventeen regions by number; if absent, `postcode` or the zone determines the place. Regions have
    /// forecasts only.
    region: Option<RegionId> = None,
    /// Outward part of a postcode ("BS16", the part before the space), to determine the place instead of `region`.
    postcode: Option<Postcode> = None,
}

number_setting! {
    /// A region of the UK Carbon Intensity API, 1 (North Scotland) to 17 (Wales).
    RegionId: |id| (1..=17).contains(id), else "regions are numbered 1 (North Scotland) to 17 (Wales)"
}

/// The outward part of a UK postcode (the part before the space), in capitals.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Postcode(String);

impl Postcode {
    /// Returns the postcode's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Postcode {
    type Error = &'static str;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        let text = text.trim().to_ascii_uppercase();
        let shape = (2..=4).contains(&text.len())
            && text.chars().all(|c| c.is_ascii_alphanumeric())
            && text.starts_with(|c: char| c.is_ascii_alphabetic())
            && text.contains(|c: char| c.is_ascii_digit());
        if shape { Ok(Self(text)) } else { Err("write the outward part of the postcode only, like \"BS16\" or \"E1\"") }
    }
}

impl From<Postcode> for String {
    fn from(postcode: Postcode) -> String {
        postcode.0
    }
}
