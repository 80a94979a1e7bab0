//! A place as people write it: an ISO country, `latitude,longitude`, or a source's own code.

use country_boundaries::{BOUNDARIES_ODBL_180X90, CountryBoundaries, LatLon};

use super::price::bidding_zone_named;
use super::settings::SettingsError;
use wattune_core::domain::Zone;

/// A place on the grid.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Place {
    zone: Zone,
    form: Form,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    /// ISO 3166-1 alpha-2, in capitals.
    Country([u8; 2]),
    Coordinates {
        latitude: f64,
        longitude: f64,
    },
    /// A source's own code.
    Code,
}

/// A country about which somebody gives intensities without a key.
struct Keyless {
    alpha2: &'static str,
    alpha3: &'static str,
    /// In English.
    name: &'static str,
    /// The bidding zone, where the country is one.
    bidding_zone: Option<&'static str>,
}

const fn keyless(
    alpha2: &'static str,
    alpha3: &'static str,
    name: &'static str,
    bidding_zone: Option<&'static str>,
) -> Keyless {
    Keyless { alpha2, alpha3, name, bidding_zone }
}

/// The countries of Energy-Charts. Of the smaller ones it may have no forecast; what it has says so.
const ENERGY_CHARTS: [Keyless; 32] = [
    keyless("AT", "AUT", "Austria", Some("AT")),
    keyless("BA", "BIH", "Bosnia and Herzegovina", None),
    keyless("BE", "BEL", "Belgium", Some("BE")),
    keyless("BG", "BGR", "Bulgaria", Some("BG")),
    keyless("CH", "CHE", "Switzerland", Some("CH")),
    keyless("CY", "CYP", "Cyprus", None),
    keyless("CZ", "CZE", "Czechia", Some("CZ")),
    keyless("DE", "DEU", "Germany", Some("DE-LU")),
    keyless("DK", "DNK", "Denmark", None),
    keyless("EE", "EST", "Estonia", Some("EE")),
    keyless("ES", "ESP", "Spain", Some("ES")),
    keyless("FI", "FIN", "Finland", Some("FI")),
    keyless("FR", "FRA", "France", Some("FR")),
    keyless("GR", "GRC", "Greece", Some("GR")),
    keyless("HR", "HRV", "Croatia", Some("HR")),
    keyless("HU", "HUN", "Hungary", Some("HU")),
    keyless("IE", "IRL", "Ireland", None),
    keyless("IT", "ITA", "Italy", None),
    keyless("LT", "LTU", "Lithuania", Some("LT")),
    keyless("LU", "LUX", "Luxembourg", Some("DE-LU")),
    keyless("LV", "LVA", "Latvia", Some("LV")),
    keyless("ME", "MNE", "Montenegro", Some("ME")),
    keyless("MK", "MKD", "North Macedonia", Some("MK")),
    keyless("NL", "NLD", "Netherlands", Some("NL")),
    keyless("NO", "NOR", "Norway", None),
    keyless("PL", "POL", "Poland", Some("PL")),
    keyless("PT", "PRT", "Portugal", Some("PT")),
    keyless("RO", "ROU", "Romania", Some("RO")),
    keyless("RS", "SRB", "Serbia", Some("RS")),
    keyless("SE", "SWE", "Sweden", None),
    keyless("SI", "SVN", "Slovenia", Some("SI")),
    keyless("SK", "SVK", "Slovakia", Some("SK")),
];

/// Other alpha-3 codes that people are likely to write.
const ALPHA3: [(&str, &str); 12] = [
    ("GBR", "GB"),
    ("USA", "US"),
    ("CAN", "CA"),
    ("AUS", "AU"),
    ("JPN", "JP"),
    ("IND", "IN"),
    ("CHN", "CN"),
    ("KOR", "KR"),
    ("SGP", "SG"),
    ("BRA", "BR"),
    ("ISR", "IL"),
    ("ZAF", "ZA"),
];

/// Other names that people are likely to write, in small letters.
const NAMES: [(&str, &str); 22] = [
    ("great britain", "GB"),
    ("united kingdom", "GB"),
    ("britain", "GB"),
    ("england", "GB"),
    ("scotland", "GB"),
    ("wales", "GB"),
    ("bosnia", "BA"),
    ("czech republic", "CZ"),
    ("the netherlands", "NL"),
    ("holland", "NL"),
    ("macedonia", "MK"),
    ("united states", "US"),
    ("canada", "CA"),
    ("australia", "AU"),
    ("japan", "JP"),
    ("india", "IN"),
    ("china", "CN"),
    ("south korea", "KR"),
    ("singapore", "SG"),
    ("brazil", "BR"),
    ("israel", "IL"),
    ("south africa", "ZA"),
];

/// How coordinates are written.
const COORDINATES: &str = "coordinates are latitude,longitude in degrees, like 52.52,13.40: latitude must be from -90 to \
                           90, longitude from -180 to 180, with a comma between them";

/// Danish price areas west and east of the Great Belt, whose middle lies about here.
const GREAT_BELT_LONGITUDE: f64 = 10.98;

impl Place {
    /// Recognises the form of a zone's text.
    pub(super) fn of(zone: &Zone) -> Self {
        Self { zone: zone.clone(), form: form_of(zone.as_str()) }
    }

    /// As it was written.
    pub(super) fn zone(&self) -> &Zone {
        &self.zone
    }

    /// Latitude and longitude in degrees, if that is how it was written.
    pub(super) fn coordinates(&self) -> Option<(f64, f64)> {
        match self.form {
            Form::Coordinates { latitude, longitude } => Some((latitude, longitude)),
            _ => None,
        }
    }

    /// Whether it was written as a source's own code.
    pub(super) fn is_code(&self) -> bool {
        self.form == Form::Code
    }

    /// The country, ISO 3166-1 alpha-2 in capitals, as far as it can be told without asking anybody: coordinates by
    /// their place within borders, codes by what precedes their first hyphen ("SE-SE3") or by being a bidding zone ("SE3").
    pub(super) fn country(&self) -> Option<String> {
        match self.form {
            Form::Country(letters) => Some(letters.iter().map(|b| char::from(*b)).collect()),
            Form::Coordinates { latitude, longitude } => country_at(latitude, longitude),
            Form::Code => {
                if self.price_area().is_some() {
                    return Some("DK".to_owned());
                }
                if let Some(zone) = bidding_zone_named(self.zone.as_str()) {
                    return Some(zone[..2].to_owned());
                }
                let (country, _) = self.zone.as_str().split_once('-')?;
                let iso = country.len() == 2 && country.chars().all(|c| c.is_ascii_uppercase());
                iso.then(|| country.to_owned())
            }
        }
    }

    /// What is wrong with a place that looks like coordinates and is none.
    pub(super) fn misread(&self) -> Option<&'static str> {
        let text = self.zone.as_str();
        let number = |c: char| c.is_ascii_digit() || c.is_whitespace() || "+-.,;°NSEWnsew".contains(c);
        let like =
            text.chars().all(number) && text.contains(|c: char| c.is_ascii_digit()) && text.contains(['.', ',', ';']);
        (self.is_code() && like).then_some(COORDINATES)
    }

    /// Coordinates the other way round with their country, if that is one which sources without a key cover.
    pub(super) fn swapped(&self) -> Option<(String, String)> {
        let (latitude, longitude) = self.coordinates()?;
        let country = country_at(longitude, latitude).filter(|c| c == "GB" || energy_charts_has(c))?;
        Some((format!("{longitude},{latitude}"), country))
    }

    /// The Danish price area ("DK1"), if the place says which.
    pub(super) fn price_area(&self) -> Option<&'static str> {
        match self.form {
            Form::Coordinates { latitude, longitude } => {
                let danish = country_at(latitude, longitude).is_some_and(|c| c == "DK");
                danish.then_some(if longitude < GREAT_BELT_LONGITUDE { "DK1" } else { "DK2" })
            }
            _ => match self.zone.as_str().to_ascii_uppercase().as_str() {
                "DK1" | "DK-DK1" => Some("DK1"),
                "DK2" | "DK-DK2" => Some("DK2"),
                _ => None,
            },
        }
    }

    /// What a source says that cannot do with this place.
    pub(super) fn refused(&self, source_name: &'static str, why: impl Into<String>) -> SettingsError {
        SettingsError::Place { source_name, place: self.zone.to_string(), why: why.into() }
    }
}

/// Whether Energy-Charts knows the country (alpha-2).
pub(super) fn energy_charts_has(country: &str) -> bool {
    ENERGY_CHARTS.iter().any(|k| k.alpha2 == country)
}

/// The countries of Energy-Charts, alpha-2.
pub(super) fn energy_charts_countries() -> impl Iterator<Item = &'static str> {
    named_countries().map(|(alpha2, _)| alpha2)
}

/// The same with their names in English.
pub(super) fn named_countries() -> impl Iterator<Item = (&'static str, &'static str)> {
    ENERGY_CHARTS.iter().map(|k| (k.alpha2, k.name))
}

/// The bidding zone of a country (alpha-2) that is one.
pub(super) fn bidding_zone(country: &str) -> Option<&'static str> {
    ENERGY_CHARTS.iter().find(|k| k.alpha2 == country)?.bidding_zone
}

fn form_of(text: &str) -> Form {
    if let Some((latitude, longitude)) = text.split_once(',')
        && let (Ok(latitude), Ok(longitude)) = (latitude.trim().parse::<f64>(), longitude.trim().parse::<f64>())
        && latitude.abs() <= 90.0
        && longitude.abs() <= 180.0
    {
        return Form::Coordinates { latitude, longitude };
    }
    let upper = text.to_ascii_uppercase();
    let country = match upper.len() {
        2 if upper == "UK" => Some("GB"),
        2 if upper.chars().all(|c| c.is_ascii_uppercase()) => Some(upper.as_str()),
        3 => {
            let keyless = ENERGY_CHARTS.iter().find(|k| k.alpha3 == upper).map(|k| k.alpha2);
            keyless.or_else(|| ALPHA3.iter().find(|(three, _)| *three == upper).map(|(_, two)| *two))
        }
        _ => named(text.trim()),
    };
    match country.map(str::as_bytes) {
        Some([a, b]) => Form::Country([*a, *b]),
        _ => Form::Code,
    }
}

/// The country (alpha-2) of an English name.
fn named(text: &str) -> Option<&'static str> {
    let keyless = named_countries().find(|(_, name)| name.eq_ignore_ascii_case(text)).map(|(alpha2, _)| alpha2);
    keyless.or_else(|| NAMES.iter().find(|(name, _)| name.eq_ignore_ascii_case(text)).map(|(_, alpha2)| *alpha2))
}

/// Which of the points (latitude and longitude in degrees) lie within a country (alpha-2).
pub(super) fn within_country(points: &[(f64, f64)], country: &str) -> Vec<bool> {
    let boundaries = if points.is_empty() { None } else { boundaries() };
    let Some(boundaries) = boundaries else { return vec![false; points.len()] };
    points
        .iter()
        .map(|(latitude, longitude)| country_in(&boundaries, *latitude, *longitude))
        .map(|c| c.as_deref() == Some(country))
        .collect()
}

fn country_at(latitude: f64, longitude: f64) -> Option<String> {
    country_in(&boundaries()?, latitude, longitude)
}

fn country_in(boundaries: &CountryBoundaries, latitude: f64, longitude: f64) -> Option<String> {
    let ids = boundaries.ids(LatLon::new(latitude, longitude).ok()?);
    ids.into_iter().find(|id| id.len() == 2).map(str::to_owned)
}

/// Borders from OpenStreetMap (ODbL), © OpenStreetMap contributors. Read when needed, which is at start only.
fn boundaries() -> Option<CountryBoundaries> {
    CountryBoundaries::from_reader(BOUNDARIES_ODBL_180X90).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(text: &str) -> Place {
        Place::of(&Zone::new(text).expect("a zone"))
    }

    #[test]
    fn places_are_recognised_as_people_write_them() {
        for (text, country) in [
            ("DE", Some("DE")),
            ("de", Some("DE")),
            ("DEU", Some("DE")),
            ("UK", Some("GB")),
            ("gbr", Some("GB")),
            ("52.52,13.40", Some("DE")),
            ("51.5, -0.12", Some("GB")),
            ("35,-45", None),
            ("91,0", None),
            ("US-CAL-CISO", Some("US")),
            ("DK1", Some("DK")),
            ("Germany", Some("DE")),
            ("great britain", Some("GB")),
            ("United Kingdom", Some("GB")),
            ("Bosnia and Herzegovina", Some("BA")),
            ("SE3", Some("SE")),
            ("se-se3", Some("SE")),
            ("no2", Some("NO")),
            ("de-lu", Some("DE")),
            ("IT-Centre-North", Some("IT")),
            ("Atlantis", None),
            ("DK-DK2", Some("DK")),
            ("MISO_MASON_CITY", None),
            ("eastus", None),
        ] {
            assert_eq!(place(text).country().as_deref(), country, "{text}");
        }
        assert!(place("91,0").is_code() && place("eastus").is_code() && !place("fr").is_code());
        for wrong in ["91,0", "51.5", "51.5;-0.1", "51.5N 0.1W", "0,181", "52,52,13"] {
            assert!(place(wrong).misread().is_some_and(|why| why.contains("-90 to 90")), "{wrong}");
        }
        assert!(
            ["13", "BS16", "52.5,13.4", "SE1", "DE", "US-NE-ISNE"].iter().all(|fine| place(fine).misread().is_none())
        );
        assert_eq!(place("0,9.5").coordinates(), Some((0.0, 9.5)), "latitude 0 is a latitude");
    }

    #[test]
    fn danish_price_areas_lie_on_their_side_of_the_belt() {
        let area = |text: &str| place(text).price_area();
        assert_eq!((area("56.16,10.20"), area("55.40,10.39")), (Some("DK1"), Some("DK1")), "Aarhus, Odense");
        assert_eq!((area("55.68,12.57"), area("55.10,14.70")), (Some("DK2"), Some("DK2")), "Copenhagen, Bornholm");
        assert_eq!((area("dk1"), area("DK"), area("52.52,13.40")), (Some("DK1"), None, None));
    }
}
