//! What a job is promised.

use std::fmt;

use chrono::{DateTime, Utc};

use crate::units::{GramsCo2e, Rounded};

/// What was promised about the work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Promise {
    /// Done by this moment.
    Deadline(DateTime<Utc>),
    /// At most so much more time than at the ceiling, over the job's life: 0.03 is 3 %.
    Slowdown(f64),
    /// At most so much carbon over the job's life.
    CarbonBudget(GramsCo2e),
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deadline(at) => write!(f, "the deadline {}", at.format("%FT%TZ")),
            Self::Slowdown(max) => write!(f, "the {:.1} % slowdown budget", max * 100.0),
            Self::CarbonBudget(grams) => write!(f, "the carbon budget of {} g", Rounded(grams.get())),
        }
    }
}
