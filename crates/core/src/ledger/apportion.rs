//! Exact division of integer amounts by weights, and of energy over time.

use chrono::{DateTime, DurationRound, TimeDelta, Utc};

use super::Interval;
use crate::domain::Slot;
use crate::units::Millijoules;

/// Divides `total` in proportion to `weights` with the largest-remainder method; of equal remainders, the first wins.
/// Each part differs from the exact quotient by less than one, and the parts add up to `total`. If all weights are
/// zero, the parts are equal.
pub fn apportion(total: u64, weights: &[u64]) -> Vec<u64> {
    let sum: u128 = weights.iter().map(|w| u128::from(*w)).sum();
    if sum == 0 {
        return if weights.is_empty() { Vec::new() } else { apportion(total, &vec![1; weights.len()]) };
    }
    let exact = |w: &u64| (u128::from(total) * u128::from(*w) / sum, u128::from(total) * u128::from(*w) % sum);
    let (floors, remainders): (Vec<u128>, Vec<u128>) = weights.iter().map(exact).unzip();
    let mut shares: Vec<u64> = floors.iter().map(|f| u64::try_from(*f).unwrap_or(u64::MAX)).collect();
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by_key(|i| std::cmp::Reverse(remainders[*i]));
    let left = u128::from(total) - floors.iter().sum::<u128>();
    for i in order.into_iter().take(usize::try_from(left).unwrap_or(0)) {
        shares[i] += 1;
    }
    shares
}

/// Divides `energy` over the times `parts` in proportion to their durations, assuming constant power.
pub fn by_time(energy: Millijoules, parts: &[Slot]) -> Vec<Millijoules> {
    let length = |part: &Slot| (part.end() - part.start()).num_microseconds().and_then(|us| u64::try_from(us).ok());
    let weights: Vec<u64> = parts.iter().map(|part| length(part).unwrap_or(0)).collect();
    apportion(energy.get(), &weights).into_iter().map(Millijoules::new).collect()
}

/// Returns the start of the UTC hour that contains `t`.
pub fn hour_of(t: DateTime<Utc>) -> DateTime<Utc> {
    t.duration_trunc(TimeDelta::hours(1)).unwrap_or(t)
}

/// Returns the start of the UTC day that contains `t`.
pub fn day_of(t: DateTime<Utc>) -> DateTime<Utc> {
    t.duration_trunc(TimeDelta::days(1)).unwrap_or(t)
}

/// Returns the UTC hours that a span overlaps, oldest first.
pub fn hours_of(span: &Slot) -> impl Iterator<Item = DateTime<Utc>> + use<> {
    let end = span.end();
    std::iter::successors(Some(hour_of(span.start())), |hour| Some(*hour + TimeDelta::hours(1)))
        .take_while(move |hour| *hour < end)
}

/// Splits an energy interval at full hours, so that each row of the ledger lies within one hour. Power is assumed to be
/// constant within the interval.
pub fn by_hour(row: Interval) -> Vec<Interval> {
    let hour = |start| Slot::new(start, start + TimeDelta::hours(1))?.intersection(&row.slot);
    let parts: Vec<Slot> = hours_of(&row.slot).filter_map(hour).collect();
    let energies = by_time(row.energy, &parts);
    parts.into_iter().zip(energies).map(|(slot, energy)| Interval { slot, energy, ..row.clone() }).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::domain::{DeviceId, EnergySource};
    use crate::ledger::Share;

    proptest! {
        #[test]
        fn shares_add_up_and_are_off_by_less_than_one(total in any::<u64>(), weights in prop::collection::vec(any::<u64>(), 1..9)) {
            let shares = apportion(total, &weights);
            prop_assert_eq!(shares.iter().map(|s| u128::from(*s)).sum::<u128>(), u128::from(total));
            let sum: u128 = weights.iter().map(|w| u128::from(*w)).sum();
            for (share, weight) in shares.iter().zip(&weights).filter(|_| sum > 0) {
                let floor = u128::from(total) * u128::from(*weight) / sum;
                prop_assert!(u128::from(*share) == floor || u128::from(*share) == floor + 1);
            }
        }

        #[test]
        fn an_interval_is_split_at_full_hours_without_loss(start in 0i64..10_000_000_000, us in 1i64..20_000_000_000, mj in any::<u64>()) {
            let at = |us| DateTime::UNIX_EPOCH + TimeDelta::microseconds(us);
            let slot = Slot::new(at(start), at(start + us)).expect("from < to");
            let device = DeviceId::new("GPU-0").expect("an id");
            let row = Interval { device, share: Share::Idle, slot, energy: Millijoules::new(mj), source: EnergySource::Counter };
            let parts = by_hour(row);
            prop_assert_eq!(parts.iter().map(|p| p.energy.get()).sum::<u64>(), mj);
            prop_assert_eq!((parts[0].slot.start(), parts[parts.len() - 1].slot.end()), (slot.start(), slot.end()));
            for (i, part) in parts.iter().enumerate() {
                prop_assert!(part.slot.end() <= hour_of(part.slot.start()) + TimeDelta::hours(1));
                prop_assert!(i == 0 || parts[i - 1].slot.end() == part.slot.start());
            }
        }
    }
}
