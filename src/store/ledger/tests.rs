//! Tests of the lifecycle of a ledger: recording, closing, settlement, revision, withdrawal, roll-up, and verification.

use chrono::{DateTime, TimeDelta, Utc};
use rusqlite::{Row, params};

use super::*;
use crate::store::{DueReason, SettlementInput, SourceKey, Store, StoreError, rows};
use wattune_core::domain::{
    DeviceId, EnergySource, Forecast, Intensity, JobId, Method, Origin, Provenance, SignalKind, SignalScope, Slot,
    TimeSeries, Unit, Zone,
};
use wattune_core::ledger::report;
use wattune_core::ledger::verify::{Inconsistency, VerifiedLedger, Verifier};
use wattune_core::ledger::{Interval, Share, Total};
use wattune_core::units::{GramsPerKwh, Micrograms, Millijoules};

fn at(minutes: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(1_767_225_600, 0).expect("a moment") + TimeDelta::minutes(minutes)
}

fn slot(from: i64, to: i64) -> Slot {
    Slot::new(at(from), at(to)).expect("from < to")
}

fn device() -> DeviceId {
    DeviceId::new("GPU-1").expect("an id")
}

fn row(from: i64, share: Share, mj: u64) -> Interval {
    let (slot, energy) = (slot(from, from + 1), Millijoules::new(mj));
    Interval { device: device(), share, slot, energy, source: EnergySource::Counter }
}

fn job() -> Share {
    Share::Job(JobId::new("job-1").expect("an id"))
}

fn answer(now: i64) -> Forecast {
    Forecast {
        zone: Zone::new("X").expect("a zone"),
        source: "file".into(),
        kind: SignalKind::Average,
        scope: SignalScope::Lifecycle,
        issued_at: at(now),
        retrieved_at: at(now),
        provenance: Default::default(),
        expected: TimeSeries::default(),
        actual: TimeSeries::default(),
    }
}

async fn publish(store: &Store, now: i64, hour: i64, value: f64, origin: Origin) {
    let point = (slot(hour * 60, hour * 60 + 60), Intensity { value: GramsPerKwh::new(value), origin });
    store.append_intensities(&answer(now), &[point]).await.expect("written");
}

/// Records 120 intervals of one minute with 1 kJ each, those of the first hour for a job, and closes a block after each
/// hour.
async fn two_hours(store: &Store) {
    for minute in 0..120i64 {
        let share = if minute < 60 { job() } else { Share::Idle };
        let counter = Millijoules::new(5_000_000 + 1_000_000 * (minute.unsigned_abs() + 1));
        let point = Checkpoint {
            device: device(),
            counter,
            at: at(minute + 1),
            read_from: None,
            holders: vec![],
            rebased_mj: 0,
            estimated: Millijoules::ZERO,
        };
        store.append(&[row(minute, share, 1_000_000)], &[point]).await.expect("written");
        if minute % 60 == 59 {
            let close = store.close_block(at(minute + 1)).await.expect("closed").expect("has rows");
            assert!(close.cells.iter().all(|cell| cell.hour == at(minute - 59)), "{close:?}");
        }
    }
}

async fn settle(store: &Store, hour: i64, now: i64) -> bool {
    let sources = [SourceKey::of(&answer(0))];
    let with = SettlementInput {
        kind: SignalKind::Average,
        sources: &sources,
        silent: &[],
        at: at(now),
        why: DueReason::Intensity,
    };
    store.settle_hour(at(hour * 60), &with).await.expect("settled")
}

async fn lines(store: &Store) -> Vec<String> {
    let mut lines = Vec::new();
    let take = |line: &str| {
        lines.push(line.to_owned());
        Ok::<_, StoreError>(())
    };
    store.export(take).await.expect("exported");
    lines
}

async fn unsettled(store: &Store) -> Vec<Interval> {
    store.short_reads.run(|db| settlements::open_rows(db, &slot(0, 180))).await.expect("read")
}

async fn execute(store: &Store, sql: &'static str) -> Result<usize, StoreError> {
    store.write.run(move |db| rows::execute(db, sql, [])).await
}

fn verify(lines: &[String]) -> Result<VerifiedLedger, Inconsistency> {
    let mut verifier = Verifier::default();
    lines.iter().try_for_each(|line| verifier.check_line(line.as_bytes()))?;
    verifier.finish()
}

async fn of_day(store: &Store) -> Vec<(Share, Total)> {
    let found = store.settled_totals(&slot(0, 24 * 60)).await.expect("read");
    found.into_iter().map(|total| (total.share, total.total)).collect()
}

#[tokio::test]
async fn totals_follow_published_values_and_every_version_stays() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Store::open(dir.path()).await.expect("opens");
    two_hours(&store).await;
    // No intensity is known yet: energy without emissions.
    assert!(settle(&store, 0, 121).await && settle(&store, 1, 121).await);
    assert!(!settle(&store, 0, 122).await, "it says the same");
    let total = of_day(&store).await[0].1;
    assert_eq!((total.state(), total.carbon, total.energy.get()), ("unknown", Micrograms::ZERO, 60_000_000));

    // The settlement names the provenance of its intensities.
    let lbs =
        Intensity { value: GramsPerKwh::new(870.4 * Unit::PoundsPerMwh.in_g_per_kwh()), origin: Origin::Measured };
    let responses = vec!["ab".repeat(32)];
    let span = slot(60, 120);
    let method = |of: Slot, name: &str| Method { start: of.start(), end: of.end(), name: name.into() };
    let methods = vec![method(slot(0, 60), "TIME_SLICER_AVERAGE"), method(span, "RECONSTRUCT_BREAKDOWN")];
    let all = Provenance { unit: Some(Unit::PoundsPerMwh), responses, methods, ..Provenance::default() };
    let published = Forecast { provenance: all.clone(), source: "other".into(), ..answer(125) };
    store.append_intensities(&published, &[(span, lbs)]).await.expect("written");
    let provenance = Provenance { methods: vec![all.methods[1].clone()], ..all };
    let factor = store.factors(&[SourceKey::of(&published)], &span).await.expect("read").remove(0);
    assert_eq!((factor.received, &factor.provenance), (Some(870.4), &provenance));
    let text = serde_json::to_string(&factor).expect("plain data");
    assert_eq!(serde_json::from_str::<wattune_core::ledger::entry::Factor>(&text).expect("read again"), factor);

    // 60 kJ are a 60th of a kWh: 5 g at 300 g/kWh.
    for (now, value, origin, version, micrograms, state) in [
        (130, 240.0, Origin::Forecast, 2, 4_000_000, "forecast"),
        (140, 300.0, Origin::Estimated, 3, 5_000_000, "provisional"),
        (150, 360.0, Origin::Measured, 4, 6_000_000, "provisional"),
        (160, 330.0, Origin::Measured, 5, 5_500_000, "provisional"),
    ] {
        publish(&store, now, 0, value, origin).await;
        assert!(settle(&store, 0, now).await);
        let total = of_day(&store).await.iter().find(|(share, _)| *share == job()).expect("the job's").1;
        assert_eq!((total.carbon, total.state()), (Micrograms::new(micrograms), state));
        let versions = store.settlements_of(at(0)).await.expect("read");
        assert_eq!(versions.last().map(|s| s.version), Some(version));
    }
    // The actual value is withdrawn: only the forecast is left, and it is never final.
    let gone = (slot(0, 60), Intensity { value: GramsPerKwh::new(330.0), origin: Origin::Measured });
    store.withdraw_intensities(&answer(170), &[gone]).await.expect("written");
    assert!(settle(&store, 0, 170).await);
    store.set_final_until(&SourceKey::of(&answer(0)), at(60), at(60)).await.expect("noted");
    assert!(!settle(&store, 0, 180).await, "it says the same");
    let total = of_day(&store).await.iter().find(|(share, _)| *share == job()).expect("the job's").1;
    assert_eq!((total.carbon.get(), total.state()), (4_000_000, "forecast"));
    let carbon: Vec<u64> =
        store.settlements_of(at(0)).await.expect("read").iter().map(|s| s.total().carbon.get()).collect();
    assert_eq!(carbon, [0, 4_000_000, 5_000_000, 6_000_000, 5_500_000, 4_000_000]);
    assert_eq!(store.unsettled_hours(at(0)).await.expect("read").into_iter().collect::<Vec<_>>(), [at(0), at(60)]);

    let found = verify(&lines(&store).await).expect("in order");
    assert_eq!((found.intervals, found.blocks, found.settlements, found.energy.get()), (120, 2, 7, 120_000_000));
    assert_eq!(found.differences, []);
}

#[tokio::test]
async fn a_roll_up_changes_no_total() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Store::open(dir.path()).await.expect("opens");
    two_hours(&store).await;
    publish(&store, 121, 0, 300.0, Origin::Measured).await;
    assert!(settle(&store, 0, 121).await && settle(&store, 1, 121).await);
    let before = of_day(&store).await;
    assert_eq!(store.roll_up(2, 10, at(130)).await.expect("rolled up"), 60);
    assert_eq!(store.roll_up(2, 10, at(131)).await.expect("nothing more"), 0);
    assert_eq!(of_day(&store).await, before);
    assert!(!settle(&store, 0, 132).await, "the hour's energy is the same");
    let of_job = store.intervals_of(&JobId::new("job-1").expect("an id")).await.expect("read");
    assert_eq!(of_job, [Interval { slot: slot(0, 60), energy: Millijoules::new(60_000_000), ..row(0, job(), 0) }]);
    // Carbon intensities that are published after the roll-up still change the settlement.
    publish(&store, 140, 0, 360.0, Origin::Measured).await;
    assert!(settle(&store, 0, 140).await);
    let found = verify(&lines(&store).await).expect("in order");
    assert_eq!((found.intervals, found.rolled_up, found.energy.get()), (60, 1, 120_000_000));

    // Minutes that are deleted without a roll-up are detected.
    execute(&store, "DELETE FROM intervals WHERE block = 2").await.expect("deleted");
    assert_eq!(verify(&lines(&store).await).expect_err("missed").place, "block 2");
    // A trigger prevents accidental changes of entries.
    assert!(execute(&store, "UPDATE ledger SET line = '{}'").await.is_err());
    assert!(execute(&store, "DELETE FROM ledger").await.is_err());
}

#[tokio::test]
async fn a_changed_line_is_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Store::open(dir.path()).await.expect("opens");
    two_hours(&store).await;
    publish(&store, 121, 0, 300.0, Origin::Measured).await;
    settle(&store, 0, 121).await;
    let lines = lines(&store).await;
    verify(&lines).expect("in order");
    for (i, line) in lines.iter().enumerate() {
        let named = format!("line {}", i + 1);
        // Change a byte at the start, in the middle and at the end of each line.
        for place in [0, 9, line.len() / 2, line.len() - 3, line.len() - 1] {
            let mut verifier = Verifier::default();
            let mut taken = lines.iter().map(|l| l.clone().into_bytes()).collect::<Vec<_>>();
            taken[i][place] ^= 0x20;
            let found = taken.iter().try_for_each(|line| verifier.check_line(line)).expect_err("changed").place;
            assert!(found == named || found.starts_with(&format!("{named} ")), "{found} in place of {named}");
        }
        let mut without = lines.clone();
        without.remove(i);
        assert!(verify(&without).is_err(), "line {} is missed", i + 1);
    }
}

#[tokio::test]
async fn packed_lines_are_verified_like_those_of_earlier_versions() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Store::open(dir.path()).await.expect("opens");
    two_hours(&store).await;
    publish(&store, 121, 0, 300.0, Origin::Measured).await;
    settle(&store, 0, 121).await;
    let packed = lines(&store).await;
    let settlements = store.settlements_of(at(0)).await.expect("read");
    // Earlier versions stored every line as text.
    execute(&store, "DROP TRIGGER ledger_is_not_changed").await.expect("dropped");
    let unpacked = |row: &Row<'_>| Ok::<(i64, String), StoreError>((row.get(0)?, lines::line(row)?.into_owned()));
    let kept = "SELECT seq, line FROM ledger WHERE typeof(line) = 'blob'";
    let kept = store.short_reads.run(move |db| rows::all(db, kept, [], unpacked)).await.expect("read");
    assert_eq!(kept.len(), 3, "two closes and a settlement");
    let set = async |seq: i64, line: String| {
        let sql = "UPDATE ledger SET line = ?1 WHERE seq = ?2";
        let update = store.write.run(move |db| rows::execute(db, sql, params![line, seq]));
        update.await.expect("changed");
    };
    for (seq, line) in kept {
        set(seq, line).await;
    }
    assert_eq!(lines(&store).await, packed);
    assert_eq!(store.settlements_of(at(0)).await.expect("read"), settlements);
    verify(&packed).expect("in order");
    // A line that cannot be decompressed is named.
    set(2, "x\u{9c}".to_owned()).await;
    let error = store.export(|_| Ok::<_, StoreError>(())).await.expect_err("damaged");
    assert!(error.to_string().contains("entry 2: "), "{error}");
}

#[tokio::test]
async fn deferred_hours_are_due_with_their_reasons() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Store::open(dir.path()).await.expect("opens");
    let hours = [(at(0), DueReason::Intensity), (at(60), DueReason::Correction), (at(120), DueReason::Intensity)];
    store.defer(&hours.into()).await.expect("written");
    assert_eq!(store.due_hours().await.expect("read"), hours);
    two_hours(&store).await;
    // Energy outweighs earlier reasons.
    let due = [(at(0), DueReason::Energy), (at(60), DueReason::Energy), (at(120), DueReason::Intensity)];
    assert_eq!(store.due_hours().await.expect("read"), due);
    assert_eq!(unsettled(&store).await.len(), 120);
    assert!(settle(&store, 0, 121).await && settle(&store, 1, 121).await && !settle(&store, 2, 121).await);
    assert_eq!(store.due_hours().await.expect("read"), []);
    // A correction and new intensities at once count as energy.
    store.defer(&[(at(0), DueReason::Intensity), (at(0), DueReason::Correction)].into()).await.expect("written");
    assert_eq!(store.due_hours().await.expect("read"), [(at(0), DueReason::Energy)]);
    assert!(!settle(&store, 0, 122).await);
    // New intensities alone add no energy.
    store.defer(&[(at(0), DueReason::Intensity)].into()).await.expect("written");
    assert_eq!(unsettled(&store).await, []);
    let total: Total = of_day(&store).await.into_iter().map(|(_, total)| total).sum();
    assert_eq!(store.settled_since(at(0), SignalKind::Average).await.expect("read"), total);
    assert_eq!(store.settled_since(at(1440), SignalKind::Average).await.expect("read"), Total::default());
    assert_eq!(store.settled_since(at(0), SignalKind::Marginal).await.expect("read"), Total::default());
}

#[tokio::test]
async fn differences_from_the_counter_are_reported() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Store::open(dir.path()).await.expect("opens");
    let point = |counter, at| Checkpoint {
        device: device(),
        counter,
        at,
        read_from: None,
        holders: vec![],
        rebased_mj: 0,
        estimated: Millijoules::ZERO,
    };
    store.append(&[row(0, Share::Idle, 100)], &[point(Millijoules::new(1_100), at(1))]).await.expect("written");
    store.append(&[row(1, Share::Idle, 100)], &[point(Millijoules::new(1_207), at(2))]).await.expect("written");
    store.close_block(at(60)).await.expect("closed");
    let found = verify(&lines(&store).await).expect("in order");
    assert_eq!(found.differences, [(1, device(), -7)]);
    // A new block counts from the counter's reading at the close, so that it does not repeat the difference.
    store.append(&[row(61, Share::Idle, 5)], &[point(Millijoules::new(1_212), at(62))]).await.expect("written");
    store.close_block(at(120)).await.expect("closed");
    assert_eq!(verify(&lines(&store).await).expect("in order").differences.len(), 1);
}

fn point(device: DeviceId, minute: i64, mj: u64) -> Checkpoint {
    let (at, counter, estimated) = (at(minute), Millijoules::new(mj), Millijoules::ZERO);
    Checkpoint { device, counter, at, read_from: None, holders: vec![], rebased_mj: 0, estimated }
}

#[tokio::test]
async fn a_removed_gpu_has_no_time_in_later_reports() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Store::open(dir.path()).await.expect("opens");
    let removed = DeviceId::new("GPU-2").expect("an id");
    let of_removed = Interval { device: removed.clone(), ..row(0, Share::Idle, 5) };
    let points = [point(device(), 1, 5), point(removed, 1, 5)];
    store.append(&[row(0, Share::Idle, 5), of_removed], &points).await.expect("written");
    store.close_block(at(60)).await.expect("closed");
    for (hour, mj) in [(1, 10), (2, 15)] {
        let (minute, end) = (hour * 60, hour * 60 + 60);
        store.append(&[row(minute, Share::Idle, 5)], &[point(device(), minute + 1, mj)]).await.expect("written");
        store.close_block(at(end)).await.expect("closed");
    }
    for hour in 0..3 {
        assert!(settle(&store, hour, 180).await);
    }
    let hours = async |from: i64, to: i64| {
        let span = slot(from * 60, to * 60);
        let (by, unit, restated_by_pct) = (report::Grouping::Device, None, 5.0);
        let request = report::ReportRequest { by, span, unit, restated_by_pct, now: at(180) };
        let made = store.report(request).await.expect("read");
        let of_rows: f64 = made.rows.iter().map(|row| row.occupied.get()).sum();
        (made.total.occupied.get() / 3600.0, of_rows / 3600.0)
    };
    for (before, rolled) in [(0, 0), (4, 4)] {
        assert_eq!(store.roll_up(before, 10, at(180)).await.expect("rolled up"), rolled);
        assert_eq!(hours(1, 3).await, (2.0, 2.0), "GPU-1");
        assert_eq!(hours(0, 3).await, (4.0, 4.0), "GPU-1, and GPU-2 for an hour");
    }
}

#[tokio::test]
async fn a_correction_counts_what_the_open_block_has_of_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Store::open(dir.path()).await.expect("opens");
    store.append(&[row(0, Share::Unattributed, 5)], &[]).await.expect("written");
    store.close_block(at(60)).await.expect("closed");
    let open = [row(61, Share::Unattributed, 7), row(62, Share::Idle, 9), row(63, Share::Unattributed, 11)];
    store.append(&open, &[]).await.expect("written");
    let (span, at) = (slot(0, 63), at(64));
    let (from, to, who, why) = (Share::Unattributed, Share::Idle, "ada".to_owned(), "known since".to_owned());
    let request = CorrectionRequest { device: None, span, from, to, who, why, at };
    let done = store.correct(&request).await.expect("corrected");
    assert_eq!((done.rows, done.energy.get(), done.open_rows, done.open_energy.get()), (1, 5, 1, 7));
}

#[tokio::test]
async fn a_wrong_clock_neither_rolls_up_recent_minutes_nor_stops_the_roll_up() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Store::open(dir.path()).await.expect("opens");
    let day = 24 * 60;
    let roll_up = async |now: i64| {
        store.begin_day(at(now)).await.expect("noted");
        let before = store.first_block_kept(2).await.expect("read");
        store.roll_up(before, 24, at(now)).await.expect("rolled up")
    };
    let close = async |minute: i64, closed: i64| {
        store.append(&[row(minute, Share::Idle, 5)], &[]).await.expect("written");
        store.close_block(at(closed)).await.expect("closed").expect("has rows");
    };
    assert_eq!(roll_up(0).await, 0);
    close(0, 60).await;
    // Ten years ahead, for a start that closes a block, and then right again.
    assert_eq!(roll_up(3650 * day).await, 0, "one wrong date makes nothing old");
    close(60, 3650 * day).await;
    assert_eq!(roll_up(120).await, 0);
    close(120, 180).await;
    let mut rolled = Vec::new();
    for days in 1..=6 {
        rolled.push(roll_up(days * day).await);
    }
    assert_eq!(rolled, [0, 0, 0, 0, 1, 2], "two days are kept, and up to three more");
}

#[tokio::test]
async fn changes_are_restated_even_with_additional_energy() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Store::open(dir.path()).await.expect("opens");
    two_hours(&store).await;
    publish(&store, 121, 0, 300.0, Origin::Measured).await;
    assert!(settle(&store, 0, 121).await);
    // Each call adds a little energy: first without new intensities, then after a revision, then after a withdrawal.
    let more = async |now: i64| {
        let energy = Millijoules::new(5_000_000 + 120_000_000 + (now.unsigned_abs() - 120));
        let point = Checkpoint {
            device: device(),
            counter: energy,
            at: at(now),
            read_from: None,
            holders: vec![],
            rebased_mj: 0,
            estimated: Millijoules::ZERO,
        };
        store.append(&[row(30, Share::Idle, 1)], &[point]).await.expect("written");
        store.close_block(at(now)).await.expect("closed").expect("has rows");
        assert!(settle(&store, 0, now).await);
        let request = |restated_by_pct| report::ReportRequest {
            by: report::Grouping::Day,
            span: slot(0, 120),
            unit: None,
            restated_by_pct,
            now: at(now),
        };
        let listed = |found: report::Report| {
            let all = found.data.version.restatements.into_iter();
            all.map(|r| (r.version, r.before.get(), r.after.get())).collect::<Vec<_>>()
        };
        let by = async |pct| listed(store.report(request(pct)).await.expect("read"));
        (by(5.0).await, by(500.0).await)
    };
    assert_eq!(more(121).await, (vec![], vec![]), "no earlier value was wrong");
    publish(&store, 122, 0, 360.0, Origin::Measured).await;
    assert_eq!(more(122).await, (vec![(3, 5_000_000, 6_000_000)], vec![]));
    let gone = (slot(0, 60), Intensity { value: GramsPerKwh::new(360.0), origin: Origin::Measured });
    store.withdraw_intensities(&answer(123), &[gone]).await.expect("written");
    let all = vec![(4, 6_000_000, 0), (3, 5_000_000, 6_000_000)];
    assert_eq!(more(123).await, (all, vec![(4, 6_000_000, 0)]), "a fall to zero is always reported");
    store.close().await;
}
