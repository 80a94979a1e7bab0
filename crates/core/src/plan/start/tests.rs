//! Tests of start times: choices, edges, and oracles.

use chrono::{DateTime, TimeDelta, Utc};
use proptest::prelude::*;

use super::*;
use crate::domain::{GpuId, Origin, Quoted, Slot, TimeSeries};
use crate::forecast::{Basis, ErrorPaths, Horizon, HorizonSlot};
use crate::plan::job::Point;
use crate::plan::request::Prices;
use crate::units::{GramsPerKwh, PricePerMwh, Samples, SamplesPerSecond, Seconds, Watts};

fn at(minutes: i64) -> DateTime<Utc> {
    DateTime::UNIX_EPOCH + TimeDelta::days(20_000) + TimeDelta::minutes(minutes)
}

fn hourly(values: &[f64]) -> StartForecast {
    let slot = |(value, h): (&f64, i64)| HorizonSlot {
        slot: Slot::new(at(60 * h), at(60 * h + 60)).expect("an hour"),
        intensity: GramsPerKwh::new(*value),
        low: GramsPerKwh::new(*value),
        high: GramsPerKwh::new(*value),
        basis: Basis::Corrected,
    };
    StartForecast::of_horizon(Horizon { slots: values.iter().zip(0..).map(slot).collect() })
}

fn question(hours: f64, within_h: i64) -> StartQuestion {
    StartQuestion::new(at(0), Seconds::new(hours * 3600.0), Watts::new(300.0), Latest::Start(at(60 * within_h)))
}

#[test]
fn the_cleanest_window_is_chosen() {
    let forecast = hourly(&[300.0, 280.0, 100.0, 120.0, 300.0, 300.0, 300.0, 300.0]);
    let advice = advise_start(&question(2.0, 6), &forecast).expect("valid");
    assert_eq!((advice.start, advice.reason), (at(120), StartReason::CleanerLater));
    assert!((advice.saving.expected - (1.0 - 110.0 / 290.0)).abs() < 1e-12);
    assert!((advice.now.carbon.get() - 174.0).abs() < 1e-9, "0.6 kWh at 290 g/kWh");
    assert_eq!(advice.decide_at, at(60));
    let by_end = StartQuestion { latest: Latest::End(at(180)), ..question(2.0, 0) };
    assert_eq!(advise_start(&by_end, &forecast).expect("valid").start, at(60));
}

#[test]
fn a_start_between_slots_is_found() {
    // 90 minutes: best from 1:30 to 3:00, over the two cleanest hours.
    let forecast = hourly(&[300.0, 200.0, 100.0, 300.0, 300.0]);
    assert_eq!(advise_start(&question(1.5, 3), &forecast).expect("valid").start, at(90));
}

#[test]
fn starting_at_once_says_why() {
    let clean_now = hourly(&[100.0, 200.0, 200.0]);
    let flat = hourly(&[200.0, 199.0, 198.0]);
    let reason = |q: &StartQuestion, f: &StartForecast| {
        let advice = advise_start(q, f).expect("valid");
        assert!(advice.starts_at_once(), "{advice}");
        assert!(advice.to_string().starts_with("Starting at once"), "{advice}");
        advice.reason
    };
    assert_eq!(reason(&question(1.0, 2), &clean_now), StartReason::CleanestNow);
    assert_eq!(reason(&question(1.0, 2), &flat), StartReason::GainTooSmall);
    assert_eq!(reason(&question(1.0, 0), &flat), StartReason::NoTimeToWait);
    assert_eq!(reason(&question(1.0, -5), &flat), StartReason::LatestStartPassed);
    assert_eq!(reason(&question(1.0, 2), &StartForecast::of_horizon(Horizon::default())), StartReason::NothingKnown);
    let careful = StartQuestion { max_loss_probability: 0.01, min_gain: 0.0, ..question(1.0, 2) };
    assert_eq!(reason(&careful, &flat), StartReason::TooUncertain);
}

#[test]
fn invalid_questions_are_refused() {
    let invalid = [
        StartQuestion { duration: Seconds::ZERO, ..question(1.0, 2) },
        StartQuestion { power: Watts::ZERO, ..question(1.0, 2) },
        StartQuestion { idle_power: Watts::new(-1.0), ..question(1.0, 2) },
        StartQuestion { min_gain: f64::NAN, ..question(1.0, 2) },
        StartQuestion { max_loss_probability: 1.1, ..question(1.0, 2) },
        StartQuestion { price_weight: -0.1, ..question(1.0, 2) },
        StartQuestion { earliest: Some(at(130)), ..question(1.0, 2) },
        question(1.0, 24 * 4000),
    ];
    for question in invalid {
        let error = advise_start(&question, &hourly(&[1.0])).expect_err("invalid");
        assert!(error.to_string().contains("is "), "{error}");
    }
}

#[test]
fn a_duration_beyond_the_horizon_counts_the_mean_there() {
    let forecast = hourly(&[300.0, 100.0, 200.0]);
    let advice = advise_start(&question(100.0, 2), &forecast).expect("valid");
    assert!((advice.now.intensity.get() - 200.0).abs() < 1e-9);
}

#[test]
fn idle_power_is_charged_to_waiting() {
    let forecast = hourly(&[200.0, 200.0, 180.0, 180.0]);
    let free = advise_start(&question(1.0, 2), &forecast).expect("valid");
    assert_eq!(free.start, at(120));
    let held = StartQuestion { idle_power: Watts::new(50.0), ..question(1.0, 2) };
    assert!(advise_start(&held, &forecast).expect("valid").starts_at_once(), "two hours of 50 W cost more than 10 %");
}

#[test]
fn keys_spread_starts_within_the_tolerance() {
    let forecast = hourly(&[300.0, 100.0, 100.1, 100.0, 300.0]);
    let keyed = |key: &str| StartQuestion { spread_key: Some(key.to_owned()), ..question(1.0, 4) };
    let starts: Vec<_> =
        (0..50).map(|i| advise_start(&keyed(&format!("job-{i}")), &forecast).expect("valid").start).collect();
    assert_eq!(starts[7], advise_start(&keyed("job-7"), &forecast).expect("valid").start, "the key fixes the start");
    let mut distinct = starts.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert!(distinct.len() > 45, "{distinct:?}");
    assert!(starts.iter().all(|start| (at(59)..=at(181)).contains(start)), "{starts:?}");
}

#[test]
fn limits_are_chosen_together_with_the_start() {
    let point = |power: f64, rate: f64| Point { power: Watts::new(power), throughput: SamplesPerSecond::new(rate) };
    let profile = StartProfile {
        points: vec![point(300.0, 1.0), point(200.0, 0.9), point(150.0, 0.7)],
        work: Samples::new(7200.0),
        max_slowdown: 0.2,
    };
    let longest = profile.longest_duration().expect("points do work");
    assert!((longest.get() - 8640.0).abs() < 1e-6);
    let forecast = hourly(&[300.0, 250.0, 100.0, 120.0, 300.0, 300.0]);
    let planned = StartQuestion { duration: longest, profile: Some(profile.clone()), ..question(2.0, 3) };
    let advice = advise_start(&planned, &forecast).expect("valid");
    // At full speed from the start of the two clean hours on, or a little slower and earlier: never later.
    assert!(advice.start > at(60) && advice.start <= at(120), "{advice:?}");
    let fast = advise_start(&StartQuestion { power: Watts::new(300.0), ..question(2.0, 3) }, &forecast).expect("valid");
    assert!(advice.best.carbon < fast.best.carbon, "limits save energy besides");
    let unusable = StartProfile { points: Vec::new(), ..profile };
    let without = StartQuestion { profile: Some(unusable), ..question(2.0, 3) };
    assert_eq!(advise_start(&without, &forecast).expect("valid").start, at(120), "at constant power");
}

#[test]
fn prices_count_as_far_as_they_are_weighed() {
    let price = |value: f64, h: i64| {
        let slot = Slot::new(at(60 * h), at(60 * h + 60)).expect("an hour");
        (slot, Quoted { value: PricePerMwh::new(value), origin: Origin::Forecast })
    };
    let known = TimeSeries::from_points(vec![price(100.0, 0), price(100.0, 1), price(100.0, 2), price(20.0, 3)]).0;
    let prices = Prices { known_prices: &known, reference: PricePerMwh::new(80.0) };
    let forecast = hourly(&[300.0, 200.0, 300.0, 280.0]).with_prices(prices, GramsPerKwh::new(300.0));
    let start = |price_weight: f64| {
        let question = StartQuestion { price_weight, ..question(1.0, 3) };
        advise_start(&question, &forecast).expect("valid")
    };
    assert_eq!(start(0.0).start, at(60), "carbon alone");
    let cheapest = start(1.0);
    assert_eq!(cheapest.start, at(180), "price alone");
    assert!((cheapest.cost_saving.expected - 0.8).abs() < 1e-9 && cheapest.loss_probability == 0.0, "{cheapest:?}");
    assert!((cheapest.saving.expected - (1.0 - 280.0 / 300.0)).abs() < 1e-9, "of emissions: {cheapest:?}");
    assert!(
        cheapest.to_string().contains("carbon and price, as weighed, are expected to be 80.0 % lower"),
        "{cheapest}"
    );
    assert_eq!(start(0.5).start, at(180));
    assert_eq!(start(0.1).start, at(60));
    assert_eq!(start(0.0).best.cost, start(0.0).best.carbon);
}

/// Returns the advice where the intensities and the prices in EUR/MWh change by the hour; the reference price is 60.
/// `errors` are those of the intensities on each past day, with a sign that alternates from day to day.
fn advice_with_prices(intensities: &[f64], prices: &[f64], price_weight: f64, errors: &[f64]) -> StartAdvice {
    let quoted = |(price, h): (&f64, i64)| {
        let slot = Slot::new(at(60 * h), at(60 * h + 60)).expect("an hour");
        (slot, Quoted { value: PricePerMwh::new(*price), origin: Origin::Forecast })
    };
    let known = TimeSeries::from_points(prices.iter().zip(0..).map(quoted).collect()).0;
    let prices = Prices { known_prices: &known, reference: PricePerMwh::new(60.0) };
    let days = (0..8).map(|day| errors.iter().map(|error| if day % 2 == 0 { *error } else { -error }).collect());
    let known = StartForecast { errors: ErrorPaths::of(at(0), days), ..hourly(intensities) };
    let forecast = known.with_prices(prices, GramsPerKwh::new(300.0));
    let within_h = i64::try_from(intensities.len()).expect("few hours") - 1;
    advise_start(&StartQuestion { price_weight, ..question(1.0, within_h) }, &forecast).expect("valid")
}

#[test]
fn a_lower_price_is_no_saving_of_carbon() {
    let advice = advice_with_prices(&[300.0; 4], &[60.0, 60.0, -5.0, 60.0], 1.0, &[]);
    assert_eq!((advice.start, advice.reason), (at(120), StartReason::CleanerLater));
    assert_eq!((advice.saving.expected, advice.cost_saving.expected), (0.0, 1.0));
}

#[test]
fn a_strongly_negative_price_is_better_than_a_slightly_negative_one() {
    let advice = advice_with_prices(&[300.0; 4], &[60.0, -5.0, 60.0, -50.0], 0.5, &[]);
    assert_eq!(advice.start, at(180));
    // 0.5·300 + 0.5·300·(−50/60) = 25 g/kWh.
    assert!((advice.best.cost.get() - 0.3 * 25.0).abs() < 1e-9, "{:?}", advice.best);
    // As in plans, no cost is below zero: both hours cost nothing, and the earlier one is as good.
    let advice = advice_with_prices(&[300.0; 4], &[60.0, -80.0, 60.0, -500.0], 0.5, &[]);
    assert_eq!((advice.start, advice.best.cost.get()), (at(60), 0.0));
}

#[test]
fn without_emissions_now_a_lower_price_later_still_has_a_risk() {
    let advice = advice_with_prices(&[0.0, 40.0], &[60.0, 20.0], 0.5, &[0.0, 40.0]);
    assert_eq!(advice.saving, WaitingSaving::default());
    // Cost: 150 g/kWh now and 70 ± 20 later.
    assert!((advice.cost_saving.low - (80.0 - 1.2816 * 20.0) / 150.0).abs() < 1e-9, "{advice:?}");
    assert!(advice.loss_probability > 0.0, "{advice:?}");
}

fn gpu(n: u32) -> GpuId {
    GpuId::new(format!("GPU-{n}")).expect("an identifier")
}

#[test]
fn held_jobs_do_not_share_a_gpu() {
    let forecast = hourly(&[300.0, 300.0, 100.0, 110.0, 120.0, 300.0, 300.0]);
    let job = |gpus: &[u32], within_h| HeldStart {
        question: question(1.0, within_h),
        gpus: gpus.iter().map(|n| gpu(*n)).collect(),
        limit: Watts::new(300.0),
    };
    let starts = |held: &[HeldStart], taken: &[Reservation], cap| -> Vec<DateTime<Utc>> {
        plan_held_starts(held, &forecast, taken, cap).into_iter().map(|a| a.expect("valid").start).collect()
    };
    let three = [job(&[0], 6), job(&[0, 1], 5), job(&[1], 6)];
    // Two jobs in the cleanest hour are better than one.
    assert_eq!(starts(&three, &[], None), [at(120), at(180), at(120)]);
    let mut under_cap = starts(&three, &[], Some(Watts::new(300.0)));
    under_cap.sort_unstable();
    assert_eq!(under_cap, [at(120), at(180), at(240)]);
    // Two jobs whose limits exceed the cap alone run one after the other, at the lowered limits.
    assert_eq!(starts(&[job(&[0], 6), job(&[1], 6)], &[], Some(Watts::new(200.0))), [at(120), at(180)]);
    let running = Reservation { from: at(0), until: at(150), gpus: vec![gpu(0)], limit: Watts::new(300.0) };
    assert_eq!(starts(&[job(&[0], 6)], std::slice::from_ref(&running), None), [at(150)], "as soon as the GPU is free");
    assert_eq!(starts(&[job(&[0], 0)], &[running], None), [at(0)], "the latest start holds in any case");
}

proptest! {
    /// Jobs of one hour on shared GPUs, against all assignments to full hours.
    #[test]
    fn two_held_jobs_never_collide_and_have_the_best_assignment(
        values in prop::collection::vec(100.0f64..500.0, 7..8),
        jobs in prop::collection::vec((prop::collection::vec(0u32..3, 1..3), 3i64..6), 1..3),
    ) {
        let forecast = hourly(&values);
        let held: Vec<HeldStart> = jobs
            .iter()
            .map(|(gpus, within_h)| HeldStart {
                question: StartQuestion { min_gain: 0.0, max_loss_probability: 1.0, ..question(1.0, *within_h) },
                gpus: gpus.iter().map(|n| gpu(*n)).collect(),
                limit: Watts::new(300.0),
            })
            .collect();
        let advice: Vec<StartAdvice> =
            plan_held_starts(&held, &forecast, &[], None).into_iter().map(|a| a.expect("valid")).collect();
        let share = |a: usize, b: usize| held[a].gpus.iter().any(|gpu| held[b].gpus.contains(gpu));
        for a in 0..held.len() {
            prop_assert!(advice[a].start <= at(60 * jobs[a].1));
            for b in 0..a {
                let apart = (advice[a].start - advice[b].start).abs() >= TimeDelta::hours(1);
                prop_assert!(apart || !share(a, b), "{:?} {:?}", advice[a].start, advice[b].start);
            }
        }
        let mut least = f64::INFINITY;
        let choices = 6usize.pow(u32::try_from(held.len()).expect("few"));
        for code in 0..choices {
            let hours: Vec<usize> = (0..held.len()).map(|job| code / 6usize.pow(job as u32) % 6).collect();
            let late = hours.iter().zip(&jobs).any(|(hour, (_, within_h))| *hour as i64 > *within_h);
            let collides = (0..held.len()).any(|a| (0..a).any(|b| share(a, b) && hours[a] == hours[b]));
            if !late && !collides {
                least = least.min(hours.iter().map(|hour| values[*hour]).sum());
            }
        }
        for one in advice.iter().filter(|one| one.start > one.now.start) {
            let window = one.windows.iter().find(|w| w.start == one.start).expect("an hour");
            let saved = 1.0 - window.intensity.get() / one.now.intensity.get();
            prop_assert!((one.saving.expected - saved).abs() < 1e-9, "{:?}, {saved}", one.saving);
        }
        let total: f64 = advice
            .iter()
            .map(|a| a.windows.iter().find(|w| w.start == a.start).map_or(0.0, |w| w.intensity.get()))
            .sum();
        prop_assert!(total <= least + 1e-9, "{total} {least}");
    }

    /// Compares the best window with a search over all minutes.
    #[test]
    fn no_minute_is_better_than_the_best_window(
        values in prop::collection::vec(1.0f64..900.0, 2..14),
        duration in 1i64..600,
        within in 1i64..800,
    ) {
        let forecast = hourly(&values);
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let minute = |m: i64| values.get(usize::try_from(m / 60).expect("positive")).copied().unwrap_or(mean);
        let cost = |start: i64| (start..start + duration).map(minute).sum::<f64>() / duration as f64;
        let least = (0..=within).map(cost).fold(f64::INFINITY, f64::min);
        let question = StartQuestion {
            min_gain: 0.0,
            max_loss_probability: 1.0,
            ..StartQuestion::new(at(0), Seconds::new(duration as f64 * 60.0), Watts::new(100.0), Latest::Start(at(within)))
        };
        let advice = advise_start(&question, &forecast).expect("valid");
        let found = advice.best.intensity.get().min(advice.now.intensity.get());
        prop_assert!((found - least).abs() < 1e-6 * least, "{found} {least}");
        let chosen = advice.windows.iter().find(|w| w.start == advice.start).expect("a window");
        prop_assert!((chosen.intensity.get() - least).abs() < 1e-6 * least);
    }
}
