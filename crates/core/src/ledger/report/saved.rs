//! The savings of jobs, as far as their newest outcomes still hold.

use crate::ledger::sure::Sure;
use crate::units::GramsCo2e;

/// Emissions that jobs saved against the limit found on their boards, as an interval; negative where they emitted more.
///
/// Of several jobs the means add up, and so do the ends, as if all errors went the same way: those of the sensors' gain
/// do, those of chance do not, for which the interval is wider than it would have to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Saved {
    /// At the least.
    pub low: GramsCo2e,
    /// Most likely.
    pub mean: GramsCo2e,
    /// At the most.
    pub high: GramsCo2e,
}

impl From<Sure> for Saved {
    fn from(grams: Sure) -> Self {
        let Sure { low, mean, high } = grams;
        Self { low: GramsCo2e::new(low), mean: GramsCo2e::new(mean), high: GramsCo2e::new(high) }
    }
}

/// The newest outcome of a job.
#[derive(Clone, Copy, Debug)]
pub struct NewestOutcome {
    /// Its number in the ledger.
    pub entry: u64,
    /// The saving against the limit found; absent where that was not known.
    pub saved: Option<Saved>,
}

impl NewestOutcome {
    /// Returns the saving, unless energy was given to the job or taken from it since: `corrected` is the number of the
    /// newest correction of the job's energy.
    pub fn saved(self, corrected: Option<u64>) -> Option<Saved> {
        self.saved.filter(|_| corrected.is_none_or(|correction| correction < self.entry))
    }
}

impl std::ops::Add for Saved {
    type Output = Self;

    fn add(self, more: Self) -> Self {
        Self { low: self.low + more.low, mean: self.mean + more.mean, high: self.high + more.high }
    }
}
