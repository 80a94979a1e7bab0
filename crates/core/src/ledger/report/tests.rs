//! Tests: every grouping adds up to the same total, and declared factors are applied.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};
use proptest::prelude::*;

use super::*;
use crate::domain::{Continuation, DeviceId, GpuId, JobId, JobName, Slot};
use crate::ledger::Total;
use crate::ledger::chain::Digest;
use crate::ledger::confidence::ConfidenceInterval;
use crate::ledger::entry::{Boundary, Embodied, METHOD, Terms};
use crate::units::{GramsCo2e, Joules, Micrograms, Millijoules, Samples, Seconds};

pub(super) fn at(hours: i64) -> DateTime<Utc> {
    "2026-01-30T00:00:00Z".parse::<DateTime<Utc>>().expect("a time") + TimeDelta::hours(hours)
}

pub(super) fn span(from: i64, to: i64) -> Slot {
    Slot::new(at(from), at(to)).expect("from < to")
}

pub(super) fn id(number: usize) -> JobId {
    JobId::new(format!("job-{number}")).expect("an id")
}

pub(super) fn device(number: usize) -> DeviceId {
    DeviceId::new(["GPU-0", "GPU-1", "cpu:package-0", "dram:package-0"][number % 4]).expect("an id")
}

fn job(number: usize) -> JobFacts {
    let tags = if number.is_multiple_of(2) {
        [("team".to_owned(), format!("t{}", number % 3))].into()
    } else {
        BTreeMap::new()
    };
    JobFacts {
        id: id(number),
        name: JobName::new(format!("name-{}", number % 2)).expect("a name"),
        tags,
        gpus: vec![GpuId::new("GPU-0").expect("an id")],
        samples: Samples::new(2e6),
        registered_at: at(number as i64),
        ended_at: Some(at(number as i64 + 2)),
        absences: Vec::new(),
        continues: None,
        saved: None,
        effects: None,
    }
}

pub(super) fn request(by: Grouping) -> ReportRequest {
    ReportRequest { by, span: span(0, 72), unit: None, restated_by_pct: 5.0, now: at(72) }
}

fn total(energy: u64, unknown: u64, carbon: u64) -> Total {
    let mj = Millijoules::new;
    let known = energy - unknown;
    Total {
        energy: mj(energy),
        estimated: mj(energy / 3),
        forecast: mj(known / 2),
        provisional: mj(known - known / 2),
        final_: Millijoules::ZERO,
        unknown: mj(unknown),
        carbon: Micrograms::new(carbon),
    }
}

fn sum(hour: i64, number: usize, owner: Owner, average: Total, marginal: Total) -> Sum {
    Sum { day: at(24 * (hour / 24)), device: device(number), owner, average, marginal }
}

fn terms(boundary: Boundary) -> Terms {
    Terms {
        at: at(-5),
        node: "node".into(),
        software: "0.1.0".into(),
        method: METHOD,
        settings: Digest::GENESIS,
        clock: "UTC".into(),
        boundary,
    }
}

pub(super) fn data(periods: Vec<BoundaryPeriod>, jobs: Vec<JobFacts>) -> LedgerData {
    let boundary = periods.last().map(|p| p.boundary.clone()).unwrap_or_default();
    let sums = periods.iter().flat_map(|period| &period.sums);
    let holders = sums.filter_map(|s| if let Owner::Job(id) = &s.owner { Some(id.clone()) } else { None }).collect();
    LedgerData {
        periods,
        jobs,
        holders,
        devices: Vec::new(),
        gaps: Vec::new(),
        first_seen: (0..4).map(|n| (device(n), at(0))).collect(),
        last_seen: BTreeMap::new(),
        terms: vec![terms(boundary)],
        sources: Vec::new(),
        synthetic: false,
        recorded_span: Some(span(0, 72)),
        hours_with_energy: 72,
        unsettled: Millijoules::ZERO,
        version: Version::default(),
        corrections: Vec::new(),
    }
}

fn groupings() -> Vec<Grouping> {
    vec![Grouping::Job, Grouping::Name, Grouping::Device, Grouping::Tag("team".into()), Grouping::Day, Grouping::Month]
}

proptest! {
    #[test]
    fn every_grouping_adds_up_to_the_same(
        sums in prop::collection::vec((0i64..72, 0usize..4, 0usize..9, 0u64..1 << 50, 0u64..=100, 0u64..1 << 50), 1..60),
        pue in 1.0f64..3.0,
    ) {
        let owner = |n: usize| match n {
            0 => Owner::Idle,
            1 => Owner::Unattributed,
            // Job 8, the last owner, is not in the report's list of jobs.
            n => Owner::Job(id(n)),
        };
        let sums: Vec<Sum> = sums
            .into_iter()
            .map(|(hour, number, holder, energy, unknown, carbon)| {
                let of = total(energy, energy / 100 * unknown, carbon);
                sum(hour, number, owner(holder), of, of)
            })
            .collect();
        let all: Total = sums.iter().map(|s| s.average).sum();
        let boundary = Boundary { pue, ..Boundary::default() };
        let (early, late) = sums.split_at(sums.len() / 2);
        let periods = vec![
            BoundaryPeriod { span: span(0, 72), boundary: Boundary::default(), sums: early.to_vec() },
            BoundaryPeriod { span: span(0, 72), boundary, sums: late.to_vec() },
        ];
        let data = data(periods, (2..8).map(job).collect());
        for by in groupings() {
            let report = build(request(by.clone()), data.clone());
            prop_assert_eq!(report.total.total, all);
            let rows: Total = report.rows.iter().map(|row| row.total).sum();
            prop_assert_eq!(rows, all);
            let split = |of: fn(&Split) -> Millijoules| report.rows.iter().map(|row| of(&row.split)).sum::<Millijoules>();
            prop_assert_eq!(split(|s| s.gpu) + split(|s| s.cpu) + split(|s| s.dram), all.energy);
            prop_assert_eq!(split(|s| s.jobs) + split(|s| s.idle) + split(|s| s.unattributed), all.energy);
            let marginal: Micrograms = report.rows.iter().filter_map(|row| row.marginal.map(|m| m.0)).sum();
            prop_assert_eq!(marginal, all.carbon);
            if by.is_of_jobs() {
                let idle: Millijoules =
                    report.rows.iter().filter(|r| r.key == RowKey::Idle).map(|r| r.total.energy).sum();
                prop_assert_eq!(idle, split(|s| s.idle));
            }
            let facility: Joules = report.rows.iter().map(|row| row.facility_energy).sum();
            prop_assert!((facility - report.total.facility_energy).abs() <= facility * 1e-9);
        }
    }
}

#[test]
fn a_job_that_goes_on_with_another_is_one_job() {
    let used = |n| sum(n, 0, Owner::Job(id(n as usize)), total(1000, 0, 10), Total::default());
    let known = Some(Saved { low: GramsCo2e::ZERO, mean: GramsCo2e::new(1.0), high: GramsCo2e::new(2.0) });
    let goes_on = |number: usize, before: usize, first: Option<usize>| JobFacts {
        continues: Some(Continuation {
            job: id(before),
            asked_at: at(2),
            done: Samples::ZERO,
            emitted: GramsCo2e::ZERO,
            first: first.map(id),
        }),
        saved: known,
        ..job(number)
    };
    let jobs = vec![JobFacts { saved: known, ..job(2) }, goes_on(4, 2, None), goes_on(6, 4, Some(2)), job(8)];
    let periods = vec![BoundaryPeriod {
        span: span(0, 72),
        boundary: Boundary::default(),
        sums: vec![used(2), used(4), used(6), used(8)],
    }];
    let run = Some(FunctionalUnit::Run);
    let report = build(ReportRequest { unit: run, ..request(Grouping::Job) }, data(periods.clone(), jobs.clone()));
    let rows: Vec<(u64, u64, Option<u64>)> = report
        .rows
        .iter()
        .filter(|row| matches!(row.key, RowKey::Job(..)))
        .map(|row| (row.total.energy.get(), row.jobs, row.saved.map(|(_, jobs)| jobs)))
        .collect();
    assert_eq!(rows, [(3000, 1, Some(1)), (1000, 1, None)]);
    assert_eq!(report.rows[0].key, RowKey::Job(job(2).name, id(2)));
    assert_eq!((report.total.jobs, report.total.ended), (2, 2));
    assert_eq!(report.rows[0].score.as_ref().map(|score| score.units), Ok(1.0));
    let saved = report.rows[0].saved.map(|(saved, _)| saved.mean);
    assert_eq!(saved, Some(GramsCo2e::new(3.0)), "the sum of the parts");
    // A last part that did no work leaves the job its units.
    let mut idle_end = jobs.clone();
    idle_end[2].samples = Samples::ZERO;
    for unit in [FunctionalUnit::Run, FunctionalUnit::MillionSamples] {
        let request = ReportRequest { unit: Some(unit), ..request(Grouping::Job) };
        let report = build(request, data(periods.clone(), idle_end.clone()));
        let score = report.rows[0].score.as_ref().map(|score| (score.jobs, score.units > 0.0));
        assert_eq!(score, Ok((1, true)), "{unit:?}");
    }
    // The saving is known only if that of each part with work is known.
    for part in 0..3 {
        let mut jobs = jobs.clone();
        jobs[part].saved = None;
        let report = build(request(Grouping::Job), data(periods.clone(), jobs.clone()));
        assert_eq!((report.rows[0].saved, report.rows[0].ended, report.total.saved), (None, 1, None), "{part}");
        jobs[part].samples = Samples::ZERO;
        let report = build(request(Grouping::Job), data(periods.clone(), jobs));
        let saved = report.total.saved.map(|(saved, jobs)| (saved.mean, jobs));
        assert_eq!(saved, Some((GramsCo2e::new(2.0), 1)), "{part}");
    }
    // While the last part runs, and if it ends after the span, the job has not ended in it: neither its emissions nor
    // its saving count.
    for (registered_at, ended_at) in [(at(6), None), (at(6), Some(at(73))), (at(72), None), (at(80), Some(at(81)))] {
        let mut jobs = jobs.clone();
        (jobs[2].registered_at, jobs[2].ended_at) = (registered_at, ended_at);
        let by_job = ReportRequest { unit: run, ..request(Grouping::Job) };
        let report = build(by_job, data(periods.clone(), jobs));
        let row = &report.rows[0];
        assert_eq!((row.total.energy.get(), row.jobs, row.ended, row.saved), (3000, 1, 0, None), "{ended_at:?}");
        assert!(row.score.is_err(), "{ended_at:?}: {:?}", row.score);
        assert_eq!((report.total.jobs, report.total.ended), (2, 1), "{ended_at:?}");
        assert_eq!(report.total.score, report.rows[1].score, "{ended_at:?}: that of the other job");
        assert!(report.total.score.is_ok());
    }
    // The saving counts where the last part ended, also that of parts from before the span.
    let early = ReportRequest { span: span(0, 7), ..request(Grouping::Job) };
    let late = ReportRequest { span: span(7, 72), ..request(Grouping::Job) };
    let [early, late] = [early, late].map(|of| build(of, data(periods.clone(), jobs.clone())).total.saved);
    assert_eq!((early, late.map(|(saved, jobs)| (saved.mean, jobs))), (None, Some((GramsCo2e::new(3.0), 1))));
    // The samples of all parts count.
    let samples = Some(FunctionalUnit::MillionSamples);
    let report = build(ReportRequest { unit: samples, ..request(Grouping::Job) }, data(periods, jobs));
    assert_eq!(report.rows[0].score.as_ref().map(|score| score.units), Ok(6.0));
    // If the first part began before the span, the other parts are no whole run.
    let mut later = vec![goes_on(4, 2, None), goes_on(6, 4, Some(2)), job(8)];
    later.iter_mut().filter_map(|job| job.continues.as_mut()).for_each(|earlier| earlier.asked_at = at(-1));
    let sums = vec![used(4), used(6), used(8)];
    let periods = vec![BoundaryPeriod { span: span(0, 72), boundary: Boundary::default(), sums }];
    let report = build(ReportRequest { unit: run, ..request(Grouping::Job) }, data(periods, later));
    assert_eq!((report.rows[0].total.energy.get(), report.rows[0].jobs), (2000, 1));
    assert!(report.rows[0].score.is_err(), "{:?}", report.rows[0].score);
    for row in [&report.rows[1], &report.total] {
        assert_eq!(row.score.as_ref().map(|score| (score.units, score.jobs)), Ok((1.0, 1)));
    }
}

#[test]
fn gpus_are_held_by_their_jobs_and_idle_otherwise() {
    let embodied = Embodied { per_gpu_g: 3600.0 * 100.0, life_s: 3600.0 * 1000.0, source: "maker".into() };
    let boundary = Boundary { embodied: Some(embodied), ..Boundary::default() };
    let used = |n| sum(n, 0, Owner::Job(id(n as usize)), total(1000, 0, 10), Total::default());
    let idle = sum(30, 0, Owner::Idle, total(5, 0, 1), Total::default());
    let sums = vec![used(2), used(3), idle];
    let report = build(
        request(Grouping::Job),
        data(vec![BoundaryPeriod { span: span(0, 72), boundary, sums }], vec![job(2), job(3)]),
    );
    // Job 2 ran from 02:00 to 04:00, and job 3 from 03:00 to 05:00 on the same GPU: the hour from 03:00 is divided.
    let occupied: Vec<f64> = report.rows.iter().map(|row| row.occupied.get() / 3600.0).collect();
    assert_eq!(occupied, [1.5, 1.5, 69.0]);
    assert_eq!(report.total.occupied, Seconds::new(72.0 * 3600.0));
    // 360 kg over 1000 h of a GPU are 360 g per hour.
    let embodied: Vec<f64> = report.rows.iter().map(|row| row.embodied.expect("declared").get()).collect();
    let close = |(a, b): (&f64, f64)| (a - b).abs() < 1e-9;
    assert!(embodied.iter().zip([540.0, 540.0, 69.0 * 360.0]).all(close), "{embodied:?}");
    // Job 2 is held for an hour, and job 3 is suspended for half an hour: others could have had the GPU.
    let mut absent = report.data.clone();
    absent.jobs[0].absences = vec![span(2, 3)];
    let half = TimeDelta::minutes(30);
    absent.jobs[1].absences = vec![Slot::new(at(4), at(4) + half).expect("half an hour")];
    let absent = build(report.request.clone(), absent);
    let occupied: Vec<f64> = absent.rows.iter().map(|row| row.occupied.get() / 3600.0).collect();
    assert_eq!(occupied, [0.5, 1.0, 70.5]);
    let embodied: Vec<f64> = absent.rows.iter().map(|row| row.embodied.expect("declared").get()).collect();
    assert!(embodied.iter().zip([180.0, 360.0, 70.5 * 360.0]).all(close), "{embodied:?}");
    // A job that never began held nothing.
    let never = JobFacts { absences: vec![span(2, 100)], ..job(2) };
    assert_eq!(never.present_within(&span(0, 72)), []);
    assert_eq!(job(2).present_within(&span(3, 72)), [span(3, 4)]);
    // Idle time has a row even without idle energy, so that rows add up.
    let mut unused = report.data.clone();
    unused.periods[0].sums.pop();
    let unused = build(report.request.clone(), unused);
    let sum: GramsCo2e = unused.rows.iter().filter_map(|row| row.embodied).sum();
    assert!((sum - unused.total.embodied.expect("declared")).abs() < GramsCo2e::new(1e-6), "{sum:?}");
    // A GPU has no holding time before its first reading.
    let mut later = report.data.clone();
    later.first_seen = BTreeMap::from([(device(0), at(3))]);
    let later = build(report.request.clone(), later);
    let occupied: Vec<f64> = later.rows.iter().map(|row| row.occupied.get() / 3600.0).collect();
    assert_eq!((occupied, later.total.occupied), (vec![0.5, 1.5, 67.0], Seconds::new(69.0 * 3600.0)));
    let mut never = report.data.clone();
    never.first_seen.clear();
    assert_eq!(build(report.request.clone(), never).total.occupied, Seconds::ZERO);
    // It has none after the last hour with its energy, and none at all in a span without energy and without a job on it.
    let balance = |number, mj| DeviceBalance {
        device: device(number),
        counter_mj: Some(0),
        jobs: Millijoules::ZERO,
        idle: Millijoules::new(mj),
        unattributed: Millijoules::ZERO,
        integrated: Millijoules::ZERO,
        unequal_blocks: 0,
        difference_mj: 0,
    };
    let mut removed = report.data.clone();
    removed.devices = vec![balance(0, 5), balance(1, 7)];
    removed.last_seen = BTreeMap::from([(device(0), at(72)), (device(1), at(10))]);
    let held = |data: &LedgerData| build(report.request.clone(), data.clone()).total.occupied;
    assert_eq!(held(&removed), Seconds::new((72.0 + 10.0) * 3600.0));
    // A job that was on it may still be open.
    removed.jobs.push(JobFacts { gpus: vec![GpuId::new("GPU-1").expect("an id")], ended_at: None, ..job(4) });
    let by_day = build(request(Grouping::Day), removed.clone());
    let occupied: Vec<f64> = by_day.rows.iter().map(|row| row.occupied.get() / 3600.0).collect();
    assert_eq!((occupied, held(&removed)), (vec![34.0, 24.0], Seconds::new(82.0 * 3600.0)));
    removed.jobs.pop();
    removed.devices[1].idle = Millijoules::ZERO;
    assert_eq!(held(&removed), Seconds::new(72.0 * 3600.0));
    // A new declaration of embodied emissions counts from its time on; without one for part of the time there is no
    // sum.
    let mut changed = report.data.clone();
    let late = |boundary| BoundaryPeriod { span: span(48, 72), boundary, sums: Vec::new() };
    let mut twice = changed.periods[0].boundary.clone();
    twice.embodied.iter_mut().for_each(|e| e.per_gpu_g *= 2.0);
    changed.periods[0].span = span(0, 48);
    changed.periods.push(late(twice));
    let grams = |data: &LedgerData| build(report.request.clone(), data.clone()).total.embodied.map(|g| g.get());
    assert!((grams(&changed).expect("declared") - (48.0 + 2.0 * 24.0) * 360.0).abs() < 1e-6);
    changed.periods[1].boundary = Boundary::default();
    assert_eq!(grams(&changed), None);
    let by_day = build(ReportRequest { by: Grouping::Day, ..report.request.clone() }, report.data.clone());
    assert_eq!(by_day.total.occupied, report.total.occupied);
    assert_eq!(by_day.rows[0].occupied, Seconds::new(86_400.0));
}

#[test]
fn sci_covers_whole_runs_and_states_why_there_is_none() {
    let boundary = Boundary { pue: 1.5, node_factor: 1.2, ..Boundary::default() };
    let grams = |g: u64| total(3_600_000, 0, g * 1_000_000);
    let sums = vec![
        sum(2, 0, Owner::Job(id(2)), grams(10), Total::default()),
        sum(4, 0, Owner::Job(id(4)), grams(20), Total::default()),
        sum(5, 0, Owner::Idle, grams(7), Total::default()),
    ];
    let mut unended = job(4);
    unended.ended_at = None;
    let jobs = vec![job(2), unended];
    let data = data(vec![BoundaryPeriod { span: span(0, 72), boundary, sums }], jobs);
    let with = |unit, by| build(ReportRequest { unit, ..request(by) }, data.clone());
    let close = |found: &Result<Score, String>, expected: f64| {
        let found = found.clone().expect("a score").per_unit.get();
        assert!((found - expected).abs() < 1e-9, "{found} is not {expected}");
    };
    let runs = with(Some(FunctionalUnit::Run), Grouping::Name);
    // 10 g × PUE 1.5 × node factor 1.2; the unfinished run is not counted.
    close(&runs.rows[0].score, 18.0);
    close(&runs.total.score, 18.0);
    assert!(runs.rows[1].score.clone().expect_err("idle").contains("no functional unit"));
    close(&with(Some(FunctionalUnit::MillionSamples), Grouping::Job).rows[0].score, 9.0);
    close(&with(Some(FunctionalUnit::Epoch(Some(Samples::new(1e5)))), Grouping::Job).rows[0].score, 0.9);
    // A run without work adds no unit, but its energy counts.
    let idle_run = JobFacts { samples: Samples::ZERO, ..job(4) };
    let two = |gaps| {
        let data = LedgerData { jobs: vec![job(2), idle_run.clone()], gaps, ..data.clone() };
        build(ReportRequest { unit: Some(FunctionalUnit::Run), ..request(Grouping::Name) }, data)
    };
    close(&two(Vec::new()).total.score, 54.0);
    let hole = |device: usize| Gap {
        device: self::device(device),
        slot: span(2, 3),
        is_rolled_up: false,
        energy: Err("a reset".into()),
    };
    close(&two(vec![hole(1)]).total.score, 54.0);
    assert!(two(vec![hole(0)]).total.score.clone().expect_err("a hole").contains("is unknown for part of the time"));
    let undeclared = with(Some(FunctionalUnit::Epoch(None)), Grouping::Job);
    assert!(undeclared.rows[0].score.clone().expect_err("undeclared").contains("no samples_per_epoch"));
    assert!(with(None, Grouping::Job).total.score.clone().expect_err("none").contains("no functional unit"));
    assert!(
        with(Some(FunctionalUnit::Run), Grouping::Day).total.score.clone().expect_err("days").contains("group by job")
    );
}

#[test]
fn market_based_emissions_require_a_contract_for_all_energy() {
    use crate::units::GramsPerKwh;
    let covered = Boundary { contract_g_per_kwh: Some(GramsPerKwh::new(50.0)), ..Boundary::default() };
    let of = |owner| vec![sum(0, 0, owner, total(3_600_000_000, 0, 0), Total::default())];
    let periods = vec![
        BoundaryPeriod { span: span(0, 72), boundary: covered, sums: of(Owner::Job(id(2))) },
        BoundaryPeriod { span: span(0, 72), boundary: Boundary::default(), sums: of(Owner::Idle) },
    ];
    let report = build(request(Grouping::Job), data(periods, vec![job(2)]));
    let market: Vec<Option<f64>> = report.rows.iter().map(|row| row.market.map(|g| g.get())).collect();
    assert_eq!((market, report.total.market), (vec![Some(50.0), None], None));
    assert_eq!(report.rows[0].marginal, None, "no marginal ledger");
}

#[test]
fn uncertainty_is_that_of_the_sensors() {
    let of = total(3_000_000, 0, 300_000_000);
    let report = build(
        request(Grouping::Device),
        data(
            vec![BoundaryPeriod {
                span: span(0, 72),
                boundary: Boundary::default(),
                sums: vec![sum(0, 0, Owner::Idle, of, Total::default())],
            }],
            Vec::new(),
        ),
    );
    let (low, high) = report.total.energy_interval();
    // 2 kJ from a counter ± 5 %, and 1 kJ estimated ± 10 %.
    assert!((low.get() - 2800.0).abs() < 1e-9 && (high.get() - 3200.0).abs() < 1e-9, "{low} to {high}");
    let (low, high) = report.total.carbon_interval();
    assert!((low.get() - 280.0).abs() < 1e-9 && (high.get() - 320.0).abs() < 1e-9, "{low} to {high}");
}

#[test]
fn groupings_parse_from_their_names() {
    for by in groupings() {
        assert_eq!(by.to_string().parse(), Ok(by));
    }
    let refused = "tag:".parse::<Grouping>().expect_err("no key").to_string();
    assert!(refused.contains("tag:KEY"), "{refused}");
}

fn saved(grams: f64) -> Option<Saved> {
    Some(ConfidenceInterval { low: grams - 1.0, mean: grams, high: grams + 2.0 }.into())
}

/// Returns four runs: two that ended within the span with a known saving, one of them on two GPUs, one that ended with
/// an unknown saving, and one that continues.
fn savers() -> LedgerData {
    let gpu = |n: usize| GpuId::new(format!("GPU-{n}")).expect("an id");
    let jobs = vec![
        JobFacts { saved: saved(10.0), ..job(2) },
        JobFacts { saved: saved(-4.0), gpus: vec![gpu(0), gpu(1)], ended_at: Some(at(24)), ..job(3) },
        JobFacts { ended_at: Some(at(30)), ..job(4) },
        JobFacts { saved: saved(100.0), ended_at: None, ..job(5) },
        // This job ended when the span began, so its end belongs to the previous report.
        JobFacts { saved: saved(1000.0), registered_at: at(-9), ended_at: Some(at(0)), ..job(6) },
        // This job ended earlier and has no energy in the span: it is not counted.
        JobFacts { saved: saved(1000.0), registered_at: at(-9), ended_at: Some(at(-1)), ..job(8) },
    ];
    let used = |hour, gpu, n: usize| sum(hour, gpu, Owner::Job(id(n)), total(1000, 0, 10), Total::default());
    let sums = vec![
        used(2, 0, 2),
        used(3, 0, 3),
        used(3, 1, 3),
        used(26, 0, 4),
        used(50, 0, 5),
        used(50, 1, 5),
        used(1, 0, 6),
    ];
    data(vec![BoundaryPeriod { span: span(0, 72), boundary: Boundary::default(), sums }], jobs)
}

#[test]
fn savings_count_where_jobs_end_with_the_number_of_known_ones() {
    let savings_of = |row: &Row| (row.saved.map(|(s, n)| (s.low.get(), s.mean.get(), s.high.get(), n)), row.jobs);
    let by = |by| build(request(by), savers());
    for grouping in
        [Grouping::Device, Grouping::Day, Grouping::Month, Grouping::Tag("team".into()), Grouping::Name, Grouping::Job]
    {
        let total = savings_of(&by(grouping.clone()).total);
        // Job 6 ended as the span began, and the span contains its last energy.
        assert_eq!(total, (Some((9.0 - 5.0, 6.0, 12.0 - 2.0, 2)), 5), "by {grouping}");
    }
    let jobs: Vec<_> = by(Grouping::Job).rows.iter().map(savings_of).collect();
    let first = (Some((9.0, 10.0, 12.0, 1)), 1);
    let second = (Some((-5.0, -4.0, -2.0, 1)), 1);
    // Grouped by name: name-0 has jobs 2, 4 and 6, name-1 has jobs 3 and 5.
    assert_eq!(jobs, [first, (None, 1), (None, 1), second, (None, 1)]);
    let names: Vec<_> = by(Grouping::Name).rows.iter().map(savings_of).collect();
    assert_eq!(names, [(Some((9.0, 10.0, 12.0, 1)), 3), (Some((-5.0, -4.0, -2.0, 1)), 2)]);
    // The distribution of a saving over two GPUs is unknown.
    let gpus: Vec<_> = by(Grouping::Device).rows.iter().map(savings_of).collect();
    assert_eq!(gpus, [(Some((9.0, 10.0, 12.0, 1)), 5), (None, 1)]);
    // Job 3 ended at midnight, so it counts on the first day, with job 2; job 4 ended on the second; no job ended on
    // the third.
    let days: Vec<_> = by(Grouping::Day).rows.iter().map(savings_of).collect();
    assert_eq!(days, [(Some((4.0, 6.0, 10.0, 2)), 2), (None, 1), (None, 0)]);
    let months: Vec<_> = by(Grouping::Month).rows.iter().map(savings_of).collect();
    // The span begins on the 30th of January.
    assert_eq!(months, [(Some((4.0, 6.0, 10.0, 2)), 3), (None, 0)]);
}

proptest! {
    #[test]
    fn savings_of_rows_add_up_to_the_total(
        runs in prop::collection::vec((0i64..70, 1i64..40, prop::option::of(-50.0f64..50.0)), 1..7),
    ) {
        let one = |(n, (from, length, grams)): (usize, &(i64, i64, Option<f64>))| JobFacts {
            saved: grams.and_then(saved),
            registered_at: at(*from),
            ended_at: Some(at(from + length)),
            ..job(n + 2)
        };
        let jobs: Vec<JobFacts> = runs.iter().enumerate().map(one).collect();
        // Energy in each hour of each job.
        let mut sums = Vec::new();
        for (n, (from, length, _)) in runs.iter().enumerate() {
            for hour in *from..(from + length).min(72) {
                sums.push(sum(hour, 0, Owner::Job(id(n + 2)), total(100, 0, 1), Total::default()));
            }
        }
        let data = data(vec![BoundaryPeriod { span: span(0, 72), boundary: Boundary::default(), sums }], jobs);
        let known = runs.iter().filter(|(from, length, grams)| from + length <= 72 && grams.is_some()).count() as u64;
        for by in groupings() {
            let report = build(request(by.clone()), data.clone());
            let of = |row: &Row| row.saved.map_or((0.0, 0), |(s, n)| (s.mean.get(), n));
            let (sum, jobs) =
                report.rows.iter().map(of).fold((0.0, 0), |(sum, jobs), (more, n)| (sum + more, jobs + n));
            let (total, of_total) = of(&report.total);
            prop_assert!((sum - total).abs() < 1e-9, "by {by}: {sum} g in rows, {total} g in all");
            prop_assert_eq!((jobs, of_total), (known, known), "by {}", by);
        }
    }
}
