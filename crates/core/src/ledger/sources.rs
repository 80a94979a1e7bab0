//! Sources of an hour's intensities, and their order of preference.

use std::collections::{BTreeSet, HashMap};

use super::entry::{Factor, Settlement};
use crate::domain::{Forecast, Origin, SignalKind, SignalScope, Zone};

/// Stands in place of the sources of a settlement without intensities.
pub const NO_SOURCE: &str = "none";

/// Stands behind the scope of a source of which a generator made values: they belong to no real grid.
const SYNTHETIC: &str = ", synthetic: of no real grid";

/// A source, the zone that it was asked for, and the quantity of its values. The settings may change what one source
/// gives, and series of different kinds or scopes are never joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceKey {
    /// The source's name.
    pub source: String,
    /// The zone as the settings name it.
    pub zone: Zone,
    /// Average or marginal.
    pub kind: SignalKind,
    /// Lifecycle or operational.
    pub scope: SignalScope,
}

impl SourceKey {
    /// Returns the key of a source's response.
    pub fn of(forecast: &Forecast) -> Self {
        Self {
            source: forecast.source.clone(),
            zone: forecast.zone.clone(),
            kind: forecast.kind,
            scope: forecast.scope,
        }
    }

    /// Whether an intensity may be of this source; an intensity does not name its kind.
    pub fn is_of(&self, factor: &Factor) -> bool {
        (&self.source, &self.zone, self.scope) == (&factor.source, &factor.zone, factor.scope)
    }
}

/// Returns the kinds of intensities that a book takes, the preferred one first.
pub const fn kinds_of(book: SignalKind) -> &'static [SignalKind] {
    match book {
        SignalKind::Marginal => &[SignalKind::Marginal],
        _ => &[SignalKind::Average, SignalKind::Unspecified],
    }
}

/// Returns the sources of a book's intensities. As intensities do not name their kind, each source comes with every kind
/// that the book takes.
pub fn keys_of<'a>(book: SignalKind, factors: impl IntoIterator<Item = &'a Factor>) -> Vec<SourceKey> {
    let mut keys: Vec<SourceKey> = Vec::new();
    for factor in factors {
        for kind in kinds_of(book) {
            let (source, zone) = (factor.source.clone(), factor.zone.clone());
            let key = SourceKey { source, zone, kind: *kind, scope: factor.scope };
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
    }
    keys
}

/// Returns the active sources and those of earlier settlements. The earlier ones come last, except for `silent` ones, which
/// the settings prefer to the active ones and which published nothing since the daemon's start.
pub fn joined(active: &[SourceKey], silent: &[String], earlier: Vec<SourceKey>) -> Vec<SourceKey> {
    let earlier = earlier.into_iter().filter(|key| !active.contains(key));
    let (mut all, behind): (Vec<_>, Vec<_>) = earlier.partition(|key| silent.contains(&key.source));
    all.extend_from_slice(active);
    all.extend(behind);
    all
}

/// Returns the active sources and those that the given settlements of a book used, the newest settlement first, as
/// [`joined`].
pub fn believed(
    book: SignalKind,
    active: &[SourceKey],
    silent: &[String],
    settlements: &[Settlement],
) -> Vec<SourceKey> {
    let factors = settlements.iter().flat_map(|settled| &settled.factors);
    joined(active, silent, keys_of(book, factors.filter(|factor| !active.iter().any(|key| key.is_of(factor)))))
}

/// Returns the newest settlement with each combination of sources, the newest first; those without a source are left out.
/// `settled` holds a settlement's number in the ledger and [`Settlement::sources`] of it.
pub fn newest_of_each(settled: impl IntoIterator<Item = (i64, String)>) -> Vec<i64> {
    let mut newest = HashMap::new();
    for (seq, sources) in settled {
        if sources != NO_SOURCE {
            newest.entry(sources).and_modify(|known: &mut i64| *known = seq.max(*known)).or_insert(seq);
        }
    }
    let mut newest: Vec<i64> = newest.into_values().collect();
    newest.sort_unstable_by_key(|seq| std::cmp::Reverse(*seq));
    newest
}

impl Settlement {
    /// Returns the sources of its intensities with zone and scope, as reports name them.
    pub fn sources(&self) -> String {
        let name = |factor: &Factor| {
            let made_up = if factor.origin == Origin::Synthetic { SYNTHETIC } else { "" };
            format!("{} {} ({}{made_up})", factor.source, factor.zone, factor.scope.as_str())
        };
        let all: BTreeSet<String> = self.factors.iter().map(name).collect();
        if all.is_empty() { NO_SOURCE.into() } else { all.into_iter().collect::<Vec<_>>().join(", ") }
    }
}

/// Whether a generator made some intensities of a settlement, by [`Settlement::sources`] of it.
pub fn is_synthetic(sources: &str) -> bool {
    sources.contains(SYNTHETIC)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(source: &str) -> SourceKey {
        let zone = Zone::new("X").expect("a zone");
        SourceKey { source: source.into(), zone, kind: SignalKind::Average, scope: SignalScope::Lifecycle }
    }

    #[test]
    fn earlier_sources_come_last_unless_the_settings_prefer_them() {
        let active = [key("now")];
        let earlier = ["before", "now", "silent"].map(key).to_vec();
        assert_eq!(joined(&active, &["silent".into()], earlier.clone()), ["silent", "now", "before"].map(key));
        assert_eq!(joined(&[], &[], earlier.clone()), earlier);
    }

    #[test]
    fn of_each_combination_of_sources_the_newest_settlement_counts() {
        let settled = [(7, "a"), (9, NO_SOURCE), (3, "b"), (5, "b"), (6, "a")];
        assert_eq!(newest_of_each(settled.map(|(seq, said)| (seq, said.to_owned()))), [7, 5]);
    }
}
