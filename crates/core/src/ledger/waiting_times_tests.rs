//! The four effects of a job that waited: their sum, and each against an integration minute by minute.

use chrono::TimeDelta;
use proptest::prelude::*;

use super::*;
use crate::domain::{Intensity, JobId, Origin, StartOffer, SuspendOffer, TimeSeries};
use crate::ledger::CompletedWork;
use crate::ledger::counterfactual::compare_with_waits;
use crate::units::SamplesPerSecond;

fn minute(m: i64) -> DateTime<Utc> {
    DateTime::UNIX_EPOCH + TimeDelta::minutes(m)
}

fn slot(from: i64, to: i64) -> Slot {
    Slot::new(minute(from), minute(to)).expect("from < to")
}

/// A series with a value for each hour.
fn grid(hours: &[f64]) -> CarbonSeries {
    let point = |(h, value): (i64, &f64)| {
        (slot(h * 60, h * 60 + 60), Intensity { value: GramsPerKwh::new(*value), origin: Origin::Measured })
    };
    TimeSeries::from_points((0..).zip(hours).map(point).collect()).0
}

/// Emissions of a power over minutes, without those in which the job is suspended, by summing minute after minute.
fn integrated(hours: &[f64], watts: f64, start: i64, minutes: i64, suspended: &[(i64, i64)]) -> f64 {
    let (mut left, mut at, mut grams) = (minutes, start, 0.0);
    while left > 0 {
        if !suspended.iter().any(|(from, to)| (*from..*to).contains(&at)) {
            let hour = usize::try_from(at / 60).expect("after the epoch");
            grams += watts * 60.0 / 3.6e6 * hours[hour];
            left -= 1;
        }
        at += 1;
    }
    grams
}

proptest! {
    #[test]
    fn the_four_effects_add_up_and_match_an_integration(
        hours in prop::collection::vec(50.0..800.0_f64, 48),
        wait in 0..600_i64,
        work in 30..400_i64,
        first in 10..200_i64,
        gap in 1..300_i64,
        stop in 0..10_i64,
        energy in 0.5..1.2_f64,
        reserved in 0.0..20.0_f64,
    ) {
        let (throughput, power) = (SamplesPerSecond::new(10.0), Watts::new(300.0));
        let started = 60 + wait;
        let suspended = [(started + first, started + first + gap)];
        // The job trains a little slower than the reference, and its stop costs `stop` minutes.
        let present = work + work / 10 + stop;
        let active = present + if present > first { gap } else { 0 };
        let carbon = integrated(&hours, 300.0 * energy, started, present, &suspended);
        let series = grid(&hours);
        let minutes = |m: i64| Seconds::from_delta(TimeDelta::minutes(m));
        let completed = CompletedWork {
            started: minute(started),
            active: minutes(active),
            stalled: Seconds::ZERO,
            stalled_energy: Joules::ZERO,
            samples: throughput * minutes(work),
            energy: Watts::new(300.0 * energy) * minutes(present),
            carbon: GramsCo2e::new(carbon),
        };
        let waits = WaitingTimes {
            before_start: minutes(wait),
            suspensions: if present > first { vec![slot(suspended[0].0, suspended[0].1)] } else { Vec::new() },
            stop_time: minutes(stop),
            reserved_before: GramsCo2e::new(reserved),
            ..WaitingTimes::default()
        };
        let mix = |_| Some(Watts::new(280.0));
        let found = compare_with_waits(&completed, &waits, (throughput, power), mix, &series).expect("all known");
        let sum = found.start_effect_pct + found.suspension_effect_pct + found.energy_effect_pct
            + found.timing_effect_pct;
        prop_assert!((sum - found.carbon_reduction_pct).abs() < 1e-9, "{found:?}");
        let asked = integrated(&hours, 300.0, started - wait, work, &[]);
        let at_start = integrated(&hours, 300.0, started, work, &[]);
        let gaps: &[(i64, i64)] = if present > first { &suspended } else { &[] };
        let stopped = integrated(&hours, 300.0, started, work + stop, gaps);
        let constant = integrated(&hours, 280.0, started, present, gaps);
        let expected = [
            (found.carbon_at_reference.get(), asked),
            (found.start_effect_pct, 100.0 * (asked - at_start - reserved) / asked),
            (found.suspension_effect_pct, 100.0 * (at_start - stopped) / asked),
            (found.energy_effect_pct, 100.0 * (stopped - constant) / asked),
            (found.timing_effect_pct, 100.0 * (constant - carbon) / asked),
            (found.carbon_reduction_pct, 100.0 * (asked - carbon - reserved) / asked),
        ];
        for (found, expected) in expected {
            prop_assert!((found - expected).abs() < 1e-6 * (1.0 + expected.abs()), "{found} and {expected}");
        }
    }
}

#[test]
fn waits_are_read_from_the_ledgers_entries() {
    let job = JobId::new("job-a").expect("an id");
    let request = StartRequest {
        at: minute(10),
        job: job.clone(),
        rule: super::super::presence_entries::START_RULE.into(),
        asked_at: minute(5),
        done: Samples::new(7.0),
        latest_start: Some(minute(600)),
        duration_s: None,
        power_w: None,
        forecast: None,
        continues: None,
    };
    let change = |at, change| PresenceChange { at: minute(at), job: job.clone(), change, why: "test".into() };
    let changes = [
        change(65, PresenceKind::Begun),
        change(100, PresenceKind::Suspended),
        change(160, PresenceKind::Resumed),
        change(200, PresenceKind::Suspended),
    ];
    let waits = WaitingTimes::of(&request, &changes, minute(10), minute(230), Seconds::ZERO);
    assert_eq!(waits.before_start, Seconds::new(3600.0));
    let after_outage = WaitingTimes::of(&request, &changes, minute(10), minute(230), Seconds::new(1200.0));
    assert_eq!(after_outage, WaitingTimes { before_start: Seconds::new(2400.0), ..waits.clone() });
    assert_eq!(waits.suspensions, [slot(100, 160), slot(200, 230)]);
    assert_eq!(waits.suspended_within(&slot(150, 210)), Seconds::new(1200.0));
    assert_eq!(waits.done_before, Samples::new(7.0));
    // Others may have the GPUs meanwhile, unless they are reserved.
    let start = StartOffer {
        latest: minute(600),
        duration: None,
        power: None,
        min_gain: None,
        max_loss_probability: None,
        idle_power: Watts::ZERO,
    };
    let offers = |start, suspend| Offers { start: Some(start), suspend: Some(suspend), ..Offers::default() };
    let without = |offers: &Offers| times_without_gpus(offers, &changes, minute(10), minute(230));
    let free = offers(start, SuspendOffer::default());
    assert_eq!(without(&free), [slot(10, 65), slot(100, 160), slot(200, 230)]);
    assert_eq!(times_without_gpus(&free, &[], minute(10), minute(230)), [slot(10, 230)], "it never began");
    let idle_power = Watts::new(25.0);
    let reserved = offers(StartOffer { idle_power, ..start }, SuspendOffer { idle_power, ..SuspendOffer::default() });
    assert_eq!(without(&reserved), []);
    assert_eq!(without(&Offers { start: None, ..free }), [slot(100, 160), slot(200, 230)]);
    // A job that offered no later start began when it was registered.
    let at_once = StartRequest { latest_start: None, ..request };
    let at_once = WaitingTimes::of(&at_once, &[], minute(10), minute(230), Seconds::ZERO);
    assert_eq!(at_once.before_start, Seconds::new(300.0));
}
