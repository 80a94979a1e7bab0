//! Constraints that a job's plan must meet.

use std::fmt;

use chrono::{DateTime, Utc};

use crate::units::{GramsCo2e, Rounded};

/// A constraint on a job's work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Promise {
    /// Latest end.
    Deadline(DateTime<Utc>),
    /// Maximum slowdown over the job's life: 0.03 is 3 %.
    Slowdown(f64),
    /// Maximum emissions over the job's life.
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
