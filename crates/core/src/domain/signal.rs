//! Carbon intensities and electricity prices as published by their sources: values with kind, scope, origin, and times
//! of publication and retrieval.

use chrono::{DateTime, Utc};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{Slot, TimeSeries, Zone};
use crate::units::{GramsPerKwh, PricePerMwh};

/// A quantity that a source publishes slot by slot.
pub trait SignalValue:
    Copy + std::fmt::Debug + PartialEq + Serialize + DeserializeOwned + Send + Sync + 'static
{
    /// Lower bound of plausible values, in the type's unit; a lower number is in another unit or broken.
    const LOWEST: f64;
    /// Upper bound of plausible values, in the type's unit.
    const HIGHEST: f64;
    /// Name and unit of the quantity, for messages.
    const WHAT: &'static str;

    /// Converts a number in the type's unit to a value; `None` outside the bounds.
    fn checked(number: f64) -> Option<Self>;

    /// Returns the number in the type's unit.
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

/// Kind of a carbon intensity. Values of different kinds are never combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SignalKind {
    /// Emissions of all generation divided by consumption; for emission inventories.
    Average,
    /// Emissions of the generator that would serve one more watt; for the impact of a change in consumption.
    Marginal,
    /// The source does not state the kind.
    Unspecified,
}

/// Emissions that a carbon intensity includes. Values of different scopes are never combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SignalScope {
    /// Emissions of operation, construction, fuel supply and disposal.
    Lifecycle,
    /// Direct (stack) emissions of operation only.
    Operational,
    /// The source does not state the scope.
    Unspecified,
}

impl SignalKind {
    /// Returns the name of the kind in the API and in the store.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Average => "average",
            Self::Marginal => "marginal",
            Self::Unspecified => "unspecified",
        }
    }
}

impl SignalScope {
    /// Returns the name of the scope in the API and in the store.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Lifecycle => "lifecycle",
            Self::Operational => "operational",
            Self::Unspecified => "unspecified",
        }
    }
}

/// Returns true if two sources publish the same quantity: both state kind and scope, and these agree.
pub fn is_same_quantity(a: (SignalKind, SignalScope), b: (SignalKind, SignalScope)) -> bool {
    a == b && a.0 != SignalKind::Unspecified && a.1 != SignalScope::Unspecified
}

/// Origin of a value. Variants are in the order of trust for past times, the least trusted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// A generator made the value; it belongs to no real grid.
    Synthetic,
    /// wattune made the value, because the source has none.
    Fallback,
    /// The source published the value before the time to which it refers.
    Forecast,
    /// The source published the value after the time to which it refers, from incomplete measurements.
    Estimated,
    /// The source published the value after the time to which it refers, from measurements.
    Measured,
}

impl Origin {
    /// Returns true if the value comes from measurements on a real grid, complete or not, and is therefore better than
    /// any forecast.
    pub fn is_measured(self) -> bool {
        matches!(self, Self::Estimated | Self::Measured)
    }

    /// Returns true if the value may be an actual value. Synthetic values count, because their actual values and
    /// forecasts have the same origin.
    pub fn is_actual(self) -> bool {
        self.is_measured() || self == Self::Synthetic
    }
}

/// A published value with its origin.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quoted<V> {
    /// The value. Zero is a valid carbon intensity in some grids.
    pub value: V,
    /// Origin of the value.
    pub origin: Origin,
}

/// A carbon intensity with its origin.
pub type Intensity = Quoted<GramsPerKwh>;

/// Carbon intensities over time.
pub type CarbonSeries = TimeSeries<Intensity>;

/// Unit in which a source publishes its values.
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
    /// Returns the number of g/kWh per unit. The international pound is exactly 453.59237 g.
    pub const fn in_g_per_kwh(self) -> f64 {
        match self {
            Self::GramsPerKwh => 1.0,
            Self::PoundsPerMwh => 0.453_592_37,
            Self::KilogramsPerKwh | Self::TonnesPerMwh => 1000.0,
        }
    }

    /// Returns the number that the source published, reconstructed as the shortest decimal that converts to `value`.
    pub fn received(self, value: GramsPerKwh) -> f64 {
        let (factor, value) = (self.in_g_per_kwh(), value.get());
        let near = value / factor;
        let rounded = |digits| (near * 10_f64.powi(digits)).round() / 10_f64.powi(digits);
        #[expect(clippy::float_cmp, reason = "the same conversion of the same number gives the same bits")]
        let given = |number: &f64| number * factor == value;
        (0..=12).map(rounded).find(given).unwrap_or(near)
    }
}

/// Provenance of the values in a source's response, for later checks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Provenance {
    /// Unit in which the values were published; absent if the source states none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unit: Option<Unit>,
    /// Grid zone in the source's own terms; absent if the source states none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// Name or version of the source's model that computed the values; absent if the source states none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// SHA-256 in hexadecimal of the body of each response used, in the order of the requests.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub responses: Vec<String>,
    /// Methods by which values that are no plain measurements were determined, as far as the source states them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<Method>,
}

/// Method by which a source determined the value of a slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Method {
    /// Start of the slot.
    pub start: DateTime<Utc>,
    /// End of the slot.
    pub end: DateTime<Utc>,
    /// Name that the source gives to the method.
    pub name: String,
}

impl Provenance {
    /// Returns the provenance of one slot's value, without the methods of other slots.
    #[must_use]
    pub fn of(&self, slot: &Slot) -> Self {
        let methods = self.methods.iter().filter(|m| m.start < slot.end() && slot.start() < m.end);
        Self { methods: methods.cloned().collect(), ..self.clone() }
    }
}

/// One response of a source: actual values of past slots and the forecast of future slots.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(bound = "V: SignalValue")]
pub struct Forecast<V = GramsPerKwh> {
    /// Grid zone that the values refer to.
    pub zone: Zone,
    /// Name of the source in configuration and API ("file", "uk").
    pub source: String,
    /// Kind of the values: average or marginal.
    pub kind: SignalKind,
    /// Emissions that the values include: lifecycle or operational.
    pub scope: SignalScope,
    /// Time at which the source published the response; if the source does not state it, the time of retrieval.
    pub issued_at: DateTime<Utc>,
    /// Time at which wattune fetched the response.
    pub retrieved_at: DateTime<Utc>,
    /// Provenance of the values.
    #[serde(default)]
    pub provenance: Provenance,
    /// Values for planning: for each slot, what was forecast or known before the slot began.
    pub expected: TimeSeries<Quoted<V>>,
    /// Actual values of past slots.
    pub actual: TimeSeries<Quoted<V>>,
}

/// A forecast as published, stored for comparison with actual values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Issued {
    /// Name of the source in configuration and API.
    pub source: String,
    /// Grid zone that the values refer to.
    pub zone: Zone,
    /// Kind of the values: average or marginal.
    pub kind: SignalKind,
    /// Emissions that the values include: lifecycle or operational.
    pub scope: SignalScope,
    /// Time at which the source published the forecast; if the source does not state it, the time of retrieval.
    pub issued_at: DateTime<Utc>,
    /// Time at which wattune fetched the forecast.
    pub retrieved_at: DateTime<Utc>,
    /// Carbon intensities as forecast.
    pub series: CarbonSeries,
}

impl Issued {
    /// Returns true if both forecasts have the same source, zone, kind and scope.
    pub fn is_like(&self, other: &Self) -> bool {
        let (a, b) = (self, other);
        (&a.source, &a.zone, a.kind, a.scope) == (&b.source, &b.zone, b.kind, b.scope)
    }
}

impl<V: SignalValue> Forecast<V> {
    /// Returns the best value for a past or current time, with its slot: the actual value, or else the forecast.
    pub fn best_at(&self, t: DateTime<Utc>) -> Option<(Slot, Quoted<V>)> {
        self.actual.at(t).or_else(|| self.expected.at(t)).copied()
    }

    /// Returns true if the response comes from a file. A file is complete, so values that it no longer contains were
    /// withdrawn. The responses of services may be partial.
    pub fn is_of_file(&self) -> bool {
        self.source == "file"
    }

    /// Returns the forecast values, overwritten by actual values where these exist.
    pub fn known_values(&self) -> TimeSeries<Quoted<V>> {
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
        fn the_published_number_is_recovered(given in 0u64..20_000_000_000, digits in 0i32..7) {
            let given = given as f64 / 1e6;
            let given = (given * 10_f64.powi(digits)).round() / 10_f64.powi(digits);
            for unit in [Unit::GramsPerKwh, Unit::PoundsPerMwh] {
                let value = GramsPerKwh::new(given * unit.in_g_per_kwh());
                prop_assert_eq!(unit.received(value), given);
            }
        }
    }
}
