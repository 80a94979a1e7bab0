//! Grid signals as published by their sources: values with kind, scope, origin, and times of issue and retrieval.
//!
//! The main signal is carbon intensity; the day-ahead electricity price is a second one of the same form.

use chrono::{DateTime, Utc};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{Slot, TimeSeries, Zone};
use crate::units::{GramsPerKwh, PricePerMwh};

/// A quantity that a source publishes slot by slot.
pub trait SignalValue:
    Copy + std::fmt::Debug + PartialEq + Serialize + DeserializeOwned + Send + Sync + 'static
{
    /// Lower bound of plausible values; a lower number has another unit or is broken.
    const LOWEST: f64;
    /// Upper bound of plausible values.
    const HIGHEST: f64;
    /// Name and unit for messages.
    const WHAT: &'static str;

    /// Converts a number in the type's unit; `None` outside the bounds.
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

/// Kind of a carbon intensity. Series of different kinds are never joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SignalKind {
    /// Emissions of all generation divided by consumption, for inventories.
    Average,
    /// Emissions of the generator that serves one more watt, for the impact of a change.
    Marginal,
    /// Not specified by the source.
    Unspecified,
}

/// Emissions that an intensity includes. Series of different scopes are never joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SignalScope {
    /// Including construction, fuel supply and disposal.
    Lifecycle,
    /// Stack emissions only (direct emissions).
    Operational,
    /// Not specified by the source.
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

/// Returns whether two sources publish the same quantity: both must specify kind and scope, and agree.
pub fn is_same_quantity(a: (SignalKind, SignalScope), b: (SignalKind, SignalScope)) -> bool {
    a == b && a.0 != SignalKind::Unspecified && a.1 != SignalScope::Unspecified
}

/// Origin of a value, from the least to the most trusted for past times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// Generated, for no real grid.
    Synthetic,
    /// Filled in by wattune because the source has no value.
    Fallback,
    /// Published before the time.
    Forecast,
    /// Published afterwards, from incomplete measurements.
    Estimated,
    /// Published afterwards, from measurements.
    Measured,
}

impl Origin {
    /// Returns whether the value was measured on a real grid, and so is better than any forecast.
    pub fn is_measured(self) -> bool {
        matches!(self, Self::Estimated | Self::Measured)
    }

    /// Returns whether the value may be an actual value. A generated grid does not distinguish these from its forecast.
    pub fn is_actual(self) -> bool {
        self.is_measured() || self == Self::Synthetic
    }
}

/// A value with its origin.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quoted<V> {
    /// The value. Zero is a valid intensity of some grids.
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

    /// Returns the published number: the shortest decimal that converts to `value`.
    pub fn received(self, value: GramsPerKwh) -> f64 {
        let (factor, value) = (self.in_g_per_kwh(), value.get());
        let near = value / factor;
        let rounded = |digits| (near * 10_f64.powi(digits)).round() / 10_f64.powi(digits);
        #[expect(clippy::float_cmp, reason = "the same conversion of the same number gives the same bits")]
        let given = |number: &f64| number * factor == value;
        (0..=12).map(rounded).find(given).unwrap_or(near)
    }
}

/// Provenance of a response's values, for later checks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Provenance {
    /// Published unit, if the source states one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unit: Option<Unit>,
    /// Grid zone in the source's own terms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// Model that made the values, or its version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// SHA-256 in hexadecimal of each response body used, in request order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub responses: Vec<String>,
    /// Methods of values that are not plain measurements, if the source states them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<Method>,
}

/// A source's method for the value of a slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Method {
    /// Start of the slot.
    pub start: DateTime<Utc>,
    /// End of the slot.
    pub end: DateTime<Utc>,
    /// Name of the method with the source.
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

/// One response of a source: actual values of past slots and the forecast of future ones.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(bound = "V: SignalValue")]
pub struct Forecast<V = GramsPerKwh> {
    /// Grid zone.
    pub zone: Zone,
    /// The source's name in configuration and API ("file", "uk").
    pub source: String,
    /// Average or marginal.
    pub kind: SignalKind,
    /// Lifecycle or operational.
    pub scope: SignalScope,
    /// Time of issue if published, else of retrieval.
    pub issued_at: DateTime<Utc>,
    /// Time of retrieval.
    pub retrieved_at: DateTime<Utc>,
    /// Provenance of the values.
    #[serde(default)]
    pub provenance: Provenance,
    /// Values as known or expected before each slot, for planning.
    pub expected: TimeSeries<Quoted<V>>,
    /// Actual values of past slots.
    pub actual: TimeSeries<Quoted<V>>,
}

/// A forecast as issued, stored for comparison with actual values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Issued {
    /// The source's name in configuration and API.
    pub source: String,
    /// Grid zone.
    pub zone: Zone,
    /// Average or marginal.
    pub kind: SignalKind,
    /// Lifecycle or operational.
    pub scope: SignalScope,
    /// Time of issue if published, else of retrieval.
    pub issued_at: DateTime<Utc>,
    /// Time of retrieval.
    pub retrieved_at: DateTime<Utc>,
    /// Forecast values.
    pub series: CarbonSeries,
}

impl Issued {
    /// Returns whether both are from the same source about the same quantity.
    pub fn is_like(&self, other: &Self) -> bool {
        let (a, b) = (self, other);
        (&a.source, &a.zone, a.kind, a.scope) == (&b.source, &b.zone, b.kind, b.scope)
    }
}

impl<V: SignalValue> Forecast<V> {
    /// Returns the best value for a past or current time: the actual one, else the expected one.
    pub fn best_at(&self, t: DateTime<Utc>) -> Option<(Slot, Quoted<V>)> {
        self.actual.at(t).or_else(|| self.expected.at(t)).copied()
    }

    /// Returns whether it comes from a file. Files are complete: values missing there were withdrawn. Responses of
    /// services may be partial.
    pub fn is_of_file(&self) -> bool {
        self.source == "file"
    }

    /// Returns expected values overwritten with actual ones.
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
