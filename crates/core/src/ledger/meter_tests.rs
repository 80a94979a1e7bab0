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
fn without_a_counter_energy_in_gaps_is_lost_and_counted() {
    let mut meter = Meter::default();
    let watts = |w| Some(Watts::new(w));
    for (second, power) in [(0.0, watts(100.0)), (1.0, watts(100.0)), (2.0, None), (5.0, None), (9.0, watts(300.0))] {
        meter.observe(at(second), None, power);
    }
    // The power readings at both ends fill eight seconds without a reading.
    assert_eq!((meter.metered().integrated, meter.metered().unread), (Millijoules::new(1_700_000), 0));
    for second in 10..20 {
        meter.observe(at(f64::from(second)), None, None);
    }
    meter.observe(at(20.0), None, watts(300.0));
    meter.observe(at(21.0), None, watts(300.0));
    assert_eq!((meter.metered().integrated, meter.metered().unread), (Millijoules::new(2_000_000), 1));
}

#[test]
fn a_lost_gpu_keeps_all_energy_that_its_counter_measured() {
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

/// Simulates a GPU that draws 100 W by its counter and `watts` by its sensor, each second from `from` to `to`.
fn watch(meter: &mut Meter, from: u32, to: u32, watts: f64, is_counted: bool) -> Metered {
    for second in from..=to {
        let counter = is_counted.then(|| Millijoules::new(u64::from(second) * 100_000));
        meter.observe(at(f64::from(second)), counter, Some(Watts::new(watts)));
    }
    meter.metered()
}

#[test]
fn an_absent_counter_is_replaced_by_power_and_reconciled_on_return() {
    let mut meter = Meter::default();
    watch(&mut meter, 0, 10, 90.0, true);
    let away = watch(&mut meter, 11, 30, 90.0, false);
    assert_eq!([away.counter, away.integrated, away.ahead].map(joules), [1_000, 1_800, 1_800]);
    let back = watch(&mut meter, 31, 40, 90.0, true);
    // The counter gained 2100 J since its last reading before the absence; 1800 J of them are recorded already.
    assert_eq!([back.counter, back.integrated, back.gap, back.ahead].map(joules), [1_900, 1_800, 300, 0]);
    assert_eq!(joules(back.total()), 4_000);
    assert_eq!(joules(back.drawn), 1_000 + 1_800 + 90 + 900, "rates are unaffected by the reconciliation");
    assert_eq!(4_000_000 - back.rebased_mj, 2_200_000, "recorded from the counter");
}

#[test]
fn a_counter_that_gained_less_than_was_integrated_resumes_once_it_has_caught_up() {
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
fn after_a_short_absence_the_counter_covers_all_but_the_integrated_energy() {
    let mut meter = Meter::default();
    watch(&mut meter, 0, 10, 90.0, true);
    watch(&mut meter, 11, 12, 90.0, false);
    let back = watch(&mut meter, 13, 20, 90.0, true);
    assert_eq!([back.counter, back.integrated, back.gap].map(joules), [1_820, 180, 0]);
}

#[test]
fn a_reset_of_an_absent_counter_keeps_the_integrated_energy() {
    let mut meter = Meter::default();
    let power = Some(Watts::new(100.0));
    meter.observe(at(0.0), Some(Millijoules::new(9_000_000)), power);
    for second in 1..=20 {
        meter.observe(at(f64::from(second)), None, power);
    }
    meter.observe(at(21.0), Some(Millijoules::new(500_000)), power);
    let metered = meter.metered();
    assert_eq!((joules(metered.total()), metered.lost, meter.resets()), (2_100, 0, 1));
    // After a reset, the reading of 400 J exceeds the 200 J integrated since the last one: the rest was used in the
    // gap.
    meter.observe(at(22.0), None, power);
    meter.observe(at(60.0), None, power);
    meter.observe(at(61.0), Some(Millijoules::new(400_000)), power);
    let metered = meter.metered();
    assert_eq!((joules(metered.integrated), joules(metered.gap), metered.lost), (2_300, 200, 1));
}

#[test]
fn a_constant_counter_under_load_is_treated_as_absent() {
    let mut meter = Meter::default();
    watch(&mut meter, 0, 10, 100.0, true);
    for second in 11..=40 {
        meter.observe(at(f64::from(second)), Some(Millijoules::new(1_000_000)), Some(Watts::new(90.0)));
    }
    assert_eq!((joules(meter.metered().total()), meter.still_since()), (3_705, Some(at(10.0))));
    let back = watch(&mut meter, 41, 50, 100.0, true);
    assert_eq!([back.total(), back.ahead].map(joules), [5_000, 0]);
    assert_eq!(meter.still_since(), None);
    // A counter that does not change is not absent while the GPU draws no power.
    for second in 51..=90 {
        meter.observe(at(f64::from(second)), Some(Millijoules::new(5_000_000)), Some(Watts::ZERO));
    }
    assert_eq!(meter.still_since(), None);
}

#[test]
fn what_a_counter_gained_before_the_meter_began_is_not_recorded_when_it_catches_up() {
    let catch_up = |mut meter: Meter| {
        meter.set_bound(PowerBound { highest: Watts::new(120.0), slack: Seconds::ZERO });
        for second in 0..=20 {
            meter.observe(at(f64::from(second)), Some(Millijoules::new(1_000_000)), Some(Watts::new(100.0)));
        }
        // The counter gained 26 s of 100 W, although the meter exists for 21 s: the counter stood still before that
        // already.
        meter.observe(at(21.0), Some(Millijoules::new(3_600_000)), Some(Watts::new(100.0)));
        meter.observe(at(22.0), Some(Millijoules::new(3_700_000)), Some(Watts::new(100.0)));
        (joules(meter.metered().total()), joules(meter.metered().ahead), meter.jump())
    };
    assert_eq!(catch_up(Meter::default()), (2_200, 0, None));
    let mut continued = Meter::default();
    continued.continue_ledger(Millijoules::ZERO);
    assert_eq!(catch_up(continued), (2_700, 0, None), "no daemon ran for five seconds, and the counter knows them");
}

#[test]
fn a_counter_that_stands_still_after_a_reset_is_reconciled() {
    let mut meter = Meter::default();
    meter.observe(at(0.0), Some(Millijoules::new(5_000_000)), Some(Watts::new(90.0)));
    for second in 1..=30 {
        meter.observe(at(f64::from(second)), Some(Millijoules::ZERO), Some(Watts::new(90.0)));
    }
    meter.observe(at(31.0), Some(Millijoules::new(3_000_000)), Some(Watts::new(90.0)));
    // The second of the reset is integrated; after it the counter's reading is the energy used.
    assert_eq!((joules(meter.metered().total()), meter.resets()), (3_090, 1));
}

#[test]
fn energy_recorded_before_the_meter_began_is_not_recorded_again() {
    let mut meter = Meter::default();
    watch(&mut meter, 0, 1, 100.0, true);
    meter.continue_ledger(Millijoules::new(250_000));
    let metered = watch(&mut meter, 2, 10, 100.0, true);
    assert_eq!([metered.total(), metered.ahead].map(joules), [750, 0]);
    assert_eq!(joules(metered.drawn), 1_000);
}

#[test]
fn energy_integrated_before_the_first_counter_reading_is_known() {
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
fn a_counter_that_gains_more_than_the_gpu_can_draw_is_replaced_by_power() {
    let mut meter = Meter::default();
    meter.set_bound(PowerBound { highest: Watts::new(300.0), slack: Seconds::ZERO });
    watch(&mut meter, 0, 10, 100.0, true);
    assert_eq!(meter.jump(), None);
    // The counter gains 10 MJ within a second.
    for second in 11..=20 {
        let counter = Millijoules::new(10_000_000_000 + second * 100_000);
        meter.observe(at(f64::from(second as u32)), Some(counter), Some(Watts::new(90.0)));
    }
    let metered = meter.metered();
    assert_eq!([metered.counter, metered.integrated, metered.gap].map(joules), [1_900, 95, 0]);
    assert_eq!((metered.lost, meter.resets()), (0, 0));
    let jump = meter.jump().expect("one");
    assert_eq!((joules(jump.gained), jump.at, jump.possible), (10_000_100, at(11.0), Joules::new(675.0)));
    // Over a gap, an increase that the GPU can have used is recorded, and a larger one is not.
    meter.observe(at(1020.0), Some(Millijoules::new(10_302_000_000)), None);
    assert_eq!(joules(meter.metered().gap), 300_000);
    meter.observe(at(1120.0), Some(Millijoules::new(20_302_000_000)), None);
    assert_eq!((joules(meter.metered().gap), meter.metered().lost), (300_000, 1));
    // A reset to a reading of more energy than the GPU can have used.
    meter.observe(at(1220.0), Some(Millijoules::new(15_000_000_000)), None);
    assert_eq!((joules(meter.metered().gap), meter.metered().lost), (300_000, 2));
}

#[test]
fn a_counter_that_stood_still_for_seconds_may_catch_up() {
    let mut meter = Meter::default();
    meter.set_bound(PowerBound { highest: Watts::new(120.0), slack: Seconds::ZERO });
    for tenth in 0..=100u32 {
        // The counter shows a new value every five seconds.
        let counter = Millijoules::new(u64::from(tenth / 50) * 500_000);
        meter.observe(at(f64::from(tenth) / 10.0), Some(counter), Some(Watts::new(100.0)));
    }
    assert_eq!((joules(meter.metered().counter), meter.jump()), (1_000, None));
}

#[test]
fn a_lasting_disagreement_of_counter_and_power_is_found() {
    let mut meter = Meter::default();
    watch(&mut meter, 0, 11, 60.0, true);
    assert_eq!(meter.disagreement(), None, "one span may be a change of load");
    watch(&mut meter, 12, 20, 60.0, true);
    assert_eq!(meter.disagreement(), Some(Disagreement { counter: Watts::new(100.0), sensor: Watts::new(60.0) }));
    watch(&mut meter, 21, 30, 90.0, true);
    assert_eq!(meter.disagreement(), None, "it is over");
}

#[test]
fn counter_and_power_are_compared_every_ten_seconds() {
    let mut meter = Meter::default();
    for second in 0..=60u32 {
        let counter = Millijoules::new(u64::from(second) * 240_000);
        meter.observe(at(f64::from(second)), Some(counter), Some(Watts::new(200.0)));
    }
    assert!((meter.counter_over_power().expect("ten seconds") - 1.2).abs() < 1e-9);
}

proptest! {
    #[test]
    fn readings_less_resets_equal_the_recorded_energy(
        steps in prop::collection::vec((1u32..30_000, 0u64..1_000_000, 0u8..8), 1..50),
        is_bound in any::<bool>(),
    ) {
        let (mut meter, mut now, mut counter) = (Meter::default(), Monotonic::default(), 9_999_999);
        if is_bound {
            meter.set_bound(PowerBound { highest: Watts::new(150.0), slack: Seconds::ZERO });
        }
        meter.observe(now, Some(Millijoules::new(counter)), Some(Watts::new(100.0)));
        for (ms, used, what) in steps {
            now = now.after(Seconds::new(f64::from(ms) / 1e3));
            counter = if what == 0 { used } else { counter + used };
            meter.observe(now, (what != 1).then_some(Millijoules::new(counter)), Some(Watts::new(100.0)));
        }
        meter.observe(now.after(Seconds::new(1.0)), Some(Millijoules::new(counter)), None);
        let metered = meter.metered();
        let recorded = i64::try_from((metered.counter + metered.gap).get()).expect("small");
        prop_assert_eq!(i64::try_from(counter).expect("small") - metered.rebased_mj - 9_999_999, recorded);
    }

    #[test]
    fn no_more_is_recorded_than_the_gpu_can_draw(
        steps in prop::collection::vec((1u32..30_000, 0u64..100_000_000, 0u8..8), 1..50)
    ) {
        let (mut meter, mut now, mut counter) = (Meter::default(), Monotonic::default(), 9_999_999);
        let bound = PowerBound { highest: Watts::new(150.0), slack: Seconds::ZERO };
        meter.set_bound(bound);
        let mut most = Joules::ZERO;
        for (ms, used, what) in steps {
            now = now.after(Seconds::new(f64::from(ms) / 1e3));
            most += bound.energy_within(Seconds::new(f64::from(ms) / 1e3));
            counter = if what == 0 { used } else { counter + used };
            meter.observe(now, (what != 1).then_some(Millijoules::new(counter)), (what != 2).then_some(Watts::new(100.0)));
            prop_assert!(meter.metered().total().to_joules() <= most, "{:?} of {most:?}", meter.metered());
        }
    }

    #[test]
    fn no_joule_is_recorded_twice_however_often_the_counter_is_absent(
        steps in prop::collection::vec((1u32..30_000, 0u64..1_000_000, 0u8..4, 0u32..1000), 1..50)
    ) {
        let (mut meter, mut now, mut counter) = (Meter::default(), Monotonic::default(), 0);
        meter.observe(now, Some(Millijoules::ZERO), None);
        for (ms, used, readable, watts) in steps {
            now = now.after(Seconds::new(f64::from(ms) / 1e3));
            counter += used;
            let power = (readable & 2 != 0).then(|| Watts::new(f64::from(watts)));
            meter.observe(now, (readable & 1 != 0).then_some(Millijoules::new(counter)), power);
        }
        meter.observe(now.after(Seconds::new(1.0)), Some(Millijoules::new(counter)), None);
        let metered = meter.metered();
        prop_assert_eq!(metered.total().get(), counter + metered.ahead.get());
        counter += metered.ahead.get() + 1;
        meter.observe(now.after(Seconds::new(2.0)), Some(Millijoules::new(counter)), None);
        prop_assert_eq!(meter.metered().total().get(), counter);
    }

    #[test]
    fn the_parts_add_up_to_the_counters_difference(steps in prop::collection::vec((1u32..30_000, 0u64..1_000_000, any::<bool>()), 1..50)) {
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
