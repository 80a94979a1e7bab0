//! Hours whose emissions wait to be computed, and the reasons.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};

/// Reason to compute an hour's emissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DueReason {
    /// Energy of the hour was recorded that the hour's settlement (stored emissions) does not contain.
    Energy,
    /// A source published, revised or finalised carbon intensities of the hour.
    Intensity,
    /// A person attributed intervals of the hour to another share.
    Correction,
}

impl DueReason {
    /// Returns the reason that a settlement (stored emissions of an hour) states; `first` is true for the first
    /// version.
    pub const fn text(self, first: bool) -> &'static str {
        match self {
            _ if first => "first",
            Self::Energy => "more energy was recorded",
            Self::Intensity => "intensities were published or revised",
            Self::Correction => "corrected",
        }
    }

    /// Returns the name of the reason in the database.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Energy => "energy",
            Self::Intensity => "intensity",
            Self::Correction => "correction",
        }
    }

    /// Returns the reason with this name in the database; `None` if there is none.
    pub fn named(name: &str) -> Option<Self> {
        [Self::Energy, Self::Intensity, Self::Correction].into_iter().find(|why| why.name() == name)
    }

    /// Returns the reason to store for an hour that already waits for the reason `waiting`. Energy outweighs the other
    /// reasons because it causes energy and intensities to be read again; a correction outweighs new intensities.
    #[must_use]
    pub fn merge(self, waiting: Self) -> Self {
        if waiting == Self::Intensity || self == Self::Energy { self } else { waiting }
    }

    /// Returns true if an hour that waits for this reason may have energy that is not in the hour's settlement (stored
    /// emissions).
    pub const fn is_of_energy(self) -> bool {
        !matches!(self, Self::Intensity)
    }
}

/// Returns the reasons to store for waiting hours, in order. A correction of an hour that also has new intensities is
/// stored as the reason energy, which alone causes both energy and intensities to be read again.
pub fn defer(hours: &BTreeSet<(DateTime<Utc>, DueReason)>) -> impl Iterator<Item = (DateTime<Utc>, DueReason)> + '_ {
    hours.iter().map(|(hour, why)| {
        let also_news = *why == DueReason::Correction && hours.contains(&(*hour, DueReason::Intensity));
        (*hour, if also_news { DueReason::Energy } else { *why })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [DueReason; 3] = [DueReason::Energy, DueReason::Intensity, DueReason::Correction];

    #[test]
    fn energy_outweighs_corrections_and_corrections_outweigh_intensities() {
        for why in ALL {
            assert_eq!(DueReason::named(why.name()), Some(why));
            assert_eq!(why.merge(why), why);
            assert_eq!(
                (DueReason::Energy.merge(why), why.merge(DueReason::Energy)),
                (DueReason::Energy, DueReason::Energy)
            );
        }
        assert_eq!(DueReason::Correction.merge(DueReason::Intensity), DueReason::Correction);
        assert_eq!(DueReason::Intensity.merge(DueReason::Correction), DueReason::Correction);
        assert_eq!(DueReason::named("curiosity"), None);
    }

    #[test]
    fn a_correction_with_new_intensities_is_stored_as_energy() {
        let hour = DateTime::UNIX_EPOCH;
        let both = BTreeSet::from([(hour, DueReason::Intensity), (hour, DueReason::Correction)]);
        assert_eq!(defer(&both).last(), Some((hour, DueReason::Energy)));
        let alone = BTreeSet::from([(hour, DueReason::Correction)]);
        assert_eq!(defer(&alone).collect::<Vec<_>>(), [(hour, DueReason::Correction)]);
    }
}
