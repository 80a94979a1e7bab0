//! The signals that files can hold, and what is peculiar to each.

use crate::domain::{SignalValue, Unit};
use crate::units::{GramsPerKwh, PricePerMwh};

/// A signal that files can hold.
pub trait FileSignal: SignalValue {
    /// The table of the settings that speaks of the file, `[carbon]` or `[price]`.
    const TABLE: &'static str;
    /// What its values are given in.
    const UNIT: Option<Unit>;
    /// Names of columns of values, in small letters and digits only.
    const VALUE_COLUMNS: &'static [&'static str];
    /// A good name for such a column.
    const EXAMPLE: &'static str;
    /// What a value is, for messages.
    const RIGHT: &'static str;
    /// The same for several.
    const VALUES: &'static str;
    /// The setting that chooses among several zones of a file.
    const ZONE_SETTING: &'static str;
}

impl FileSignal for GramsPerKwh {
    const TABLE: &'static str = "carbon";
    const UNIT: Option<Unit> = Some(Unit::GramsPerKwh);
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
