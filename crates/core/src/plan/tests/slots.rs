use proptest::prelude::*;

use super::*;
use crate::forecast::{Basis, HorizonSlot};
use crate::plan::Risk;

fn at(minutes: i64) -> DateTime<Utc> {
    DateTime::UNIX_EPOCH + TimeDelta::days(20_000) + TimeDelta::minutes(minutes)
}

/// Returns contiguous slots, each given by its length in minutes and its intensity; the first starts at minute `from`.
fn horizon(from: i64, slots: &[(i64, f64)]) -> Horizon {
    let mut start = from;
    let slot = |&(minutes, value): &(i64, f64)| {
        let slot = Slot::new(at(start), at(start + minutes)).expect("not empty");
        start += minutes;
        let (intensity, low, high) = (value, value * 0.8, value * 1.4);
        let [intensity, low, high] = [intensity, low, high].map(GramsPerKwh::new);
        HorizonSlot { slot, intensity, low, high, basis: Basis::Given }
    };
    Horizon { slots: slots.iter().map(slot).collect() }
}

fn spans(slots: &[PlanSlot]) -> Vec<(i64, i64)> {
    slots.iter().map(|s| ((s.slot.start() - at(0)).num_minutes(), (s.slot.end() - at(0)).num_minutes())).collect()
}

fn expected(horizon: &Horizon, now: i64) -> Vec<PlanSlot> {
    planning_slots(horizon, at(now), &Settings::default())
}

#[test]
fn five_minute_slots_become_half_hours_and_longer_slots_stay() {
    let fine: Vec<_> = (0..18).map(|i| (5, 100.0 + f64::from(i))).chain([(60, 300.0), (30, 400.0)]).collect();
    let slots = expected(&horizon(0, &fine), 0);
    assert_eq!(spans(&slots), [(0, 30), (30, 60), (60, 90), (90, 150), (150, 180)]);
    let values: Vec<f64> = slots.iter().map(|s| s.intensity.get()).collect();
    assert!((values[0] - 102.5).abs() < 1e-9 && (values[1] - 108.5).abs() < 1e-9, "{values:?}");
    assert_eq!(values[3..], [300.0, 400.0]);
}

#[test]
fn boundaries_do_not_shift_with_the_present() {
    let twenty: Vec<_> = (0..30).map(|i| (20, f64::from(i))).collect();
    let whole = expected(&horizon(0, &twenty), 0);
    for passed in 1..6 {
        let rest = expected(&horizon(20 * passed, &twenty[passed as usize..]), 20 * passed);
        let same: Vec<_> = whole.iter().filter(|s| s.slot.start() >= rest[1].slot.start()).collect();
        assert!(rest[1..].iter().eq(same), "{passed}: {:?}", spans(&rest));
    }
}

#[test]
fn far_slots_are_coarse_and_do_not_shift_within_six_hours() {
    let hours: Vec<_> = (0..96).map(|h| (60, f64::from(h))).collect();
    let slots = expected(&horizon(0, &hours), 0);
    assert_eq!(slots.len(), 48 + 16);
    assert_eq!(spans(&slots)[48], (48 * 60, 51 * 60));
    assert!((slots[48].intensity.get() - 49.0).abs() < 1e-9);
    let later = expected(&horizon(300, &hours[5..]), 300);
    assert_eq!(later[..], slots[5..]);
}

#[test]
fn a_quantile_lies_between_the_middle_and_above_the_interval() {
    let one = horizon(0, &[(60, 100.0)]);
    let value = |risk| planning_slots(&one, at(0), &Settings { risk, ..Settings::default() })[0].intensity.get();
    assert_eq!(value(Risk::Expected), 100.0);
    assert_eq!(value(Risk::Quantile(0.5)), 100.0);
    assert!((value(Risk::Quantile(0.9)) - 140.0).abs() < 1e-9, "nine of ten outcomes lie below the interval's end");
    assert!((value(Risk::Quantile(0.841_344_746)) - 100.0 - 40.0 / FOUR_IN_FIVE).abs() < 1e-6, "one deviation");
}

#[test]
fn cuts_split_slots_and_change_nothing_else() {
    let slots = expected(&horizon(0, &[(60, 1.0), (60, 2.0)]), 0);
    let cuts = split_at(&slots, [at(90), at(30), at(60), at(200)]);
    assert_eq!(spans(&cuts), [(0, 30), (30, 60), (60, 90), (90, 120)]);
    assert_eq!(cuts[3].intensity, GramsPerKwh::new(2.0));
}

proptest! {
    #[test]
    fn averages_keep_the_total(lengths in prop::collection::vec((1i64..200, 0.0..900.0f64), 1..60), now in 0i64..2000) {
        let horizon = horizon(now, &lengths);
        let slots = expected(&horizon, now);
        prop_assert!(slots.windows(2).all(|p| p[0].slot.end() == p[1].slot.start()));
        prop_assert_eq!(slots[0].slot.start(), horizon.slots[0].slot.start());
        let total = |sum: f64, (slot, value): (Slot, GramsPerKwh)| sum + slot.duration().get() * value.get();
        let fine = horizon.slots.iter().map(|s| (s.slot, s.intensity)).fold(0.0, total);
        let coarse = slots.iter().map(|s| (s.slot, s.intensity)).fold(0.0, total);
        prop_assert!((fine - coarse).abs() <= 1e-9 * fine);
    }
}
