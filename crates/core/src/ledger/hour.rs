//! Next version of an hour's settlement (its stored emissions): the energy and carbon intensities that the version
//! uses, and the changes that it makes to daily totals.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};

use super::due::DueReason;
use super::entry::{Factor, Settlement};
use super::settlement::{distribute, parts};
use super::sources::{SourceKey, joined, keys_of};
use super::{Interval, Share, Total};
use crate::domain::{DeviceId, SignalKind, Slot};
use crate::units::{Micrograms, Millijoules};

/// Inputs of an hour's settlement (stored emissions) for one kind of carbon intensity: sources, time and reason.
#[derive(Clone, Debug)]
pub struct SettlementInput<'a> {
    /// Kind of carbon intensity: average or marginal.
    pub kind: SignalKind,
    /// Sources that are in use at present, all of one kind and scope, the preferred one first.
    pub sources: &'a [SourceKey],
    /// Names of sources that the settings prefer to the active ones and that have published nothing since the daemon's
    /// start: their earlier values remain valid.
    pub silent: &'a [String],
    /// Current time.
    pub at: DateTime<Utc>,
    /// Reason to compute the hour's emissions.
    pub why: DueReason,
}

impl SettlementInput<'_> {
    /// Returns true if the hour needs no further settlement (stored emissions) after this one: settlements with
    /// marginal intensities precede the one with average intensities.
    pub fn completes_hour(&self) -> bool {
        self.kind == SignalKind::Average
    }
}

/// Returns true if settlements (stored emissions of hours) with this kind of carbon intensity are computed: with
/// marginal intensities, only once a source provides them or the hour has a previous version `before`; with others,
/// always.
pub fn has_begun(kind: SignalKind, sources: &[SourceKey], before: Option<&Settlement>) -> bool {
    kind != SignalKind::Marginal || !sources.is_empty() || before.is_some()
}

/// Choice of the carbon intensities for the next version of an hour's settlement (stored emissions).
#[derive(Clone, Debug, PartialEq)]
pub enum IntensityChoice {
    /// The new version uses the carbon intensities of the previous version, unchanged.
    Kept(Vec<Factor>),
    /// The new version uses intensities of the active sources, and of the sources that settlements (stored emissions)
    /// of the hours within this time used.
    AroundHour(Slot),
    /// The new version uses intensities of the active sources alone, or of the sources that [`sources_to_read`]
    /// returns.
    Published,
}

/// Chooses the carbon intensities for the next version of an hour's settlement (stored emissions); `before` is the
/// previous version.
pub fn intensities(hour: &Slot, before: Option<&Settlement>, with: &SettlementInput<'_>) -> IntensityChoice {
    match before {
        // A source that is no longer active may have published values for this hour, which remain valid: settlements of
        // the hours before used that source.
        None => IntensityChoice::AroundHour(Slot::new(hour.start() - TimeDelta::days(1), hour.end()).unwrap_or(*hour)),
        // Neither a correction nor a daemon's start without active sources yet changes carbon intensities.
        Some(before) if with.why == DueReason::Correction || with.sources.is_empty() => {
            IntensityChoice::Kept(before.factors.clone())
        }
        Some(_) => IntensityChoice::Published,
    }
}

/// Returns the sources to read instead of the active ones alone; `None` if the active ones suffice. `published` holds
/// the active sources' intensities. The active sources do not suffice if the previous version `before` used other
/// sources or covers more time, because neither new settings nor an outage of a source withdraws values.
pub fn sources_to_read(
    before: &Settlement,
    published: &[Factor],
    with: &SettlementInput<'_>,
) -> Option<Vec<SourceKey>> {
    let is_published =
        |factor: &Factor| with.sources.iter().any(|key| key.is_of(factor)) && is_covered(factor, published);
    (!before.factors.iter().all(is_published))
        .then(|| joined(with.sources, with.silent, keys_of(with.kind, &before.factors)))
}

/// Returns true if `published` has intensities for all of the time of `factor`.
fn is_covered(factor: &Factor, published: &[Factor]) -> bool {
    let shared = |other: &Factor| (factor.end.min(other.end) - factor.start.max(other.start)).max(TimeDelta::zero());
    published.iter().map(shared).sum::<TimeDelta>() == factor.end - factor.start
}

/// Cuts the times of carbon intensities to a span of time.
pub fn clip(factors: &mut [Factor], span: &Slot) {
    for factor in factors {
        factor.start = factor.start.max(span.start());
        factor.end = factor.end.min(span.end());
    }
}

/// Returns an hour's energy in closed blocks (intervals of about an hour each): first the sums `rolled_up` of rolled-up
/// rows, distributed over the hour as in the previous version `before`, then the remaining `rows`. Each of `rows` has
/// the number of its block; they are in the order of the blocks.
pub fn energy(rolled_up: Vec<Interval>, rows: Vec<(Interval, u64)>, before: Option<&Settlement>) -> Vec<Interval> {
    let (rows, blocks): (Vec<Interval>, Vec<u64>) = rows.into_iter().unzip();
    let mut all = match before {
        Some(before) if !rolled_up.is_empty() => {
            let known = blocks.partition_point(|block| *block <= before.through_block);
            distribute(rolled_up, &rows[..known], before)
        }
        _ => rolled_up,
    };
    all.extend(rows);
    all
}

/// Returns the next version of an hour's settlement (stored emissions); `None` if the hour never had energy, or if
/// nothing changed since the previous version `before`. `energy` is the energy of the hour in the blocks (intervals of
/// about an hour each) up to the one with the number `through_block`.
pub fn next_version(
    hour: DateTime<Utc>,
    with: &SettlementInput<'_>,
    through_block: u64,
    before: Option<&Settlement>,
    energy: &[Interval],
    factors: Vec<Factor>,
) -> Option<Settlement> {
    if energy.is_empty() && before.is_none() {
        return None;
    }
    let settlement = Settlement {
        hour,
        kind: with.kind,
        version: before.map_or(0, |before| before.version) + 1,
        at: with.at,
        reason: with.why.text(before.is_none()).into(),
        through_block,
        parts: parts(energy, &factors),
        factors,
    };
    before.is_none_or(|before| !settlement.is_equivalent_to(before)).then_some(settlement)
}

/// Change of an hour's total energy and emissions from one version of the settlement (stored emissions) to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TotalsChange {
    /// Energy in the previous version.
    pub energy_before: Millijoules,
    /// Energy in the new version.
    pub energy: Millijoules,
    /// Emissions in the previous version.
    pub carbon_before: Micrograms,
    /// Emissions in the new version.
    pub carbon: Micrograms,
}

impl TotalsChange {
    /// Compares two totals of an hour.
    pub fn of(before: &Total, after: &Total) -> Self {
        let (energy_before, carbon_before) = (before.energy, before.carbon);
        Self { energy_before, energy: after.energy, carbon_before, carbon: after.carbon }
    }

    /// Returns true if the hour's energy changed.
    pub fn moved_energy(&self) -> bool {
        self.energy != self.energy_before
    }
}

/// Returns the amounts to add to the totals of a day, by device and share (owner), so that the version `after` of an
/// hour replaces the previous version `before`. The amounts are in the order of [`Total::figures`]; pairs of device and
/// share without a change are omitted.
pub fn day_changes<'a>(
    before: Option<&'a Settlement>,
    after: &'a Settlement,
) -> impl Iterator<Item = ((&'a DeviceId, &'a Share), [i128; 7])> {
    let mut sums: BTreeMap<(&DeviceId, &Share), [i128; 7]> = BTreeMap::new();
    for (settlement, sign) in before.map(|before| (before, -1)).into_iter().chain([(after, 1)]) {
        for (part, total) in settlement.totals() {
            let sum = sums.entry((&part.device, &part.share)).or_default();
            sum.iter_mut().zip(total.figures()).for_each(|(sum, more)| *sum += sign * i128::from(more));
        }
    }
    sums.into_iter().filter(|(_, sum)| *sum != [0; 7])
}

#[cfg(test)]
#[path = "hour_tests.rs"]
mod tests;
