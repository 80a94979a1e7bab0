//! Sources of an hour's carbon intensities, and their order of preference.

use std::collections::{BTreeSet, HashMap};

use super::entry::{Factor, Settlement};
use crate::domain::{Forecast, Origin, SignalKind, SignalScope, Zone};

/// Text in place of the names of sources, for a settlement (stored emissions of an hour) without carbon intensities.
pub const NO_SOURCE: &str = "none";

/// Suffix to a source's scope in [`Settlement::sources`], which marks values as synthetic: they belong to no real grid.
const SYNTHETIC: &str = ", synthetic: of no real grid";

/// A source of carbon intensities, with the zone, kind and scope of its values. New settings may change these for the
/// same source; values of different kinds or scopes are never combined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceKey {
    /// Name of the source.
    pub source: String,
    /// Grid zone as named in the settings.
    pub zone: Zone,
    /// Kind of carbon intensity: average or marginal.
    pub kind: SignalKind,
    /// Emissions that the values include: lifecycle or operational.
    pub scope: SignalScope,
}

impl SourceKey {
    /// Returns the key of the source that sent a response.
    pub fn of(forecast: &Forecast) -> Self {
        Self {
            source: forecast.source.clone(),
            zone: forecast.zone.clone(),
            kind: forecast.kind,
            scope: forecast.scope,
        }
    }

    /// Returns true if an intensity has this source, zone and scope; an intensity does not state its kind.
    pub fn is_of(&self, factor: &Factor) -> bool {
        (&self.source, &self.zone, self.scope) == (&factor.source, &factor.zone, factor.scope)
    }
}

/// Returns the kinds of carbon intensity that a settlement (stored emissions of an hour) of the kind `kind` accepts,
/// the preferred one first.
pub const fn kinds_of(kind: SignalKind) -> &'static [SignalKind] {
    match kind {
        SignalKind::Marginal => &[SignalKind::Marginal],
        _ => &[SignalKind::Average, SignalKind::Unspecified],
    }
}

/// Returns the sources of the carbon intensities `factors`. An intensity does not state its kind, so each source is
/// returned with every kind that a settlement (stored emissions of an hour) of `kind` accepts.
pub fn keys_of<'a>(kind: SignalKind, factors: impl IntoIterator<Item = &'a Factor>) -> Vec<SourceKey> {
    let mut keys: Vec<SourceKey> = Vec::new();
    for factor in factors {
        for accepted in kinds_of(kind) {
            let (source, zone) = (factor.source.clone(), factor.zone.clone());
            let key = SourceKey { source, zone, kind: *accepted, scope: factor.scope };
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
    }
    keys
}

/// Returns the active sources followed by the `earlier` ones, each source once. Earlier sources that are named in
/// `silent` precede the active sources: the settings prefer them, but they have published nothing since the daemon's
/// start.
pub fn joined(active: &[SourceKey], silent: &[String], earlier: Vec<SourceKey>) -> Vec<SourceKey> {
    let earlier = earlier.into_iter().filter(|key| !active.contains(key));
    let (mut all, behind): (Vec<_>, Vec<_>) = earlier.partition(|key| silent.contains(&key.source));
    all.extend_from_slice(active);
    all.extend(behind);
    all
}

/// Returns the active sources and the sources that `settlements` (stored emissions of hours) used, in the order of
/// [`joined`]. `settlements` are in order from the newest to the oldest.
pub fn with_earlier(
    kind: SignalKind,
    active: &[SourceKey],
    silent: &[String],
    settlements: &[Settlement],
) -> Vec<SourceKey> {
    let factors = settlements.iter().flat_map(|settled| &settled.factors);
    joined(active, silent, keys_of(kind, factors.filter(|factor| !active.iter().any(|key| key.is_of(factor)))))
}

/// Returns the numbers of the newest settlement (stored emissions of an hour) for each combination of sources, newest
/// first. Settlements without a source are omitted. `settled` holds the number of each settlement in the ledger and its
/// [`Settlement::sources`].
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
    /// Returns the sources of the settlement's carbon intensities with zone and scope, as shown in reports.
    pub fn sources(&self) -> String {
        let name = |factor: &Factor| {
            let made_up = if factor.origin == Origin::Synthetic { SYNTHETIC } else { "" };
            format!("{} {} ({}{made_up})", factor.source, factor.zone, factor.scope.as_str())
        };
        let all: BTreeSet<String> = self.factors.iter().map(name).collect();
        if all.is_empty() { NO_SOURCE.into() } else { all.into_iter().collect::<Vec<_>>().join(", ") }
    }
}

/// Returns true if some intensities of a settlement (stored emissions of an hour) with these [`Settlement::sources`]
/// are synthetic.
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
    fn the_newest_settlement_counts_for_each_combination_of_sources() {
        let settled = [(7, "a"), (9, NO_SOURCE), (3, "b"), (5, "b"), (6, "a")];
        assert_eq!(newest_of_each(settled.map(|(seq, sources)| (seq, sources.to_owned()))), [7, 5]);
    }
}
