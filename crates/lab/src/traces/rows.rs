//! Reads the rows of a CSV file, whose columns are found by their names; errors name line and column of an invalid
//! value.

use std::str::FromStr;

use super::file::{TraceError, TraceFile};

/// Key of a training: rows of different traces with the same key belong to the same training.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TrainingKey {
    /// Name of the data set.
    pub dataset: String,
    /// Name of the network.
    pub network: String,
    /// Name of the optimizer.
    pub optimizer: String,
    /// Batch size: samples per step.
    pub batch_size: u64,
}

impl TrainingKey {
    /// Reads the first four columns that the caller of [`rows`] named: dataset, network, optimizer, batch size.
    pub(super) fn of(row: &Row<'_>) -> Result<Self, Fault> {
        let batch_size = row.parsed(3, |b: &u64| *b > 0, "a whole number of samples above 0")?;
        Ok(Self { dataset: row.word(0)?, network: row.word(1)?, optimizer: row.word(2)?, batch_size })
    }
}

pub(super) struct Fault {
    pub(super) line: u64,
    pub(super) column: &'static str,
    pub(super) why: String,
}

/// A row of a CSV file. Columns are numbered in the order in which the caller of [`rows`] named them: required ones
/// first, then optional ones.
pub(super) struct Row<'a> {
    record: &'a csv::StringRecord,
    names: &'a [&'static str],
    places: &'a [Option<usize>],
}

impl Row<'_> {
    pub(super) fn text(&self, column: usize) -> &str {
        self.places[column].and_then(|place| self.record.get(place)).unwrap_or_default().trim()
    }

    pub(super) fn line(&self) -> u64 {
        self.record.position().map_or(0, csv::Position::line)
    }

    pub(super) fn fault(&self, column: usize, right: &str) -> Fault {
        let why = format!("{:?} is not {right}", self.text(column));
        Fault { line: self.line(), column: self.names[column], why }
    }

    pub(super) fn word(&self, column: usize) -> Result<String, Fault> {
        let text = self.text(column);
        if text.is_empty() { Err(self.fault(column, "a name")) } else { Ok(text.to_owned()) }
    }

    pub(super) fn parsed<T: FromStr>(&self, column: usize, fits: impl Fn(&T) -> bool, right: &str) -> Result<T, Fault> {
        self.text(column).parse().ok().filter(fits).ok_or_else(|| self.fault(column, right))
    }

    pub(super) fn finite(&self, column: usize) -> Result<f64, Fault> {
        self.parsed(column, |n: &f64| n.is_finite(), "a number")
    }

    pub(super) fn positive(&self, column: usize) -> Result<f64, Fault> {
        self.parsed(column, |n: &f64| *n > 0.0 && *n <= 1e9, "a number above 0")
    }
}

/// Reads every row of a file with `read`. Refuses a file without rows or without one of the columns `needed`.
pub(super) fn rows<T>(
    file: &TraceFile,
    needed: &[&'static str],
    optional: &[&'static str],
    read: impl Fn(&Row<'_>) -> Result<T, Fault>,
) -> Result<Vec<T>, TraceError> {
    let not_csv = |source| TraceError::NotCsv { path: file.path.clone(), source };
    let mut reader = csv::Reader::from_reader(file.bytes.as_slice());
    let headers = reader.headers().map_err(not_csv)?.clone();
    let names = [needed, optional].concat();
    let places: Vec<Option<usize>> = names.iter().map(|name| headers.iter().position(|h| h.trim() == *name)).collect();
    if let Some(missing) = places[..needed.len()].iter().position(Option::is_none) {
        if headers.iter().all(|header| header.trim().is_empty()) {
            let why = format!("it is empty; give a CSV with the columns {}", needed.join(", "));
            return Err(file.unusable(why));
        }
        let has = headers.iter().collect::<Vec<_>>().join(", ");
        return Err(file.unusable(format!("it lacks the column {}; it has {has}", names[missing])));
    }
    let mut all = Vec::new();
    for record in reader.records() {
        let record = record.map_err(not_csv)?;
        let row = Row { record: &record, names: &names, places: &places };
        let broken = |Fault { line, column, why }| TraceError::Broken { path: file.path.clone(), line, column, why };
        all.push(read(&row).map_err(broken)?);
    }
    if all.is_empty() {
        return Err(file.unusable(format!("it has no rows; it should have them below {}", needed.join(", "))));
    }
    Ok(all)
}
