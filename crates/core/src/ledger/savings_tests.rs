//! Invariants of savings, and a case computed by hand.

use chrono::{DateTime, TimeDelta};
use proptest::prelude::*;

use super::*;
use crate::domain::{Intensity, Origin, Slot, TimeSeries};
use crate::profile::SlowedTraining;

fn grid() -> CarbonSeries {
    let at = |hours| DateTime::UNIX_EPOCH + TimeDelta::hours(hours);
    let hour = |i: i64| {
        let value = GramsPerKwh::new(250.0 + 37.0 * f64::from(i32::try_from(i * i % 11).expect("small")));
        (Slot::new(at(i), at(i + 1)).expect("an hour"), Intensity { value, origin: Origin::Measured })
    };
    TimeSeries::from_points((0..200).map(hour).collect()).0
}

fn flat() -> CarbonSeries {
    let hours = Slot::new(DateTime::UNIX_EPOCH, DateTime::UNIX_EPOCH + TimeDelta::hours(10)).expect("a span");
    let intensity = Intensity { value: GramsPerKwh::new(400.0), origin: Origin::Measured };
    TimeSeries::from_points(vec![(hours, intensity)]).0
}

fn point(throughput: f64, power: f64, error: f64, freedom: f64) -> Evidence {
    Evidence {
        throughput: SamplesPerSecond::new(throughput),
        throughput_error: error,
        power: Watts::new(power),
        power_error: error / 2.0,
        freedom,
    }
}

fn done(hours: f64, rate: f64, power: f64, intensity: f64) -> CompletedWork {
    let active = Seconds::new(3600.0 * hours);
    let energy = Watts::new(power) * active;
    CompletedWork {
        started: DateTime::UNIX_EPOCH,
        active,
        stalled: Seconds::ZERO,
        stalled_energy: Joules::ZERO,
        samples: SamplesPerSecond::new(rate) * active,
        energy,
        carbon: energy * GramsPerKwh::new(intensity),
    }
}

fn known(done: &CompletedWork) -> SavingInput {
    SavingInput {
        completed: *done,
        account: ProgressAccount::default(),
        series: grid(),
        with_larger_forecasts: Vec::new(),
        waits: WaitingTimes::default(),
    }
}

fn against(point: Evidence, mix: Vec<Evidence>) -> SavingBasis {
    let places = (1..=mix.len()).collect();
    let points = std::iter::once(point).chain(mix).collect();
    let epochs = vec![ReferencePeriod { from: Samples::ZERO, point: 0 }];
    SavingBasis {
        points,
        epochs,
        mix: places,
        mix_at_least: None,
        limit: None,
        same_sensors: true,
        noise: None,
        at_ceiling: false,
        uncertain_work: Samples::ZERO,
    }
}

prop_compose! {
    fn any_case()(
        hours in 1.0..60.0, rate in 70.0..100.0, power in 120.0..250.0, intensity in 200.0..600.0,
        reference in (95.0..110.0, 200.0..300.0), error in 0.0..0.02, freedom in 3.0..300.0,
        slow in (60.0..75.0, 100.0..150.0), fast in (85.0..95.0, 160.0..220.0),
    ) -> (CompletedWork, SavingBasis) {
        let mix = vec![point(fast.0, fast.1, error, freedom), point(slow.0, slow.1, error, freedom)];
        (done(hours, rate, power, intensity), against(point(reference.0, reference.1, error, freedom), mix))
    }
}

fn holds(figure: ConfidenceInterval) -> bool {
    figure.low <= figure.mean && figure.mean <= figure.high && figure.low.is_finite() && figure.high.is_finite()
}

proptest! {
    #[test]
    fn effects_add_up_and_intervals_hold_their_figures((done, basis) in any_case()) {
        let found = saving(&known(&done), &basis).expect("all is known");
        let (energy, timing) = (found.energy_effect_pct.expect("a mix"), found.timing_effect_pct.expect("a mix"));
        prop_assert!((energy.mean + timing.mean - found.carbon_reduction_pct.mean).abs() < 1e-9);
        for figure in [
            energy, timing, found.carbon_reduction_pct, found.carbon_reduction_g, found.time_increase_pct,
        ] {
            prop_assert!(holds(figure), "{:?}", figure);
        }
        let grams = found.carbon_at_reference_g.get() * found.carbon_reduction_pct.mean / 100.0;
        prop_assert!((grams - found.carbon_reduction_g.mean).abs() < 1e-9 * found.carbon_at_reference_g.get());
    }

    #[test]
    fn a_common_gain_changes_no_percentage((done, basis) in any_case(), gain in 0.9..1.1) {
        let scaled = CompletedWork { energy: done.energy * gain, carbon: done.carbon * gain, ..done };
        let points = basis.points.iter().map(|p| Evidence { power: p.power * gain, ..*p }).collect();
        let found = saving(&known(&done), &basis).expect("all is known");
        let again = saving(&known(&scaled), &SavingBasis { points, ..basis }).expect("all is known");
        let same = |a: ConfidenceInterval, b: ConfidenceInterval| (a.low - b.low).abs() + (a.mean - b.mean).abs() + (a.high - b.high).abs() < 1e-8;
        prop_assert!(same(found.carbon_reduction_pct, again.carbon_reduction_pct));
        prop_assert!(same(found.energy_effect_pct.expect("a mix"), again.energy_effect_pct.expect("a mix")));
        prop_assert!(same(found.timing_effect_pct.expect("a mix"), again.timing_effect_pct.expect("a mix")));
        prop_assert!(same(found.carbon_reduction_g.times(gain), again.carbon_reduction_g));
    }

    #[test]
    fn larger_errors_never_narrow_the_interval((done, basis) in any_case(), worse in 1.0..3.0) {
        let width = |b: &SavingBasis| {
            let found = saving(&known(&done), b).expect("all is known").carbon_reduction_pct;
            found.high - found.low
        };
        let before = width(&basis);
        let mut noisy = basis.clone();
        // Scale all errors: a larger error beside another one with equally few windows also adds degrees of freedom.
        for point in &mut noisy.points {
            point.power_error *= worse;
            point.throughput_error *= worse;
        }
        prop_assert!(width(&noisy) >= before * (1.0 - 1e-12), "but for rounding");
        let others = SavingBasis { same_sensors: false, ..basis };
        prop_assert!(width(&others) > before, "other sensors have other gains");
    }
}

#[test]
fn the_interval_of_a_short_job_allows_for_energy_at_its_ends() {
    // Half a second of a minute is 0.83 % of the job's energy, and as much of the reference's.
    let basis = against(point(100.0, 200.0, 0.0, 300.0), vec![point(100.0, 200.0, 0.0, 300.0)]);
    let found = saving(&known(&done(1.0 / 60.0, 100.0, 200.0, 250.0)), &basis).expect("all is known");
    let reduction = found.carbon_reduction_pct;
    assert!((reduction.high - reduction.mean - 100.0 / 120.0).abs() < 1e-9, "{reduction:?}");
    assert!((found.time_increase_pct.high - found.time_increase_pct.low).abs() < 1e-9, "{found:?}");
}

#[test]
fn a_case_computed_by_hand() {
    // The intensity is constant in the first hours: only the errors of the reference matter.
    let done = done(4.0, 97.0, 180.0, 400.0);
    let reference = Evidence { power_error: 0.002, ..point(100.0, 220.0, 0.003, 1e9) };
    let known = SavingInput { series: flat(), ..known(&done) };
    let found = saving(&known, &against(reference, Vec::new())).expect("all is known");
    let at_reference = 220.0 * 4.0 * 0.97 * 0.4;
    assert!((found.carbon_at_reference_g.get() - at_reference).abs() < 1e-9, "{found:?}");
    let kept = 180.0 * 4.0 * 0.4 / at_reference;
    assert!((found.carbon_reduction_pct.mean - 100.0 * (1.0 - kept)).abs() < 1e-9);
    let half = 1.96 * 100.0 * kept * (0.003_f64.powi(2) + 0.002_f64.powi(2)).sqrt();
    let interval = found.carbon_reduction_pct;
    assert!((interval.high - interval.mean - half).abs() < 0.01 * half, "{interval:?}, {half}");
    assert_eq!((found.energy_effect_pct, found.timing_effect_pct), (None, None));
    let grams = found.carbon_reduction_g;
    assert!(grams.low < grams.mean * 0.95 && grams.high > grams.mean * 1.05, "the sensors' gain: {grams:?}");
}

#[test]
fn forecasts_widen_the_interval() {
    let (work, basis) = (done(4.0, 90.0, 180.0, 400.0), against(point(100.0, 220.0, 0.003, 50.0), Vec::new()));
    let settled = saving(&known(&work), &basis).expect("all is known");
    // Only the last of the four hours has a forecast: a quarter of the emissions depends on it.
    let last = DateTime::UNIX_EPOCH + TimeDelta::hours(3);
    let larger = TimeSeries::from_points(
        grid()
            .points()
            .iter()
            .map(|(slot, i)| (*slot, Intensity { value: i.value * if slot.start() < last { 1.0 } else { 1.1 }, ..*i }))
            .collect(),
    );
    let completed = CompletedWork { carbon: work.carbon * 1.025, ..work };
    let open = SavingInput { with_larger_forecasts: vec![(completed, larger.0)], ..known(&work) };
    let found = saving(&open, &basis).expect("all is known");
    assert!(found.provisional && !settled.provisional);
    assert_eq!(found.carbon_reduction_pct.mean, settled.carbon_reduction_pct.mean);
    let width = |s: ConfidenceInterval| s.high - s.low;
    assert!(width(found.carbon_reduction_g) > width(settled.carbon_reduction_g));
    assert!(width(found.carbon_reduction_pct) > width(settled.carbon_reduction_pct));
    assert_eq!(width(found.time_increase_pct), width(settled.time_increase_pct), "emissions do not affect time");
    let same = SavingInput { with_larger_forecasts: vec![(work, grid())], ..known(&work) };
    assert_eq!(saving(&same, &basis).expect("all is known"), settled);
}

#[test]
fn forecasts_of_all_hours_widen_the_percentage_too() {
    let (work, basis) = (done(4.0, 90.0, 180.0, 400.0), against(point(100.0, 220.0, 0.0, 1e9), Vec::new()));
    let settled = saving(&known(&work), &basis).expect("all is known").carbon_reduction_pct;
    // The job had a quarter of its emissions in each of four hours, and ran more slowly than at the reference: 4 hours
    // instead of 3.6.
    let part = |hour: Option<i64>| {
        let is_larger =
            |slot: &Slot| hour.is_none_or(|hour| slot.start() == DateTime::UNIX_EPOCH + TimeDelta::hours(hour));
        let series = grid();
        let points = series
            .points()
            .iter()
            .map(|(slot, i)| (*slot, Intensity { value: i.value * if is_larger(slot) { 1.1 } else { 1.0 }, ..*i }));
        let carbon = work.carbon * if hour.is_none() { 1.1 } else { 1.025 };
        (CompletedWork { carbon, ..work }, TimeSeries::from_points(points.collect()).0)
    };
    let width = |parts: Vec<_>| {
        let found =
            saving(&SavingInput { with_larger_forecasts: parts, ..known(&work) }, &basis).expect("all is known");
        found.carbon_reduction_pct.high - found.carbon_reduction_pct.low
    };
    let (common, each) = (width(vec![part(None)]), width([None, Some(0), Some(1), Some(2), Some(3)].map(part).into()));
    assert!((common - (settled.high - settled.low)).abs() < 1e-9, "an error of all forecasts together cancels");
    assert!(each > common + 1.0, "{each}, {common}");
}

#[test]
fn a_job_profiled_again_is_compared_with_each_reference_for_its_part() {
    let done = done(4.0, 90.0, 180.0, 400.0);
    let basis = SavingBasis {
        points: vec![point(100.0, 200.0, 0.0, 50.0), point(80.0, 200.0, 0.0, 50.0)],
        epochs: vec![
            ReferencePeriod { from: Samples::ZERO, point: 0 },
            ReferencePeriod { from: done.samples * 0.5, point: 1 },
        ],
        mix: Vec::new(),
        mix_at_least: None,
        limit: None,
        same_sensors: true,
        noise: None,
        at_ceiling: false,
        uncertain_work: Samples::ZERO,
    };
    let found = saving(&known(&done), &basis).expect("all is known");
    let half = done.samples * 0.5;
    let time = half / SamplesPerSecond::new(100.0) + half / SamplesPerSecond::new(80.0);
    assert!((found.time_at_reference_s - time).abs() < Seconds::new(1e-6));
    assert!((found.energy_at_reference_j - Watts::new(200.0) * time).abs() < Joules::new(1e-3));
}

#[test]
fn time_at_the_reference_is_not_scaled() {
    // The job ran for two of four hours below the reference, at 80 samples/s, and for two at the reference, at 98
    // samples/s, which is slower than the 100 samples/s that the profile measured.
    let lost = SlowedTraining {
        below: Seconds::new(7200.0),
        samples: Samples::new(80.0 * 7200.0),
        ..SlowedTraining::default()
    };
    let done = done(4.0, 89.0, 180.0, 400.0);
    let account =
        ProgressAccount { samples: done.samples, active: done.active, lost: Some(lost), ..ProgressAccount::default() };
    let basis = SavingBasis { at_ceiling: true, ..against(point(100.0, 220.0, 0.003, 1e9), Vec::new()) };
    let known = SavingInput { account, series: flat(), ..known(&done) };
    let found = saving(&known, &basis).expect("all is known");
    let (increase, slowdown) = (found.time_increase_pct, account.slowdown(SamplesPerSecond::new(100.0)));
    assert!((increase.mean - 100.0 * slowdown.expect("work was done")).abs() < 1e-9, "{increase:?}");
    assert!((found.time_at_reference_s.get() - (7200.0 + 5760.0)).abs() < 1e-6, "{found:?}");
    assert!((found.energy_at_reference_j.get() - 220.0 * (7200.0 + 5760.0)).abs() < 1e-3, "{found:?}");
    let half = 1.96 * 0.003 * 5760.0 * 14_400.0 / 12_960.0_f64.powi(2) * 100.0;
    assert!((increase.high - increase.mean - half).abs() < 0.01 * half, "{increase:?}, {half}");
    // The samples of two hours fluctuate by 0.6 / √7200, relatively.
    let noise = serde_json::from_str(r#"{"per_second":0.36,"degrees_of_freedom":1e9}"#).expect("a noise");
    let noisy = saving(&known, &SavingBasis { noise: Some(noise), ..basis.clone() }).expect("all is known");
    let half = half.hypot(half / 0.003 * 0.6 / 7200.0_f64.sqrt());
    assert_eq!(noisy.time_increase_pct.mean, increase.mean);
    assert!((noisy.time_increase_pct.high - increase.mean - half).abs() < 0.01 * half, "{noisy:?}, {half}");
    // If 1 % of the 576,000 converted samples is uncertain, so are 57.6 s.
    let other =
        saving(&known, &SavingBasis { uncertain_work: Samples::new(5760.0), ..basis.clone() }).expect("all is known");
    let plain = increase.high - increase.mean;
    let half = plain.hypot(57.6 * 14_400.0 / 12_960.0_f64.powi(2) * 100.0);
    assert_eq!(other.time_increase_pct.mean, increase.mean);
    assert!((other.time_increase_pct.high - increase.mean - half).abs() < 0.01 * half, "{other:?}, {half}");
    // Compared with another reference, or without a record of slowed training, all of the work is converted.
    let elsewhere = saving(&known, &SavingBasis { at_ceiling: false, ..basis.clone() }).expect("all is known");
    assert!((elsewhere.time_at_reference_s.get() - 12_816.0).abs() < 1e-6, "{elsewhere:?}");
    // So it is after a cap changed the maximum usable limit: the account does not say which training was below which.
    let capped = ProgressAccount { has_other_ceilings: true, ..account };
    let capped = saving(&SavingInput { account: capped, ..known.clone() }, &basis).expect("all is known");
    assert_eq!(capped.time_increase_pct, elsewhere.time_increase_pct);
    let unrecorded = SavingInput { account: ProgressAccount { lost: None, ..account }, ..known };
    let unrecorded = saving(&unrecorded, &basis).expect("all is known");
    assert_eq!(unrecorded.time_increase_pct, elsewhere.time_increase_pct);
}

#[test]
fn training_at_the_reference_keeps_its_measured_energy() {
    // The profile measured 220 W at the reference on a warm GPU or with other data, the job itself drew 200 W. For two of
    // four hours it ran below the reference: 80 samples/s instead of 100, at 120 W.
    let hours = Seconds::new(7200.0);
    let saved_by = |below: f64, metered: f64| {
        let (slowed, fast) = (hours * below, hours * (2.0 - below));
        let (used, lost) = (Watts::new(120.0) * slowed, SamplesPerSecond::new(80.0) * slowed);
        let energy = used + Watts::new(200.0) * fast;
        let samples = lost + SamplesPerSecond::new(100.0) * fast;
        let work = CompletedWork {
            active: slowed + fast,
            samples,
            energy,
            carbon: energy * GramsPerKwh::new(400.0),
            ..done(1.0, 1.0, 1.0, 1.0)
        };
        let lost = SlowedTraining { below: slowed, samples: lost, metered: slowed * metered, energy: used * metered };
        let account = ProgressAccount { samples, active: work.active, lost: Some(lost), ..ProgressAccount::default() };
        let exact = |rate, power| point(rate, power, 0.0, 1e9);
        let basis = SavingBasis {
            at_ceiling: true,
            ..against(exact(100.0, 220.0), vec![exact(100.0, 220.0), exact(80.0, 120.0)])
        };
        let found = saving(&SavingInput { account, series: flat(), ..known(&work) }, &basis).expect("all is known");
        (found.energy_at_reference_j, found.carbon_reduction_pct.mean, found.energy_effect_pct.expect("a mix").mean)
    };
    let (_, reduction, effect) = saved_by(0.0, 1.0);
    assert!(reduction.abs() < 1e-9 && effect.abs() < 1e-9, "never slowed: {reduction}, {effect}");
    for metered in [1.0, 0.999] {
        let energy = saved_by(1.0, metered).0;
        let expected = Watts::new(200.0) * hours + Watts::new(220.0) * (hours * 0.8);
        assert!((energy - expected).abs() < Joules::new(1e-3), "{energy:?}, {expected:?}");
    }
    // A moment at a lower limit changes next to nothing.
    assert!((saved_by(0.001, 1.0).1 - reduction).abs() < 0.1);
    // Without the energy of the slowed training, all training is assumed to draw the profile's power.
    let energy = saved_by(1.0, 0.99).0;
    assert!((energy - Watts::new(220.0) * (hours * 1.8)).abs() < Joules::new(1e-3), "{energy:?}");
}

#[test]
fn a_slowed_job_with_several_references_is_compared_with_each_for_its_part() {
    // First 10^6 samples at a lower limit: 10,300 s instead of 10,000 s. Then the work per sample doubles, and the job
    // does 10^6 samples at the reference in 20,000 s.
    let lost =
        SlowedTraining { below: Seconds::new(10_300.0), samples: Samples::new(1e6), ..SlowedTraining::default() };
    let energy = Watts::new(495.0) * Seconds::new(10_300.0) + Watts::new(690.0) * Seconds::new(20_000.0);
    let work = CompletedWork {
        active: Seconds::new(30_300.0),
        samples: Samples::new(2e6),
        energy,
        carbon: energy * GramsPerKwh::new(400.0),
        ..done(1.0, 1.0, 1.0, 1.0)
    };
    let account =
        ProgressAccount { samples: work.samples, active: work.active, lost: Some(lost), ..ProgressAccount::default() };
    let first = against(point(100.0, 690.0, 0.0, 1e9), Vec::new());
    let points = vec![first.points[0], point(50.0, 690.0, 0.0, 1e9)];
    let epochs =
        vec![ReferencePeriod { from: Samples::ZERO, point: 0 }, ReferencePeriod { from: Samples::new(1e6), point: 1 }];
    let basis = SavingBasis { points, epochs, at_ceiling: true, ..first };
    let known = SavingInput { account, series: flat(), ..known(&work) };
    let found = saving(&known, &basis).expect("all is known");
    assert!((found.time_increase_pct.mean - 1.0).abs() < 1e-9, "{found:?}");
    let reduction = 100.0 * (1.0 - energy.get() / (690.0 * 30_000.0));
    assert!((found.carbon_reduction_pct.mean - reduction).abs() < 1e-9, "{found:?}");
}

#[test]
fn a_setting_with_unlucky_measurements_lowers_the_mixs_bound() {
    let (fast, slow) = (point(100.0, 200.0, 0.0, 1e9), point(80.0, 140.0, 0.0, 1e9));
    let exact = |throughput, power| point(throughput, power, 0.0, 1e9);
    let least = |others: &[Evidence]| {
        let others: Vec<&Evidence> = others.iter().collect();
        min_constant_power(&[&fast, &slow], &others, SamplesPerSecond::new(85.0)).map(Watts::get)
    };
    // The mix draws 155 W at 85/s, and 3 W more per additional sample per second.
    assert_eq!(least(&[]), None);
    assert_eq!(least(&[exact(90.0, 175.0)]), None, "certainly worse");
    let unlucky = Evidence { throughput_error: 0.0, power_error: 0.05, ..exact(90.0, 175.0) };
    // At the favourable end of its interval, the setting draws 175 · (1 − 0.05 · 1.96) W. Half of the time at this
    // setting (90/s) and half at the slow one (80/s) make 85/s.
    let good = 175.0 * (1.0 - 0.05 * 1.959_964);
    assert!((least(&[unlucky]).expect("cheaper") - (good + 140.0) / 2.0).abs() < 0.05);
    let slowed = Evidence { throughput_error: 0.05, power_error: 0.0, ..exact(90.0, 175.0) };
    let good = 175.0 - 3.0 * 90.0 * 0.05 * 1.959_964;
    assert!((least(&[slowed]).expect("cheaper") - (good + 140.0) / 2.0).abs() < 0.05);
    assert_eq!(least(&[Evidence { freedom: 2.0, ..unlucky }]), None, "too few degrees of freedom");
    // Only one of several settings is favourable at a time.
    let both = least(&[unlucky, Evidence { power: Watts::new(174.0), ..unlucky }]).expect("cheaper");
    assert!((both - (174.0 * (1.0 - 0.05 * 1.959_964) + 140.0) / 2.0).abs() < 0.05);
    assert_eq!(min_constant_power(&[], &[&unlucky], SamplesPerSecond::new(85.0)), None);

    let work = done(4.0, 85.0, 150.0, 400.0);
    let basis = against(point(110.0, 260.0, 0.001, 50.0), vec![fast, slow]);
    let known = SavingInput { series: flat(), ..known(&work) };
    let before = saving(&known, &basis).expect("all is known");
    let after = saving(&known, &SavingBasis { mix_at_least: Some(Watts::new(150.0)), ..basis }).expect("all is known");
    assert_eq!(before.carbon_reduction_pct, after.carbon_reduction_pct, "the whole does not depend on the mix");
    let (energy, timing) = (after.energy_effect_pct.expect("a mix"), after.timing_effect_pct.expect("a mix"));
    let was = before.energy_effect_pct.expect("a mix");
    assert_eq!((energy.low, energy.mean), (was.low, was.mean));
    // The bound is 5 W below the mix: for four hours at the mean intensity, in percent of the reference's emissions.
    let mean = before.carbon_at_reference_g.get() / before.energy_at_reference_j.get();
    let more = 5.0 * 4.0 * 3600.0 * mean / before.carbon_at_reference_g.get() * 100.0;
    assert!((energy.high - energy.mean - more.hypot(was.high - was.mean)).abs() < 0.05 * more, "{energy:?}, {more}");
    assert!(
        (timing.mean - timing.low - more.hypot(timing.high - timing.mean)).abs() < 0.05 * more,
        "{timing:?}, {more}"
    );
}

#[test]
fn unknown_savings_state_the_reason() {
    let work = done(4.0, 90.0, 180.0, 400.0);
    let why = |done: &CompletedWork, basis: &SavingBasis| saving(&known(done), basis).expect_err("unknown");
    let sound = against(point(100.0, 200.0, 0.001, 50.0), Vec::new());
    assert!(why(&CompletedWork { samples: Samples::ZERO, ..work }, &sound).contains("no samples were completed"));
    assert!(why(&work, &against(point(100.0, 200.0, 0.001, 2.0), Vec::new())).contains("too few windows"));
    assert!(
        why(&CompletedWork { started: DateTime::UNIX_EPOCH - TimeDelta::hours(1), ..work }, &sound)
            .contains("intensity")
    );
    assert!(why(&work, &SavingBasis { epochs: Vec::new(), ..sound.clone() }).contains("the job was not measured"));
    let shaky = against(point(100.0, 200.0, 0.001, 50.0), vec![point(90.0, 150.0, 0.1, 1.0)]);
    let found = saving(&known(&work), &shaky).expect("the reference is known");
    assert_eq!(found.energy_effect_pct, None, "the mix is not");
}

#[test]
fn the_batch_effect_requires_enough_default_runs() {
    let runs = [100.0, 110.0, 90.0, 100.0].map(|k| Joules::new(1000.0 * k));
    let (run, intensity) = (Joules::new(80_000.0), GramsPerKwh::new(360.0));
    let few = batch_effect(&runs[..3], run, intensity, true).expect_err("three are few");
    assert!(few.contains("3 earlier run(s); at least 4 are needed"), "{few}");
    let found = batch_effect(&runs, run, intensity, true).expect("four are enough");
    assert!((found.energy_j.mean - 20_000.0).abs() < 1e-6 && (found.carbon_g.mean - 2.0).abs() < 1e-9, "{found:?}");
    // The standard deviation of the runs is 8165 J, and that of the mean of four is 4082 J; Student's quantile with
    // three degrees of freedom is 3.182.
    assert!((found.pct.mean - 20.0).abs() < 1e-9);
    assert!((found.pct.high - found.pct.mean - 0.8 * 100.0 * 3.182 * 4.082 / 100.0).abs() < 0.03, "{found:?}");
    let elsewhere = batch_effect(&runs, run, intensity, false).expect("four are enough");
    assert!(holds(elsewhere.pct) && elsewhere.pct.low < found.pct.low);
}
