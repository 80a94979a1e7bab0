//! One board's energy as it comes in: counter differences where the counter can be trusted, integrated power elsewhere.

use crate::clock::Monotonic;
use crate::domain::EnergySource;
use crate::units::{Joules, Millijoules, Seconds, Watts};

/// Readings further apart than this leave a time in which nobody looked.
const GAP: Seconds = Seconds::new(10.0);

/// The span over which counter and integrated power are compared.
const CROSS_CHECK: Seconds = Seconds::new(60.0);

/// Energy by how it was found. Sums are exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metered {
    /// Counter differences over time that was watched.
    pub counter: Millijoules,
    /// Integrated power readings.
    pub integrated: Millijoules,
    /// Counter differences over time that was not watched.
    pub gap: Millijoules,
    /// What the counter's reading gained, in millijoules, without that being booked from it: resets make it smaller.
    /// The reading less this is what was booked from the counter, but for a constant.
    pub rebased_mj: i64,
    /// How often a reset of the counter took energy with it of which nothing else tells.
    pub lost: u32,
    /// How often a board without a counter was not read, so that nothing tells of its energy.
    pub unread: u32,
}

impl Metered {
    /// All of it.
    pub fn total(&self) -> Millijoules {
        self.counter + self.integrated + self.gap
    }

    /// What came since `earlier`, by source; sources without energy are left out.
    pub fn since(&self, earlier: &Self) -> Vec<(EnergySource, Millijoules)> {
        let parts = [
            (EnergySource::Counter, self.counter, earlier.counter),
            (EnergySource::IntegratedPower, self.integrated, earlier.integrated),
            (EnergySource::CounterGap, self.gap, earlier.gap),
        ];
        let difference = |(source, now, then): (_, Millijoules, _)| Some((source, now.checked_since(then)?));
        parts.into_iter().filter_map(difference).filter(|(_, e)| *e > Millijoules::ZERO).collect()
    }
}

/// Turns readings into metered energy. Pure: time comes in with each reading.
///
/// A counter that shows less than before was reset (driver reload, lost board). What it shows afterwards was used
/// since; what was used between the last good reading and the reset is filled with power × time when the readings are
/// close together, and is counted as lost otherwise. Never `abs()`. Without a counter, so is what was used between
/// powers that were read far apart.
#[derive(Clone, Debug, Default)]
pub struct Meter {
    last: Option<Sample>,
    metered: Metered,
    /// Fractions of a millijoule that integration still owes.
    carry: Joules,
    resets: u32,
    check: CrossCheck,
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Monotonic,
    counter: Option<Millijoules>,
    power: Option<Watts>,
}

#[derive(Clone, Copy, Debug, Default)]
struct CrossCheck {
    counter: Joules,
    integrated: Joules,
    span: Seconds,
    ratio: Option<f64>,
}

impl Meter {
    /// Takes a reading. `counter` is the hardware's energy counter, `power` the draw; either may be absent.
    pub fn observe(&mut self, at: Monotonic, counter: Option<Millijoules>, power: Option<Watts>) {
        let sample = Sample { at, counter, power };
        let Some(last) = self.last.replace(sample) else { return };
        let span = at.since(last.at);
        let watched = span <= GAP;
        match (last.counter, counter) {
            (Some(before), Some(now)) => match now.checked_since(before) {
                Some(used) if watched => {
                    self.metered.counter += used;
                    self.cross_check(used.to_joules(), last.power, power, span);
                }
                Some(used) => self.metered.gap += used,
                None => {
                    self.resets += 1;
                    self.check = CrossCheck::default();
                    let booked = if watched {
                        self.integrate(last.power, power, span);
                        Millijoules::ZERO
                    } else {
                        self.metered.gap += now;
                        self.metered.lost += 1;
                        now
                    };
                    self.metered.rebased_mj += rebased(before, now, booked);
                }
            },
            // The counter fell silent or came back: keep its last value, so that nothing it still knows is lost.
            (Some(before), None) => self.last = Some(Sample { counter: Some(before), at: last.at, ..sample }),
            // Nothing tells of this moment: the time without a reading grows.
            (None, None) if power.is_none() => self.last = Some(last),
            (None, _) if watched => self.integrate(last.power, power, span),
            (None, _) => self.metered.unread += 1,
        }
    }

    fn integrate(&mut self, before: Option<Watts>, now: Option<Watts>, span: Seconds) {
        let Some(mean) = mean_power(before, now) else { return };
        self.carry += mean * span;
        let whole = Millijoules::from_joules(Joules::new((self.carry.get() * 1e3).floor().max(0.0) / 1e3));
        self.carry -= whole.to_joules();
        self.metered.integrated += whole;
    }

    fn cross_check(&mut self, used: Joules, before: Option<Watts>, now: Option<Watts>, span: Seconds) {
        let Some(mean) = mean_power(before, now) else { return };
        self.check.counter += used;
        self.check.integrated += mean * span;
        self.check.span += span;
        if self.check.span >= CROSS_CHECK {
            let ratio = (self.check.integrated > Joules::ZERO).then(|| self.check.counter / self.check.integrated);
            self.check = CrossCheck { ratio, ..CrossCheck::default() };
        }
    }

    /// All energy since the first reading.
    pub fn metered(&self) -> Metered {
        self.metered
    }

    /// How many times the hardware's counter was reset while this meter watched.
    pub fn resets(&self) -> u32 {
        self.resets
    }

    /// Counter over integrated power during the last full minute; far from 1 means that one of the two is wrong.
    pub fn counter_over_power(&self) -> Option<f64> {
        self.check.ratio
    }
}

/// How far a counter's reading moved from `before` to `now` beyond what was booked from it.
pub fn rebased(before: Millijoules, now: Millijoules, booked: Millijoules) -> i64 {
    let signed = |energy: Millijoules| i64::try_from(energy.get()).unwrap_or(i64::MAX);
    signed(now) - signed(before) - signed(booked)
}

fn mean_power(before: Option<Watts>, now: Option<Watts>) -> Option<Watts> {
    match (before, now) {
        (Some(a), Some(b)) => Some((a + b) / 2.0),
        (a, b) => a.or(b),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(seconds: f64) -> Monotonic {
        Monotonic::default().after(Seconds::new(seconds))
    }

    #[test]
    fn a_reset_counter_is_filled_with_power_and_flagged() {
        let mut meter = Meter::default();
        let power = Some(Watts::new(200.0));
        meter.observe(at(0.0), Some(Millijoules::new(5_000_000)), power);
        meter.observe(at(1.0), Some(Millijoules::new(5_200_000)), power);
        meter.observe(at(2.0), Some(Millijoules::new(70_000)), power);
        meter.observe(at(3.0), Some(Millijoules::new(270_000)), power);
        let expected = Metered {
            counter: Millijoules::new(400_000),
            integrated: Millijoules::new(200_000),
            gap: Millijoules::ZERO,
            rebased_mj: -5_130_000,
            lost: 0,
            unread: 0,
        };
        assert_eq!((meter.metered(), meter.resets()), (expected, 1));
    }

    #[test]
    fn without_a_counter_what_nobody_watched_is_lost_and_says_so() {
        let mut meter = Meter::default();
        let watts = |w| Some(Watts::new(w));
        for (second, power) in [(0.0, watts(100.0)), (1.0, watts(100.0)), (2.0, None), (5.0, None), (9.0, watts(300.0))]
        {
            meter.observe(at(second), None, power);
        }
        // Eight seconds without a reading are filled by the powers at their ends.
        assert_eq!((meter.metered().integrated, meter.metered().unread), (Millijoules::new(1_700_000), 0));
        for second in 10..20 {
            meter.observe(at(f64::from(second)), None, None);
        }
        meter.observe(at(20.0), None, watts(300.0));
        meter.observe(at(21.0), None, watts(300.0));
        assert_eq!((meter.metered().integrated, meter.metered().unread), (Millijoules::new(2_000_000), 1));
    }

    #[test]
    fn a_lost_board_loses_no_joule_that_its_counter_knows() {
        let mut meter = Meter::default();
        meter.observe(at(0.0), Some(Millijoules::new(1_000)), None);
        meter.observe(at(0.5), None, None);
        meter.observe(at(60.0), Some(Millijoules::new(9_000)), None);
        assert_eq!(meter.metered().gap, Millijoules::new(8_000));
        meter.observe(at(600.0), Some(Millijoules::new(300)), None);
        assert_eq!((meter.metered().gap, meter.metered().lost), (Millijoules::new(8_300), 1));
        assert_eq!(meter.metered().total(), meter.metered().gap);
    }

    #[test]
    fn without_a_counter_power_is_integrated_and_gaps_stay_absent() {
        let mut meter = Meter::default();
        for tenth in 0..=100 {
            meter.observe(at(f64::from(tenth) / 10.0), None, Some(Watts::new(123.4567)));
        }
        let integrated = meter.metered().integrated;
        // 1234.567 J, less at most the fraction of a millijoule that is still carried.
        assert!((1_234_566..=1_234_567).contains(&integrated.get()), "{integrated:?}");
        meter.observe(at(1000.0), None, Some(Watts::new(100.0)));
        assert_eq!(meter.metered().total(), integrated);
    }

    #[test]
    fn counter_and_sensor_are_compared_each_minute() {
        let mut meter = Meter::default();
        for second in 0..=60u32 {
            let counter = Millijoules::new(u64::from(second) * 240_000);
            meter.observe(at(f64::from(second)), Some(counter), Some(Watts::new(200.0)));
        }
        assert!((meter.counter_over_power().expect("a full minute") - 1.2).abs() < 1e-9);
    }

    proptest! {
        #[test]
        fn readings_less_what_resets_moved_them_by_are_what_was_booked(
            steps in prop::collection::vec((1u32..30_000, 0u64..1_000_000, 0u8..8), 1..50)
        ) {
            let (mut meter, mut now, mut counter) = (Meter::default(), Monotonic::default(), 9_999_999);
            meter.observe(now, Some(Millijoules::new(counter)), Some(Watts::new(100.0)));
            for (ms, used, what) in steps {
                now = now.after(Seconds::new(f64::from(ms) / 1e3));
                counter = if what == 0 { used } else { counter + used };
                meter.observe(now, (what != 1).then_some(Millijoules::new(counter)), Some(Watts::new(100.0)));
            }
            meter.observe(now.after(Seconds::new(1.0)), Some(Millijoules::new(counter)), None);
            let metered = meter.metered();
            let booked = i64::try_from((metered.counter + metered.gap).get()).expect("small");
            prop_assert_eq!(i64::try_from(counter).expect("small") - metered.rebased_mj - 9_999_999, booked);
        }

        #[test]
        fn the_sum_of_parts_is_the_counters_difference(steps in prop::collection::vec((1u32..30_000, 0u64..1_000_000, any::<bool>()), 1..50)) {
            let (mut meter, mut now, mut counter) = (Meter::default(), Monotonic::default(), Millijoules::ZERO);
            meter.observe(now, Some(counter), None);
            for (ms, used, silent) in steps {
                now = now.after(Seconds::new(f64::from(ms) / 1e3));
                counter += Millijoules::new(used);
                meter.observe(now, (!silent).then_some(counter), None);
            }
            meter.observe(now.after(Seconds::new(1.0)), Some(counter), None);
            prop_assert_eq!(meter.metered().total(), counter);
        }
    }
}
