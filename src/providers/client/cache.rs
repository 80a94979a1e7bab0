//! The last forecast of each source on disk, for a restart without network.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};

use super::time::in_range;
use wattune_core::domain::{Forecast, Quoted, SignalValue, TimeSeries, Zone};

/// Version of the file format; files of other versions are ignored.
const VERSION: u32 = 1;

const MAX_BYTES: u64 = 64 << 20;

/// Maximum time after now at which a stored forecast may have been fetched and still be accepted: clocks may be off.
const SKEW: TimeDelta = TimeDelta::minutes(15);

#[derive(Clone, Debug)]
pub(in crate::providers) struct Cache {
    path: PathBuf,
    source: &'static str,
    zone: Zone,
}

#[derive(Deserialize)]
#[serde(bound = "V: SignalValue")]
struct Stored<V> {
    version: u32,
    forecast: Forecast<V>,
}

#[derive(Serialize)]
#[serde(bound = "V: SignalValue")]
struct Storing<'a, V> {
    version: u32,
    forecast: &'a Forecast<V>,
}

/// Reason why a stored forecast cannot be read, or one cannot be stored.
#[derive(Debug, thiserror::Error)]
pub(in crate::providers) enum CacheProblem {
    #[error("cannot be read or written ({0}); check the directory's permissions")]
    Io(#[from] io::Error),
    #[error("is not a stored forecast ({0}); it is ignored, and replaced after the next response")]
    Corrupt(String),
}

impl Cache {
    /// Returns the cache for a source's forecasts of a signal ("carbon" or "price"): a file in `directory`, not opened
    /// yet.
    pub(in crate::providers) fn new(directory: &Path, signal: &str, source: &'static str, zone: Zone) -> Self {
        // Zones whose names differ only in special characters share a file, so `load` compares the zone.
        Self { path: directory.join(format!("{signal}-{}.json", file_name(source, &zone))), source, zone }
    }

    pub(in crate::providers) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the stored forecast; `None` if there is none of this source and zone, or if it was fetched too far in the
    /// future. Blocks the thread.
    pub(in crate::providers) fn load<V: SignalValue>(
        &self,
        now: DateTime<Utc>,
    ) -> Result<Option<Forecast<V>>, CacheProblem> {
        let file = match crate::files::regular::open(&self.path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        let mut bytes = Vec::new();
        file.take(MAX_BYTES).read_to_end(&mut bytes)?;
        let forecast: Forecast<V> = read(&bytes)?;
        let ours = forecast.source == self.source && forecast.zone == self.zone && forecast.retrieved_at <= now + SKEW;
        Ok(ours.then_some(forecast))
    }

    /// Replaces the stored forecast atomically. Blocks the thread.
    pub(in crate::providers) fn store<V: SignalValue>(&self, forecast: &Forecast<V>) -> Result<(), CacheProblem> {
        if let Some(directory) = self.path.parent() {
            std::fs::create_dir_all(directory)?;
        }
        let temporary = self.path.with_extension("json.tmp");
        let mut file = crate::files::create(&temporary)?;
        let bytes = serde_json::to_vec(&Storing { version: VERSION, forecast }).map_err(io::Error::from)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        Ok(std::fs::rename(&temporary, &self.path)?)
    }
}

/// Reads the content of a file whose format version is [`VERSION`].
pub(in crate::providers) fn read<V: SignalValue>(bytes: &[u8]) -> Result<Forecast<V>, CacheProblem> {
    let stored: Stored<V> = serde_json::from_slice(bytes).map_err(|e| CacheProblem::Corrupt(e.to_string()))?;
    if stored.version != VERSION {
        return Err(CacheProblem::Corrupt(format!("version {}, expected {VERSION}", stored.version)));
    }
    if !well_formed(&stored.forecast) {
        return Err(CacheProblem::Corrupt("slots out of order, or values out of range".to_owned()));
    }
    Ok(stored.forecast)
}

/// Returns source and zone as part of a file name; special characters of the zone become `_`.
pub(in crate::providers) fn file_name(source: &str, zone: &Zone) -> String {
    let safe = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    let zone: String = zone.as_str().chars().map(safe).collect();
    format!("{source}-{zone}")
}

/// Checks what deserialization does not: slots are in order and do not overlap, times and values are within range.
pub(in crate::providers) fn well_formed<V: SignalValue>(forecast: &Forecast<V>) -> bool {
    let right = |series: &TimeSeries<Quoted<V>>| {
        let points = series.points();
        points.iter().all(|(slot, intensity)| {
            slot.start() < slot.end()
                && in_range(slot.start()).is_ok()
                && in_range(slot.end()).is_ok()
                && V::checked(intensity.value.number()).is_some()
        }) && points.windows(2).all(|pair| pair[0].0.end() <= pair[1].0.start())
    };
    let times = [forecast.issued_at, forecast.retrieved_at];
    right(&forecast.expected) && right(&forecast.actual) && times.into_iter().all(|t| in_range(t).is_ok())
}
