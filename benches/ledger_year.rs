//! A year of books: how large they are, and how long reports of it take.
//!
//!     cargo run --release --example ledger_year -- [--days 365] [--dir DIR]
//!
//! Eight boards in intervals of a minute, 10,000 jobs a year, an average signal of 15 minutes and a marginal one of five,
//! each told three times (forecast, what came, final), rolled up after 35 days: all through the store that the daemon
//! uses, a transaction for each hour instead of each minute. With --dir the books are kept, and read again if they are
//! there.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "it prints what it finds")]

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use chrono::{DateTime, TimeDelta, Utc};
use wattune::clock::{Clock, SystemClock};
use wattune::domain::{
    CarbonSeries, DeviceId, EnergySource, Forecast, GpuId, Intensity, JobId, JobName, JobSpec, Objective, Origin,
    SignalKind, SignalScope, Slot, Work, Zone,
};
use wattune::http::report::ReportView;
use wattune::ledger::chain::Digest;
use wattune::ledger::entry::Entry;
use wattune::ledger::report::{FunctionalUnit, Wanted};
use wattune::ledger::verify::Verifier;
use wattune::ledger::{Interval, Settings, Share};
use wattune::profile::ProgressAccount;
use wattune::store::{Checkpoint, Settling, SourceKey, Store, StoreError, StoredJob, StoredProgress, Why};
use wattune::units::{GramsPerKwh, Millijoules, Samples, Seconds};

const BOARDS: usize = 8;
/// Minutes of a job, with the idle minutes after it: 1,250 jobs a board and year.
const JOB: i64 = 420;
const IDLE: i64 = 20;
const HOUR: TimeDelta = TimeDelta::hours(1);

fn start() -> DateTime<Utc> {
    "2025-01-01T00:00:00Z".parse().expect("a time")
}

fn board(index: usize) -> String {
    format!("GPU-{index:08x}-0000-4000-8000-{:012x}", index * 7919)
}

fn job_id(board: usize, number: i64) -> JobId {
    JobId::new(format!("{number:08x}-0000-4000-8000-{board:012x}")).expect("an id")
}

fn signal(kind: SignalKind, source: &str) -> Forecast {
    let at = start();
    Forecast {
        zone: Zone::new("DE").expect("a zone"),
        source: source.into(),
        kind,
        scope: SignalScope::Lifecycle,
        issued_at: at,
        retrieved_at: at,
        provenance: Default::default(),
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

async fn book(store: &Store, days: i64) -> anyhow::Result<()> {
    let books = Settings {
        pue: Some(1.2),
        pue_source: Some("annual report".into()),
        pue_date: Some("2025-01-01".into()),
        embodied_per_gpu_g: Some(318_000.0),
        embodied_life_years: Some(5.0),
        embodied_source: Some("manufacturer".into()),
        ..Settings::default()
    };
    store.note(&Entry::Terms(books.terms(start(), "node", Digest::of("settings")))).await?;
    let signals = [(signal(SignalKind::Average, "energy_charts"), 15), (signal(SignalKind::Marginal, "watttime"), 5)];
    let mut counters = [0u64; BOARDS];
    for hour in 0..days * 24 {
        let begin = start() + HOUR * hour as i32;
        let mut rows = Vec::with_capacity(BOARDS * 60);
        for (index, counter) in counters.iter_mut().enumerate() {
            for minute in 0..60 {
                let of_board = hour * 60 + minute + 37 * index as i64;
                let (number, within) = (of_board / (JOB + IDLE), of_board % (JOB + IDLE));
                let busy = within < JOB;
                if within == 0 {
                    store.save_job(&job(index, number, begin + TimeDelta::minutes(minute))).await?;
                }
                let from = begin + TimeDelta::minutes(minute);
                let energy = if busy { 15_000_000 + (of_board * 7919 % 3_000_000) as u64 } else { 1_500_000 };
                *counter += energy;
                rows.push(Interval {
                    device: DeviceId::new(board(index))?,
                    share: if busy { Share::Job(job_id(index, number)) } else { Share::Idle },
                    slot: Slot::new(from, from + TimeDelta::minutes(1)).context("a minute")?,
                    energy: Millijoules::new(energy),
                    source: if of_board % 9973 == 0 { EnergySource::CounterGap } else { EnergySource::Counter },
                });
            }
        }
        // As they come: minute by minute.
        rows.sort_by_key(|row| row.slot.start());
        let point = |(index, counter): (usize, &u64)| {
            let (device, counter) = (DeviceId::new(board(index))?, Millijoules::new(*counter));
            Ok(Checkpoint { device, counter, at: begin + HOUR, holders: Vec::new(), rebased_mj: 0 })
        };
        let checkpoints: Vec<Checkpoint> = counters.iter().enumerate().map(point).collect::<anyhow::Result<_>>()?;
        store.append(&rows, &checkpoints).await?;
        let now = begin + HOUR;
        store.close_block(now).await?;
        let settle = async |hour: DateTime<Utc>, why| {
            for (signal, _) in &signals {
                let sources = [SourceKey::of(signal)];
                store.settle_hour(hour, &Settling { book: signal.kind, sources: &sources, at: now, why }).await?;
            }
            Ok::<_, StoreError>(())
        };
        for (signal, minutes) in &signals {
            store.append_intensities(signal, &points(begin, *minutes, Origin::Forecast)).await?;
            if hour > 0 {
                store.append_intensities(signal, &points(begin - HOUR, *minutes, Origin::Measured)).await?;
            }
            store.settle(&SourceKey::of(signal), begin - HOUR * 48).await?;
        }
        settle(begin, Why::Energy).await?;
        if hour > 0 {
            settle(begin - HOUR, Why::Intensity).await?;
        }
        if hour >= 49 {
            settle(begin - HOUR * 49, Why::Intensity).await?;
        }
        store.roll_up(now - TimeDelta::days(35), 24, now).await?;
        if hour % 720 == 719 {
            eprintln!("{} days, {} MiB", (hour + 1) / 24, store.bytes().await? >> 20);
        }
    }
    Ok(())
}

fn job(board_index: usize, number: i64, at: DateTime<Utc>) -> StoredJob {
    let spec = JobSpec {
        name: JobName::new(format!("training-{}", number % 40)).expect("a name"),
        gpus: vec![GpuId::new(board(board_index)).expect("an id")],
        batch_size: Some(256),
        work: Work::TotalSamples(Samples::new(1e7)),
        objective: Objective::DEFAULT,
        lease: Seconds::new(60.0),
        control: true,
        priority: 0,
        tags: [("team".to_owned(), format!("team-{}", number % 7))].into(),
        processes: None,
    };
    let account =
        ProgressAccount { samples: Samples::new(1e7), active: Seconds::new(JOB as f64 * 60.0), stalled: Seconds::ZERO };
    let progress = StoredProgress { account, started_at: Some(at), ..StoredProgress::default() };
    let ended = Some((at + TimeDelta::minutes(JOB), "ended by its owner".into()));
    StoredJob { id: job_id(board_index, number), spec, progress, registered_at: at, ended }
}

async fn measure(dir: &Path, days: i64, clock: &SystemClock) -> anyhow::Result<()> {
    let store = Store::look(dir).await?;
    println!("database: {:.1} MB", store.bytes().await? as f64 / 1e6);
    let end = start() + TimeDelta::days(days);
    let spans = [("the year", start(), end), ("a month, not at midnight", end - HOUR * 733, end - HOUR * 13)];
    for (what, from, to) in spans {
        for by in ["job", "name", "gpu", "tag:team", "day", "month"] {
            let mut times = Vec::new();
            let mut rows = 0;
            for _ in 0..7 {
                let begun = clock.monotonic();
                let span = Slot::new(from, to).context("a span")?;
                let unit = Some(FunctionalUnit::Run);
                let wanted = Wanted { by: by.parse()?, span, unit, restated_by_pct: 5.0, now: to };
                let view = ReportView::of(&store.report(wanted).await?);
                let bytes = serde_json::to_vec(&view)?;
                times.push(clock.monotonic().since(begun).get() * 1e3);
                rows = view.rows.len();
                std::hint::black_box(bytes);
            }
            let first = times[0];
            times.sort_by(f64::total_cmp);
            println!(
                "{what}, by {by}: {rows} rows, median {:.0} ms, first {first:.0} ms, longest {:.0} ms",
                times[3], times[6]
            );
        }
    }
    let begun = clock.monotonic();
    let mut verifier = Verifier::default();
    store.export(|line| verifier.take(line.as_bytes()).map_err(anyhow::Error::from)).await?;
    let found = verifier.finish()?;
    println!(
        "verify: {} entries, {} intervals in {:.1} s",
        found.entries,
        found.intervals,
        clock.monotonic().since(begun).get()
    );
    Ok(())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let clock = SystemClock::start();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value = |flag: &str| arguments.iter().position(|a| a == flag).and_then(|i| arguments.get(i + 1));
    let days: i64 = value("--days").map_or(Ok(365), |days| days.parse())?;
    let scratch = std::env::temp_dir().join(format!("wattune-year-{}", std::process::id()));
    let dir = value("--dir").map(PathBuf::from).unwrap_or_else(|| scratch.clone());
    std::fs::create_dir_all(&dir)?;
    let done = async {
        if !dir.join("wattune.db").exists() {
            let begun = clock.monotonic();
            let store = Store::open(&dir).await?;
            book(&store, days).await?;
            store.close().await;
            println!("{days} days booked in {:.0} s", clock.monotonic().since(begun).get());
        }
        measure(&dir, days, &clock).await
    }
    .await;
    if dir == scratch {
        std::fs::remove_dir_all(&scratch)?;
    }
    done
}
