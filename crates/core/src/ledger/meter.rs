//! One board's energy as it comes in: counter differences where the counter can be trusted, integrated power elsewhere.

use crate::domain::EnergySource;
use crate::time::Monotonic;
use crate::units::{Joules, Millijoules, Seconds, Watts};

/// Readings further apart than this leave a time in which nobody looked.
const GAP: Seconds = Seconds::new(10.0);

/// A counter that has not moved for [`GAP`] although this was drawn meanwhile is as good as away.
const STILL: Joules = Joules::new(20.0);

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
    /// How much of what the counter gains from its last reading on is booked already: integrated while it was away.
    pub ahead: Millijoules,
    /// What was integrated before the counter was read for the first time.
    pub uncounted: Millijoules,
    /// All energy as it was used, for rates: without what settling a counter that came back adds or holds back later.
    pub drawn: Millijoules,
}

impl Metered {
    /// All of it.
    pub fn total(&self) -> Millijoules {
        self.counter + self.integrated + self.gap
    }

    /// What was integrated since `first` without a counter having been read.
    pub fn since_opened(&self, first: &Self) -> Millijoules {
        self.uncounted.checked_since(first.uncounted).unwrap_or_default()
    }

    /// What a counter that shows `counter` now showed at `first`, or when it was read for the first time after that.
    pub fn reading_before(&self, counter: Millijoules, first: &Self) -> Millijoules {
        let booked = |metered: &Self| signed(metered.counter) + signed(metered.gap) + metered.rebased_mj;
        let shown = signed(counter) - (booked(self) - booked(first));
        Millijoules::new(u64::try_from(shown).unwrap_or_default())
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
///
/// While a counter that was read before is away, power is integrated in its place. Once it is back, only what it gained
/// beyond that is booked; where power said more than the counter, the counter is booked again from where it has caught up.
/// A counter that stands still while power is drawn is taken for one that is away.
#[derive(Clone, Debug, Default)]
pub struct Meter {
    last: Option<Sample>,
    base: Option<Base>,
    still: Option<Still>,
    metered: Metered,
    /// Fractions of a millijoule that integration still owes.
    carry: Joules,
    resets: u32,
    check: CrossCheck,
}

/// The last moment at which the device told anything.
#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Monotonic,
    power: Option<Watts>,
}

/// The counter's last reading, and what is known of the time since.
#[derive(Clone, Copy, Debug)]
struct Base {
    at: Monotonic,
    counter: Millijoules,
    /// What was integrated since.
    estimated: Millijoules,
    /// Whether power was not read either for a while.
    has_hole: bool,
}

/// A time over which the counter has not moved.
#[derive(Clone, Copy, Debug)]
struct Still {
    since: Monotonic,
    /// What was drawn meanwhile.
    drawn: Joules,
    /// Whether that was long and much enough to take the counter for away.
    is_away: bool,
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
        let counter = counter.filter(|counter| !self.stands_still(at, *counter, power));
        let base = counter.map(|counter| Base { at, counter, estimated: Millijoules::ZERO, has_hole: false });
        let before = self.base;
        self.base = base.or(before);
        let Some(last) = self.last else {
            self.last = Some(Sample { at, power });
            return;
        };
        if counter.is_none() && power.is_none() {
            // Nothing tells of this moment: the time without a reading grows.
            return;
        }
        self.last = Some(Sample { at, power });
        match (before, counter) {
            (Some(before), Some(counter)) => match counter.checked_since(before.counter) {
                Some(gained) => self.count(before, gained, last, at, power),
                None => self.restart(before, counter, last, at, power),
            },
            (Some(before), None) => {
                let used = self.integrate(last, at, power);
                self.metered.ahead += used.unwrap_or_default();
                let estimated = before.estimated + used.unwrap_or_default();
                self.base = Some(Base { estimated, has_hole: before.has_hole || used.is_none(), ..before });
            }
            (None, _) => match self.integrate(last, at, power) {
                Some(used) => self.metered.uncounted += used,
                None if at.since(last.at) > GAP => self.metered.unread += 1,
                None => {}
            },
        }
    }

    /// Since when the counter has said the same, if that is long although power is drawn.
    pub fn still_since(&self) -> Option<Monotonic> {
        self.still.filter(|still| still.is_away).map(|still| still.since)
    }

    /// Compares a reading of the counter with the last one. What was drawn while it stood still is filled in once it is
    /// taken for away.
    fn stands_still(&mut self, at: Monotonic, counter: Millijoules, power: Option<Watts>) -> bool {
        let (Some(base), Some(last)) = (self.base, self.last) else { return false };
        if base.counter != counter {
            self.still = None;
            return false;
        }
        let mut still = self.still.unwrap_or(Still { since: last.at, drawn: Joules::ZERO, is_away: false });
        let drawn = still.drawn;
        let mean = mean_power(last.power, power).filter(|_| at.since(last.at) <= GAP).unwrap_or_default();
        still.drawn += mean * at.since(last.at);
        let is_drawing = mean > Watts::ZERO && still.drawn >= STILL;
        if !still.is_away && at.since(still.since) > GAP && is_drawing {
            still.is_away = true;
            let filled = Millijoules::from_joules(drawn);
            self.metered.integrated += filled;
            self.metered.ahead += filled;
            self.metered.drawn += filled;
            self.base = Some(Base { estimated: base.estimated + filled, ..base });
        }
        self.still = Some(still);
        still.is_away
    }

    /// Notes that `energy` of what the counter gains from now on was booked before this meter began.
    pub fn owe(&mut self, energy: Millijoules) {
        self.metered.ahead += energy;
    }

    /// Books what the counter gained, less what stands in the books already.
    fn count(&mut self, before: Base, gained: Millijoules, last: Sample, at: Monotonic, power: Option<Watts>) {
        let paid = gained.min(self.metered.ahead);
        let used = gained.checked_since(paid).unwrap_or_default();
        self.metered.ahead = self.metered.ahead.checked_since(paid).unwrap_or_default();
        self.metered.rebased_mj += signed(paid);
        match at.since(before.at) <= GAP {
            true => self.metered.counter += used,
            false => self.metered.gap += used,
        }
        let span = at.since(last.at);
        if before.estimated > Millijoules::ZERO {
            let drawn = mean_power(last.power, power).map_or(Joules::ZERO, |mean| mean * span);
            self.metered.drawn += Millijoules::from_joules(drawn);
            return;
        }
        self.metered.drawn += gained;
        if span <= GAP {
            self.cross_check(gained.to_joules(), last.power, power, span);
        }
    }

    /// The counter started again from zero at some time since its last reading.
    fn restart(&mut self, before: Base, counter: Millijoules, last: Sample, at: Monotonic, power: Option<Watts>) {
        self.resets += 1;
        self.check = CrossCheck::default();
        self.metered.ahead = Millijoules::ZERO;
        let filled = self.integrate(last, at, power);
        let booked = if before.has_hole || filled.is_none() {
            // What it shows was used since, of which a part may be integrated already.
            let estimated = before.estimated + filled.unwrap_or_default();
            self.metered.lost += 1;
            counter.checked_since(estimated).unwrap_or_default()
        } else {
            Millijoules::ZERO
        };
        self.metered.gap += booked;
        self.metered.drawn += booked;
        self.metered.rebased_mj += rebased(before.counter, counter, booked);
    }

    /// Integrates power since the last sample, and answers with what that came to; `None` if that is not known, or nobody
    /// looked for too long.
    fn integrate(&mut self, last: Sample, at: Monotonic, power: Option<Watts>) -> Option<Millijoules> {
        let span = at.since(last.at);
        let mean = mean_power(last.power, power).filter(|_| span <= GAP)?;
        self.carry += mean * span;
        let whole = Millijoules::from_joules(Joules::new((self.carry.get() * 1e3).floor().max(0.0) / 1e3));
        self.carry -= whole.to_joules();
        self.metered.integrated += whole;
        self.metered.drawn += whole;
        Some(whole)
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
    signed(now) - signed(before) - signed(booked)
}

fn signed(energy: Millijoules) -> i64 {
    i64::try_from(energy.get()).unwrap_or(i64::MAX)
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
            drawn: Millijoules::new(600_000),
            ..Metered::default()
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

    fn joules(energy: Millijoules) -> u64 {
        energy.get() / 1000
    }

    /// A board that draws 100 W by its counter and `watts` by its sensor, each second from `from` to `to`.
    fn watch(meter: &mut Meter, from: u32, to: u32, watts: f64, is_counted: bool) -> Metered {
        for second in from..=to {
            let counter = is_counted.then(|| Millijoules::new(u64::from(second) * 100_000));
            meter.observe(at(f64::from(second)), counter, Some(Watts::new(watts)));
        }
        meter.metered()
    }

    #[test]
    fn a_counter_that_is_away_is_replaced_by_power_and_settled_when_it_returns() {
        let mut meter = Meter::default();
        watch(&mut meter, 0, 10, 90.0, true);
        let away = watch(&mut meter, 11, 30, 90.0, false);
        assert_eq!([away.counter, away.integrated, away.ahead].map(joules), [1_000, 1_800, 1_800]);
        let back = watch(&mut meter, 31, 40, 90.0, true);
        // 2100 J since it was read last, of which 1800 stand in the books.
        assert_eq!([back.counter, back.integrated, back.gap, back.ahead].map(joules), [1_900, 1_800, 300, 0]);
        assert_eq!(joules(back.total()), 4_000);
        assert_eq!(joules(back.drawn), 1_000 + 1_800 + 90 + 900, "no rate is wrong by what was settled");
        assert_eq!(4_000_000 - back.rebased_mj, 2_200_000, "booked from the counter");
    }

    #[test]
    fn a_counter_that_gained_less_than_power_said_is_booked_from_where_it_has_caught_up() {
        let mut meter = Meter::default();
        watch(&mut meter, 0, 10, 150.0, true);
        watch(&mut meter, 11, 30, 150.0, false);
        let back = watch(&mut meter, 31, 35, 150.0, true);
        assert_eq!([back.total(), back.ahead].map(joules), [4_000, 500]);
        let later = watch(&mut meter, 36, 60, 150.0, true);
        assert_eq!([later.total(), later.ahead].map(joules), [6_000, 0]);
        assert_eq!(joules(later.drawn), 1_000 + 3_000 + 150 + 2_900);
    }

    #[test]
    fn a_short_absence_is_the_counters_but_for_what_was_integrated() {
        let mut meter = Meter::default();
        watch(&mut meter, 0, 10, 90.0, true);
        watch(&mut meter, 11, 12, 90.0, false);
        let back = watch(&mut meter, 13, 20, 90.0, true);
        assert_eq!([back.counter, back.integrated, back.gap].map(joules), [1_820, 180, 0]);
    }

    #[test]
    fn a_counter_that_is_reset_while_it_is_away_keeps_what_was_integrated() {
        let mut meter = Meter::default();
        let power = Some(Watts::new(100.0));
        meter.observe(at(0.0), Some(Millijoules::new(9_000_000)), power);
        for second in 1..=20 {
            meter.observe(at(f64::from(second)), None, power);
        }
        meter.observe(at(21.0), Some(Millijoules::new(500_000)), power);
        let metered = meter.metered();
        assert_eq!((joules(metered.total()), metered.lost, meter.resets()), (2_100, 0, 1));
        // What it shows is more than was integrated, as nobody looked for a while: at least that was used.
        meter.observe(at(22.0), None, power);
        meter.observe(at(60.0), None, power);
        meter.observe(at(61.0), Some(Millijoules::new(400_000)), power);
        let metered = meter.metered();
        assert_eq!((joules(metered.integrated), joules(metered.gap), metered.lost), (2_300, 200, 1));
    }

    #[test]
    fn a_counter_that_stands_still_while_power_is_drawn_is_taken_for_away() {
        let mut meter = Meter::default();
        watch(&mut meter, 0, 10, 100.0, true);
        for second in 11..=40 {
            meter.observe(at(f64::from(second)), Some(Millijoules::new(1_000_000)), Some(Watts::new(90.0)));
        }
        assert_eq!((joules(meter.metered().total()), meter.still_since()), (3_705, Some(at(10.0))));
        let back = watch(&mut meter, 41, 50, 100.0, true);
        assert_eq!([back.total(), back.ahead].map(joules), [5_000, 0]);
        assert_eq!(meter.still_since(), None);
        // A board that draws nothing moves no counter.
        for second in 51..=90 {
            meter.observe(at(f64::from(second)), Some(Millijoules::new(5_000_000)), Some(Watts::ZERO));
        }
        assert_eq!(meter.still_since(), None);
    }

    #[test]
    fn what_was_booked_before_this_meter_began_is_not_booked_again() {
        let mut meter = Meter::default();
        watch(&mut meter, 0, 1, 100.0, true);
        meter.owe(Millijoules::new(250_000));
        let metered = watch(&mut meter, 2, 10, 100.0, true);
        assert_eq!([metered.total(), metered.ahead].map(joules), [750, 0]);
        assert_eq!(joules(metered.drawn), 1_000);
    }

    #[test]
    fn what_was_integrated_before_the_counter_was_first_read_is_known() {
        let mut meter = Meter::default();
        watch(&mut meter, 0, 5, 100.0, false);
        let metered = watch(&mut meter, 6, 10, 100.0, true);
        assert_eq!([metered.uncounted, metered.integrated, metered.counter].map(joules), [600, 600, 400]);
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
        fn however_often_the_counter_is_away_and_whatever_power_says_no_joule_is_booked_twice(
            steps in prop::collection::vec((1u32..30_000, 0u64..1_000_000, 0u8..4, 0u32..1000), 1..50)
        ) {
            let (mut meter, mut now, mut counter) = (Meter::default(), Monotonic::default(), 0);
            meter.observe(now, Some(Millijoules::ZERO), None);
            for (ms, used, told, watts) in steps {
                now = now.after(Seconds::new(f64::from(ms) / 1e3));
                counter += used;
                let power = (told & 2 != 0).then(|| Watts::new(f64::from(watts)));
                meter.observe(now, (told & 1 != 0).then_some(Millijoules::new(counter)), power);
            }
            meter.observe(now.after(Seconds::new(1.0)), Some(Millijoules::new(counter)), None);
            let metered = meter.metered();
            prop_assert_eq!(metered.total().get(), counter + metered.ahead.get());
            counter += metered.ahead.get() + 1;
            meter.observe(now.after(Seconds::new(2.0)), Some(Millijoules::new(counter)), None);
            prop_assert_eq!(meter.metered().total().get(), counter);
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
