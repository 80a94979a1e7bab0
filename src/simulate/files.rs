//! The files of an experiment: what their names say, and grids in the formats of the file source.

use std::path::{Path, PathBuf};

use super::replay::{RecordedGrid, Sayings};
use crate::providers::{FileSettings, file};

/// When the values of a separate forecast file had been said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IssueTime {
    /// All values of a day at its 00:00 UTC.
    DayAhead,
    /// Anew all the time, each up to 72 hours ahead.
    Rolling,
}

/// Why a file of intensities cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum GridError {
    /// It cannot be read.
    #[error("cannot read {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A row is wrong.
    #[error("{}", path.display())]
    Broken {
        /// The file.
        path: PathBuf,
        /// Where and what.
        #[source]
        source: file::ParseError,
    },
    /// It tells something else than was asked of it.
    #[error("{}: {why}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What it tells, and what would be right.
        why: &'static str,
    },
}

/// Reads a grid: what came from `actual`, and what had been said from `forecast`, or from a column of its own in
/// `actual`, which counts as rolling. A CSV that begins with `issue_date_utc` says itself when it was issued.
///
/// # Errors
/// For files that cannot be read, and those that do not tell what they are given for.
pub fn read_grid(actual: &Path, forecast: Option<&Path>, issue: IssueTime) -> Result<RecordedGrid, GridError> {
    let parsed = parse(actual, &bytes(actual)?)?;
    if parsed.actual.is_empty() {
        let why = "it tells what was expected, not what came; name the column of outcomes \"actual\"";
        return Err(GridError::Unusable { path: actual.to_owned(), why });
    }
    let said = match forecast {
        Some(path) => said(path, issue)?,
        None if parsed.one_for_both || parsed.expected.is_empty() => Sayings::Nothing,
        None => Sayings::Rolling(parsed.expected),
    };
    Ok(RecordedGrid::new(grid_name(actual), parsed.actual, said))
}

fn said(path: &Path, issue: IssueTime) -> Result<Sayings, GridError> {
    let bytes = bytes(path)?;
    if file::is_issued(&bytes) {
        let issued = file::parse_issued(&bytes);
        return issued.map(Sayings::Issued).map_err(|source| GridError::Broken { path: path.to_owned(), source });
    }
    let file::ParsedFile { expected, one_for_both, .. } = parse(path, &bytes)?;
    if expected.is_empty() || one_for_both {
        let why = "it tells what came, not what was expected; name the column of values \"forecast\"";
        return Err(GridError::Unusable { path: path.to_owned(), why });
    }
    Ok(match issue {
        IssueTime::DayAhead => Sayings::Issued(file::day_ahead(&expected)),
        IssueTime::Rolling => Sayings::Rolling(expected),
    })
}

fn bytes(path: &Path) -> Result<Vec<u8>, GridError> {
    std::fs::read(path).map_err(|source| GridError::Unreadable { path: path.to_owned(), source })
}

fn parse(path: &Path, bytes: &[u8]) -> Result<file::ParsedFile, GridError> {
    let parsed = file::parse(bytes, &FileSettings::default(), None);
    parsed.map_err(|source| GridError::Broken { path: path.to_owned(), source })
}

/// What a grid is called: its file's name up to the first part between underscores that begins with a digit, so that
/// `CISO_2021_hourly.csv` is `CISO` and `miso_mason_city_2022-10.csv` is `miso_mason_city`.
pub fn grid_name(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let parts: Vec<&str> = stem.split('_').take_while(|part| !part.starts_with(|c: char| c.is_ascii_digit())).collect();
    if parts.is_empty() { stem.into_owned() } else { parts.join("_") }
}

/// What a board is called: its power trace's name without `summary_power_`, so that `summary_power_a40.csv` is `a40`.
pub fn gpu_name(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    stem.strip_prefix("summary_power_").unwrap_or(&stem).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_from_the_files() {
        for (file, name) in [
            ("a/CISO_2021_hourly.csv", "CISO"),
            ("miso_mason_city_2022-10.csv", "miso_mason_city"),
            ("DE.csv", "DE"),
            ("2021_DE.csv", "2021_DE"),
        ] {
            assert_eq!(grid_name(Path::new(file)), name);
        }
        assert_eq!(gpu_name(Path::new("x/summary_power_rtx6000.csv")), "rtx6000");
        assert_eq!(gpu_name(Path::new("h100.csv")), "h100");
    }
}
