//! Properties of outlooks for any history, forecast and slot length.

use proptest::prelude::*;

use super::*;
use crate::forecast::{Basis, FALLBACK, Forecaster, Horizon, Model};

const DAY: i64 = 24 * 60;

fn fit(published: &CarbonSeries, actual: &CarbonSeries, now: i64) -> Model {
    Model::fit(published, &[], actual, at(now))
}

fn outlook(model: &Model, expected: &CarbonSeries, now: i64, until: i64) -> Horizon {
    model.outlook(expected, at(now), at(until), FALLBACK)
}

/// Generates slots of one length, some missing, with values around a level that may be zero.
fn regular(from: i64, to: i64) -> impl Strategy<Value = CarbonSeries> {
    let lengths = prop::sample::select(vec![5_i64, 15, 30, 60, 180]);
    (lengths, 0_i64..60, any::<u64>(), prop::sample::select(vec![0.0, 1.0, 300.0])).prop_map(
        move |(length, offset, seed, level)| {
            let value = |i: i64| {
                let noise =
                    ((seed ^ i.unsigned_abs()).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f64 / (1u64 << 24) as f64;
                (noise > 0.1).then_some(level * (noise + 1.0 + (i as f64 * length as f64 / 229.0).sin()))
            };
            let starts = (from..to - length).step_by(usize::try_from(length).expect("positive"));
            series(starts.zip(0..).filter_map(|(start, i)| Some((start + offset, start + offset + length, value(i)?))))
        },
    )
}

fn sound(horizon: &Horizon, now: i64, until: i64) {
    let slots = &horizon.slots;
    assert_eq!(slots.first().map(|s| s.slot.start()), Some(at(now)));
    assert_eq!(slots.last().map(|s| s.slot.end()), Some(at(until)));
    assert!(slots.windows(2).all(|pair| pair[0].slot.end() == pair[1].slot.start()));
    for slot in slots {
        let (low, middle, high) = (slot.low.get(), slot.intensity.get(), slot.high.get());
        assert!(0.0 <= low && low <= middle && middle <= high && high.is_finite(), "{slot:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn outlooks_are_gapless_and_finite(
        published in regular(-3 * DAY, 2 * DAY),
        actual in regular(-4 * DAY, 60),
        now in -DAY..DAY,
        length in 1i64..5 * DAY,
    ) {
        let model = fit(&published, &actual, now);
        let horizon = outlook(&model, &published, now, now + length);
        sound(&horizon, now, now + length);
        // No value is far outside the range of the data.
        prop_assert!(horizon.slots.iter().all(|s| s.intensity.get() <= 4000.0), "{horizon:?}");
        let skill = model.skill();
        prop_assert!((0.0..=1.0).contains(&skill.factor), "{skill:?}");
    }

    #[test]
    fn irregular_slots_do_no_harm(
        published in prop::collection::vec((-9000i64..3000, 1i64..200, 0.0f64..900.0), 0..40),
        actual in prop::collection::vec((-9000i64..100, 1i64..2000, 0.0f64..900.0), 0..40),
        now in -500i64..500,
    ) {
        let spans = |points: Vec<(i64, i64, f64)>| series(points.into_iter().map(|(f, l, v)| (f, f + l, v)));
        let (published, actual) = (spans(published), spans(actual));
        sound(&outlook(&fit(&published, &actual, now), &published, now, now + 6000), now, now + 6000);
    }

    #[test]
    fn data_after_now_are_ignored(actual in regular(-4 * DAY, 2 * DAY), published in regular(-4 * DAY, 2 * DAY)) {
        let whole = |series: &CarbonSeries| {
            let ended = series.points().iter().filter(|(slot, _)| slot.end() <= at(0)).copied();
            CarbonSeries::from_points(ended.collect()).0
        };
        let none = CarbonSeries::default();
        let until = outlook(&fit(&whole(&published), &whole(&actual), 0), &none, 0, DAY);
        let mut changed = whole(&actual);
        changed.overwrite(&hourly(0, 48, |_| 5000.0));
        prop_assert_eq!(until, outlook(&fit(&whole(&published), &changed, 0), &none, 0, DAY));
    }
}

#[test]
fn a_shape_that_leads_below_zero_has_an_interval_too() {
    let published = series([(2633, 2680, 0.0), (-1687, -1640, 432.47)]);
    let actual = series([(0, 123, 172.42)]);
    sound(&outlook(&fit(&published, &actual, 136), &published, 136, 6136), 136, 6136);
}

#[expect(clippy::cast_precision_loss, reason = "hours of a month")]
fn wave(h: i64) -> f64 {
    300.0 + 100.0 * (h as f64 * std::f64::consts::TAU / 24.0).sin()
}

#[test]
fn a_forecast_that_is_right_stays_as_it_is() {
    let truth = hourly(-20 * 24, 48, wave);
    for days in [1, 3, 20] {
        let past = hourly(-days * 24, 0, wave);
        let horizon = outlook(&fit(&past, &past, 0), &truth, 0, DAY);
        for (slot, h) in horizon.slots.iter().zip(0..) {
            assert_eq!(slot.basis, Basis::Corrected);
            assert!((slot.intensity.get() - wave(h)).abs() < 1e-6, "{slot:?} after {days} days");
        }
    }
}

#[test]
fn a_constant_bias_is_corrected_within_hours() {
    let truth = hourly(0, 24, wave);
    let off_after = |hours: i64| {
        let published = hourly(-hours, 24, |h| wave(h) + 60.0);
        let model = fit(&published, &hourly(-hours, 0, wave), 0);
        let slot = slot(12 * 60, 13 * 60);
        let given = published.at(slot.start()).map(|p| p.1.value);
        let expected =
            model.expect(&slot, given, &model.offset(&published, at(0)), Forecaster::Corrected, at(0)).expect("given");
        (expected.intensity - truth.at(slot.start()).expect("known").1.value).get()
    };
    assert!(off_after(2) < 45.0, "{}", off_after(2));
    assert!(off_after(6) < 30.0, "{}", off_after(6));
    assert!(off_after(48).abs() < 6.0, "{}", off_after(48));
}

#[test]
fn without_a_forecast_the_fallbacks_follow_in_their_order() {
    let none = CarbonSeries::default();
    let bases = |model: &Model, now: i64| {
        let horizon = outlook(model, &none, now, now + DAY);
        let mut bases: Vec<_> = horizon.slots.iter().map(|s| s.basis).collect();
        bases.dedup();
        bases
    };
    let history = hourly(-7 * 24, 0, wave);
    assert_eq!(bases(&fit(&none, &history, 0), 0), [Basis::Local]);
    // The source is down: the same model is used at later times, then a model that is fitted later.
    assert_eq!(bases(&fit(&none, &history, 0), 23 * 60), [Basis::Local]);
    assert_eq!(bases(&fit(&none, &history, 0), 25 * 60), [Basis::DailyShape]);
    let late = fit(&none, &history, 20 * DAY);
    assert_eq!(bases(&late, 20 * DAY), [Basis::DailyShape]);
    assert_eq!(bases(&late, 60 * DAY), [Basis::Constant], "the shape of another season");
    let horizon = outlook(&late, &none, 20 * DAY, 21 * DAY);
    assert!(horizon.slots.iter().zip(0..).all(|(s, h)| (s.intensity.get() - wave(h)).abs() < 1e-6), "{horizon:?}");
    assert_eq!(bases(&fit(&none, &none, 0), 0), [Basis::Constant]);
    // A few hours of history are better than the constant.
    let hours = fit(&none, &hourly(-3, 0, |_| 120.0), 0);
    assert!(outlook(&hours, &none, 0, DAY).slots.iter().all(|s| (s.intensity.get() - 120.0).abs() < 1e-9));
}

#[test]
fn weekends_have_a_profile_of_their_own() {
    // Midnight of day 0 is a Thursday, so days 2 and 3 are a weekend, as are the days whole weeks before them.
    let value = |h: i64| if [2, 3].contains(&h.div_euclid(24).rem_euclid(7)) { 200.0 } else { 300.0 };
    let model = fit(&CarbonSeries::default(), &hourly(-28 * 24, 0, value), 0);
    let horizon = outlook(&model, &CarbonSeries::default(), 0, 4 * DAY);
    let mean = |from: i64, to: i64| {
        let slots = horizon.slots.iter().filter(|s| s.slot.start() >= at(from * DAY) && s.slot.start() < at(to * DAY));
        let values: Vec<_> = slots.map(|s| s.intensity.get()).collect();
        values.iter().sum::<f64>() / values.len() as f64
    };
    assert!(mean(0, 2) - mean(2, 4) > 25.0, "{} and {}", mean(0, 2), mean(2, 4));
}

#[test]
fn fitting_a_month_of_five_minute_slots_is_fast() {
    let months = |shift: f64| series((-28 * 288..0).map(|i| (i * 5, i * 5 + 5, wave(i / 12) + shift)));
    let (published, actual) = (months(20.0), months(0.0));
    let model = fit(&published, &actual, 0);
    assert!(model.skill().factor > 0.9);
}
