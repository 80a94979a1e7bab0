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
    let read = bytes(actual)?;
    if file::is_issued(&read) {
        let why = "it tells what was expected on each day of issue, not what came; give it as the forecasts";
        return Err(GridError::Unusable { path: actual.to_owned(), why });
    }
    let parsed = parse(actual, &read)?;
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
    let bytes = std::fs::read(path).map_err(|source| GridError::Unreadable { path: path.to_owned(), source })?;
    if is_packed(&bytes) {
        return Err(GridError::Unusable { path: path.to_owned(), why: PACKED });
    }
    Ok(bytes)
}

/// What to do with a file that is compressed.
pub(super) const PACKED: &str = "it is compressed with gzip; unpack it first, with gunzip --keep";

/// Whether a file begins as those of gzip do.
pub(super) fn is_packed(bytes: &[u8]) -> bool {
    bytes.starts_with(&[0x1f, 0x8b])
}

fn parse(path: &Path, bytes: &[u8]) -> Result<file::ParsedFile, GridError> {
    let broken = |source| GridError::Broken { path: path.to_owned(), source };
    let parsed = file::parse(bytes, &FileSettings::default(), None).map_err(broken)?;
    // The daemon makes do with the later value; an experiment must not rest on a guess.
    match parsed.repeated {
        Some(repeated) => Err(broken(repeated)),
        None => Ok(parsed),
    }
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

    #[test]
    fn files_that_say_something_else_are_refused_with_the_place_and_the_remedy() {
        let folder = tempfile::tempdir().expect("a folder");
        let refused = |bytes: &[u8]| {
            let path = folder.path().join("grid.csv");
            std::fs::write(&path, bytes).expect("written");
            let error = read_grid(&path, None, IssueTime::DayAhead).expect_err("refused");
            let cause = std::error::Error::source(&error).map_or(String::new(), |cause| format!(": {cause}"));
            format!("{error}{cause}")
        };
        let twice = b"time,value\n2021-01-01T00:00Z,1\n2021-01-01T01:00Z,2\n2021-01-01T00:00Z,3\n";
        let twice = refused(twice);
        assert!(
            twice.ends_with("line 4: 2021-01-01T00:00:00Z is there before, in line 2; keep one of the two"),
            "{twice}"
        );
        assert!(refused(&[0x1f, 0x8b, 8, 0]).ends_with(PACKED));
        let issued = refused(b"issue_date_utc,horizon_h,forecast_gco2_per_kwh\n2021-07-01,0,355.03\n");
        assert!(issued.contains("give it as the forecasts"), "{issued}");
        let number = refused(b"time,value\n2021-01-01T00:00Z,NaN\n");
        assert!(number.contains("line 2, column \"value\""), "{number}");
    }
}
