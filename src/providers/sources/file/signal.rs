//! The signals that files can hold, and what is peculiar to each.

use wattune_core::domain::{SignalValue, Unit};
use wattune_core::units::{GramsPerKwh, PricePerMwh};

/// A signal that files can hold.
pub trait FileSignal: SignalValue {
    /// The table of the settings that describes the file, `[carbon]` or `[price]`.
    const TABLE: &'static str;
    /// The unit of its values, unless the settings name another one.
    const UNIT: Option<Unit>;
    /// The units that the settings can name: the usual one, the one that it is taken for most often, and others.
    const UNITS: &'static [&'static str];
    /// A file without a larger value is most likely given in the second unit.
    const SMALL: f64;
    /// Names of columns of values, in small letters and digits only.
    const VALUE_COLUMNS: &'static [&'static str];
    /// A good name for such a column.
    const EXAMPLE: &'static str;
    /// A value's name and range, for messages.
    const RIGHT: &'static str;
    /// The same for several.
    const VALUES: &'static str;
    /// The setting that chooses among several zones of a file.
    const ZONE_SETTING: &'static str;
}

impl FileSignal for GramsPerKwh {
    const TABLE: &'static str = "carbon";
    const UNIT: Option<Unit> = Some(Unit::GramsPerKwh);
    const UNITS: &'static [&'static str] = &["g_per_kwh", "kg_per_kwh", "t_per_mwh", "lb_per_mwh"];
    const SMALL: f64 = 1.5;
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
    const SMALL: f64 = 1.0;
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
