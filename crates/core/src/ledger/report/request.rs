//! Request for a report: grouping, span and functional unit.

use std::fmt;
use std::str::FromStr;

use chrono::{DateTime, Utc};

use crate::domain::Slot;
use crate::units::Samples;

/// Request for a report.
#[derive(Clone, Debug, PartialEq)]
pub struct ReportRequest {
    /// Grouping of the rows.
    pub by: Grouping,
    /// Time that the report covers, in whole UTC hours.
    pub span: Slot,
    /// Functional unit of the SCI score; absent if no score is requested.
    pub unit: Option<FunctionalUnit>,
    /// Change of an hour's published emissions, in percent, above which the report lists the hour as restated.
    pub restated_by_pct: f64,
    /// Current time.
    pub now: DateTime<Utc>,
}

/// Minimum number of samples in an epoch.
pub const MIN_SAMPLES_PER_EPOCH: f64 = 1.0;

/// Functional unit R of SCI (ISO/IEC 21031), the denominator of the score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FunctionalUnit {
    /// The score is per training run, from registration to end.
    Run,
    /// The score is per epoch of this many samples; without a number, of as many as the job's label `samples_per_epoch`
    /// states.
    Epoch(Option<Samples>),
    /// The score is per million samples.
    MillionSamples,
}

impl FunctionalUnit {
    /// Returns `run`, `epoch` or `1e6-samples`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Epoch(_) => "epoch",
            Self::MillionSamples => "1e6-samples",
        }
    }
}

/// Grouping of a report's rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Grouping {
    /// Each training run has a row.
    Job,
    /// Each job name has a row; the runs of a recurring job share a name.
    Name,
    /// Each GPU, CPU package and memory has a row.
    Device,
    /// Each value of the label with this key has a row.
    Tag(String),
    /// Each UTC day has a row.
    Day,
    /// Each UTC month has a row.
    Month,
}

impl Grouping {
    /// Returns true if the rows of this grouping belong to jobs, so that energy without a job has rows of its own.
    pub const fn is_of_jobs(&self) -> bool {
        matches!(self, Self::Job | Self::Name | Self::Tag(_))
    }
}

impl fmt::Display for Grouping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Job => f.write_str("job"),
            Self::Name => f.write_str("name"),
            Self::Device => f.write_str("gpu"),
            Self::Tag(key) => write!(f, "tag:{key}"),
            Self::Day => f.write_str("day"),
            Self::Month => f.write_str("month"),
        }
    }
}

/// Error: the text names no grouping.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a grouping; expected job, name, gpu, day, month, or tag:KEY with a label's key")]
pub struct InvalidGrouping(String);

impl FromStr for Grouping {
    type Err = InvalidGrouping;

    fn from_str(text: &str) -> Result<Self, InvalidGrouping> {
        match text {
            "job" => Ok(Self::Job),
            "name" => Ok(Self::Name),
            "gpu" => Ok(Self::Device),
            "day" => Ok(Self::Day),
            "month" => Ok(Self::Month),
            other => match other.strip_prefix("tag:") {
                Some(key) if !key.is_empty() => Ok(Self::Tag(key.to_owned())),
                _ => Err(InvalidGrouping(other.chars().take(80).collect())),
            },
        }
    }
}
