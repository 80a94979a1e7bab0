//! What each source can be asked about.

use std::path::Path;

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::Value;

use super::carbon_aware_sdk::CarbonAwareSdk;
use super::electricity_maps::ElectricityMaps;
use super::error::shortened;
use super::json::{MOST_POINTS, unexpected};
use super::place::{bidding_zone, named_countries};
use super::secret::Secret;
use super::watttime::WattTime;
use super::{CarbonAwareSdkSettings, CarbonSettings, ProviderError, Source, abridged};
use wattune_core::domain::Zone;

/// A zone as `carbon.zone` takes it, and what it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ZoneName {
    /// The source's own code.
    pub code: String,
    /// Its name, and what there is of it.
    pub name: String,
}

impl ZoneName {
    /// Text from outside is made fit for a line.
    pub(super) fn new(code: &str, name: &str) -> Self {
        Self { code: shortened(code), name: shortened(name) }
    }
}

/// What a source can be asked about.
#[derive(Clone, Debug, Serialize)]
pub struct SourceZones {
    /// The source's name in the settings.
    pub source: &'static str,
    /// What it gives, and what it needs.
    pub what: &'static str,
    /// Its zones, as far as they are known.
    pub zones: Vec<ZoneName>,
    /// Why they are not known, and what to do.
    pub problem: Option<String>,
}

/// The regions of the UK Carbon Intensity API, in its order.
const UK_REGIONS: [&str; 17] = [
    "North Scotland",
    "South Scotland",
    "North West England",
    "North East England",
    "Yorkshire",
    "North Wales",
    "South Wales",
    "West Midlands",
    "East Midlands",
    "East England",
    "South West England",
    "South England",
    "London",
    "South East England",
    "England",
    "Scotland",
    "Wales",
];

/// The zones of all sources. Those behind a key or an address are asked, as far as the settings allow.
pub async fn zones(settings: &CarbonSettings, state_dir: Option<&Path>, now: DateTime<Utc>) -> Vec<SourceZones> {
    let mut all = keyless();
    // What is asked for a list need not be what is followed: any zone will do to ask.
    let mut settings = settings.clone();
    settings.zone = Zone::new("CAISO_NORTH").ok();
    settings.electricity_maps.zone = None;
    all.push(match ElectricityMaps::new(&settings, state_dir) {
        Ok(maps) => asked(Source::ElectricityMaps, "average, with a key; worldwide", maps.zones(now).await),
        Err(error) => unasked(Source::ElectricityMaps, "average, with a key; worldwide", error.to_string()),
    });
    all.push(watttime(&settings, state_dir, now).await);
    all.push(sdk(&settings, state_dir, now).await);
    all
}

fn keyless() -> Vec<SourceZones> {
    let known = |source: Source, what, zones| SourceZones { source: source.name(), what, zones, problem: None };
    let mut uk = vec![ZoneName::new("GB", "Great Britain, with what came")];
    let regions = (1..)
        .zip(UK_REGIONS)
        .map(|(number, name): (u8, _)| ZoneName::new(&format!("GB-{number}"), &format!("{name}, forecast only")));
    uk.extend(regions);
    let price = |code| if bidding_zone(code).is_some() { ", with its price too" } else { "" };
    let countries = named_countries().map(|(code, name)| ZoneName::new(code, &format!("{name}{}", price(code))));
    let areas = [
        ("DK1", "Denmark west of the Great Belt"),
        ("DK2", "Denmark east of the Great Belt"),
        ("DK", "Denmark, the mean of both"),
    ];
    vec![
        known(Source::UkCarbonIntensity, "average, operational; no key", uk),
        known(Source::EnergyCharts, "average; no key", countries.collect()),
        known(Source::Energinet, "average; no key", areas.map(|(code, name)| ZoneName::new(code, name)).into()),
    ]
}

async fn watttime(settings: &CarbonSettings, state_dir: Option<&Path>, now: DateTime<Utc>) -> SourceZones {
    const WHAT: &str = "marginal, with an account; CAISO_NORTH is free";
    let own = &settings.watttime;
    let account = Secret::is_there(&own.username_env, own.username_file.as_deref())
        && Secret::is_there(&own.password_env, own.password_file.as_deref());
    if !account {
        let how = format!(
            "register at https://docs.watttime.org and set {} and {}; then its regions are listed here",
            abridged::variable(&own.username_env),
            abridged::variable(&own.password_env)
        );
        return unasked(Source::WattTime, WHAT, how);
    }
    match WattTime::new(settings, state_dir) {
        Ok(source) => asked(Source::WattTime, WHAT, source.zones(now).await),
        Err(error) => unasked(Source::WattTime, WHAT, error.to_string()),
    }
}

async fn sdk(settings: &CarbonSettings, state_dir: Option<&Path>, now: DateTime<Utc>) -> SourceZones {
    const WHAT: &str = "as the data source behind it";
    if settings.carbon_aware_sdk.base_url == CarbonAwareSdkSettings::default().base_url {
        let how = "set carbon.carbon_aware_sdk.base_url to the address of a WebAPI; then its locations are listed here";
        return unasked(Source::CarbonAwareSdk, WHAT, how.to_owned());
    }
    match CarbonAwareSdk::new(settings, state_dir) {
        Ok(source) => asked(Source::CarbonAwareSdk, WHAT, source.zones(now).await),
        Err(error) => unasked(Source::CarbonAwareSdk, WHAT, error.to_string()),
    }
}

fn asked(source: Source, what: &'static str, answer: Result<Vec<ZoneName>, ProviderError>) -> SourceZones {
    match answer {
        Ok(zones) => SourceZones { source: source.name(), what, zones, problem: None },
        Err(error) => unasked(source, what, error.to_string()),
    }
}

fn unasked(source: Source, what: &'static str, problem: String) -> SourceZones {
    SourceZones { source: source.name(), what, zones: Vec::new(), problem: Some(problem) }
}

/// A map of codes to objects with a name, as Electricity Maps gives it.
pub(super) fn from_map(body: &Value, name: impl Fn(&Value) -> String) -> Result<Vec<ZoneName>, ProviderError> {
    let map = body.as_object().filter(|m| m.len() <= MOST_POINTS);
    let map = map.ok_or_else(|| unexpected("the answer", "a map of zones", body))?;
    if map.is_empty() {
        return Err(ProviderError::Empty { what: "the list of zones is empty, as it is with some keys".to_owned() });
    }
    Ok(map.iter().map(|(code, zone)| ZoneName::new(code, &name(zone))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::providers::place::Place;

    #[test]
    fn what_is_listed_can_be_found_by_name_and_written_as_zone() {
        let all = keyless();
        let codes = |name: &str| -> Vec<String> {
            let zones = all.iter().flat_map(|source| &source.zones);
            zones.filter(|zone| zone.name.contains(name)).map(|zone| zone.code.clone()).collect()
        };
        assert_eq!((codes("Germany"), codes("London")), (vec!["DE".to_owned()], vec!["GB-13".to_owned()]));
        for zone in all.iter().flat_map(|source| &source.zones) {
            let place = Place::of(&Zone::new(zone.code.clone()).expect("a zone"));
            assert!(place.country().is_some(), "{}", zone.code);
        }
    }
}
