//! Parses CSV and JSON files of a signal, independently of the present time.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use serde_json::{Map, Value};

use super::columns::{Column, Columns};
use super::error::ParseError;
use super::local::LocalTimes;
use super::numbers::{Numbers, separator};
use super::settings::{FileUnit, Settings};
use super::signal::FileSignal;
use super::slots::{LONGEST_SLOT, lengths};
use super::time_zone::TimeZoneName;
use super::unit::{check_names, check_values};
use crate::providers::client::abridged::is_like_key;
use crate::providers::client::cache::well_formed;
use crate::providers::client::time::{TimeProblem, from_unix};
use crate::providers::error::shortened;
use wattune_core::domain::{Forecast, Origin, Quoted, SeriesProblem, SignalKind, SignalScope, Slot, TimeSeries, Zone};
use wattune_core::units::GramsPerKwh;

/// Maximum length of a JSON file in bytes: parsed, it takes many times the memory.
const MAX_JSON_BYTES: usize = 16 << 20;

/// Maximum number of rows of a file: a million are nine years in steps of five minutes.
const MOST_ROWS: usize = 1_000_000;

/// Number of problems of a series that are listed one by one; the others are counted.
const PROBLEMS_LISTED: usize = 5;

/// Content of a file, independent of the present time.
#[derive(Clone, Debug, PartialEq)]
pub struct ParsedFile<V = GramsPerKwh> {
    /// Forecast values of all rows, oldest first.
    pub expected: TimeSeries<Quoted<V>>,
    /// Actual values of all rows, oldest first, including those in the future.
    pub actual: TimeSeries<Quoted<V>>,
    /// True if one column holds both forecast and actual values, and the file does not say which of the two was meant.
    pub one_for_both: bool,
    /// Zone of the grid, if the file or the caller names one.
    pub zone: Option<Zone>,
    /// Kind of the values: average or marginal.
    pub kind: SignalKind,
    /// Scope of the values: lifecycle or operational.
    pub scope: SignalScope,
    /// Error about the first row whose start occurs in an earlier row already; absent if there is none. The values of
    /// the later row count.
    pub repeated: Option<ParseError>,
    /// Time at which the forecast was made, if the file names it.
    pub issued_at: Option<DateTime<Utc>>,
    /// Notes about gaps, overlaps and disorder.
    pub notes: Vec<String>,
}

impl<V> ParsedFile<V> {
    /// Returns the time of the file's first value, and the end of its last one; `None` without values.
    pub(super) fn span(&self) -> Option<(DateTime<Utc>, DateTime<Utc>)> {
        let start = self.expected.start().into_iter().chain(self.actual.start()).min()?;
        Some((start, self.expected.end().max(self.actual.end())?))
    }
}

/// Reads a CSV file with a header line, a JSON array of objects (also under `data`), or a stored [`Forecast`].
///
/// Empty fields and nulls count as absent values. If the file has several zones, `zone` chooses one.
///
/// # Errors
/// If the columns are not recognised; if a field is neither empty nor a valid time or value, with its row and column;
/// if there is no value at all.
pub fn parse(bytes: &[u8], settings: &Settings, zone: Option<&Zone>) -> Result<ParsedFile, ParseError> {
    parse_as(bytes, settings, zone)
}

/// Reads a file as [`parse`] does, for any signal.
pub fn parse_as<V: FileSignal>(
    bytes: &[u8],
    settings: &Settings,
    zone: Option<&Zone>,
) -> Result<ParsedFile<V>, ParseError> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let parsed = match bytes.iter().find(|b| !b.is_ascii_whitespace()) {
        None => return Err(error("the file", "is empty; write a header line and one row per slot")),
        Some(b'[' | b'{') => parse_json(bytes, settings, zone)?,
        Some(_) => Rows::from_csv(bytes, settings)?.into_file(settings, zone)?,
    };
    if parsed.expected.is_empty() && parsed.actual.is_empty() {
        return Err(error("the file", "has no row with a value"));
    }
    Ok(parsed)
}

fn parse_json<V: FileSignal>(
    bytes: &[u8],
    settings: &Settings,
    zone: Option<&Zone>,
) -> Result<ParsedFile<V>, ParseError> {
    if bytes.len() > MAX_JSON_BYTES {
        return Err(error("the file", "JSON is read up to 16 MiB; use CSV for more"));
    }
    let unreadable = |e: serde_json::Error| error(&format!("line {}, column {}", e.line(), e.column()), &e.to_string());
    let mut tree: Value = serde_json::from_slice(bytes).map_err(unreadable)?;
    if tree.get("expected").is_some() && tree.get("retrieved_at").is_some() {
        return stored_forecast(tree, zone);
    }
    if let Some(data) = tree.get_mut("data") {
        tree = data.take();
    }
    let Value::Array(entries) = tree else {
        return Err(error("the file", "write an array of objects, also as {\"data\": […]}"));
    };
    Rows::from_json(&entries, settings)?.into_file(settings, zone)
}

fn stored_forecast<V: FileSignal>(tree: Value, zone: Option<&Zone>) -> Result<ParsedFile<V>, ParseError> {
    let forecast: Forecast<V> =
        serde_json::from_value(tree).map_err(|_| error("the stored forecast", "is not as wattune stores one"))?;
    if let Some(wanted) = zone.filter(|z| **z != forecast.zone) {
        return Err(error("the stored forecast", &format!("is for {}, not for {wanted}", forecast.zone)));
    }
    if !well_formed(&forecast) {
        return Err(error(
            "the stored forecast",
            &format!("has slots out of order, or values that are no {}", V::VALUES),
        ));
    }
    Ok(ParsedFile {
        expected: forecast.expected,
        actual: forecast.actual,
        one_for_both: false,
        repeated: None,
        zone: Some(forecast.zone),
        kind: forecast.kind,
        scope: forecast.scope,
        issued_at: Some(forecast.issued_at),
        notes: Vec::new(),
    })
}

/// A field of a row, as CSV or JSON files hold it.
enum Cell<'a> {
    Absent,
    Text(&'a str),
    Number(f64),
    Other,
}

impl<'a> Cell<'a> {
    fn text(text: &'a str) -> Self {
        let text = text.trim();
        if text.is_empty() || text.eq_ignore_ascii_case("null") { Self::Absent } else { Self::Text(text) }
    }

    fn json(object: &'a Map<String, Value>, column: &Column) -> Self {
        match object.get(&column.name) {
            None | Some(Value::Null) => Self::Absent,
            Some(Value::String(text)) => Self::text(text),
            Some(Value::Number(number)) => number.as_f64().map_or(Self::Other, Self::Number),
            Some(_) => Self::Other,
        }
    }

    fn shown(&self) -> String {
        match self {
            Self::Absent => "nothing".to_owned(),
            Self::Text(text) => shown(text),
            Self::Number(number) => number.to_string(),
            Self::Other => "a nested value".to_owned(),
        }
    }
}

#[derive(Clone, Debug)]
struct Row<V> {
    /// Line number in a CSV file, or number of the entry in a JSON list.
    place: u64,
    start: DateTime<Utc>,
    end: Option<DateTime<Utc>>,
    zone: Option<String>,
    expected: Option<V>,
    actual: Option<V>,
}

/// Returns a field's text for a message, but only if it could be a number, a time or a single word: if the configured
/// path leads to another file by mistake, the content of that file must not be shown.
fn shown(text: &str) -> String {
    let is_short = text.chars().count() <= 32;
    let is_figure = text.chars().all(|c| c.is_ascii_digit() || " +-.,:/eETZ".contains(c));
    let is_word = text.len() <= 12 && text.chars().all(|c| c.is_ascii_alphabetic());
    if is_short && (is_figure || is_word) {
        format!("{text:?}")
    } else {
        format!("a text of {} characters", text.chars().count())
    }
}

const LINE: &str = "line";
const ENTRY: &str = "entry";

#[derive(Debug)]
struct Rows<V> {
    rows: Vec<Row<V>>,
    /// Word for the places of rows in messages, `line` or `entry`.
    place: &'static str,
    /// True if one column holds both forecast and actual values.
    one_for_both: bool,
    /// True if times without a time zone were read, in the file's time zone.
    is_local: bool,
    /// Notes about the columns.
    notes: Vec<String>,
}

impl<V: FileSignal> Rows<V> {
    fn from_csv(bytes: &[u8], settings: &Settings) -> Result<Self, ParseError> {
        let unreadable = |e: csv::Error| {
            let at = e.position().map_or_else(|| "the file".to_owned(), |p| format!("line {}", p.line()));
            error(&at, &unreadable_row(&e))
        };
        let (bytes, separator) = separator::<V>(bytes, settings);
        let mut reader = csv::ReaderBuilder::new().delimiter(separator).from_reader(bytes);
        let names: Vec<_> = reader.headers().map_err(unreadable)?.iter().map(|n| n.trim().to_owned()).collect();
        let columns = Columns::find::<V>(&names, settings)?;
        check_names::<V>(&columns, settings)?;
        let mut reading = Reading::new(settings, &columns, Numbers::separated_by(separator));
        let mut rows = Vec::new();
        let mut record = csv::StringRecord::new();
        while reader.read_record(&mut record).map_err(unreadable)? {
            if rows.len() >= MOST_ROWS {
                return Err(error(
                    "the file",
                    &format!("has more than {MOST_ROWS} rows; leave out what lies far back"),
                ));
            }
            let line = record.position().map_or(0, csv::Position::line);
            let cell = |column: &Column| Cell::text(record.get(column.index).unwrap_or_default());
            rows.push(read_row((LINE, line), &columns, &mut reading, cell)?);
        }
        Ok(Self::of(rows, LINE, &columns, settings, &reading))
    }

    fn from_json(entries: &[Value], settings: &Settings) -> Result<Self, ParseError> {
        let objects = (1..).zip(entries).map(|(i, entry)| {
            entry.as_object().ok_or_else(|| {
                error(&format!("{ENTRY} {i}"), "is not an object; write {\"timestamp\": …, \"value\": …}")
            })
        });
        let objects = objects.collect::<Result<Vec<_>, _>>()?;
        let names: BTreeSet<_> = objects.iter().flat_map(|object| object.keys().cloned()).collect();
        let columns = Columns::find::<V>(&names.into_iter().collect::<Vec<_>>(), settings)?;
        check_names::<V>(&columns, settings)?;
        let mut reading = Reading::new(settings, &columns, Numbers::separated_by(b','));
        let rows = (1..).zip(&objects);
        let rows = rows.map(|(i, object)| read_row((ENTRY, i), &columns, &mut reading, |c| Cell::json(object, c)));
        let rows = rows.collect::<Result<_, _>>()?;
        Ok(Self::of(rows, ENTRY, &columns, settings, &reading))
    }

    fn of(rows: Vec<Row<V>>, place: &'static str, columns: &Columns, settings: &Settings, reading: &Reading) -> Self {
        let is_local = reading.times.is_used;
        let other = settings.time_zone.filter(|zone| is_local && columns.named_utc && *zone != TimeZoneName::UTC);
        let contradiction = other.map(|zone| {
            let name = shortened(&columns.time.name);
            format!("the name of column {name:?} says UTC, and {}.file.time_zone = \"{zone}\" is used", V::TABLE)
        });
        let notes = contradiction.into_iter().collect();
        Self { rows, place, one_for_both: columns.expected == columns.actual, is_local, notes }
    }

    fn into_file(mut self, settings: &Settings, zone: Option<&Zone>) -> Result<ParsedFile<V>, ParseError> {
        let mut notes = std::mem::take(&mut self.notes);
        let zone = self.choose_zone(zone)?;
        let values = self.rows.iter().flat_map(|r| [r.expected, r.actual]).flatten().map(V::number);
        check_values::<V>(values.clone(), settings)?;
        if values.clone().count() > 1 && values.clone().all(|value| value == 0.0) {
            notes.push("all values are 0; is this the right column, or are missing values written as 0?".to_owned());
        }
        if !self.rows.is_sorted_by_key(|row| row.start) {
            // Files with the newest row first are common. Sorting here avoids sorting a long file by insertion.
            notes.push("rows are not in time order; sorted".to_owned());
            self.rows.sort_by_key(|row| row.start);
        }
        let repeated = self.rows.windows(2).find(|pair| pair[0].start == pair[1].start);
        let repeated = repeated.map(|pair| {
            let (first, second) = (pair[0].place.min(pair[1].place), pair[0].place.max(pair[1].place));
            let start = pair[0].start.format("%FT%TZ");
            let what = format!("{start} occurs already in {} {first}; keep one of the two", self.place);
            error(&format!("{} {second}", self.place), &what)
        });
        if repeated.is_some() && self.is_local {
            notes.push(format!(
                "a time occurs twice; if clocks were put back then, the times are in another zone than the one that is set: set \
                 {}.file.time_zone to the zone of the file's times",
                V::TABLE
            ));
        }
        let slots = slots_of(&self.rows, settings);
        let mut series = |what: &str, origin: Origin, value: fn(&Row<V>) -> Option<V>| {
            let points = self.rows.iter().zip(&slots);
            let points = points.filter_map(|(row, slot)| Some(((*slot)?, Quoted { value: value(row)?, origin })));
            let (series, problems) = TimeSeries::from_points(points.collect());
            note_problems(&mut notes, what, &problems);
            series
        };
        // Generated values belong to no real grid, whether they are forecasts or past values.
        let ahead = if settings.origin == Origin::Synthetic { Origin::Synthetic } else { Origin::Forecast };
        let expected = series("forecast", ahead, |row| row.expected);
        let actual = if self.one_for_both {
            expected.map(|quoted| Quoted { origin: settings.origin, ..*quoted })
        } else {
            series("actual", settings.origin, |row| row.actual)
        };
        let (one_for_both, kind, scope) = (self.one_for_both, settings.kind, settings.scope);
        Ok(ParsedFile { expected, actual, one_for_both, zone, kind, scope, repeated, issued_at: None, notes })
    }

    /// Keeps the rows of one zone of the grid, the requested one or else the only one, and returns the zone; `None` if
    /// neither the caller nor the file names a usable zone.
    fn choose_zone(&mut self, wanted: Option<&Zone>) -> Result<Option<Zone>, ParseError> {
        let zones: BTreeSet<_> = self.rows.iter().filter_map(|row| row.zone.as_deref()).collect();
        let named = zones.iter().take(12).map(|zone| shown_zone(zone)).collect::<Vec<_>>().join(", ");
        match (wanted, zones.len()) {
            (_, 0) => Ok(wanted.cloned()),
            (Some(wanted), _) if zones.contains(wanted.as_str()) => {
                self.rows.retain(|row| row.zone.as_deref() == Some(wanted.as_str()));
                Ok(Some(wanted.clone()))
            }
            (Some(wanted), _) => Err(error("the file", &format!("has no rows for {wanted}, but for {named}"))),
            (None, 1) => {
                // A zone that looks like a key, pasted into the file by mistake, is not used as a name.
                let only = zones.first().filter(|zone| !is_like_key(zone)).map(|zone| Zone::new(*zone));
                let right = "zones have 1 to 96 characters, none of them a control character";
                only.transpose().map_err(|_| error("the file", &format!("has rows for {named}; {right}")))
            }
            (None, _) => Err(ParseError {
                setting: format!(", or choose with {}", V::ZONE_SETTING),
                ..error("the file", &format!("has rows for {named}; leave those of one zone"))
            }),
        }
    }
}

/// Properties of a file that are needed while its rows are read.
struct Reading {
    times: LocalTimes,
    numbers: Numbers,
    /// Unit of the values; the signal's own if absent.
    unit: Option<FileUnit>,
}

impl Reading {
    fn new(settings: &Settings, columns: &Columns, numbers: Numbers) -> Self {
        let is_utc = settings.assume_utc || columns.named_utc;
        let zone = settings.time_zone.or(is_utc.then_some(TimeZoneName::UTC));
        Self { times: LocalTimes::new(zone), numbers, unit: settings.unit }
    }
}

fn read_row<'a, V: FileSignal>(
    (what, place): (&str, u64),
    columns: &Columns,
    reading: &mut Reading,
    cell: impl Fn(&Column) -> Cell<'a>,
) -> Result<Row<V>, ParseError> {
    let at = |column: &Column| format!("{what} {place}, column {:?}", shortened(&column.name));
    let zone = columns.zone.as_ref().and_then(|column| match cell(column) {
        Cell::Text(text) => Some(text.to_owned()),
        Cell::Number(number) => Some(number.to_string()),
        Cell::Absent | Cell::Other => None,
    });
    let Reading { times, numbers, unit } = reading;
    let mut time = |column: &Column, start: Option<DateTime<Utc>>| {
        let found = cell(column);
        let time = match (&found, start) {
            (Cell::Absent, _) => return Ok(None),
            (Cell::Text(text), None) => times.start(text, zone.as_deref()),
            (Cell::Text(text), Some(start)) => times.end(text, start),
            (Cell::Number(number), _) => from_unix(*number),
            (Cell::Other, _) => Err(TimeProblem::NotATime),
        };
        time.map(Some).map_err(|problem| {
            let table = V::TABLE;
            let setting = match problem {
                TimeProblem::NoZone => format!(
                    ", or set {table}.file.time_zone to the zone of the file's times, such as \"Europe/Berlin\", or \
                     \"UTC\" if they are UTC"
                ),
                _ => String::new(),
            };
            let problem = problem.to_string().replace("carbon.file", &format!("{table}.file"));
            ParseError { setting, ..error(&at(column), &format!("{} {problem}", found.shown())) }
        })
    };
    let mut number = |column: &Column, unit: Option<FileUnit>, (least, most): (f64, f64), right: &str| {
        let found = cell(column);
        let number = match &found {
            Cell::Absent => return Ok(None),
            Cell::Text(text) => numbers.read(text),
            Cell::Number(number) => Ok(*number),
            Cell::Other => Err(""),
        };
        let refused = |hint: &str| {
            let what = format!("{} is not {right}{hint}; leave the field empty where there is none", found.shown());
            error(&at(column), &what)
        };
        let given = number.map_err(refused)?;
        let number = given * unit.map_or(1.0, FileUnit::factor);
        let converted = || unit.map_or_else(String::new, |unit| unit.describe_conversion(given));
        (least..=most).contains(&number).then_some(Some(number)).ok_or_else(|| refused(&converted()))
    };
    let Some(start) = time(&columns.time, None)? else {
        return Err(error(&at(&columns.time), "is empty; every row needs the start of its slot"));
    };
    let end = match (&columns.end, &columns.duration) {
        (Some(column), _) => time(column, Some(start))?.map(|end| (end, column)),
        (None, Some(column)) => {
            let minutes = number(column, None, (0.0, 527_040.0), "a length in minutes")?;
            minutes.map(|m| (start + wattune_core::units::Seconds::new(m * 60.0).to_delta(), column))
        }
        (None, None) => None,
    };
    if let Some((end, column)) = end
        && !(start < end && end - start <= LONGEST_SLOT)
    {
        return Err(error(&at(column), "the slot must end after it starts, and within 366 days"));
    }
    let mut value = |column: &Option<Column>| match column {
        // Adding zero turns −0 into 0.
        Some(column) => {
            Ok(number(column, *unit, (V::LOWEST, V::HIGHEST), V::RIGHT)?.and_then(|value| V::checked(value + 0.0)))
        }
        None => Ok(None),
    };
    let (expected, actual) = (value(&columns.expected)?, value(&columns.actual)?);
    Ok(Row { place, start, end: end.map(|(end, _)| end), zone, expected, actual })
}

/// Returns one slot per row; rows are in time order.
fn slots_of<V>(rows: &[Row<V>], settings: &Settings) -> Vec<Option<Slot>> {
    let mut starts: Vec<_> = rows.iter().map(|row| row.start).collect();
    starts.dedup();
    let lengths = lengths(&starts, settings.step_s.map(wattune_core::units::Seconds::to_delta));
    let slot = |row: &Row<V>| {
        let length = lengths[starts.partition_point(|start| *start < row.start)];
        Slot::new(row.start, row.end.unwrap_or(row.start + length))
    };
    rows.iter().map(slot).collect()
}

/// Returns the zone of a row for a message.
fn shown_zone(zone: &str) -> String {
    let is_code = zone.len() <= 32 && zone.chars().all(|c| c.is_ascii_alphanumeric() || "-_ .".contains(c));
    if is_code && !is_like_key(zone) { format!("{zone:?}") } else { shown(zone) }
}

/// Returns the reason why a line cannot be read, without its content.
fn unreadable_row(error: &csv::Error) -> String {
    match error.kind() {
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => format!(
            "has {len} fields, and the first line has {expected_len}; if numbers have decimal commas, separate columns by ; or \
             write decimal points"
        ),
        csv::ErrorKind::Utf8 { .. } => "is not UTF-8; save the file as UTF-8".to_owned(),
        _ => "is no CSV".to_owned(),
    }
}

fn note_problems(notes: &mut Vec<String>, what: &str, problems: &[SeriesProblem]) {
    notes.extend(problems.iter().take(PROBLEMS_LISTED).map(|problem| format!("{what}: {problem}")));
    if let Some(more) = problems.len().checked_sub(PROBLEMS_LISTED).filter(|more| *more > 0) {
        notes.push(format!("{what}: and {more} more problems"));
    }
}

fn error(at: &str, what: &str) -> ParseError {
    ParseError::new(at, what)
}
