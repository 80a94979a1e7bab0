//! Carbon intensities or prices from a file, at the file's own times or replayed from now on.

mod columns;
mod error;
mod issued;
mod local;
mod numbers;
mod parse;
mod play;
mod settings;
mod signal;
mod slots;
#[cfg(test)]
mod tests;
mod time_zone;
mod unit;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use chrono::{DateTime, TimeDelta, Utc};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;

pub use error::ParseError;
pub use issued::{day_ahead, is_issued, parse_issued};
pub use parse::{ParsedFile, parse, parse_as};
pub use settings::{FileUnit, Settings, Timing};
pub use signal::FileSignal;
pub use time_zone::TimeZoneName;

use self::play::{AHEAD, LOOKBACK, Play};
use super::descriptor::{Descriptor, Table};
use crate::files;
use crate::providers::client::{Contribution, SharedSettings};
use crate::providers::error::{ProviderError, SettingsError};
use crate::providers::place::Place;
use crate::providers::provider::{Answer, Provider};
use wattune_core::domain::{Forecast, Provenance, Quoted, Slot, TimeSeries, Zone};
use wattune_core::ledger::chain::Digest;
use wattune_core::units::{GramsPerKwh, Seconds};

const MAX_FILE_BYTES: u64 = 64 << 20;

/// Time between checks of the file's modification time, which cost nothing.
const CADENCE: Seconds = Seconds::new(300.0);

/// Maximum error of clocks that is tolerated when a file's modification time is compared with its values' times.
const EARLY: TimeDelta = TimeDelta::minutes(10);

/// Minimum total length of past values that are used without a forecast if neither the settings nor the names of
/// columns say that they are actual values: fewer values show no daily pattern, and are more likely a forecast that has
/// ended.
const HISTORY: Seconds = Seconds::new(86_400.0);

pub(super) const DESCRIPTOR: Descriptor = Descriptor {
    name: "file",
    summary: None,
    rank: Some(0),
    countries: &[],
    #[cfg(any(test, feature = "fuzzing"))]
    fuzz: &[
        super::FuzzTarget { name: "file", parse: parse_any::<GramsPerKwh> },
        super::FuzzTarget { name: "price_file", parse: parse_any::<wattune_core::units::PricePerMwh> },
    ],
};

impl Table for Settings {
    fn check(&self, is_listed: bool) -> Result<(), SettingsError> {
        self.check_for::<GramsPerKwh>(is_listed)
    }

    fn is_set_up(&self, _: Option<&Place>) -> bool {
        self.path.is_some()
    }

    fn build(&self, shared: &SharedSettings<'_>) -> Result<Arc<dyn Provider>, SettingsError> {
        Ok(Arc::new(FileProvider::new(self, shared)?))
    }
}

/// A CSV or JSON file as a source. It is read again when its modification time or length changes.
#[derive(Debug)]
pub struct FileProvider<V = GramsPerKwh> {
    path: PathBuf,
    settings: Settings,
    zone: Option<Zone>,
    cadence: Seconds,
    state: Mutex<State<V>>,
}

#[derive(Debug)]
struct State<V> {
    loaded: Option<Arc<Loaded<V>>>,
    /// The time at which the replay of the file began; absent if nothing was replayed yet.
    anchor: Option<DateTime<Utc>>,
}

impl<V> Default for State<V> {
    fn default() -> Self {
        Self { loaded: None, anchor: None }
    }
}

#[derive(Debug)]
struct Loaded<V> {
    stamp: Stamp,
    digest: Digest,
    file: ParsedFile<V>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    modified: SystemTime,
    length: u64,
}

impl FileProvider {
    /// Makes the source of carbon intensities. Reads nothing yet.
    pub fn new(own: &Settings, shared: &SharedSettings<'_>) -> Result<Self, SettingsError> {
        Self::of(own, shared.zone.cloned(), shared.poll_interval)
    }
}

impl<V: FileSignal> FileProvider<V> {
    /// Makes the source. Reads nothing yet. If the file has several zones, `zone` chooses one.
    pub(in crate::providers) fn of(
        file: &Settings,
        zone: Option<Zone>,
        cadence: Option<Seconds>,
    ) -> Result<Self, SettingsError> {
        Ok(Self {
            path: file.path.clone().ok_or(SettingsError::NoPath { table: V::TABLE })?,
            settings: file.clone(),
            zone,
            cadence: cadence.unwrap_or(CADENCE),
            state: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State<V>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn load(&self) -> Result<Arc<Loaded<V>>, ProviderError> {
        let last_loaded = self.state().loaded.clone();
        let (path, settings, zone) = (self.path.clone(), self.settings.clone(), self.zone.clone());
        let reading = move || read(&path, &settings, zone.as_ref(), last_loaded);
        let loaded = tokio::task::spawn_blocking(reading).await.unwrap_or_else(|stopped| {
            Err(ProviderError::Unreadable { table: V::TABLE, path: self.shown(), why: stopped.to_string() })
        })?;
        let mut state = self.state();
        if !state.loaded.as_ref().is_some_and(|last| Arc::ptr_eq(last, &loaded)) {
            for note in &loaded.file.notes {
                tracing::warn!(path = %self.path.display(), "{} file: {note}", V::TABLE);
            }
            state.loaded = Some(Arc::clone(&loaded));
        }
        Ok(loaded)
    }

    async fn answer(&self, now: DateTime<Utc>) -> Result<Answer<V>, ProviderError> {
        let loaded = self.load().await?;
        let file = &loaded.file;
        let modified = DateTime::<Utc>::from(loaded.stamp.modified).min(now);
        let (expected, actual, issued_at) = match self.settings.timing {
            Timing::Absolute => {
                let span = Slot::new(now - LOOKBACK, now + AHEAD);
                let part =
                    |series: &TimeSeries<Quoted<V>>| span.map_or_else(Vec::new, |s| series.overlapping(&s).to_vec());
                let mut expected = part(&file.expected);
                // The past values of an only column are actual ones: as forecasts, they would count as exact.
                if file.one_for_both {
                    expected.retain(|(slot, _)| now < slot.end());
                }
                (expected, part(&file.actual), file.issued_at.unwrap_or(modified))
            }
            Timing::Replay => {
                let anchor = *self.state().anchor.get_or_insert(now);
                let play = Play::new(file, &self.settings, anchor);
                (play.around(&file.expected, now), play.around(&file.actual, now), now)
            }
        };
        let mut notes = file.notes.clone();
        notes.extend(self.early_actuals(file, modified));
        let past = actual.into_iter().filter(|(slot, _)| slot.end() <= now).collect();
        let (actual, _) = TimeSeries::from_points(past);
        if !expected.iter().any(|(slot, _)| now < slot.end()) {
            if !self.is_history(file, &actual) {
                return Err(ProviderError::Empty { what: self.nothing_ahead(file, now) });
            }
            notes.push(format!("only actual values are used: {}", self.nothing_ahead(file, now)));
        }
        let forecast = Forecast {
            zone: file.zone.clone().unwrap_or_else(|| self.zone()),
            source: self.source().to_owned(),
            kind: file.kind,
            scope: file.scope,
            issued_at,
            retrieved_at: now,
            provenance: Default::default(),
            expected: TimeSeries::from_points(expected).0,
            actual,
        };
        Ok(Answer { forecast, notes })
    }

    /// Returns true if `actual`, the file's actual values of the last 31 days, suffices as an answer without a
    /// forecast.
    fn is_history(&self, file: &ParsedFile<V>, actual: &TimeSeries<Quoted<V>>) -> bool {
        let is_known = match self.settings.contributes {
            Contribution::Actual => true,
            Contribution::Forecast => return false,
            Contribution::Both => !file.one_for_both,
        };
        let known = actual.points().iter().map(|(slot, _)| slot.duration()).fold(Seconds::ZERO, |a, b| a + b);
        known >= HISTORY || is_known && !actual.is_empty()
    }

    /// Returns a note if the file was written before the times of its actual values: the times are then most likely
    /// local ones, not UTC.
    fn early_actuals(&self, file: &ParsedFile<V>, modified: DateTime<Utc>) -> Option<String> {
        let newest = file.actual.points().last().map(|(slot, _)| slot.start())?;
        let is_early = self.settings.timing == Timing::Absolute && !file.one_for_both && newest > modified + EARLY;
        is_early.then(|| {
            format!(
                "{} has an actual value for {} and was written before that, at {}: if its times are local, set {}.file.time_zone",
                self.shown(),
                newest.format("%FT%TZ"),
                modified.format("%FT%TZ"),
                V::TABLE
            )
        })
    }

    fn nothing_ahead(&self, file: &ParsedFile<V>, now: DateTime<Utc>) -> String {
        let what = match file.expected.end() {
            Some(end) => format!("the forecast in {} ends at {}", self.shown(), end.format("%FT%TZ")),
            None => format!("{} has no forecast column, only actual values", self.shown()),
        };
        let table = V::TABLE;
        if let Some(outside) = self.replay_outside(file, now) {
            return outside;
        }
        match self.settings.timing {
            Timing::Absolute => format!("{what}; append newer rows, or set {table}.file.timing = \"replay\""),
            Timing::Replay if self.settings.repeat => what,
            Timing::Replay => {
                format!("{what} and was played to its end; set {table}.file.repeat = true to begin again")
            }
        }
    }

    /// Says that the replay has begun outside of the file and has not reached it; `None` if it has. A replay that begins
    /// a little before the first row reaches the file soon.
    fn replay_outside(&self, file: &ParsedFile<V>, now: DateTime<Utc>) -> Option<String> {
        let start = self.settings.replay_start.filter(|_| self.settings.timing == Timing::Replay)?;
        let place = start + (now - self.state().anchor.unwrap_or(now));
        let (first, last) = file.span().filter(|(first, last)| place < *first || *last <= start)?;
        let time = |at: DateTime<Utc>| at.format("%FT%TZ");
        Some(format!(
            "{}.file.replay_start, {}, lies outside of {} ({} to {})",
            V::TABLE,
            time(start),
            self.shown(),
            time(first),
            time(last)
        ))
    }

    fn shown(&self) -> String {
        self.path.display().to_string()
    }
}

impl<V: FileSignal> Provider<V> for FileProvider<V> {
    fn source(&self) -> &'static str {
        "file"
    }

    fn zone(&self) -> Zone {
        let loaded = || self.state().loaded.as_ref().and_then(|loaded| loaded.file.zone.clone());
        self.zone.clone().or_else(loaded).unwrap_or_else(|| Zone::new("file").expect("a plain word"))
    }

    fn cadence(&self) -> Seconds {
        self.cadence
    }

    fn contributes(&self) -> Contribution {
        self.settings.contributes
    }

    fn provenance(&self) -> Provenance {
        let responses = self.state().loaded.iter().map(|loaded| loaded.digest.to_string()).collect();
        let unit = self.settings.unit.and_then(FileUnit::of_intensity).or(V::UNIT);
        Provenance { unit, responses, ..Provenance::default() }
    }

    /// Returns false: the file itself is on disk.
    fn keeps_answers(&self) -> bool {
        false
    }

    fn fetch(&self, now: DateTime<Utc>) -> BoxFuture<'_, Result<Answer<V>, ProviderError>> {
        self.answer(now).boxed()
    }
}

/// Returns a warning if a file names no zone: its values count as those of `zone`, whatever their own zone is. `None`
/// also if the file cannot be read, which its use reports.
pub fn describe_missing_zone(settings: &Settings, zone: &Zone) -> Option<String> {
    let bytes = files::regular::read(settings.path.as_deref()?, MAX_FILE_BYTES).ok()?;
    let file = parse(&bytes, settings, None).ok()?;
    file.zone.is_none().then(|| format!("the file names no zone; its values are used for {zone}"))
}

fn read<V: FileSignal>(
    path: &Path,
    settings: &Settings,
    zone: Option<&Zone>,
    last_loaded: Option<Arc<Loaded<V>>>,
) -> Result<Arc<Loaded<V>>, ProviderError> {
    let because = |why: String| ProviderError::Unreadable { table: V::TABLE, path: path.display().to_string(), why };
    let unreadable = |e: std::io::Error| because(e.to_string());
    let file = files::regular::open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    let stamp = Stamp { modified: metadata.modified().map_err(unreadable)?, length: metadata.len() };
    if let Some(last) = last_loaded.filter(|last| last.stamp == stamp) {
        return Ok(last);
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(because("files are read up to 64 MiB".to_owned()));
    }
    let malformed = |e: ParseError| ProviderError::Malformed {
        what: e.what + &e.setting,
        at: format!("{}, {}", path.display(), e.at),
    };
    let digest = Digest::of(&bytes);
    Ok(Arc::new(Loaded { stamp, digest, file: parse_as(&bytes, settings, zone).map_err(malformed)? }))
}

/// Runs the parser on any bytes, which must not cause a panic.
#[cfg(any(test, feature = "fuzzing"))]
fn parse_any<V: FileSignal>(body: &[u8]) {
    use crate::providers::feed::check_series;
    // Covers both cases: times without a time zone are refused for prices, and read as UTC for intensities.
    let settings = Settings { assume_utc: V::UNIT.is_some(), ..Settings::default() };
    if let Ok(parsed) = parse_as::<V>(body, &settings, None) {
        check_series(&parsed.expected);
        check_series(&parsed.actual);
    }
}
