//! One door to the parsers of all sources, for runs with made-up bodies: whatever comes, there is an error at most.
//!
//! What a parser takes is carried on as an answer would be: into a series, past what holds jumps back, and over what
//! was known. Where a series does not keep its promises, these functions panic, as the parsers never may.

use chrono::{DateTime, TimeDelta, Utc};

use super::file::FileSignal;
use super::jump::{hold_back, hold_back_past};
use super::source_state::merged;
use super::{
    FileSettings, cache, carbon_aware_sdk, electricity_maps, energinet, energy_charts, fetch, file, price, uk, usage,
    watttime,
};
use wattune_core::domain::{Forecast, Origin, Quoted, SignalKind, SignalScope, SignalValue, Slot, TimeSeries, Zone};
use wattune_core::units::{GramsPerKwh, PricePerMwh};

/// Whose parsers a body is given to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FuzzTarget {
    /// Electricity Maps: forecast, history, the zone of coordinates, the list of zones.
    ElectricityMaps,
    /// WattTime: forecast and history, the region of coordinates, the list of regions, the login.
    WattTime,
    /// The UK Carbon Intensity API: country and regions.
    Uk,
    /// The Carbon Aware SDK: forecast, rows, means and locations.
    CarbonAwareSdk,
    /// Energy-Charts: intensities.
    EnergyCharts,
    /// Energinet: one price area and both.
    Energinet,
    /// Energy-Charts: prices.
    Price,
    /// Files of intensities, CSV and JSON.
    File,
    /// Files of prices, CSV and JSON.
    PriceFile,
    /// What an earlier run left in the state directory: answers, and counts of requests.
    Stored,
    /// Bodies and headers of answers that are refusals.
    Refusal,
}

impl FuzzTarget {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::ElectricityMaps,
        Self::WattTime,
        Self::Uk,
        Self::CarbonAwareSdk,
        Self::EnergyCharts,
        Self::Energinet,
        Self::Price,
        Self::File,
        Self::PriceFile,
        Self::Stored,
        Self::Refusal,
    ];

    /// Its name, which its folder of bodies in `tests/fuzz/corpus` bears.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ElectricityMaps => "electricity_maps",
            Self::WattTime => "watttime",
            Self::Uk => "uk",
            Self::CarbonAwareSdk => "carbon_aware_sdk",
            Self::EnergyCharts => "energy_charts",
            Self::Energinet => "energinet",
            Self::Price => "price",
            Self::File => "file",
            Self::PriceFile => "price_file",
            Self::Stored => "stored",
            Self::Refusal => "refusal",
        }
    }
}

/// Runs all parsers of one source on a body.
pub fn parse(target: FuzzTarget, body: &[u8]) {
    match target {
        FuzzTarget::ElectricityMaps => electricity_maps::parse_any(body),
        FuzzTarget::WattTime => watttime::parse_any(body),
        FuzzTarget::Uk => uk::parse_any(body),
        FuzzTarget::CarbonAwareSdk => carbon_aware_sdk::parse_any(body),
        FuzzTarget::EnergyCharts => energy_charts::parse_any(body),
        FuzzTarget::Energinet => energinet::parse_any(body),
        FuzzTarget::Price => price::parse_any(body),
        FuzzTarget::File => parse_file::<GramsPerKwh>(body, true),
        FuzzTarget::PriceFile => parse_file::<PricePerMwh>(body, false),
        FuzzTarget::Stored => parse_stored(body),
        FuzzTarget::Refusal => fetch::read_any(body, now()),
    }
}

/// Runs the parsers of all sources on a body.
pub fn parse_all(body: &[u8]) {
    FuzzTarget::ALL.into_iter().for_each(|target| parse(target, body));
}

fn parse_file<V: FileSignal>(body: &[u8], assume_utc: bool) {
    let settings = FileSettings { assume_utc, ..FileSettings::default() };
    if let Ok(parsed) = file::parse_as::<V>(body, &settings, None) {
        check(&parsed.expected);
        check(&parsed.actual);
    }
}

fn parse_stored(body: &[u8]) {
    if let Ok(forecast) = cache::read::<GramsPerKwh>(body) {
        check(&forecast.expected);
        carry_on(&forecast);
    }
    if let Ok(forecast) = cache::read::<PricePerMwh>(body) {
        check(&forecast.actual);
    }
    usage::read_any(body, now());
}

/// A moment that the made-up bodies lie around.
fn now() -> DateTime<Utc> {
    DateTime::UNIX_EPOCH + TimeDelta::days(20_300)
}

/// Carries rows on as a source does that was asked for nothing else.
pub(super) fn follow<V: SignalValue>(rows: impl IntoIterator<Item = (Slot, V)>) {
    let quoted = |(slot, value)| (slot, Quoted { value, origin: Origin::Forecast });
    let (expected, problems) = TimeSeries::from_points(rows.into_iter().map(quoted).collect());
    assert!(super::json::notes(&problems).len() <= 6, "notes are few");
    check(&expected);
    let (Some(start), Ok(zone)) = (expected.start(), Zone::new("DE")) else { return };
    carry_on(&Forecast {
        zone,
        source: "fuzz".to_owned(),
        kind: SignalKind::Average,
        scope: SignalScope::Unspecified,
        issued_at: start,
        retrieved_at: start,
        provenance: Default::default(),
        expected,
        actual: TimeSeries::default(),
    });
}

/// The last part of an answer's way: over an older one that says the same of other times.
fn carry_on<V: SignalValue>(forecast: &Forecast<V>) {
    let (Some(start), Some(end)) = (forecast.expected.start(), forecast.expected.end()) else { return };
    let middle = start + (end - start) / 2;
    let mut newest = forecast.clone();
    hold_back(None, &mut newest, None, 4.0, middle);
    let mut came = newest.expected.clone();
    hold_back_past(forecast, &mut came, 4.0, middle);
    check(&came);
    let known = merged(forecast, newest, middle).known();
    assert!(known.points().len() <= 4 * forecast.expected.points().len(), "nothing multiplies");
    check(&known);
}

fn check<V: SignalValue>(series: &TimeSeries<Quoted<V>>) {
    for (slot, quoted) in series.points() {
        assert!(slot.start() < slot.end(), "{slot} is empty");
        assert!(V::checked(quoted.value.number()).is_some(), "{} is no value", quoted.value.number());
    }
    for pair in series.points().windows(2) {
        assert!(pair[0].0.end() <= pair[1].0.start(), "{} overlaps {}", pair[0].0, pair[1].0);
    }
}
