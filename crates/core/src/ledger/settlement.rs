//! Settlement of an hour: the hour's energy, split over the times of its carbon intensities, and the emissions.
//!
//! `carbon = Σ energy · intensity`; each part of a settlement is rounded once to the microgram, so that all sums over
//! parts are exact.

use std::collections::BTreeMap;

use super::apportion::by_time;
use super::entry::{Factor, Finality, Part, Settlement};
use super::{Interval, Share};
use crate::domain::{EnergySource, Slot};
use crate::units::{GramsCo2e, GramsPerKwh, Joules, Micrograms, Millijoules};

/// Minimum energy for a mean carbon intensity: at 3.6 J, the rounding error of half a microgram is 0.5 g/kWh.
const MIN_ENERGY: Joules = Joules::new(3.6);

/// Splits the energy of rows over the times of the carbon intensities `factors`, which are in time order and do not
/// overlap, and sums the energy by device, share (owner) and method of measurement. Power is assumed to be constant
/// within a row.
pub fn parts(rows: &[Interval], factors: &[Factor]) -> Vec<Part> {
    let mut parts: BTreeMap<_, Part> = BTreeMap::new();
    for row in rows {
        let part = parts.entry((&row.device, &row.share, row.source)).or_insert_with(|| Part {
            device: row.device.clone(),
            share: row.share.clone(),
            source: row.source,
            energy_mj: vec![Millijoules::ZERO; factors.len()],
            unknown_mj: Millijoules::ZERO,
            carbon_ug: Micrograms::ZERO,
        });
        let (mut slots, mut places) = (Vec::new(), Vec::new());
        let mut at = row.slot.start();
        for (i, factor) in factors.iter().enumerate() {
            let Some(shared) = Slot::new(factor.start, factor.end).and_then(|s| s.intersection(&row.slot)) else {
                continue;
            };
            if let Some(hole) = Slot::new(at, shared.start()) {
                slots.push(hole);
                places.push(None);
            }
            slots.push(shared);
            places.push(Some(i));
            at = shared.end();
        }
        if let Some(hole) = Slot::new(at, row.slot.end()) {
            slots.push(hole);
            places.push(None);
        }
        for (place, energy) in places.into_iter().zip(by_time(row.energy, &slots)) {
            match place {
                Some(i) => part.energy_mj[i] += energy,
                None => part.unknown_mj += energy,
            }
        }
    }
    let mut parts: Vec<Part> = parts.into_values().collect();
    for part in &mut parts {
        part.carbon_ug = carbon(part, factors);
    }
    parts
}

/// Splits the rolled-up energy sums of an hour over the times with different carbon intensities, as the earlier
/// settlement `before` (stored emissions of the hour) did. The energy of `remaining_rows`, the rows that were not
/// rolled up, is also in that settlement and is subtracted first. A sum that differs from what is left of the
/// settlement stays spread evenly over the hour.
pub fn distribute(sums: Vec<Interval>, remaining_rows: &[Interval], before: &Settlement) -> Vec<Interval> {
    let left = parts(remaining_rows, &before.factors);
    let rows_of = |sum: &Interval| -> Option<Vec<Interval>> {
        let alike = |part: &&Part| (&part.device, &part.share, part.source) == (&sum.device, &sum.share, sum.source);
        let part = before.parts.iter().find(alike)?;
        let left = left.iter().find(alike);
        let gone = |all: Millijoules, left: Option<Millijoules>| all.checked_since(left.unwrap_or_default());
        let mut rows = Vec::new();
        let mut at = sum.slot.start();
        let mut holes = Vec::new();
        for (i, factor) in before.factors.iter().enumerate() {
            holes.extend(Slot::new(at, factor.start));
            at = factor.end;
            let energy = gone(part.energy_mj[i], left.map(|left| left.energy_mj[i]))?;
            rows.push((Slot::new(factor.start, factor.end)?, energy));
        }
        holes.extend(Slot::new(at, sum.slot.end()));
        let unknown = gone(part.unknown_mj, left.map(|left| left.unknown_mj))?;
        let in_holes = by_time(unknown, &holes);
        rows.extend(holes.into_iter().zip(in_holes));
        let all: Millijoules = rows.iter().map(|(_, energy)| *energy).sum();
        let row = |(slot, energy)| Interval { slot, energy, ..sum.clone() };
        (all == sum.energy).then(|| rows.into_iter().map(row).collect())
    };
    sums.into_iter().flat_map(|sum| rows_of(&sum).unwrap_or_else(|| vec![sum])).collect()
}

/// Returns the emissions of the energy of `part` that has a known carbon intensity in `factors`.
pub fn carbon(part: &Part, factors: &[Factor]) -> Micrograms {
    let each = part.energy_mj.iter().zip(factors).map(|(energy, factor)| energy.to_joules() * factor.g_per_kwh);
    Micrograms::from_grams(each.sum::<GramsCo2e>())
}

/// Total energy, the same energy by the finality of the carbon intensities used for it, and total emissions. Sums are
/// exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Total {
    /// Total energy, with and without a carbon intensity.
    pub energy: Millijoules,
    /// Energy that was not read from a monitored counter: integrated from power, or measured over a gap.
    pub estimated: Millijoules,
    /// Energy with a forecast or filled-in carbon intensity.
    pub forecast: Millijoules,
    /// Energy with a carbon intensity that may be revised.
    pub provisional: Millijoules,
    /// Energy with a final carbon intensity.
    pub final_: Millijoules,
    /// Energy without a carbon intensity; its emissions are not in `carbon`.
    pub unknown: Millijoules,
    /// Emissions of the energy with a carbon intensity.
    pub carbon: Micrograms,
}

impl Total {
    /// Returns the numbers that the database stores for a total: millijoules in the order of the fields, then
    /// micrograms.
    pub fn figures(&self) -> [u64; 7] {
        let energy = [self.energy, self.estimated, self.forecast, self.provisional, self.final_, self.unknown];
        let [energy, estimated, forecast, provisional, final_, unknown] = energy.map(Millijoules::get);
        [energy, estimated, forecast, provisional, final_, unknown, self.carbon.get()]
    }

    /// Returns the total with these stored numbers, in the order of [`Self::figures`].
    pub fn of_figures([energy, estimated, forecast, provisional, final_, unknown, carbon]: [u64; 7]) -> Self {
        let mj = Millijoules::new;
        Self {
            energy: mj(energy),
            estimated: mj(estimated),
            forecast: mj(forecast),
            provisional: mj(provisional),
            final_: mj(final_),
            unknown: mj(unknown),
            carbon: Micrograms::new(carbon),
        }
    }

    /// Returns the total of a part of a settlement (stored emissions of an hour).
    pub fn of(part: &Part, factors: &[Factor]) -> Self {
        let in_state = |state| -> Millijoules {
            let of = part.energy_mj.iter().zip(factors).filter(|(_, factor)| factor.state == state);
            of.map(|(energy, _)| *energy).sum()
        };
        let energy = part.energy_mj.iter().copied().sum::<Millijoules>() + part.unknown_mj;
        Self {
            energy,
            estimated: if part.source == EnergySource::Counter { Millijoules::ZERO } else { energy },
            forecast: in_state(Finality::Forecast),
            provisional: in_state(Finality::Provisional),
            final_: in_state(Finality::Final),
            unknown: part.unknown_mj,
            carbon: part.carbon_ug,
        }
    }

    /// Returns the mean carbon intensity of the energy whose intensity is known; `None` below 3.6 J, where whole
    /// micrograms are too coarse.
    pub fn mean_intensity(&self) -> Option<GramsPerKwh> {
        let known = self.energy.to_joules() - self.unknown.to_joules();
        (known >= MIN_ENERGY).then(|| GramsPerKwh::new(self.carbon.to_grams() / (known * GramsPerKwh::new(1.0))))
    }

    /// Returns `forecast`, `provisional` or `final` if all of the energy has a carbon intensity of that finality,
    /// `unknown` if no intensity is known, and `mixed` otherwise.
    pub fn state(&self) -> &'static str {
        match self.energy {
            energy if energy == self.unknown => "unknown",
            energy if energy == self.final_ => "final",
            energy if energy == self.provisional => "provisional",
            energy if energy == self.forecast => "forecast",
            _ => "mixed",
        }
    }
}

impl std::ops::AddAssign for Total {
    fn add_assign(&mut self, more: Self) {
        self.energy += more.energy;
        self.estimated += more.estimated;
        self.forecast += more.forecast;
        self.provisional += more.provisional;
        self.final_ += more.final_;
        self.unknown += more.unknown;
        self.carbon += more.carbon;
    }
}

impl std::iter::Sum for Total {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::default(), |mut sum, more| {
            sum += more;
            sum
        })
    }
}

impl Settlement {
    /// Returns each part of the settlement with its total.
    pub fn totals(&self) -> impl Iterator<Item = (&Part, Total)> {
        self.parts.iter().map(|part| (part, Total::of(part, &self.factors)))
    }

    /// Returns true if another settlement has the same energy and intensities, regardless of publication times.
    pub fn is_equivalent_to(&self, other: &Self) -> bool {
        let alike = |a: &Factor, b: &Factor| {
            (a.start, a.end, a.g_per_kwh, a.origin, a.state, &a.source, &a.zone, a.scope)
                == (b.start, b.end, b.g_per_kwh, b.origin, b.state, &b.source, &b.zone, b.scope)
        };
        self.parts == other.parts
            && self.factors.len() == other.factors.len()
            && self.factors.iter().zip(&other.factors).all(|(a, b)| alike(a, b))
    }

    /// Returns the total energy and emissions.
    pub fn total(&self) -> Total {
        self.totals().map(|(_, total)| total).sum()
    }

    /// Returns the emissions that the energy of the earlier version `before` has with this version's carbon
    /// intensities. If the intensities of the two versions apply to different times, power is assumed to be constant
    /// over the time of each earlier intensity, up to the time at which `before` was computed.
    pub fn carbon_of(&self, before: &Self) -> Micrograms {
        let hour_end = before.hour + chrono::TimeDelta::hours(1);
        let seen = if before.at > before.hour { before.at.min(hour_end) } else { hour_end };
        let mut rows = Vec::new();
        for part in &before.parts {
            let mut push = |slot: Slot, energy: Millijoules| {
                let slot = Slot::new(slot.start(), slot.end().min(seen)).unwrap_or(slot);
                let (device, share) = (part.device.clone(), part.share.clone());
                rows.push(Interval { device, share, slot, energy, source: part.source });
            };
            let (mut at, mut holes) = (before.hour, Vec::new());
            for (factor, energy) in before.factors.iter().zip(&part.energy_mj) {
                holes.extend(Slot::new(at, factor.start));
                at = factor.end;
                if let Some(slot) = Slot::new(factor.start, factor.end) {
                    push(slot, *energy);
                }
            }
            holes.extend(Slot::new(at, hour_end));
            let in_holes = by_time(part.unknown_mj, &holes);
            holes.into_iter().zip(in_holes).for_each(|(hole, energy)| push(hole, energy));
        }
        parts(&rows, &self.factors).iter().map(|part| part.carbon_ug).sum()
    }

    /// Returns true if all of the hour's energy has a final carbon intensity.
    pub fn is_final(&self) -> bool {
        let total = self.total();
        total.energy == total.final_
    }
}

impl Share {
    /// Returns the name of the kind of owner: `job`, `idle` or `unattributed`.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Job(_) => "job",
            Self::Idle => "idle",
            Self::Unattributed => "unattributed",
        }
    }
}

#[cfg(test)]
mod tests {
    use chrono::{DateTime, TimeDelta, Utc};
    use proptest::prelude::*;

    use super::*;
    use crate::domain::{DeviceId, Origin, SignalScope, Zone};

    fn at(minutes: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::minutes(minutes)
    }

    fn factor(from: i64, to: i64, value: f64, state: Finality) -> Factor {
        Factor {
            start: at(from),
            end: at(to),
            g_per_kwh: GramsPerKwh::new(value),
            received: None,
            origin: Origin::Measured,
            state,
            source: "file".into(),
            zone: Zone::new("X").expect("a zone"),
            scope: SignalScope::Lifecycle,
            issued_at: at(0),
            retrieved_at: at(0),
            provenance: Default::default(),
        }
    }

    fn row(from: i64, to: i64, energy: u64, share: Share) -> Interval {
        let (device, slot) = (DeviceId::new("GPU-0").expect("an id"), Slot::new(at(from), at(to)).expect("from < to"));
        Interval { device, share, slot, energy: Millijoules::new(energy), source: EnergySource::Counter }
    }

    #[test]
    fn energy_is_divided_by_time_and_unknown_intensities_have_no_emissions() {
        let factors = [factor(0, 30, 300.0, Finality::Final), factor(45, 60, 100.0, Finality::Forecast)];
        let rows = [row(0, 60, 3_600_000_000, Share::Idle)];
        let found = parts(&rows, &factors);
        let total = Total::of(&found[0], &factors);
        let expected = [1_800_000_000, 900_000_000, 900_000_000, 3_600_000_000].map(Millijoules::new);
        assert_eq!([total.final_, total.forecast, total.unknown, total.energy], expected);
        // 0.5 kWh at 300 and 0.25 kWh at 100 g/kWh.
        assert_eq!(total.carbon, Micrograms::from_grams(GramsCo2e::new(175.0)));
        assert_eq!((total.state(), total.estimated), ("mixed", Millijoules::ZERO));
    }

    proptest! {
        #[test]
        fn no_energy_is_lost_between_factors(
            rows in prop::collection::vec((0i64..59, 1i64..60, 0u64..10_000_000_000), 1..8),
            cuts in prop::collection::btree_set(0i64..60, 2..8),
        ) {
            let rows: Vec<Interval> =
                rows.into_iter().map(|(from, length, mj)| row(from, from + length, mj, Share::Idle)).collect();
            let cuts: Vec<i64> = cuts.into_iter().collect();
            let factors: Vec<Factor> =
                cuts.windows(2).step_by(2).map(|w| factor(w[0], w[1], 123.0, Finality::Provisional)).collect();
            let found = parts(&rows, &factors);
            let total: Total = found.iter().map(|part| Total::of(part, &factors)).sum();
            prop_assert_eq!(total.energy, rows.iter().map(|r| r.energy).sum::<Millijoules>());
            prop_assert_eq!(total.provisional + total.unknown, total.energy);
            let grams = total.provisional.to_joules() * GramsPerKwh::new(123.0);
            prop_assert!((total.carbon.to_grams() - grams).abs() < GramsCo2e::new(1e-5));
        }
    }
}
