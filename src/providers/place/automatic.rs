//! The automatic chain (`source = "auto"`), an ordered list of sources: those for which the settings hold a file, an
//! address, a key or an account, and those that need none of these.

use super::Place;
use super::countries::similar;
use crate::providers::error::SettingsError;
use crate::providers::settings::{CarbonSettings, Chain};
use crate::providers::sources::Source;

/// Returns the chain for the zone in the settings: groups of sources with equal rank, lowest rank first. The chain
/// holds the sources that the settings set up and those that serve the zone's country without a key. Within a group,
/// sources that serve fewer countries come first. If no source qualifies, the chain holds only [`Source::Fixed`], a
/// constant.
pub(in crate::providers) fn automatic_chain(settings: &CarbonSettings) -> Vec<Vec<Source>> {
    let (place, shared) = (settings.zone.as_ref().map(Place::of), settings.shared(None));
    let country = place.as_ref().and_then(Place::country);
    let mut ready: Vec<(u8, Source)> = Vec::new();
    for source in Source::ALL.iter().copied() {
        let table = settings.table(source);
        let is_keyless = country.as_deref().is_some_and(|country| is_keyless(source, country));
        // A source may refuse a place although it serves the country: Northern Ireland is in GB, but in another grid.
        let refuses = || matches!(table.build(&shared), Err(SettingsError::Place { .. }));
        if (is_keyless || table.is_set_up(place.as_ref())) && !refuses() {
            ready.extend(source.descriptor().rank.map(|rank| (rank, source)));
        }
    }
    if ready.is_empty() {
        return vec![vec![Source::Fixed]];
    }
    ready.sort_by_key(|(rank, source)| (*rank, source.descriptor().countries.len()));
    ready.chunk_by(|a, b| a.0 == b.0).map(|equals| equals.iter().map(|(_, source)| *source).collect()).collect()
}

/// Returns true if a source serves the country (ISO 3166-1 alpha-2) without a key.
fn is_keyless(source: Source, country: &str) -> bool {
    source.descriptor().countries.contains(&country)
}

/// Returns true if the automatic chain has no source but a constant that the settings do not choose.
fn has_no_source(settings: &CarbonSettings) -> bool {
    let alone = match &settings.source {
        Chain::Auto => automatic_chain(settings) == [[Source::Fixed]],
        Chain::Listed(_) => false,
    };
    alone && settings.fixed.g_per_kwh.is_none()
}

/// Returns why the zone in the settings is none that wattune knows, with the most similar name; `None` if it is known,
/// or may be a code of a source that is set up.
pub fn unknown_zone(settings: &CarbonSettings) -> Option<String> {
    let zone = settings.zone.as_ref().filter(|_| has_no_source(settings))?;
    let place = Place::of(zone);
    if let Some(why) = place.misread() {
        return Some(format!("{zone} is no zone that wattune knows; {why}"));
    }
    let write = similar(zone.as_str())
        .map_or_else(|| "write".to_owned(), |name| format!("did you mean {name}? Otherwise write"));
    ((place.is_code() && place.country().is_none()) || place.is_no_country()).then(|| {
        format!(
            "{zone} is no zone that wattune knows; {write} a country (\"DE\" or \"Germany\"), latitude,longitude, or a code \
             that `wattune carbon zones` lists"
        )
    })
}

/// Returns advice for the user on how to get a forecast for the zone in the settings. Returns `None` if the settings
/// list sources, if the automatic chain has a source, or if the settings choose a constant (`carbon.fixed.g_per_kwh`).
pub fn advice(settings: &CarbonSettings) -> Option<String> {
    if !has_no_source(settings) {
        return None;
    }
    let Some(zone) = &settings.zone else {
        return Some(
            "no zone is set, so no forecast is followed; set carbon.zone to your country (\"DE\", \"GB\", \"DK\" and most of \
             Europe need no key), to latitude,longitude, or to a source's own code; `wattune carbon zones` lists them"
                .to_owned(),
        );
    };
    let place = Place::of(zone);
    let unknown = unknown_zone(settings);
    if unknown.is_some() && place.misread().is_some() {
        return unknown;
    }
    let country = place.country();
    let california = country.as_deref() == Some("US") || place.is_code();
    let watttime = if california {
        "; for northern California (CAISO_NORTH) a free WattTime account works too: register at \
         https://docs.watttime.org and set WATTTIME_USERNAME and WATTTIME_PASSWORD"
    } else {
        ""
    };
    let unknown = if let Some(unknown) = unknown {
        format!("{unknown}. If it is a source's own code, ")
    } else if let Some((swapped, country)) =
        place.swapped().filter(|(_, c)| Source::ALL.iter().any(|source| is_keyless(*source, c)))
    {
        format!("latitude comes first: if {zone} was meant to lie in {country}, write {swapped}. Else ")
    } else {
        String::new()
    };
    Some(format!(
        "{unknown}no source without a key covers {zone}; a free key of Electricity Maps covers one zone or more of your choice: get \
         it at https://portal.electricitymaps.com, set ELECTRICITY_MAPS_API_KEY (or carbon.electricity_maps.key_file), \
         and carbon.zone to the zone that https://app.electricitymaps.com shows for you{watttime}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_names_the_way_to_a_forecast() {
        let advice = |text: &str| advice(&toml::from_str(&format!("{text}\n{NO_KEYS}")).expect(text));
        assert!(advice("").is_some_and(|a| a.contains("set carbon.zone")));
        let india = advice("zone = \"IN\"").expect("no source without a key");
        assert!(india.contains("https://portal.electricitymaps.com") && !india.contains("WattTime"), "{india}");
        assert!(advice("zone = \"US-CAL-CISO\"").is_some_and(|a| a.contains("WATTTIME_USERNAME")));
        for (zone, word) in [
            ("91,0", "-90 to 90"),
            ("51.5;-0.1", "comma between"),
            ("Atlantis", "Electricity Maps"),
            ("XX", "Electricity Maps"),
        ] {
            let reported = advice(&format!("zone = \"{zone}\"")).expect(zone);
            assert!(
                reported.starts_with(&format!("{zone} is no zone that wattune knows")) && reported.contains(word),
                "{reported}"
            );
        }
        let swapped = advice("zone = \"13.40,52.52\"").expect("no such place in Europe");
        assert!(swapped.contains("to lie in DE, write 52.52,13.4."), "{swapped}");
        for fine in
            ["zone = \"DE\"", "zone = \"Germany\"", "zone = \"se3\"", "source = \"fixed\"", "fixed.g_per_kwh = 20"]
        {
            assert_eq!(advice(fine), None, "{fine}");
        }
    }

    fn chosen(text: &str) -> Vec<Vec<Source>> {
        automatic_chain(&toml::from_str(text).expect(text))
    }

    /// Settings that name environment variables which do not exist, so that no key in the environment of the tests
    /// counts.
    const NO_KEYS: &str =
        "[electricity_maps]\nkey_env = \"WATTUNE_NONE\"\n[watttime]\nusername_env = \"WATTUNE_NONE\"\n";

    #[test]
    fn a_zone_alone_finds_what_needs_no_key() {
        use Source::{Energinet, EnergyCharts, Fixed, UkCarbonIntensity};
        for (zone, groups) in [
            ("DE", vec![vec![EnergyCharts]]),
            ("GB", vec![vec![UkCarbonIntensity]]),
            ("uk", vec![vec![UkCarbonIntensity]]),
            ("DK", vec![vec![Energinet, EnergyCharts]]),
            ("DK2", vec![vec![Energinet, EnergyCharts]]),
            ("Denmark", vec![vec![Energinet, EnergyCharts]]),
            ("Great Britain", vec![vec![UkCarbonIntensity]]),
            ("GB-13", vec![vec![UkCarbonIntensity]]),
            ("no1", vec![vec![EnergyCharts]]),
            ("DE-LU", vec![vec![EnergyCharts]]),
            ("91,0", vec![vec![Fixed]]),
            ("48.86,2.35", vec![vec![EnergyCharts]]),
            ("US", vec![vec![Fixed]]),
            ("54.6,-5.9", vec![vec![Fixed]]),
            ("40.7,-74.0", vec![vec![Fixed]]),
        ] {
            assert_eq!(chosen(&format!("zone = \"{zone}\"\n{NO_KEYS}")), groups, "{zone}");
        }
        assert_eq!(chosen(NO_KEYS), [[Fixed]]);
    }

    #[test]
    fn configured_sources_come_first() {
        let text = "zone = \"52.52,13.40\"\nfile.path = \"a.csv\"\n[carbon_aware_sdk]\nbase_url = \"http://sdk:8080\"\n\
                    [electricity_maps]\nkey_file = \"key\"\n[watttime]\nusername_file = \"u\"\npassword_file = \"p\"";
        let groups = chosen(text);
        let expected =
            [Source::File, Source::CarbonAwareSdk, Source::ElectricityMaps, Source::EnergyCharts, Source::WattTime];
        assert_eq!(groups.concat(), expected);
    }
}
