//! The signals that files can hold, and the properties of each.

use wattune_core::domain::{SignalValue, Unit};
use wattune_core::units::{GramsPerKwh, PricePerMwh};

/// A signal that files can hold.
pub trait FileSignal: SignalValue {
    /// Table of the settings that describes the file, `carbon` or `price`.
    const TABLE: &'static str;
    /// Unit of the values if the settings name none; `None` for prices.
    const UNIT: Option<Unit>;
    /// Units that the settings can name: first the default, second the unit that is most often confused with the
    /// default, then others.
    const UNITS: &'static [&'static str];
    /// Value in the default unit: a file without a larger value is most likely in the second of [`Self::UNITS`].
    const SUSPICIOUS_UP_TO: f64;
    /// Known names of value columns, in lower case, with letters and digits only.
    const VALUE_COLUMNS: &'static [&'static str];
    /// Example of a name of a value column, for messages.
    const EXAMPLE: &'static str;
    /// Name and range of a valid value, for messages.
    const RIGHT: &'static str;
    /// Plural name of the values ("prices"), for messages.
    const VALUES: &'static str;
    /// Name of the setting that chooses among several zones in a file, for messages.
    const ZONE_SETTING: &'static str;
}

impl FileSignal for GramsPerKwh {
    const TABLE: &'static str = "carbon";
    const UNIT: Option<Unit> = Some(Unit::GramsPerKwh);
    const UNITS: &'static [&'static str] = &["g_per_kwh", "kg_per_kwh", "t_per_mwh", "lb_per_mwh"];
    const SUSPICIOUS_UP_TO: f64 = 1.5;
    const VALUE_COLUMNS: &'static [&'static str] = &[
        "value",
        "carbonintensity",
        "carbonintensitygco2perkwh",
        "carbonintensitygco2eperkwh",
        "carbonintensitygco2eqperkwh",
        "carbonintensitygperkwh",
        "intensity",
        "intensitygperkwh",
        "gco2perkwh",
        "gco2eperkwh",
        "gperkwh",
    ];
    const EXAMPLE: &'static str = "carbon_intensity_gco2_per_kwh";
    const RIGHT: &'static str = "a carbon intensity (grams per kWh, from 0 to 20000)";
    const VALUES: &'static str = "intensities";
    const ZONE_SETTING: &'static str = "carbon.zone";
}

impl FileSignal for PricePerMwh {
    const TABLE: &'static str = "price";
    const UNIT: Option<Unit> = None;
    const UNITS: &'static [&'static str] = &["per_mwh", "per_kwh", "cents_per_kwh"];
    const SUSPICIOUS_UP_TO: f64 = 1.0;
    const VALUE_COLUMNS: &'static [&'static str] = &[
        "price",
        "value",
        "pricepermwh",
        "permwh",
        "priceeurmwh",
        "priceeurpermwh",
        "eurpermwh",
        "eurmwh",
        "dayaheadprice",
        "dayaheadpriceeurmwh",
        "dayaheadpriceeurpermwh",
        "spotprice",
        "spotpriceeurmwh",
        "spotpriceeur",
        "marketprice",
    ];
    const EXAMPLE: &'static str = "price_eur_per_mwh";
    const RIGHT: &'static str = "a price per MWh (from -100000 to 100000)";
    const VALUES: &'static str = "prices";
    const ZONE_SETTING: &'static str = "carbon.energy_charts.bidding_zone";
}
