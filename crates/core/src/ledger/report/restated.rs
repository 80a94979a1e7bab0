//! Restatements: hours whose energy has other emissions in a later version.

use super::ledger_data::Restatement;
use crate::domain::SignalKind;
use crate::ledger::entry::Settlement;
use crate::ledger::hour::TotalsChange;
use crate::units::Micrograms;

/// Maximum number of restatements in a report; further ones are counted.
const MAX_LISTED: usize = 500;

/// Returns the emissions of the previous version's energy with this version's intensities. Additional energy is no
/// restatement, because nothing reported before was wrong. `versions` are all versions of the hour, of all kinds.
pub fn carbon_after(change: &TotalsChange, kind: SignalKind, version: u32, versions: &[Settlement]) -> Micrograms {
    let of = |version: u32| versions.iter().find(|settled| (settled.kind, settled.version) == (kind, version));
    match of(version.saturating_sub(1)).zip(of(version)) {
        Some((before, after)) if change.moved_energy() => after.carbon_of(before),
        _ => change.carbon,
    }
}

/// Returns true if emissions changed by more than a percentage, or to zero.
pub fn is_restated(before: Micrograms, after: Micrograms, by_pct: f64) -> bool {
    let (before, after) = (before.get(), after.get());
    let is_gone = after == 0 && before > 0;
    is_gone || after.abs_diff(before) as f64 * 100.0 > by_pct * before as f64
}

/// Restatements of a report, newest hour first.
#[derive(Debug, Default)]
pub struct Restatements {
    /// Listed restatements.
    pub listed: Vec<Restatement>,
    /// Number of further ones.
    pub left_out: u64,
}

impl Restatements {
    /// Adds the next restatement, or counts it if enough are listed.
    ///
    /// # Errors
    ///
    /// Returns the error of `make`.
    pub fn push<E>(&mut self, make: impl FnOnce() -> Result<Restatement, E>) -> Result<(), E> {
        if self.listed.len() < MAX_LISTED {
            self.listed.push(make()?);
        } else {
            self.left_out += 1;
        }
        Ok(())
    }
}
