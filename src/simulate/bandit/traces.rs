//! Zeus's trace files as they are: what training runs needed, and what an epoch took at each power limit.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::Epoch;
use wattune_core::units::{Seconds, Watts};

/// Why a trace cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be read, or is no CSV.
    #[error("cannot read {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Where and why.
        #[source]
        source: csv::Error,
    },
    /// A value is wrong.
    #[error("{}, line {line}, column {column}: {why}", path.display())]
    Broken {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// The column's name.
        column: &'static str,
        /// What is there, and what would be right.
        why: String,
    },
    /// Its rows do not fit what they are to be used for.
    #[error("{}: {why}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what would be right.
        why: String,
    },
}

/// Which training a row is of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Of {
    pub(super) dataset: String,
    pub(super) network: String,
    pub(super) optimizer: String,
    pub(super) batch_size: u64,
}

/// A training run: after which epoch it was at its target.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TrainRow {
    pub(super) of: Of,
    pub(super) target_metric: f64,
    pub(super) target_epoch: Option<u32>,
}

/// An epoch at a power limit.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PowerRow {
    pub(super) of: Of,
    pub(super) limit: Watts,
    pub(super) epoch: Epoch,
}

/// The rows of `summary_train.csv`: where a target epoch is empty or `nan`, the target was never reached.
pub(super) fn train_rows(path: &Path) -> Result<Vec<TrainRow>, TraceError> {
    rows(path, ["dataset", "network", "optimizer", "batch_size", "target_metric", "target_epoch"], [], |row| {
        let target_epoch = match row.text(5) {
            "" => None,
            text if text.eq_ignore_ascii_case("nan") => None,
            text => {
                let whole = text.parse::<f64>().ok().filter(|e| *e >= 1.0 && *e <= 1e6 && e.fract() == 0.0);
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "whole, from 1 to a million"
                )]
                let epoch = whole.map(|e| e as u32);
                Some(
                    epoch
                        .ok_or_else(|| row.fault(5, "a whole number of epochs, or nothing where it was not reached"))?,
                )
            }
        };
        Ok(TrainRow { of: of(row)?, target_metric: row.finite(4)?, target_epoch })
    })
}

/// The rows of a `summary_power_*.csv`.
pub(super) fn power_rows(path: &Path) -> Result<Vec<PowerRow>, TraceError> {
    let columns = ["dataset", "network", "optimizer", "batch_size", "power_limit", "time_per_epoch", "average_power"];
    rows(path, columns, [], |row| {
        let (limit, time, power) = (row.positive(4)?, row.positive(5)?, row.positive(6)?);
        let epoch = Epoch { time: Seconds::new(time), power: Watts::new(power) };
        Ok(PowerRow { of: of(row)?, limit: Watts::new(limit), epoch })
    })
}

/// A submission of a group trace.
#[derive(Clone, Debug, PartialEq)]
pub struct Submission {
    /// Which recurring job it belongs to.
    pub group: String,
    /// When it starts, in seconds.
    pub start: Seconds,
    /// When it ends, in seconds.
    pub end: Seconds,
    /// What it trains: dataset, or dataset/network.
    pub job: String,
    /// How much longer and dearer it is than the traces' runs.
    pub runtime_ratio: f64,
    /// Where it stands in the file.
    pub line: u64,
}

/// Reads a group trace: columns `group`, `start` and `end` in seconds, `job`, and `runtime_ratio` where there is one.
///
/// # Errors
/// If it cannot be read, or a value is wrong.
pub fn read_groups(path: &Path) -> Result<Vec<Submission>, TraceError> {
    rows(path, ["group", "start", "end", "job"], ["runtime_ratio"], |row| {
        let (start, end) = (row.finite(1)?, row.finite(2)?);
        if end < start {
            let why = format!("{end} is before its start, {start}; give both in seconds, on one clock");
            return Err(Fault { line: row.line(), column: "end", why });
        }
        let runtime_ratio = if row.has(4) { row.positive(4)? } else { 1.0 };
        let (start, end) = (Seconds::new(start), Seconds::new(end));
        let (group, job) = (row.word(0)?, row.word(3)?);
        Ok(Submission { group, start, end, job, runtime_ratio, line: row.line() })
    })
}

fn of<const N: usize>(row: &Row<'_, N>) -> Result<Of, Fault> {
    let batch_size = row.parsed(3, |b: &u64| *b > 0, "a whole number of samples above 0")?;
    Ok(Of { dataset: row.word(0)?, network: row.word(1)?, optimizer: row.word(2)?, batch_size })
}

/// A wrong value.
struct Fault {
    line: u64,
    column: &'static str,
    why: String,
}

/// A row by the columns that were asked for: the needed ones first, then those that may be missing.
struct Row<'a, const N: usize> {
    record: &'a csv::StringRecord,
    names: &'a [&'static str],
    places: &'a [Option<usize>],
}

impl<const N: usize> Row<'_, N> {
    fn has(&self, column: usize) -> bool {
        !self.text(column).is_empty()
    }

    fn text(&self, column: usize) -> &str {
        self.places[column].and_then(|place| self.record.get(place)).unwrap_or_default().trim()
    }

    fn line(&self) -> u64 {
        self.record.position().map_or(0, csv::Position::line)
    }

    fn fault(&self, column: usize, right: &str) -> Fault {
        let why = format!("{:?} is not {right}", self.text(column));
        Fault { line: self.line(), column: self.names[column], why }
    }

    fn word(&self, column: usize) -> Result<String, Fault> {
        let text = self.text(column);
        if text.is_empty() { Err(self.fault(column, "a name")) } else { Ok(text.to_owned()) }
    }

    fn parsed<T: FromStr>(&self, column: usize, fits: impl Fn(&T) -> bool, right: &str) -> Result<T, Fault> {
        self.text(column).parse().ok().filter(fits).ok_or_else(|| self.fault(column, right))
    }

    fn finite(&self, column: usize) -> Result<f64, Fault> {
        self.parsed(column, |n: &f64| n.is_finite(), "a number")
    }

    fn positive(&self, column: usize) -> Result<f64, Fault> {
        self.parsed(column, |n: &f64| *n > 0.0 && *n <= 1e9, "a number above 0")
    }
}

fn rows<T, const N: usize, const M: usize>(
    path: &Path,
    needed: [&'static str; N],
    more: [&'static str; M],
    read: impl Fn(&Row<'_, N>) -> Result<T, Fault>,
) -> Result<Vec<T>, TraceError> {
    let unreadable = |source| TraceError::Unreadable { path: path.to_owned(), source };
    let unusable = |why| TraceError::Unusable { path: path.to_owned(), why };
    let mut reader = csv::Reader::from_path(path).map_err(unreadable)?;
    let headers = reader.headers().map_err(unreadable)?.clone();
    let names: Vec<&'static str> = needed.into_iter().chain(more).collect();
    let places: Vec<Option<usize>> = names.iter().map(|name| headers.iter().position(|h| h.trim() == *name)).collect();
    if let Some(missing) = places[..N].iter().position(Option::is_none) {
        if headers.iter().all(|header| header.trim().is_empty()) {
            let why = format!("it is empty; give a CSV with the columns {}", needed.join(", "));
            return Err(unusable(why));
        }
        let has = headers.iter().collect::<Vec<_>>().join(", ");
        return Err(unusable(format!("it lacks the column {}; it has {has}", names[missing])));
    }
    let mut found = Vec::new();
    for record in reader.records() {
        let record = record.map_err(unreadable)?;
        let row = Row { record: &record, names: &names, places: &places };
        let value = read(&row).map_err(|Fault { line, column, why }| {
            let path = path.to_owned();
            TraceError::Broken { path, line, column, why }
        })?;
        found.push(value);
    }
    if found.is_empty() {
        return Err(unusable(format!("it has no rows; it should have them below {}", needed.join(", "))));
    }
    Ok(found)
}
