//! Energy meter for counters that restart from zero at the end of their range: converts the microjoules of RAPL (energy
//! counters of CPU packages and memory) to exact millijoules.

use super::{Metered, rebased};
use crate::time::Monotonic;
use crate::units::{Joules, Millijoules, Seconds, Watts};

/// Upper bound of the mean power of a CPU package. If two readings are further apart than the time that the counter's
/// full range lasts at this power, the counter may have wrapped more than once in between.
const MAX_POWER: Watts = Watts::new(1000.0);

/// Upper bound of plausible power of a CPU package. An increase of the counter that needs more power is recorded as
/// energy of a gap, not as measured. A decrease counts as a wrap if the wrap needs at most this power, otherwise as a
/// reset. The bound is generous because mistaking a wrap for a reset loses more energy than is added by mistaking a
/// reset of a nearly full counter for a wrap.
const MAX_PLAUSIBLE_POWER: Watts = Watts::new(10_000.0);

/// Minimum time over which an increase is compared with [`MAX_PLAUSIBLE_POWER`], so that jitter between readings in
/// quick succession does not matter.
const MIN_SPAN: Seconds = Seconds::new(2.0);

/// Longest time between two readings that counts as monitored.
const GAP: Seconds = Seconds::new(10.0);

/// Energy meter for a counter in microjoules that wraps to zero at the end of its range. Pure: each reading carries its
/// time.
///
/// A reading below the previous one means that the counter wrapped, or that it was reset if a wrap would need
/// implausible power. If readings are so far apart that the counter may have wrapped more than once
/// ([`Self::longest_span`]), the energy is a lower bound and is recorded as energy of a gap, like energy of an
/// unmonitored time. Fractions of a millijoule are kept until they add up to one.
#[derive(Clone, Debug, Default)]
pub struct WrappingCounter {
    last: Option<(Monotonic, u64)>,
    /// Reading that the counter would show if it had never wrapped, in microjoules.
    unwrapped_uj: u64,
    metered: Metered,
    wraps: u32,
    resets: u32,
    jumps: u32,
    power: Option<Watts>,
}

/// Last reading of one of a device's counters before the meter changed to another counter of the device.
#[derive(Clone, Copy, Debug)]
pub struct CounterPosition {
    at: Monotonic,
    counter_uj: u64,
    unwrapped_uj: u64,
    /// Energy that the meter had recorded up to this reading.
    recorded: Millijoules,
}

impl WrappingCounter {
    /// Returns the longest time between two readings in which a counter wraps at most once: its range, in microjoules,
    /// divided by 1 kW.
    #[expect(clippy::cast_precision_loss, reason = "a span for scheduling")]
    pub fn longest_span(range_uj: u64) -> Seconds {
        Joules::new(range_uj as f64 / 1e6) / MAX_POWER
    }

    /// Processes a reading of a counter that restarts from zero after `range_uj`. Without a range, every decrease is a
    /// reset.
    pub fn observe(&mut self, at: Monotonic, counter_uj: u64, range_uj: Option<u64>) {
        let Some((then, before)) = self.last.replace((at, counter_uj)) else {
            self.unwrapped_uj = counter_uj;
            return;
        };
        let span = at.since(then);
        let certain = range_uj.is_none_or(|range| span <= Self::longest_span(range));
        let (used, counted) = match advance(before, counter_uj, range_uj, span) {
            Advance::Forward(used) => {
                let jumped = is_implausible(used, span);
                self.jumps += u32::from(jumped);
                (used, certain && !jumped)
            }
            Advance::Wrap(used) => {
                self.wraps += 1;
                (used, certain)
            }
            Advance::Reset => {
                self.resets += 1;
                self.metered.lost += 1;
                (used_since_reset(counter_uj, span), false)
            }
        };
        // Rounding the counter's own readings, and not the increase, lets another daemon continue without a difference.
        let recorded = Millijoules::new((self.unwrapped_uj + used) / 1000 - self.unwrapped_uj / 1000);
        self.unwrapped_uj += used;
        match counted && span <= GAP {
            true => self.metered.counter += recorded,
            false => self.metered.gap += recorded,
        }
        self.metered.rebased_mj += rebased(whole_millijoules(before), whole_millijoules(counter_uj), recorded);
        self.power = power(used, span);
    }

    /// Returns the last reading, for a later [`Self::rebase`] back to this counter; `None` before the first reading.
    pub fn mark(&self) -> Option<CounterPosition> {
        let (at, counter_uj) = self.last?;
        Some(CounterPosition { at, counter_uj, unwrapped_uj: self.unwrapped_uj, recorded: self.metered.total() })
    }

    /// Continues with another counter of the same device. If that counter was read before, `left` is its last reading
    /// from then: the meter records the counter's increase since that reading, less the energy recorded meanwhile, as
    /// energy of a gap. If `left` is absent, or the counter was reset meanwhile, the energy since the meter's last
    /// reading is unknown.
    pub fn rebase(&mut self, at: Monotonic, counter_uj: u64, range_uj: Option<u64>, left: Option<CounterPosition>) {
        let before = self.last.replace((at, counter_uj)).map(|(_, before)| before);
        self.power = None;
        let known = left.map(|mark| (mark, advance(mark.counter_uj, counter_uj, range_uj, at.since(mark.at))));
        let recorded = match known {
            Some((mark, Advance::Forward(used) | Advance::Wrap(used))) => {
                self.unwrapped_uj = mark.unwrapped_uj + used;
                let counted = Millijoules::new(self.unwrapped_uj / 1000 - mark.unwrapped_uj / 1000);
                let meanwhile = self.metered.total().checked_since(mark.recorded).unwrap_or_default();
                counted.checked_since(meanwhile).unwrap_or_default()
            }
            Some((_, Advance::Reset)) | None => {
                self.metered.lost += u32::from(before.is_some());
                self.unwrapped_uj = counter_uj;
                Millijoules::ZERO
            }
        };
        self.metered.gap += recorded;
        if let Some(before) = before {
            self.metered.rebased_mj += rebased(whole_millijoules(before), whole_millijoules(counter_uj), recorded);
        }
    }

    /// Returns the energy since the first reading.
    pub fn metered(&self) -> Metered {
        self.metered
    }

    /// Returns the mean power between the last two readings; `None` before the second reading of a counter.
    pub fn power(&self) -> Option<Watts> {
        self.power
    }

    /// Returns the number of wraps seen by this meter.
    pub fn wraps(&self) -> u32 {
        self.wraps
    }

    /// Returns the number of increases that would need implausible power, more than 10 kW.
    pub fn jumps(&self) -> u32 {
        self.jumps
    }

    /// Returns the number of resets seen by this meter.
    pub fn resets(&self) -> u32 {
        self.resets
    }
}

/// Change of a counter between two readings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Advance {
    Forward(u64),
    Wrap(u64),
    Reset,
}

fn advance(before: u64, now: u64, range: Option<u64>, span: Seconds) -> Advance {
    if now >= before {
        return Advance::Forward(now - before);
    }
    match range.and_then(|range| range.checked_sub(before)).map(|left| left + now) {
        Some(used) if !is_implausible(used, span) => Advance::Wrap(used),
        _ => Advance::Reset,
    }
}

/// Returns the energy since a reset in the last `span`: the new reading, or zero if so much cannot have been used; then the
/// counter did not begin anew at zero. The energy before the reset is unknown.
fn used_since_reset(counter_uj: u64, span: Seconds) -> u64 {
    if is_implausible(counter_uj, span) { 0 } else { counter_uj }
}

#[expect(clippy::cast_precision_loss, reason = "compared with a coarse bound")]
fn is_implausible(used_uj: u64, span: Seconds) -> bool {
    Joules::new(used_uj as f64 / 1e6) > MAX_PLAUSIBLE_POWER * span.max(MIN_SPAN)
}

#[expect(clippy::cast_precision_loss, reason = "for display")]
fn power(used_uj: u64, span: Seconds) -> Option<Watts> {
    (span > Seconds::ZERO).then(|| Joules::new(used_uj as f64 / 1e6) / span)
}

/// Converts a counter in microjoules to whole millijoules.
pub fn whole_millijoules(counter_uj: u64) -> Millijoules {
    Millijoules::new(counter_uj / 1000)
}

/// Returns a lower bound of the energy between an earlier daemon's last reading `before` and this daemon's first
/// reading `now`, after the time `span`: the counter may have wrapped several times. After a reset, the energy is the
/// new reading, unless that is implausible.
pub fn min_energy_between(before: Millijoules, now: Millijoules, range_uj: Option<u64>, span: Seconds) -> Millijoules {
    let now_uj = now.get().saturating_mul(1000);
    whole_millijoules(match advance(before.get().saturating_mul(1000), now_uj, range_uj, span) {
        Advance::Forward(used) | Advance::Wrap(used) => used,
        Advance::Reset => used_since_reset(now_uj, span),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RANGE: u64 = 262_143_328_850;

    fn at(seconds: f64) -> Monotonic {
        Monotonic::default().after(Seconds::new(seconds))
    }

    #[test]
    fn a_turn_adds_the_range_and_a_reset_adds_the_reading() {
        let mut meter = WrappingCounter::default();
        meter.observe(at(0.0), RANGE - 30_000_850, Some(RANGE));
        meter.observe(at(1.0), 19_999_650, Some(RANGE));
        assert_eq!((meter.metered().counter, meter.wraps(), meter.resets()), (Millijoules::new(50_000), 1, 0));
        assert_eq!(meter.power(), Some(Watts::new(50.0005)));
        // From 20 J down to 7 J within a second. A wrap would need a quarter of a megawatt, so the counter was reset.
        meter.observe(at(2.0), 7_000_000, Some(RANGE));
        assert_eq!((meter.metered().gap, meter.wraps(), meter.resets()), (Millijoules::new(7_000), 1, 1));
        // Without a range, a decrease cannot be a wrap.
        meter.observe(at(3.0), 1_000_000, None);
        assert_eq!((meter.metered().gap, meter.resets()), (Millijoules::new(8_000), 2));
        // 200 kJ within a second cannot have been used since a reset.
        let mut meter = WrappingCounter::default();
        meter.observe(at(0.0), 200_000_000_001, Some(RANGE));
        meter.observe(at(1.0), 200_000_000_000, Some(RANGE));
        assert_eq!((meter.metered().total(), meter.metered().lost), (Millijoules::ZERO, 1));
        meter.observe(at(2.0), 200_100_000_000, Some(RANGE));
        assert_eq!(meter.metered().counter, Millijoules::new(100_000));
    }

    #[test]
    fn an_implausible_increase_counts_as_a_gap() {
        let mut meter = WrappingCounter::default();
        meter.observe(at(0.0), 0, Some(RANGE));
        meter.observe(at(1.0), 100_000_000, Some(RANGE));
        // 50 kJ within a second.
        meter.observe(at(2.0), 50_100_000_000, Some(RANGE));
        meter.observe(at(3.0), 50_200_000_000, Some(RANGE));
        let metered = meter.metered();
        assert_eq!((metered.counter.get(), metered.gap.get(), meter.jumps()), (200_000, 50_000_000, 1));
    }

    #[test]
    fn another_counter_begins_anew() {
        let mut meter = WrappingCounter::default();
        meter.observe(at(0.0), 5_000_400, Some(RANGE));
        meter.observe(at(1.0), 6_000_900, Some(RANGE));
        meter.rebase(at(2.0), 900_000_700, Some(RANGE), None);
        meter.observe(at(3.0), 902_000_300, Some(RANGE));
        let metered = meter.metered();
        assert_eq!((metered.counter.get(), metered.gap.get(), metered.lost, meter.resets()), (3_000, 0, 1, 0));
        // The reading less the change due to the switch of counters equals the recorded energy, up to a constant.
        assert_eq!(902_000 - metered.rebased_mj - 5_000, 3_000);
    }

    #[test]
    fn a_counter_that_is_read_again_adds_the_energy_missed_meanwhile() {
        let mut meter = WrappingCounter::default();
        meter.observe(at(0.0), 5_000_400, Some(RANGE));
        meter.observe(at(1.0), 6_000_900, Some(RANGE));
        let first = meter.mark();
        // The second counter sees two of the five joules used until the first one returns.
        meter.rebase(at(2.0), 900_000_700, Some(RANGE), None);
        meter.observe(at(3.0), 902_000_700, Some(RANGE));
        let second = meter.mark();
        meter.rebase(at(4.0), 11_000_300, Some(RANGE), first);
        let metered = meter.metered();
        assert_eq!((metered.counter.get(), metered.gap.get(), metered.lost), (3_000, 3_000, 1));
        assert_eq!(11_000 - metered.rebased_mj - 5_000, 6_000);
        // A counter that gained slightly less than the other counter meanwhile subtracts nothing.
        meter.observe(at(5.0), 14_000_300, Some(RANGE));
        meter.rebase(at(6.0), 904_900_700, Some(RANGE), second);
        assert_eq!(meter.metered().total().get(), 9_000);
        // A counter that was reset meanwhile adds nothing.
        meter.rebase(at(7.0), 1_000_000, Some(RANGE), first);
        assert_eq!((meter.metered().total().get(), meter.metered().lost), (9_000, 2));
    }

    #[test]
    fn late_readings_are_marked() {
        let range = 1_000_000_000;
        let mut meter = WrappingCounter::default();
        meter.observe(at(0.0), 0, Some(range));
        meter.observe(at(1.0), 100_000_000, Some(range));
        assert_eq!((meter.metered().counter.get(), meter.metered().gap.get()), (100_000, 0));
        // The counter's range is 1 kJ, which a package can use within a second: two seconds later, the counter may have
        // wrapped twice.
        meter.observe(at(3.0), 50_000_000, Some(range));
        assert_eq!((meter.metered().counter.get(), meter.metered().gap.get()), (100_000, 950_000));
        let mut meter = WrappingCounter::default();
        meter.observe(at(0.0), 0, Some(RANGE));
        meter.observe(at(60.0), 1_000_000, Some(RANGE));
        assert_eq!(meter.metered().gap, Millijoules::new(1000), "a minute without monitoring");
    }

    #[test]
    fn between_daemons_the_lower_bound_is_recorded() {
        let day = Seconds::new(86_400.0);
        let mj = Millijoules::new;
        assert_eq!(min_energy_between(mj(5), mj(12), Some(RANGE), day), mj(7));
        assert_eq!(min_energy_between(mj(7), mj(4), Some(10_000), day), mj(7));
        assert_eq!(min_energy_between(mj(RANGE), mj(4), None, day), mj(4));
    }

    proptest! {
        #[test]
        fn every_millijoule_is_recorded_once_over_any_pattern_of_readings_and_turns(
            range in 5_000_000_000_u64..300_000_000_000,
            start in any::<prop::sample::Index>(),
            steps in prop::collection::vec((1_u32..5_000, 0_u64..900, 0_u64..1000), 1..60),
        ) {
            // `ideal` is a counter that never wraps; the meter reads it modulo the range, as the real counter would
            // show it.
            let first = start.index(usize::try_from(range).expect("64 bits")) as u64;
            let mut ideal = first;
            let (mut meter, mut now) = (WrappingCounter::default(), Monotonic::default());
            meter.observe(now, ideal % range, Some(range));
            for (ms, watts, odd) in steps {
                now = now.after(Seconds::new(f64::from(ms) / 1e3));
                ideal += watts * u64::from(ms) * 1000 + odd;
                meter.observe(now, ideal % range, Some(range));
                let metered = meter.metered();
                prop_assert_eq!(metered.counter.get(), ideal / 1000 - first / 1000, "to the last whole millijoule");
                prop_assert_eq!(metered.gap, Millijoules::ZERO);
                // The reading less the changes due to wraps equals the recorded energy, up to a constant.
                let shown = whole_millijoules(ideal % range).get() as i64 - metered.rebased_mj;
                prop_assert_eq!(shown - whole_millijoules(first).get() as i64, metered.counter.get() as i64);
            }
            prop_assert_eq!(u64::from(meter.wraps()), ideal / range);
        }
    }
}
