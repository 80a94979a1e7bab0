//! Settings `[ledger]`: accounting boundary (what is counted beyond the devices' own meters), and retention of
//! intervals.

use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Deserializer, Serialize};

use super::chain::Digest;
use super::entry::{Boundary, Embodied, METHOD, Terms};
use crate::domain::check_intensity;
use crate::units::{GramsPerKwh, Seconds, Short};

/// Settings of the ledger.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Name of the node in the ledger; without a setting, the host's name.
    pub node: Option<String>,
    /// Age at which intervals are rolled up to hours, in days on which the daemon ran: 1 to 36525.
    pub keep_intervals_days: f64,
    /// Ratio of the node's energy to the devices' energy: 1 to 10.
    pub node_factor: Option<f64>,
    /// Source of the node factor, for auditors.
    pub node_factor_source: Option<String>,
    /// Power usage effectiveness, the ratio of the facility's energy to the node's: 1 to 10.
    pub pue: Option<f64>,
    /// Source of the PUE, for auditors.
    pub pue_source: Option<String>,
    /// Date from which the PUE is valid.
    #[serde(deserialize_with = "date")]
    pub pue_date: Option<String>,
    /// Emission factor of an electricity contract, for market-based emissions: 0, or 1 to 20,000 g/kWh.
    pub contract_g_per_kwh: Option<GramsPerKwh>,
    /// Name of the electricity contract.
    pub contract_source: Option<String>,
    /// Embodied emissions of one GPU, including those of the GPU's part of the node, in grams of CO2 equivalent: 1000
    /// to 10⁹.
    pub embodied_per_gpu_g: Option<f64>,
    /// Expected lifetime of the hardware in years: 0.1 to 100.
    pub embodied_life_years: Option<f64>,
    /// Source of the embodied emissions and the lifetime, for auditors.
    pub embodied_source: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            node: None,
            keep_intervals_days: 35.0,
            node_factor: None,
            node_factor_source: None,
            pue: None,
            pue_source: None,
            pue_date: None,
            contract_g_per_kwh: None,
            contract_source: None,
            embodied_per_gpu_g: None,
            embodied_life_years: None,
            embodied_source: None,
        }
    }
}

/// Reads a date as text or as TOML's date type.
fn date<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "a date such as \"2026-01-31\"")]
    enum Written {
        Text(String),
        Date(toml_datetime::Datetime),
    }
    Ok(Some(match Written::deserialize(deserializer)? {
        Written::Text(text) => text,
        Written::Date(date) => date.to_string(),
    }))
}

/// Lower bound of plausible embodied emissions of a GPU, in grams: a smaller number was probably meant in kilograms.
const MIN_EMBODIED_G: f64 = 1000.0;

const YEAR_S: f64 = 365.25 * 86_400.0;

impl Settings {
    /// Checks the constraints that types cannot express. Factors that scale totals require a source, so that auditors
    /// can trace the factors.
    ///
    /// # Errors
    /// Returns the first key that is out of range or lacks a key that it requires, with the valid values.
    pub fn check(&self) -> Result<(), String> {
        let within = |key: &str, value: Option<f64>, low: f64, high: f64| match value {
            Some(value) if !(low..=high).contains(&value) => {
                Err(format!("{key} = {} must be from {low} to {high}", Short(value)))
            }
            _ => Ok(()),
        };
        within("keep_intervals_days", Some(self.keep_intervals_days), 1.0, 36_525.0)?;
        within("node_factor", self.node_factor, 1.0, 10.0)?;
        within("pue", self.pue, 1.0, 10.0)?;
        within("contract_g_per_kwh", self.contract_g_per_kwh.map(GramsPerKwh::get), 0.0, 20_000.0)?;
        if let Some(contract) = self.contract_g_per_kwh {
            check_intensity(contract).map_err(|why| format!("contract_g_per_kwh is {why}"))?;
        }
        within("embodied_per_gpu_g", self.embodied_per_gpu_g, 1.0, 1e9)?;
        if let Some(grams) = self.embodied_per_gpu_g.filter(|grams| *grams < MIN_EMBODIED_G) {
            let (given, meant) = (Short(grams), Short(1000.0 * grams));
            return Err(format!(
                "embodied_per_gpu_g = {given} is less than a kilogram: it is in grams; for {given} kg write {meant}"
            ));
        }
        within("embodied_life_years", self.embodied_life_years, 0.1, 100.0)?;
        let goes_with = |key: &str, value: bool, other: &str, present: bool| match (value, present) {
            (true, false) => Err(format!("{key} needs {other}, so that the figure can be traced")),
            (false, true) => Err(format!("{other} is set without {key}")),
            _ => Ok(()),
        };
        goes_with("node_factor", self.node_factor.is_some(), "node_factor_source", self.node_factor_source.is_some())?;
        goes_with("pue", self.pue.is_some(), "pue_source", self.pue_source.is_some())?;
        goes_with("pue", self.pue.is_some(), "pue_date", self.pue_date.is_some())?;
        let contract = self.contract_g_per_kwh.is_some();
        goes_with("contract_g_per_kwh", contract, "contract_source", self.contract_source.is_some())?;
        let embodied = self.embodied_per_gpu_g.is_some();
        goes_with("embodied_per_gpu_g", embodied, "embodied_life_years", self.embodied_life_years.is_some())?;
        goes_with("embodied_per_gpu_g", embodied, "embodied_source", self.embodied_source.is_some())?;
        for (key, text) in [
            ("node", &self.node),
            ("node_factor_source", &self.node_factor_source),
            ("pue_source", &self.pue_source),
            ("contract_source", &self.contract_source),
            ("embodied_source", &self.embodied_source),
        ] {
            let fits = |text: &String| {
                !text.trim().is_empty() && text.chars().count() <= 500 && !text.chars().any(char::is_control)
            };
            if text.as_ref().is_some_and(|text| !fits(text)) {
                return Err(format!(
                    "{key} needs 1 to 500 characters, not all blank and none of them a control character"
                ));
            }
        }
        if let Some(date) = &self.pue_date
            && date.parse::<chrono::NaiveDate>().is_err()
        {
            return Err(format!("pue_date = {date:?} is not a date; expected a date such as 2026-01-31"));
        }
        Ok(())
    }

    /// Returns the number of days for which intervals are kept before they are rolled up to hours.
    pub fn keep_days(&self) -> i64 {
        let keep = Seconds::new(self.keep_intervals_days * 86_400.0).to_delta();
        (keep + TimeDelta::days(1) - TimeDelta::microseconds(1)).num_days()
    }

    /// Returns the accounting boundary: factors and figures for what the devices' own meters do not measure.
    pub fn boundary(&self) -> Boundary {
        let embodied = |per_gpu_g| {
            let (life, source) = (self.embodied_life_years?, self.embodied_source.clone()?);
            Some(Embodied { per_gpu_g, life_s: life * YEAR_S, source })
        };
        Boundary {
            node_factor: self.node_factor.unwrap_or(1.0),
            node_factor_source: self.node_factor_source.clone(),
            pue: self.pue.unwrap_or(1.0),
            pue_source: self.pue_source.clone(),
            pue_date: self.pue_date.clone(),
            contract_g_per_kwh: self.contract_g_per_kwh,
            contract_source: self.contract_source.clone(),
            embodied: self.embodied_per_gpu_g.and_then(embodied),
        }
    }

    /// Returns the ledger entry for these settings, which apply from `at` on. `node` is the node's name if the settings
    /// do not name it; `settings` is the digest of all settings of the daemon.
    pub fn terms(&self, at: DateTime<Utc>, node: &str, settings: Digest) -> Terms {
        Terms {
            at,
            node: self.node.clone().unwrap_or_else(|| node.to_owned()),
            software: env!("CARGO_PKG_VERSION").into(),
            method: METHOD,
            settings,
            clock: "durations: monotonic; keys: UTC".into(),
            boundary: self.boundary(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_need_a_source_that_is_not_blank() {
        let read = |text: &str| toml::from_str::<Settings>(text).map_err(|e| e.to_string())?.check();
        let pue = "pue = 1.5\npue_source = \"the operator's report\"\n";
        for date in ["\"2026-01-31\"", "2026-01-31"] {
            assert_eq!(read(&format!("{pue}pue_date = {date}")), Ok(()));
        }
        let wrong = |text: &str, why: &str| {
            let message = read(text).expect_err(text);
            assert!(message.contains(why), "{text}: {message}");
        };
        wrong("pue = 1.5", "pue needs pue_source");
        wrong(&format!("{pue}pue_date = 2026"), "a date such as");
        wrong(&format!("{pue}pue_date = \"soon\""), "is not a date");
        for source in ["", "  ", "a\\nb", "\\u001b[2J"] {
            wrong(
                &format!("pue = 1.5\npue_date = \"2026-01-31\"\npue_source = \"{source}\""),
                "pue_source needs 1 to 500",
            );
        }
        wrong("node = \"\"", "node needs 1 to 500");
    }

    #[test]
    fn a_contract_in_kilograms_is_rejected_and_one_without_emissions_is_not() {
        let read = |factor: &str| {
            let text = format!("contract_g_per_kwh = {factor}\ncontract_source = \"a\"");
            toml::from_str::<Settings>(&text).expect("parses").check()
        };
        for right in ["0.0", "1.0", "35.0"] {
            assert_eq!(read(right), Ok(()), "{right}");
        }
        assert!(read("0.035").expect_err("kilograms").contains("0.035 kg/kWh are 35 g/kWh"));
    }
}
