//! The groupings of a report's rows.

use std::fmt;
use std::str::FromStr;

/// By what a report's rows are told apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum By {
    /// Training runs.
    Job,
    /// Names: runs of a recurring job share theirs.
    Name,
    /// GPUs and parts of processors.
    Device,
    /// The value of a label.
    Tag(String),
    /// UTC days.
    Day,
    /// UTC months.
    Month,
}

impl By {
    /// Whether rows belong to jobs, so that energy without a job needs rows of its own.
    pub const fn is_of_jobs(&self) -> bool {
        matches!(self, Self::Job | Self::Name | Self::Tag(_))
    }
}

impl fmt::Display for By {
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

/// A text that names no grouping.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no grouping; give job, name, gpu, day, month, or tag:KEY with a label's key")]
pub struct NoGrouping(String);

impl FromStr for By {
    type Err = NoGrouping;

    fn from_str(text: &str) -> Result<Self, NoGrouping> {
        match text {
            "job" => Ok(Self::Job),
            "name" => Ok(Self::Name),
            "gpu" => Ok(Self::Device),
            "day" => Ok(Self::Day),
            "month" => Ok(Self::Month),
            other => match other.strip_prefix("tag:") {
                Some(key) if !key.is_empty() => Ok(Self::Tag(key.to_owned())),
                _ => Err(NoGrouping(other.chars().take(80).collect())),
            },
        }
    }
}
