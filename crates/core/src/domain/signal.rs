//! Signals of the grid as providers give them: with kind, scope, origin and the times they were issued and fetched.
//!
//! The signal is carbon intensity; the day-ahead price is a second one, of the same shape.

use chrono::{DateTime, Utc};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{Slot, TimeSeries, Zone};
use crate::units::{GramsPerKwh, PricePerMwh};

/// A quantity that a source of the grid quotes slot by slot.
pub trait SignalValue:
    Copy + std::fmt::Debug + PartialEq + Serialize + DeserializeOwned + Send + Sync + 'static
{
    /// Below this no such value lies; such a number is in another unit, or broken.
    const LOWEST: f64;
    /// Above this no such value lies.
    const HIGHEST: f64;
    /// What it is called in messages, with its unit.
    const WHAT: &'static str;

    /// The value of a number in the type's unit; `None` outside the bounds.
    fn checked(number: f64) -> Option<Self>;

    /// The number, in the type's unit.
    fn number(self) -> f64;
}

impl SignalValue for GramsPerKwh {
    const LOWEST: f64 = 0.0;
    const HIGHEST: f64 = 20_000.0;
    const WHAT: &'static str = "a carbon intensity in g/kWh";

    fn checked(number: f64) -> Option<Self> {
        (Self::LOWEST..=Self::HIGHEST).contains(&number).then(|| Self::new(number))
    }

    fn number(self) -> f64 {
        self.get()
    }
}

impl SignalValue for PricePerMwh {
    const LOWEST: f64 = -100_000.0;
    const HIGHEST: f64 = 100_000.0;
    const WHAT: &'static str = "a price per MWh";

    fn checked(number: f64) -> Option<Self> {
        (Self::LOWEST..=Self::HIGHEST).contains(&number).then(|| Self::new(number))
    }

    fn number(self) -> f64 {
        self.get()
    }
}

/// What an intensity says about the grid. Series of different kinds are never joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SignalKind {
    /// Emissions of all generation over all consumption: for inventories.
    Average,
    /// Emissions of the generator that answers one more watt: for the impact of a change.
    Marginal,
    /// The source does not say.
    Unspecified,
}

/// Which emissions are counted. Series of different scopes are never joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SignalScope {
    /// With construction, fuel supply and disposal.
    Lifecycle,
    /// What leaves the stack (also called direct).
    Operational,
    /// The source does not say.
    Unspecified,
}

impl SignalKind {
    /// Returns its name in the API and in the store.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Average => "average",
            Self::Marginal => "marginal",
            Self::Unspecified => "unspecified",
        }
    }
}

impl SignalScope {
    /// Returns its name in the API and in the store.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Lifecycle => "lifecycle",
            Self::Operational => "operational",
            Self::Unspecified => "unspecified",
        }
    }
}

/// Whether two sources speak of the same quantity: both must say which, and mean the same.
pub fn is_same_quantity(a: (SignalKind, SignalScope), b: (SignalKind, SignalScope)) -> bool {
    a == b && a.0 != SignalKind::Unspecified && a.1 != SignalScope::Unspecified
}

/// Where a value comes from, from the least to the most trusted for times that have passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// Made by a generator; belongs to no real grid.
    Synthetic,
    /// Filled in by wattune because the source said nothing.
    Fallback,
    /// Said before the time came.
    Forecast,
    /// Said afterwards, from incomplete measurements.
    Estimated,
    /// Said afterwards, from measurements.
    Measured,
}

impl Origin {
    /// Whether somebody measured it: what came on a real grid. It is better than what was expected, whoever says either.
    pub fn is_measured(self) -> bool {
        matches!(self, Self::Estimated | Self::Measured)
    }

    /// Whether a value of a time that has passed may be what came. A generated grid does not tell its forecast from that.
    pub fn is_outcome(self) -> bool {
        self.is_measured() || self == Self::Synthetic
    }
}

/// One value with its provenance.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quoted<V> {
    /// The value. Zero is a legitimate intensity of some grids; absent values are absent.
    pub value: V,
    /// Where it comes from.
    pub origin: Origin,
}

/// A carbon intensity with its provenance.
pub type Intensity = Quoted<GramsPerKwh>;

/// Intensities over time, oldest first.
pub type CarbonSeries = TimeSeries<Intensity>;

/// The unit in which a source gives its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unit {
    /// Grams of CO2 equivalent per kilowatt-hour.
    #[serde(rename = "gCO2eq/kWh")]
    GramsPerKwh,
    /// Pounds of CO2 per megawatt-hour.
    #[serde(rename = "lbs_co2_per_mwh")]
    PoundsPerMwh,
    /// Kilograms of CO2 equivalent per kilowatt-hour.
    #[serde(rename = "kgCO2eq/kWh")]
    KilogramsPerKwh,
    /// Tonnes of CO2 equivalent per megawatt-hour.
    #[serde(rename = "tCO2eq/MWh")]
    TonnesPerMwh,
}

impl Unit {
    /// Grams per kWh in one of it: the international pound has 453.59237 g exactly.
    pub const fn in_g_per_kwh(self) -> f64 {
        match self {
            Self::GramsPerKwh => 1.0,
            Self::PoundsPerMwh => 0.453_592_37,
            Self::KilogramsPerKwh | Self::TonnesPerMwh => 1000.0,
        }
    }

    /// The number that was given: the shortest decimal that is converted to `value`.
    pub fn received(self, value: GramsPerKwh) -> f64 {
        let (factor, value) = (self.in_g_per_kwh(), value.get());
        let near = value / factor;
        let rounded = |digits| (near * 10_f64.powi(digits)).round() / 10_f64.powi(digits);
        #[expect(clippy::float_cmp, reason = "the same conversion of the same number gives the same bits")]
        let given = |number: &f64| number * factor == value;
        (0..=12).map(rounded).find(given).unwrap_or(near)
    }
}

/// Where an answer's values come from, for whoever checks them later.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Provenance {
    /// The unit that they were given in; absent where the source does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unit: Option<Unit>,
    /// The part of the grid, as the source itself calls it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// The model that made them, or its version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// SHA-256 of each body that was read for them, as it came, in the order in which they were asked for; in
    /// hexadecimal.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub responses: Vec<String>,
    /// By which methods values were made that are not plain measurements, as far as the source says.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<Method>,
}

/// How a source made the value of a slot, in its own words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Method {
    /// From when.
    pub start: DateTime<Utc>,
    /// Until when.
    pub end: DateTime<Utc>,
    /// The method's name with the source.
    pub name: String,
}

impl Provenance {
    /// The provenance of one slot's value: of other slots' methods it says nothing.
    #[must_use]
    pub fn of(&self, slot: &Slot) -> Self {
        let methods = self.methods.iter().filter(|m| m.start < slot.end() && slot.start() < m.end);
        Self { methods: methods.cloned().collect(), ..self.clone() }
    }
}

/// What one source said in one answer: past slots with their actual values, future slots with their forecast.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(bound = "V: SignalValue")]
pub struct Forecast<V = GramsPerKwh> {
    /// The part of the grid.
    pub zone: Zone,
    /// The source's name in configuration and API ("file", "uk").
    pub source: String,
    /// Average or marginal.
    pub kind: SignalKind,
    /// Lifecycle or operational.
    pub scope: SignalScope,
    /// When the source made it, if it says so; else when it was fetched.
    pub issued_at: DateTime<Utc>,
    /// When it was fetched.
    pub retrieved_at: DateTime<Utc>,
    /// From what it was made.
    #[serde(default)]
    pub provenance: Provenance,
    /// What was known or expected before, slot by slot: the series that planning may use.
    pub expected: TimeSeries<Quoted<V>>,
    /// What happened, for slots that have passed.
    pub actual: TimeSeries<Quoted<V>>,
}

/// What one source expected at one time, kept as it was to be compared with what came.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Issued {
    /// The source's name in configuration and API.
    pub source: String,
    /// The part of the grid.
    pub zone: Zone,
    /// Average or marginal.
    pub kind: SignalKind,
    /// Lifecycle or operational.
    pub scope: SignalScope,
    /// When the source made it, if it says so; else when it was fetched.
    pub issued_at: DateTime<Utc>,
    /// When it was fetched.
    pub retrieved_at: DateTime<Utc>,
    /// What it expected.
    pub series: CarbonSeries,
}

impl Issued {
    /// Whether both are by the same source about the same thing, so that one may stand for the other.
    pub fn is_like(&self, other: &Self) -> bool {
        let (a, b) = (self, other);
        (&a.source, &a.zone, a.kind, a.scope) == (&b.source, &b.zone, b.kind, b.scope)
    }
}

impl<V: SignalValue> Forecast<V> {
    /// The best value for a moment that has passed or is passing: the actual one, else the expected one.
    pub fn best_at(&self, t: DateTime<Utc>) -> Option<(Slot, Quoted<V>)> {
        self.actual.at(t).or_else(|| self.expected.at(t)).copied()
    }

    /// Whether a file said it, which is read whole: what it does not say is not there. A service's answer may be cut short.
    pub fn is_of_file(&self) -> bool {
        self.source == "file"
    }

    /// What is known of all times: what happened, else what was expected.
    pub fn known(&self) -> TimeSeries<Quoted<V>> {
        let mut known = self.expected.clone();
        known.overwrite(&self.actual);
        known
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn pounds_per_megawatt_hour_are_converted_exactly() {
        // 1 lb = 453.59237 g (the international yard and pound agreement of 1959), 1 MWh = 1000 kWh.
        assert_eq!(Unit::PoundsPerMwh.in_g_per_kwh(), 453.592_37 / 1000.0);
        assert_eq!(1000.0 * Unit::PoundsPerMwh.in_g_per_kwh(), 453.592_37);
    }

    proptest! {
        #[test]
        fn the_number_that_was_given_is_found_again(given in 0u64..20_000_000_000, digits in 0i32..7) {
            let given = given as f64 / 1e6;
            let given = (given * 10_f64.powi(digits)).round() / 10_f64.powi(digits);
            for unit in [Unit::GramsPerKwh, Unit::PoundsPerMwh] {
                let value = GramsPerKwh::new(given * unit.in_g_per_kwh());
                prop_assert_eq!(unit.received(value), given);
            }
        }
    }
}
