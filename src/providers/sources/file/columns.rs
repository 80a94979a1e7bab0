//! Recognises the meaning of a file's columns from their names.

use super::error::ParseError;
use super::settings::Settings;
use super::signal::FileSignal;
use crate::providers::error::shortened;
use wattune_core::domain::nearest;
use wattune_core::units::{GramsPerKwh, PricePerMwh};

/// Names of the time column. Names are compared in lower case, with only their letters and digits.
const TIME: &[&str] = &[
    "timestamp",
    "timestamputc",
    "datetime",
    "datetimeutc",
    "time",
    "timeutc",
    "from",
    "start",
    "starttime",
    "pointtime",
];
const END: &[&str] = &["to", "end", "endtime", "until"];
const DURATION: &[&str] = &["duration", "durationminutes", "durationmin"];
const ZONE: &[&str] = &["zone", "location", "region", "zonekey"];
const FORECAST: &[&str] = &["forecast", "forecastgco2perkwh", "forecastgperkwh", "expected", "predicted", "prediction"];
const ACTUAL: &[&str] = &["actual", "actualgco2perkwh", "actualgperkwh", "hist", "measured", "observed", "outcome"];

/// Maximum number of columns of a file: every name is compared with all known ones.
const MOST_COLUMNS: usize = 1000;

/// A column of the file: its index among the columns, and its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Column {
    pub(super) index: usize,
    pub(super) name: String,
}

/// The recognised columns of a file. At least one of `expected` (forecast) and `actual` is present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Columns {
    pub(super) time: Column,
    pub(super) end: Option<Column>,
    pub(super) duration: Option<Column>,
    pub(super) zone: Option<Column>,
    pub(super) expected: Option<Column>,
    pub(super) actual: Option<Column>,
    /// True if the name of the time column says that its times are UTC.
    pub(super) named_utc: bool,
}

impl Columns {
    /// Finds each column by its configured name, or by known names if none is configured. `names` are those in the
    /// file.
    pub(super) fn find<V: FileSignal>(names: &[String], settings: &Settings) -> Result<Self, ParseError> {
        if names.len() > MOST_COLUMNS {
            let what = format!("has {} columns; at most {MOST_COLUMNS} are read", names.len());
            return Err(ParseError::new("the first line", what));
        }
        let find = |configured: &Option<String>, known: &[&str]| named(names, configured.as_deref(), known);
        let Some(time) = find(&settings.time_column, TIME)? else {
            return Err(missing::<V>("time", "timestamp", "time_column", names));
        };
        let (expected, actual) = values::<V>(names, settings)?;
        if expected.is_none() && actual.is_none() {
            return Err(missing::<V>("values", V::EXAMPLE, "value_column", names));
        }
        Ok(Self {
            named_utc: plain(&time.name).collect::<String>().ends_with("utc"),
            time,
            end: find(&settings.end_column, END)?,
            duration: find(&settings.duration_column, DURATION)?,
            zone: find(&settings.zone_column, ZONE)?,
            expected,
            actual,
        })
    }
}

/// Returns first the column of forecasts, second that of actual values. If the file has only one column of values, it
/// is used as both, unless its name says that it holds a forecast.
fn values<V: FileSignal>(
    names: &[String],
    settings: &Settings,
) -> Result<(Option<Column>, Option<Column>), ParseError> {
    let forecast = named(names, settings.value_column.as_deref(), FORECAST)?;
    let actual = named(names, settings.actual_column.as_deref(), ACTUAL)?;
    let neutral = named(names, None, V::VALUE_COLUMNS)?;
    Ok(match (forecast, actual, neutral) {
        (Some(forecast), Some(actual), _) => (Some(forecast), Some(actual)),
        // "carbon_intensity" beside "forecast" holds actual values.
        (Some(forecast), None, Some(neutral)) if settings.value_column.is_none() => (Some(forecast), Some(neutral)),
        (Some(forecast), None, _) if is_named_forecast(&forecast.name) => (Some(forecast), None),
        (None, Some(actual), Some(neutral)) => (Some(neutral), Some(actual)),
        (Some(only), None, _) | (None, Some(only), None) | (None, None, Some(only)) => (Some(only.clone()), Some(only)),
        (None, None, None) => (None, None),
    })
}

fn is_named_forecast(name: &str) -> bool {
    let plain: String = plain(name).collect();
    ["forecast", "predict", "expected"].iter().any(|word| plain.contains(word))
}

fn named(names: &[String], configured: Option<&str>, known: &[&str]) -> Result<Option<Column>, ParseError> {
    let column = |index: usize| Column { index, name: names[index].clone() };
    if let Some(wanted) = configured {
        let index = names.iter().position(|name| name.trim() == wanted.trim());
        return index.map(|i| Some(column(i))).ok_or_else(|| {
            ParseError::new("the first line", format!("there is no column {wanted:?}; there are {}", listed(names)))
        });
    }
    let found = known.iter().find_map(|known| names.iter().position(|name| plain(name).eq(known.chars())));
    Ok(found.map(column))
}

fn missing<V: FileSignal>(what: &str, example: &str, setting: &str, names: &[String]) -> ParseError {
    ParseError {
        at: "the first line".to_owned(),
        what: format!("no column for {what} among {}; name it like {example:?}", listed(names)),
        setting: format!(" or set {}.file.{setting}", V::TABLE),
    }
}

/// Lists the names that are known or similar to known ones, and counts the others: if the configured path leads to
/// another file by mistake, the first line of that file must not be shown.
fn listed(names: &[String]) -> String {
    let known = [TIME, END, DURATION, ZONE, FORECAST, ACTUAL, GramsPerKwh::VALUE_COLUMNS, PricePerMwh::VALUE_COLUMNS];
    let is_known = |name: &&String| {
        let plain: String = plain(name).collect();
        name.is_ascii() && name.len() <= 48 && nearest(&plain, known.into_iter().flatten().copied()).is_some()
    };
    let mut shown: Vec<_> =
        names.iter().filter(is_known).take(12).map(|name| format!("{:?}", shortened(name))).collect();
    match names.len() - shown.len() {
        0 => {}
        others if shown.is_empty() => shown.push(format!("the {others} of the file")),
        others => shown.push(format!("{others} other(s)")),
    }
    if shown.is_empty() { "none".to_owned() } else { shown.join(", ") }
}

fn plain(name: &str) -> impl Iterator<Item = char> {
    name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roles(header: &str, settings: &Settings) -> Result<(Option<String>, Option<String>), ParseError> {
        let names: Vec<_> = header.split(',').map(str::to_owned).collect();
        Columns::find::<GramsPerKwh>(&names, settings).map(|c| (c.expected.map(|c| c.name), c.actual.map(|c| c.name)))
    }

    #[test]
    fn value_columns_find_their_roles() {
        let default = Settings::default();
        let both = |a: &str, b: &str| Ok((Some(a.to_owned()), Some(b.to_owned())));
        assert_eq!(roles("location,timestamp,duration,value,hist", &default), both("value", "hist"));
        assert_eq!(roles("timestamp_utc,Carbon Intensity gCO2/kWh,actual", &default), both("actual", "actual"));
        assert_eq!(roles("from,to,forecast,actual", &default), both("forecast", "actual"));
        assert_eq!(roles("datetime,carbonIntensity", &default), both("carbonIntensity", "carbonIntensity"));
        assert_eq!(roles("datetime,carbonIntensity,forecast", &default), both("forecast", "carbonIntensity"));
        let only = Ok((Some("forecast_gco2_per_kwh".to_owned()), None));
        assert_eq!(roles("timestamp_utc,forecast_gco2_per_kwh", &default), only);
        let chosen = Settings { value_column: Some("x".to_owned()), ..Settings::default() };
        assert_eq!(roles("time,x,value", &chosen), both("x", "x"));
    }

    #[test]
    fn a_missing_column_is_named_with_those_there_are() {
        let default = Settings::default();
        let error = roles("when,value", &default).expect_err("no time").to_string();
        assert!(error.contains("among \"value\", 1 other(s);") && error.contains("carbon.file.time_column"), "{error}");
        let chosen = Settings { actual_column: Some("came".to_owned()), ..Settings::default() };
        let error = roles("time,value", &chosen).expect_err("no such column").to_string();
        assert!(error.contains("no column \"came\""), "{error}");
    }
    #[test]
    fn prices_have_names_of_their_own() {
        for name in ["price", "Value", "EUR/MWh", "eur_per_mwh", "price_eur_mwh", "Price (EUR/MWh)", "day_ahead_price"]
        {
            let names = ["time".to_owned(), name.to_owned()];
            let columns = Columns::find::<PricePerMwh>(&names, &Settings::default()).expect(name);
            assert_eq!(columns.expected.map(|c| c.name).as_deref(), Some(name));
        }
        let names = ["time".to_owned(), "carbon_intensity".to_owned()];
        let error = Columns::find::<PricePerMwh>(&names, &Settings::default()).expect_err("no price").to_string();
        assert!(error.contains("price.file.value_column"), "{error}");
    }
}
