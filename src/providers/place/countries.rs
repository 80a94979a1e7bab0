//! Countries and bidding zones (areas with one electricity price) by the names that users write.

use wattune_core::domain::nearest;

/// A country, which users may write by its name or its three-letter code.
struct Country {
    alpha2: &'static str,
    alpha3: &'static str,
    /// English name of the country.
    name: &'static str,
    /// The country's bidding zone at Energy-Charts; absent if the country has several or none.
    bidding_zone: Option<&'static str>,
}

const fn country(
    alpha2: &'static str,
    alpha3: &'static str,
    name: &'static str,
    bidding_zone: Option<&'static str>,
) -> Country {
    Country { alpha2, alpha3, name, bidding_zone }
}

const COUNTRIES: [Country; 44] = [
    country("AT", "AUT", "Austria", Some("AT")),
    country("AU", "AUS", "Australia", None),
    country("BA", "BIH", "Bosnia and Herzegovina", None),
    country("BE", "BEL", "Belgium", Some("BE")),
    country("BG", "BGR", "Bulgaria", Some("BG")),
    country("BR", "BRA", "Brazil", None),
    country("CA", "CAN", "Canada", None),
    country("CH", "CHE", "Switzerland", Some("CH")),
    country("CN", "CHN", "China", None),
    country("CY", "CYP", "Cyprus", None),
    country("CZ", "CZE", "Czechia", Some("CZ")),
    country("DE", "DEU", "Germany", Some("DE-LU")),
    country("DK", "DNK", "Denmark", None),
    country("EE", "EST", "Estonia", Some("EE")),
    country("ES", "ESP", "Spain", Some("ES")),
    country("FI", "FIN", "Finland", Some("FI")),
    country("FR", "FRA", "France", Some("FR")),
    country("GB", "GBR", "Great Britain", None),
    country("GR", "GRC", "Greece", Some("GR")),
    country("HR", "HRV", "Croatia", Some("HR")),
    country("HU", "HUN", "Hungary", Some("HU")),
    country("IE", "IRL", "Ireland", None),
    country("IL", "ISR", "Israel", None),
    country("IN", "IND", "India", None),
    country("IT", "ITA", "Italy", None),
    country("JP", "JPN", "Japan", None),
    country("KR", "KOR", "South Korea", None),
    country("LT", "LTU", "Lithuania", Some("LT")),
    country("LU", "LUX", "Luxembourg", Some("DE-LU")),
    country("LV", "LVA", "Latvia", Some("LV")),
    country("ME", "MNE", "Montenegro", Some("ME")),
    country("MK", "MKD", "North Macedonia", Some("MK")),
    country("NL", "NLD", "Netherlands", Some("NL")),
    country("NO", "NOR", "Norway", None),
    country("PL", "POL", "Poland", Some("PL")),
    country("PT", "PRT", "Portugal", Some("PT")),
    country("RO", "ROU", "Romania", Some("RO")),
    country("RS", "SRB", "Serbia", Some("RS")),
    country("SE", "SWE", "Sweden", None),
    country("SG", "SGP", "Singapore", None),
    country("SI", "SVN", "Slovenia", Some("SI")),
    country("SK", "SVK", "Slovakia", Some("SK")),
    country("US", "USA", "United States", None),
    country("ZA", "ZAF", "South Africa", None),
];

/// Other names of countries: first a name in lower case, second the country's alpha-2 code.
const OTHER_NAMES: [(&str, &str); 10] = [
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
];

/// Bidding zones that are a part of a country or span several countries, by their names at Energy-Charts.
pub(in crate::providers) const BIDDING_ZONES: [&str; 22] = [
    "DE-LU",
    "DK1",
    "DK2",
    "IT-Calabria",
    "IT-Centre-North",
    "IT-Centre-South",
    "IT-North",
    "IT-SACOAC",
    "IT-SACODC",
    "IT-Sardinia",
    "IT-Sicily",
    "IT-South",
    "NO1",
    "NO2",
    "NO2NSL",
    "NO3",
    "NO4",
    "NO5",
    "SE1",
    "SE2",
    "SE3",
    "SE4",
];

/// Returns the alpha-2 code of the country with this alpha-3 code, both in capitals; `None` if the country is unknown.
pub(super) fn with_alpha3(alpha3: &str) -> Option<&'static str> {
    COUNTRIES.iter().find(|c| c.alpha3 == alpha3).map(|c| c.alpha2)
}

/// Returns the alpha-2 code of the country with this English name in any letter case; `None` if the name is unknown.
pub(super) fn named(name: &str) -> Option<&'static str> {
    let country = COUNTRIES.iter().find(|c| c.name.eq_ignore_ascii_case(name)).map(|c| c.alpha2);
    country
        .or_else(|| OTHER_NAMES.iter().find(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, alpha2)| *alpha2))
}

/// Returns the name of a country or the code of a bidding zone that is most similar to a text; `None` if none is.
pub(super) fn similar(text: &str) -> Option<&'static str> {
    let names = COUNTRIES.iter().map(|country| country.name).chain(OTHER_NAMES.iter().map(|(name, _)| *name));
    nearest(text, names.chain(BIDDING_ZONES))
}

/// Returns first the English name of a country, second its bidding zone if it has exactly one known zone; `None` if the
/// country's alpha-2 code is unknown.
pub(in crate::providers) fn name_and_bidding_zone(alpha2: &str) -> Option<(&'static str, Option<&'static str>)> {
    COUNTRIES.iter().find(|c| c.alpha2 == alpha2).map(|c| (c.name, c.bidding_zone))
}

/// Returns the entry of [`BIDDING_ZONES`] that a code names in any letter case, with or without the country in front
/// ("SE3" or "SE-SE3").
pub(in crate::providers) fn bidding_zone_named(code: &str) -> Option<&'static str> {
    let known = |code: &str| BIDDING_ZONES.iter().copied().find(|zone| zone.eq_ignore_ascii_case(code));
    known(code).or_else(|| known(code.split_once('-')?.1))
}
