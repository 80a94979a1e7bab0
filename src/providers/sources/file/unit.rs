//! Refuses a file whose column names or values contradict the unit in which it is read.

use super::columns::Columns;
use super::error::ParseError;
use super::settings::Settings;
use super::signal::FileSignal;
use crate::providers::error::shortened;

/// Returns the unit that a column's name contains, in the words of the setting `unit`; `None` for a default unit, or if
/// the name contains no unit. The caller ignores units that its signal does not have, such as "per_kwh" for intensities
/// in "gco2_per_kwh".
fn named_unit(name: &str) -> Option<&'static str> {
    let name = name.to_ascii_lowercase();
    let words: Vec<&str> = name.split(|c: char| !c.is_ascii_alphanumeric()).collect();
    let any = |is: &dyn Fn(&str) -> bool| words.iter().any(|word| is(word));
    let is_per_mwh = any(&|w| w.ends_with("mwh"));
    let is_per_kwh = any(&|w| w.ends_with("kwh")) && !is_per_mwh;
    if any(&|w| w.starts_with("kg")) {
        // A kilogram per MWh is a gram per kWh.
        (!is_per_mwh).then_some("kg_per_kwh")
    } else if any(&|w| matches!(w, "lb" | "lbs") || w.starts_with("lbco2") || w.starts_with("lbsco2")) {
        Some("lb_per_mwh")
    } else if any(&|w| matches!(w, "t" | "tons" | "tonnes") || w.starts_with("tco2")) {
        Some("t_per_mwh")
    } else if is_per_kwh && any(&|w| matches!(w, "ct" | "cent" | "cents" | "pence" | "öre")) {
        Some("cents_per_kwh")
    } else {
        is_per_kwh.then_some("per_kwh")
    }
}

/// Refuses a value column whose name contains another unit than the default, if the settings name no unit.
pub(super) fn check_names<V: FileSignal>(columns: &Columns, settings: &Settings) -> Result<(), ParseError> {
    if settings.unit.is_some() {
        return Ok(());
    }
    for column in columns.expected.iter().chain(&columns.actual) {
        if let Some(unit) = named_unit(&column.name).filter(|unit| V::UNITS.contains(unit)) {
            let (right, table) = (V::UNITS[0], V::TABLE);
            return Err(ParseError {
                at: "the first line".to_owned(),
                what: format!(
                    "column {:?} names another unit than {right}; convert the values to that, and rename the column",
                    shortened(&column.name)
                ),
                setting: format!(
                    ", or set {table}.file.unit = \"{unit}\", or \"{right}\" if the values are in that unit \
                     nevertheless"
                ),
            });
        }
    }
    Ok(())
}

/// Refuses values that are all so small that they are most likely in another unit, if the settings name no unit. Files
/// of only whole numbers are accepted, because they may be tests.
pub(super) fn check_values<V: FileSignal>(
    values: impl Iterator<Item = f64> + Clone,
    settings: &Settings,
) -> Result<(), ParseError> {
    let most = values.clone().map(f64::abs).fold(0.0, f64::max);
    if settings.unit.is_some() || most <= 0.0 || most > V::SUSPICIOUS_UP_TO || values.clone().all(|v| v.fract() == 0.0)
    {
        return Ok(());
    }
    let [right, other, ..] = V::UNITS else { return Ok(()) };
    let table = V::TABLE;
    Err(ParseError {
        at: "the values".to_owned(),
        what: format!(
            "no value is above {most}, so the values look like {other} but are read as {right}; convert them to that"
        ),
        setting: format!(", or set {table}.file.unit = \"{other}\", or \"{right}\" if that is their unit"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_columns_say_units() {
        for (name, unit) in [
            ("carbon_intensity_gco2_per_kwh", Some("per_kwh")),
            ("kgCO2/kWh", Some("kg_per_kwh")),
            ("Carbon intensity (kg CO2e per kWh)", Some("kg_per_kwh")),
            ("kgCO2/MWh", None),
            ("carbon_intensity_kg_per_mwh", None),
            ("marginal lbs/MWh", Some("lb_per_mwh")),
            ("tCO2/MWh", Some("t_per_mwh")),
            ("direct_co2", None),
            ("ct/kWh", Some("cents_per_kwh")),
            ("EUR/kWh", Some("per_kwh")),
            ("EUR/MWh", None),
            ("value", None),
        ] {
            assert_eq!(named_unit(name), unit, "{name}");
        }
    }
}
