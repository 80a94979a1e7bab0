//! A year of ledger: how large they are, and how long reports of it take.
//!
//!     cargo run --release -p wattune-benches --example ledger_year -- [--days 365] [--dir DIR]
//!
//! Eight GPUs in intervals of a minute, 10,000 jobs a year, a limit changed on each GPU each hour, an average signal
//! of 15 minutes and a marginal one of five, each told three times (forecast, what came, final) in answers of their own,
//! rolled up after 35 days: all through the store that the daemon uses, a transaction for each hour instead of each
//! minute. With --dir the ledger are kept, and read again if they are there.
//!
//! Exits with 1 if the files ever take more than 500 MB, or a report more than 200 ms. What fewer days would come to in a
//! year is told from how fast the files grow once minutes are rolled up.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "it prints what it finds")]

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use chrono::{DateTime, TimeDelta, Utc};
use wattune::clock::{Clock, SystemClock};
use wattune::reports::{ReportView, csv, html};
use wattune::store::{
    Checkpoint, DueReason, FILE_NAME, SettlementInput, SourceKey, Store, StoreError, StoredJob, StoredProgress,
};
use wattune_core::domain::{
    CarbonSeries, DeviceId, EnergySource, Forecast, GpuId, Intensity, JobId, JobName, JobSpec, Objective, Origin,
    Provenance, SignalKind, SignalScope, Slot, Unit, Work, Zone,
};
use wattune_core::ledger::chain::Digest;
use wattune_core::ledger::entry::{Control, Entry};
use wattune_core::ledger::report::{FunctionalUnit, ReportRequest};
use wattune_core::ledger::verify::Verifier;
use wattune_core::ledger::{Interval, Settings, Share};
use wattune_core::profile::ProgressAccount;
use wattune_core::units::{GramsPerKwh, Millijoules, Samples, Seconds};

const BOARDS: usize = 8;
/// Minutes of a job, with the idle minutes after it: 1,250 jobs a GPU and year.
const JOB: i64 = 420;
const IDLE: i64 = 20;
const HOUR: TimeDelta = TimeDelta::hours(1);
const YEAR: i64 = 365;
/// Days for which minutes are kept.
const KEPT: i64 = 35;

/// What the database's files may take, in bytes.
const LARGEST: u64 = 500_000_000;
/// What a report may take, in milliseconds.
const SLOWEST: f64 = 200.0;
/// Each report is made so many times; the median counts.
const TIMES: usize = 7;

fn start() -> DateTime<Utc> {
    "2025-01-01T00:00:00Z".parse().expect("a time")
}

fn gpu(index: usize) -> String {
    format!("GPU-{index:08x}-0000-4000-8000-{:012x}", index * 7919)
}

fn job_id(gpu: usize, number: i64) -> JobId {
    JobId::new(format!("{number:08x}-0000-4000-8000-{gpu:012x}")).expect("an id")
}

/// What a source says in an answer of its own.
fn answer(kind: SignalKind, source: &str, at: DateTime<Utc>) -> Forecast {
    let responses = vec![Digest::of(format!("{source} {at}")).to_string()];
    let unit = if kind == SignalKind::Marginal { Unit::PoundsPerMwh } else { Unit::GramsPerKwh };
    Forecast {
        zone: Zone::new("DE").expect("a zone"),
        source: source.into(),
        kind,
        scope: SignalScope::Lifecycle,
        issued_at: at,
        retrieved_at: at,
        provenance: Provenance { unit: Some(unit), responses, ..Provenance::default() },
        expected: CarbonSeries::default(),
        actual: CarbonSeries::default(),
    }
}

/// An hour's intensities; what came is a little off what was expected.
fn points(hour: DateTime<Utc>, minutes: i64, origin: Origin) -> Vec<(Slot, Intensity)> {
    let step = TimeDelta::minutes(minutes);
    let slots = (0..60 / minutes).map(|i| (hour + step * i as i32, i));
    let point = |(at, i): (DateTime<Utc>, i64)| {
        let hours = (at - start()).num_minutes() as f64 / 60.0;
        let shape = 300.0 + 120.0 * (hours * 0.2618).sin() + 7.0 * ((hours * 1.7 + i as f64).sin());
        let off = if origin == Origin::Forecast { 1.07 } else { 1.0 };
        let value = GramsPerKwh::new((shape * off * 1e3).round() / 1e3);
        Some((Slot::new(at, at + step)?, Intensity { value, origin }))
    };
    slots.filter_map(point).collect()
}

/// Answers with the most that the files took, or will take by the end of a year.
async fn record(store: &Store, dir: &Path, days: i64) -> anyhow::Result<u64> {
    let ledger = Settings {
        pue: Some(1.2),
        pue_source: Some("annual report".into()),
        pue_date: Some("2025-01-01".into()),
        embodied_per_gpu_g: Some(318_000.0),
        embodied_life_years: Some(5.0),
        embodied_source: Some("manufacturer".into()),
        ..Settings::default()
    };
    store.append_entry(&Entry::Terms(ledger.terms(start(), "node", Digest::of("settings")))).await?;
    let signals = [(SignalKind::Average, "energy_charts", 15), (SignalKind::Marginal, "watttime", 5)];
    let (mut most, mut steady) = (0, None);
    let mut counters = [0u64; BOARDS];
    for hour in 0..days * 24 {
        let begin = start() + HOUR * hour as i32;
        let mut rows = Vec::with_capacity(BOARDS * 60);
        for (index, counter) in counters.iter_mut().enumerate() {
            for minute in 0..60 {
                let of_gpu = hour * 60 + minute + 37 * index as i64;
                let (number, within) = (of_gpu / (JOB + IDLE), of_gpu % (JOB + IDLE));
                let busy = within < JOB;
                if within == 0 {
                    store.save_job(&job(index, number, begin + TimeDelta::minutes(minute))).await?;
                }
                let from = begin + TimeDelta::minutes(minute);
                let energy = if busy { 15_000_000 + (of_gpu * 7919 % 3_000_000) as u64 } else { 1_500_000 };
                *counter += energy;
                rows.push(Interval {
                    device: DeviceId::new(gpu(index))?,
                    share: if busy { Share::Job(job_id(index, number)) } else { Share::Idle },
                    slot: Slot::new(from, from + TimeDelta::minutes(1)).context("a minute")?,
                    energy: Millijoules::new(energy),
                    source: if of_gpu % 9973 == 0 { EnergySource::CounterGap } else { EnergySource::Counter },
                });
            }
        }
        // As they come: minute by minute.
        rows.sort_by_key(|row| row.slot.start());
        let point = |(index, counter): (usize, &u64)| {
            let (device, counter) = (DeviceId::new(gpu(index))?, Millijoules::new(*counter));
            Ok(Checkpoint {
                device,
                counter,
                at: begin + HOUR,
                read_from: None,
                holders: Vec::new(),
                rebased_mj: 0,
                estimated: Millijoules::ZERO,
            })
        };
        let checkpoints: Vec<Checkpoint> = counters.iter().enumerate().map(point).collect::<anyhow::Result<_>>()?;
        store.append(&rows, &checkpoints).await?;
        let now = begin + HOUR;
        for index in 0..BOARDS {
            store.append_entry(&Entry::Control(change(index, hour, begin)?)).await?;
        }
        let settle = async |hour: DateTime<Utc>, why| {
            for (kind, source, _) in signals {
                let sources = [SourceKey::of(&answer(kind, source, now))];
                store
                    .settle_hour(hour, &SettlementInput { kind, sources: &sources, silent: &[], at: now, why })
                    .await?;
            }
            Ok::<_, StoreError>(())
        };
        for (kind, source, minutes) in signals {
            let answer = answer(kind, source, now);
            store.append_intensities(&answer, &points(begin, minutes, Origin::Forecast)).await?;
            if hour > 0 {
                store.append_intensities(&answer, &points(begin - HOUR, minutes, Origin::Measured)).await?;
            }
            store.set_final_until(&SourceKey::of(&answer), begin - HOUR * 48, begin).await?;
        }
        if hour + 1 == days * 24 {
            // The last one is in progress.
            break;
        }
        store.close_block(now).await?;
        settle(begin, DueReason::Energy).await?;
        if hour > 0 {
            settle(begin - HOUR, DueReason::Intensity).await?;
        }
        if hour >= 49 {
            settle(begin - HOUR * 49, DueReason::Intensity).await?;
        }
        // A block is closed each hour, from number 1 on.
        store.roll_up(u64::try_from(hour + 1 - 24 * KEPT).unwrap_or_default(), 24, now).await?;
        if hour % 24 == 22 {
            let taken = bytes(dir)?;
            most = most.max(taken);
            if (hour + 2) / 24 == KEPT + 5 {
                steady = Some(taken);
            }
            if hour % 720 == 718 {
                eprintln!("{} days, {:.1} MB", (hour + 2) / 24, taken as f64 / 1e6);
            }
        }
    }
    if let Some(before) = steady.filter(|_| (KEPT + 6..YEAR).contains(&days)) {
        let grown = bytes(dir)?.saturating_sub(before) as f64 / (days - KEPT - 5) as f64;
        most += (grown * (YEAR - days) as f64) as u64;
        println!("grows by {:.2} MB a day: {:.1} MB in a year", grown / 1e6, most as f64 / 1e6);
    }
    Ok(most)
}

/// What the database's files take together.
fn bytes(dir: &Path) -> anyhow::Result<u64> {
    std::fs::read_dir(dir)?.map(|file| Ok(file?.metadata()?.len())).sum()
}

fn change(index: usize, hour: i64, at: DateTime<Utc>) -> anyhow::Result<Control> {
    let limit = |hour: i64| u32::try_from(150_000 + hour * 37 % 11 * 15_000).ok();
    Ok(Control {
        at,
        who: format!("the plan of job {}", job_id(index, hour * 60 / (JOB + IDLE))),
        what: "power limit".into(),
        device: DeviceId::new(gpu(index))?,
        before_mw: limit(hour),
        asked_mw: limit(hour + 1),
        enforced_mw: limit(hour + 1),
    })
}

fn job(gpu_index: usize, number: i64, at: DateTime<Utc>) -> StoredJob {
    let spec = JobSpec {
        name: JobName::new(format!("training-{}", number % 40)).expect("a name"),
        gpus: vec![GpuId::new(gpu(gpu_index)).expect("an id")],
        batch_size: Some(256),
        work: Work::TotalSamples(Samples::new(1e7)),
        objective: Objective::DEFAULT,
        lease: Seconds::new(60.0),
        control: true,
        priority: 0,
        tags: [("team".to_owned(), format!("team-{}", number % 7))].into(),
        processes: None,
        offers: Default::default(),
    };
    let account = ProgressAccount {
        samples: Samples::new(1e7),
        active: Seconds::new(JOB as f64 * 60.0),
        stalled: Seconds::ZERO,
        ..ProgressAccount::default()
    };
    let progress = StoredProgress { account, started_at: Some(at), ..StoredProgress::default() };
    let ended = Some((at + TimeDelta::minutes(JOB), "ended by its owner".into()));
    StoredJob { id: job_id(gpu_index, number), spec, progress, registered_at: at, ended, owners: Default::default() }
}

/// Answers with the longest report's milliseconds.
async fn reports(store: &Store, days: i64, clock: &SystemClock) -> anyhow::Result<f64> {
    let end = start() + TimeDelta::days(days);
    let spans = [
        ("all of it", start(), end),
        ("not at midnight", start() + HOUR * 7, end - HOUR * 5),
        ("the last month, not at midnight", end - HOUR * 733, end - HOUR * 13),
        ("a month before", end - HOUR * 24 * 60, end - HOUR * 24 * 30),
        ("a day", end - HOUR * 31, end - HOUR * 7),
    ];
    println!(
        "{:32} {:9} {:>7} {:>8} {:>8} {:>8} {:>8} {:>8}",
        "span", "by", "rows", "read", "json", "csv", "html", "ms"
    );
    let mut longest: f64 = 0.0;
    for (what, from, to) in spans {
        for by in ["job", "name", "gpu", "tag:team", "day", "month"] {
            let mut times: [Vec<f64>; 5] = Default::default();
            let mut rows = 0;
            for _ in 0..TIMES {
                let span = Slot::new(from, to).context("a span")?;
                let unit = Some(FunctionalUnit::Run);
                let wanted = ReportRequest { by: by.parse()?, span, unit, restated_by_pct: 5.0, now: to };
                let mut begun = clock.monotonic();
                let mut lap = || {
                    let now = clock.monotonic();
                    now.since(std::mem::replace(&mut begun, now)).get() * 1e3
                };
                let view = ReportView::of(&store.report(wanted).await?);
                let read = lap();
                std::hint::black_box(serde_json::to_vec(&view)?);
                let json = lap();
                std::hint::black_box(csv(&view)?);
                let csv = lap();
                std::hint::black_box(html(&view));
                let html = lap();
                let all = read + json.max(csv).max(html);
                times.iter_mut().zip([read, json, csv, html, all]).for_each(|(times, took)| times.push(took));
                rows = view.rows.len();
            }
            let median = |times: &mut Vec<f64>| {
                times.sort_by(f64::total_cmp);
                times[TIMES / 2]
            };
            let [read, json, csv, html, all] = times.each_mut().map(median);
            println!("{what:32} {by:9} {rows:>7} {read:>8.1} {json:>8.1} {csv:>8.1} {html:>8.1} {all:>8.1}");
            longest = longest.max(all);
        }
    }
    Ok(longest)
}

async fn verify(store: &Store, clock: &SystemClock) -> anyhow::Result<()> {
    let begun = clock.monotonic();
    let mut verifier = Verifier::default();
    let mut bytes = 0;
    let take = |line: &str| {
        bytes += line.len() + 1;
        verifier.check_line(line.as_bytes()).map_err(anyhow::Error::from)
    };
    store.export(take).await?;
    let found = verifier.finish()?;
    let took = clock.monotonic().since(begun).get();
    println!(
        "verified: {} entries and {} intervals, {:.0} MB exported, in {took:.1} s",
        found.entries,
        found.intervals,
        bytes as f64 / 1e6
    );
    Ok(())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let clock = SystemClock::start();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let known =
        |(place, argument): (usize, &String)| place % 2 == 1 || ["--days", "--dir"].contains(&argument.as_str());
    anyhow::ensure!(
        arguments.len().is_multiple_of(2) && arguments.iter().enumerate().all(known),
        "usage: [--days N] [--dir DIR]"
    );
    let value = |flag: &str| arguments.iter().position(|a| a == flag).and_then(|i| arguments.get(i + 1));
    let days: i64 = value("--days").map_or(Ok(YEAR), |days| days.parse())?;
    let scratch = std::env::temp_dir().join(format!("wattune-year-{}", std::process::id()));
    let dir = value("--dir").map(PathBuf::from).unwrap_or_else(|| scratch.clone());
    std::fs::create_dir_all(&dir)?;
    let done = async {
        let mut most = 0;
        if !dir.join(FILE_NAME).exists() {
            let begun = clock.monotonic();
            let store = Store::open(&dir).await?;
            most = record(&store, &dir, days).await?;
            store.close().await;
            println!("{days} days recorded in {:.0} s", clock.monotonic().since(begun).get());
        }
        most = most.max(bytes(&dir)?);
        println!("files: {:.1} MB, at most {:.1} MB", bytes(&dir)? as f64 / 1e6, most as f64 / 1e6);
        let store = Store::open_read_only(&dir).await?;
        let longest = reports(&store, days, &clock).await?;
        verify(&store, &clock).await?;
        anyhow::ensure!(most <= LARGEST, "the files take more than {} MB", LARGEST / 1_000_000);
        anyhow::ensure!(longest <= SLOWEST, "a report takes {longest:.0} ms, more than {SLOWEST}");
        println!(
            "at most {:.1} MB of {}, at most {longest:.0} ms of {SLOWEST}",
            most as f64 / 1e6,
            LARGEST / 1_000_000
        );
        Ok(())
    }
    .await;
    if dir == scratch {
        std::fs::remove_dir_all(&scratch)?;
    }
    done
}
