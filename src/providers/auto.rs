//! `source = "auto"`: whatever the settings give a file, an address, a key or an account for, and what needs none.

use super::place::{Place, energy_charts_has};
use super::secret::Secret;
use super::{CarbonAwareSdkSettings, CarbonSettings, Chain, SettingsError, Source};

/// The chain for the zone: what somebody set up first, then what is free of charge and key. Sources with a key come
/// before those without; WattTime is last of its kind, since its signal is marginal where the others' is average.
/// Without anything, the constant.
pub(super) fn chain(settings: &CarbonSettings) -> Vec<Vec<Source>> {
    let mut groups = Vec::new();
    if settings.file.path.is_some() {
        groups.push(vec![Source::File]);
    }
    if settings.carbon_aware_sdk.base_url != CarbonAwareSdkSettings::default().base_url {
        groups.push(vec![Source::CarbonAwareSdk]);
    }
    let maps = &settings.electricity_maps;
    let place = settings.zone.as_ref().map(Place::of);
    let has_place = |own: bool| place.is_some() || own;
    if has_place(maps.zone.is_some()) && Secret::is_there(&maps.key_env, maps.key_file.as_deref()) {
        groups.push(vec![Source::ElectricityMaps]);
    }
    let country = place.as_ref().and_then(Place::country);
    match country.as_deref() {
        Some("GB") => groups.push(vec![Source::UkCarbonIntensity]),
        Some("DK") => groups.push(vec![Source::Energinet, Source::EnergyCharts]),
        Some(country) if energy_charts_has(country) => groups.push(vec![Source::EnergyCharts]),
        _ => {}
    }
    let watttime = &settings.watttime;
    let account = Secret::is_there(&watttime.username_env, watttime.username_file.as_deref())
        && Secret::is_there(&watttime.password_env, watttime.password_file.as_deref());
    // A country is no region of WattTime's: the chain must not fail for it.
    let region = place.as_ref().is_some_and(|p| p.is_code() || p.coordinates().is_some());
    if (watttime.zone.is_some() || region) && account {
        groups.push(vec![Source::WattTime]);
    }
    // A source may know better than its country's code that it does not tell of a place (Northern Ireland).
    let refuses = |source: &Source| matches!(super::one(*source, settings, None), Err(SettingsError::Place { .. }));
    for group in &mut groups {
        group.retain(|source| !refuses(source));
    }
    groups.retain(|group| !group.is_empty());
    if groups.is_empty() {
        groups.push(vec![Source::Fixed]);
    }
    groups
}

/// What would give a place a forecast that has none, in the user's words; `None` where a source is at work, or a
/// constant was chosen on purpose.
pub(super) fn advice(settings: &CarbonSettings) -> Option<String> {
    let alone = match &settings.source {
        Chain::Auto => chain(settings) == [[Source::Fixed]],
        Chain::Listed(_) => false,
    };
    if !alone || settings.fixed.g_per_kwh.is_some() {
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
    if let Some(why) = place.misread() {
        return Some(format!("{zone} is no zone that wattune knows; {why}"));
    }
    let country = place.country();
    let california = country.as_deref() == Some("US") || place.is_code();
    let watttime = if california {
        "; for northern California (CAISO_NORTH) a free WattTime account works too: register at \
         https://docs.watttime.org and set WATTTIME_USERNAME and WATTTIME_PASSWORD"
    } else {
        ""
    };
    let unknown = if place.is_code() && country.is_none() {
        format!(
            "{zone} is no zone that wattune knows; write a country (\"DE\" or \"Germany\"), latitude,longitude, or a code that \
             `wattune carbon zones` lists. If it is a source's own code, "
        )
    } else if let Some((swapped, country)) = place.swapped() {
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
    fn who_has_no_forecast_is_told_how_to_get_one() {
        let advice = |text: &str| advice(&toml::from_str(&format!("{text}\n{NO_KEYS}")).expect(text));
        assert!(advice("").is_some_and(|a| a.contains("set carbon.zone")));
        let india = advice("zone = \"IN\"").expect("no source without a key");
        assert!(india.contains("https://portal.electricitymaps.com") && !india.contains("WattTime"), "{india}");
        assert!(advice("zone = \"US-CAL-CISO\"").is_some_and(|a| a.contains("WATTTIME_USERNAME")));
        for (zone, word) in [("91,0", "-90 to 90"), ("51.5;-0.1", "comma between"), ("Atlantis", "Electricity Maps")] {
            let told = advice(&format!("zone = \"{zone}\"")).expect(zone);
            assert!(
                told.starts_with(&format!("{zone} is no zone that wattune knows")) && told.contains(word),
                "{told}"
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
        chain(&toml::from_str(text).expect(text))
    }

    /// No test sets variables: the tables name some that nobody has.
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
    fn what_somebody_set_up_comes_first() {
        let text = "zone = \"52.52,13.40\"\nfile.path = \"a.csv\"\n[carbon_aware_sdk]\nbase_url = \"http://sdk:8080\"\n\
                    [electricity_maps]\nkey_file = \"key\"\n[watttime]\nusername_file = \"u\"\npassword_file = \"p\"";
        let groups = chosen(text);
        let expected =
            [Source::File, Source::CarbonAwareSdk, Source::ElectricityMaps, Source::EnergyCharts, Source::WattTime];
        assert_eq!(groups.concat(), expected);
    }
}
