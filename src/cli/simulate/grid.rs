//! Reads recorded grids and forecasts, in the formats of the file source but without its settings.

use std::path::Path;

use anyhow::{Context, bail};

use crate::cli::values::Issue;
use crate::providers::{FileSettings, file};
use wattune_lab::grid::{PublishedForecasts, RecordedGrid};
use wattune_lab::traces::TraceFile;

/// Reads a recorded grid. The actual values come from `actual`. The forecasts come from `forecast`, or else from a
/// separate column of `actual`, which counts as a rolling forecast (published continuously). `issue` gives the issue
/// times of a `forecast` file that does not state them; a CSV with the column `issue_date_utc` does.
pub(super) fn read(actual: &Path, forecast: Option<&Path>, issue: Issue) -> anyhow::Result<RecordedGrid> {
    let parsed = recorded(actual)?;
    let forecasts = match forecast {
        Some(path) => published(path, issue)?,
        None if parsed.one_for_both || parsed.expected.is_empty() => PublishedForecasts::Nothing,
        None => PublishedForecasts::Rolling(parsed.expected),
    };
    Ok(RecordedGrid::new(name(actual), parsed.actual, forecasts))
}

/// Reads a file of actual values, which may have forecasts in a column of their own.
pub(in crate::cli) fn recorded(path: &Path) -> anyhow::Result<file::ParsedFile> {
    let TraceFile { bytes, .. } = TraceFile::read(path)?;
    let shown = path.display();
    if file::is_issued(&bytes) {
        bail!("{shown}: it has the forecasts of each day of issue, no actual values; give it as the forecasts");
    }
    let parsed = parse(path, &bytes)?;
    if parsed.actual.is_empty() {
        bail!("{shown}: it has forecasts, no actual values; name the column of actual values \"actual\"");
    }
    Ok(parsed)
}

/// Reads a file of forecasts; `issue` gives the issue times if the file does not state them.
pub(in crate::cli) fn published(path: &Path, issue: Issue) -> anyhow::Result<PublishedForecasts> {
    let TraceFile { bytes, .. } = TraceFile::read(path)?;
    if file::is_issued(&bytes) {
        let issued = file::parse_issued(&bytes).with_context(|| path.display().to_string())?;
        return Ok(PublishedForecasts::Issued(issued));
    }
    let file::ParsedFile { expected, one_for_both, .. } = parse(path, &bytes)?;
    if expected.is_empty() || one_for_both {
        let path = path.display();
        bail!("{path}: it has actual values, no forecasts; name the column of values \"forecast\"");
    }
    Ok(match issue {
        Issue::DayAhead => PublishedForecasts::Issued(file::day_ahead(&expected)),
        Issue::Rolling => PublishedForecasts::Rolling(expected),
    })
}

fn parse(path: &Path, bytes: &[u8]) -> anyhow::Result<file::ParsedFile> {
    let context = || path.display().to_string();
    let parsed = file::parse(bytes, &FileSettings::default(), None).map_err(file::ParseError::without_setting);
    let parsed = parsed.with_context(context)?;
    // If a slot has two values, the daemon uses the later one; an experiment must not depend on such a guess.
    match parsed.repeated {
        Some(repeated) => Err(repeated).with_context(context),
        None => Ok(parsed),
    }
}

/// Returns the name of a grid: the parts of its file name, separated by underscores, before the first part that begins
/// with a digit. `CISO_2021_hourly.csv` gives `CISO`, and `miso_mason_city_2022-10.csv` gives `miso_mason_city`.
fn name(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let parts: Vec<&str> = stem.split('_').take_while(|part| !part.starts_with(|c: char| c.is_ascii_digit())).collect();
    if parts.is_empty() { stem.into_owned() } else { parts.join("_") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grids_are_named_by_their_files() {
        for (file, expected) in [
            ("a/CISO_2021_hourly.csv", "CISO"),
            ("miso_mason_city_2022-10.csv", "miso_mason_city"),
            ("DE.csv", "DE"),
            ("2021_DE.csv", "2021_DE"),
        ] {
            assert_eq!(name(Path::new(file)), expected);
        }
    }

    #[test]
    fn files_with_other_content_are_refused_with_the_place_and_the_remedy() {
        let folder = tempfile::tempdir().expect("a folder");
        let refused = |bytes: &[u8]| {
            let path = folder.path().join("grid.csv");
            std::fs::write(&path, bytes).expect("written");
            format!("{:#}", read(&path, None, Issue::DayAhead).expect_err("refused"))
        };
        let twice = refused(b"time,value\n2021-01-01T00:00Z,1\n2021-01-01T01:00Z,2\n2021-01-01T00:00Z,3\n");
        assert!(
            twice.ends_with("line 4: 2021-01-01T00:00:00Z occurs already in line 2; keep one of the two"),
            "{twice}"
        );
        assert!(refused(&[0x1f, 0x8b, 8, 0]).contains("unpack it first, with gunzip --keep"));
        let issued = refused(b"issue_date_utc,horizon_h,forecast_gco2_per_kwh\n2021-07-01,0,355.03\n");
        assert!(issued.contains("give it as the forecasts"), "{issued}");
        let number = refused(b"time,value\n2021-01-01T00:00Z,NaN\n");
        assert!(number.contains("line 2, column \"value\""), "{number}");
        // These commands read no settings.
        for text in ["when,value\n2021-01-01T00:00Z,1\n", "time,value\n2021-01-01 00:00,1\n", "time,value\n1,0.3\n"] {
            let error = refused(text.as_bytes());
            assert!(error.contains("; ") && !error.contains("carbon.file"), "{error}");
        }
    }

    #[test]
    fn forecasts_by_day_of_issue_may_begin_with_a_byte_order_mark() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("forecasts.csv");
        let text = "\u{feff}horizon_h,issue_date_utc,forecast_gco2_per_kwh\n0,2021-07-01,355.03\n";
        std::fs::write(&path, text).expect("written");
        let read = published(&path, Issue::Rolling).expect("forecasts");
        assert!(matches!(read, PublishedForecasts::Issued(issued) if issued.len() == 1));
    }
}
