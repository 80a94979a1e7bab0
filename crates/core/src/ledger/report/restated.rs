//! Hours whose emissions were restated: the same energy emits another amount in a later version.

use super::books::Restatement;
use crate::domain::SignalKind;
use crate::ledger::entry::Settlement;
use crate::ledger::hour::Restated;
use crate::units::Micrograms;

/// Restatements listed in a report; the others are counted.
const LISTED: usize = 500;

/// Returns what the energy of the version before emits after this version. Energy that came with a version is no
/// restatement: nothing that was said before was wrong. Whatever it came with may be one. `versions` are those of the hour,
/// in all books.
pub fn carbon_after(change: &Restated, book: SignalKind, version: u32, versions: &[Settlement]) -> Micrograms {
    let of = |version: u32| versions.iter().find(|settled| (settled.book, settled.version) == (book, version));
    match of(version.saturating_sub(1)).zip(of(version)) {
        Some((before, after)) if change.moved_energy() => after.carbon_of(before),
        _ => change.carbon,
    }
}

/// Whether emissions changed by more than so many percent, or to nothing.
pub fn is_restated(before: Micrograms, after: Micrograms, by_pct: f64) -> bool {
    let (before, after) = (before.get(), after.get());
    let is_gone = after == 0 && before > 0;
    is_gone || after.abs_diff(before) as f64 * 100.0 > by_pct * before as f64
}

/// The restatements of a report, the newest hour first.
#[derive(Debug, Default)]
pub struct Restatements {
    /// Those that are listed.
    pub listed: Vec<Restatement>,
    /// How many more there are.
    pub left_out: u64,
}

impl Restatements {
    /// Adds the next one; counts it where enough are listed.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn push<E>(&mut self, make: impl FnOnce() -> Result<Restatement, E>) -> Result<(), E> {
        if self.listed.len() < LISTED {
            self.listed.push(make()?);
        } else {
            self.left_out += 1;
        }
        Ok(())
    }
}
