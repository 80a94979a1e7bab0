//! Places whose electricity grid supplies the machine, and the choice of sources for a place. Users write a place in
//! one of three forms: a country (ISO code or English name), `latitude,longitude`, or a source's own code.

mod automatic;
mod countries;
#[cfg(test)]
mod keyless_tests;
mod zones;

use country_boundaries::{BOUNDARIES_ODBL_180X90, BoundingBox, CountryBoundaries, LatLon};

use serde::Serialize;

pub(super) use automatic::automatic_chain;
pub use automatic::{advice, unknown_zone};
pub(super) use countries::{BIDDING_ZONES, bidding_zone_named, name_and_bidding_zone};
pub use zones::{SourceZones, zones};

use self::countries::{named, with_alpha3};
use super::error::{SettingsError, shortened};
use wattune_core::domain::Zone;

/// A zone as `carbon.zone` accepts it, with a name for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ZoneName {
    /// Code of the zone at the source.
    pub code: String,
    /// Name of the zone, and the signals that exist for it.
    pub name: String,
}

impl ZoneName {
    /// Makes a zone of external texts, which are shortened to one line each.
    pub(in crate::providers) fn new(code: &str, name: &str) -> Self {
        Self { code: shortened(code), name: shortened(name) }
    }
}

/// The place whose electricity grid supplies the machine, as the settings write it.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::providers) struct Place {
    zone: Zone,
    form: Form,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    /// ISO 3166-1 alpha-2 code, in capitals.
    Country([u8; 2]),
    Coordinates {
        latitude: f64,
        longitude: f64,
    },
    /// Code of the zone at a source.
    Code,
}

/// Advice on how to write coordinates.
const COORDINATES: &str = "coordinates are latitude,longitude in degrees, like 52.52,13.40: latitude must be from -90 to \
                           90, longitude from -180 to 180, with a comma between them";

/// Longitude of the Great Belt in degrees, which separates the Danish price areas DK1 (west) and DK2 (east).
const GREAT_BELT_LONGITUDE: f64 = 10.98;

impl Place {
    /// Recognises whether a zone is written as a country, as coordinates, or as a source's own code.
    pub(in crate::providers) fn of(zone: &Zone) -> Self {
        Self { zone: zone.clone(), form: form_of(zone.as_str()) }
    }

    pub(in crate::providers) fn zone(&self) -> &Zone {
        &self.zone
    }

    /// Returns latitude and longitude in degrees if the place is written as coordinates.
    pub(in crate::providers) fn coordinates(&self) -> Option<(f64, f64)> {
        match self.form {
            Form::Coordinates { latitude, longitude } => Some((latitude, longitude)),
            _ => None,
        }
    }

    /// Returns true if the place is written as a source's own code.
    pub(in crate::providers) fn is_code(&self) -> bool {
        self.form == Form::Code
    }

    /// Returns the country, ISO 3166-1 alpha-2 in capitals, if it can be determined without a request: for coordinates,
    /// from the countries' borders; for codes, from the part before the first hyphen ("SE-SE3") or from the bidding
    /// zone ("SE3").
    pub(in crate::providers) fn country(&self) -> Option<String> {
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

    /// Returns true if the place is written as a country's alpha-2 code that no country has.
    pub(in crate::providers) fn is_no_country(&self) -> bool {
        matches!(self.form, Form::Country(_)) && self.country().is_some_and(|country| !is_country(&country))
    }

    /// Returns advice if the place looks like coordinates but is no valid `latitude,longitude`; otherwise `None`.
    pub(in crate::providers) fn misread(&self) -> Option<&'static str> {
        let text = self.zone.as_str();
        let number = |c: char| c.is_ascii_digit() || c.is_whitespace() || "+-.,;°NSEWnsew".contains(c);
        let like =
            text.chars().all(number) && text.contains(|c: char| c.is_ascii_digit()) && text.contains(['.', ',', ';']);
        (self.is_code() && like).then_some(COORDINATES)
    }

    /// Returns first the coordinates with latitude and longitude swapped, as text, second the country at the swapped
    /// point; `None` if the place is not written as coordinates, or if no country is there.
    fn swapped(&self) -> Option<(String, String)> {
        let (latitude, longitude) = self.coordinates()?;
        Some((format!("{longitude},{latitude}"), country_at(longitude, latitude)?))
    }

    /// Returns the Danish price area ("DK1" or "DK2") that the place lies in; `None` outside Denmark and for Denmark as
    /// a whole.
    pub(in crate::providers) fn price_area(&self) -> Option<&'static str> {
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

    /// Returns the error for a source that does not serve this place; `why` is the reason, with the remedy.
    pub(in crate::providers) fn refused(&self, source_name: &'static str, why: impl Into<String>) -> SettingsError {
        SettingsError::Place { source_name, place: self.zone.to_string(), why: why.into() }
    }
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
        3 => with_alpha3(&upper),
        _ => named(text.trim()),
    };
    match country.map(str::as_bytes) {
        Some([a, b]) => Form::Country([*a, *b]),
        _ => Form::Code,
    }
}

/// Returns for each point (latitude and longitude in degrees) true if it lies within the country (alpha-2).
pub(in crate::providers) fn within_country(points: &[(f64, f64)], country: &str) -> Vec<bool> {
    let boundaries = if points.is_empty() { None } else { boundaries() };
    let Some(boundaries) = boundaries else { return vec![false; points.len()] };
    points
        .iter()
        .map(|(latitude, longitude)| country_in(&boundaries, *latitude, *longitude))
        .map(|c| c.as_deref() == Some(country))
        .collect()
}

/// Returns true if a code is the alpha-2 code of a country, or of an area with a code of its own, such as Hong Kong.
fn is_country(alpha2: &str) -> bool {
    let Some(boundaries) = boundaries() else { return true };
    let halves = [-180.0, 0.0].map(|west| BoundingBox::new(-90.0, west, 90.0, west + 179.9));
    // Antarctica has no borders there.
    alpha2 == "AQ" || halves.into_iter().flatten().any(|half| boundaries.intersecting_ids(half).contains(alpha2))
}

fn country_at(latitude: f64, longitude: f64) -> Option<String> {
    country_in(&boundaries()?, latitude, longitude)
}

fn country_in(boundaries: &CountryBoundaries, latitude: f64, longitude: f64) -> Option<String> {
    let ids = boundaries.ids(LatLon::new(latitude, longitude).ok()?);
    ids.into_iter().find(|id| id.len() == 2).map(str::to_owned)
}

/// Reads the built-in borders of countries, data from OpenStreetMap (ODbL), © OpenStreetMap contributors. They are not
/// kept in memory, because they are needed only around the start of the daemon.
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
        for (text, wrong) in [
            ("XX", true),
            ("zz", true),
            ("TX", true),
            ("AQ", false),
            ("IN", false),
            ("ke", false),
            ("HK", false),
            ("PR", false),
            ("XK", false),
        ] {
            assert_eq!(place(text).is_no_country(), wrong, "{text}");
        }
        for source in crate::providers::sources::Source::ALL {
            for country in source.descriptor().countries {
                assert!(!place(country).is_no_country(), "{country}");
            }
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
