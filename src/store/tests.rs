//! Tests of storage: values are restored unchanged, and related values are written together.

use chrono::{DateTime, Utc};

use super::*;
use wattune_core::domain::{
    CarbonSeries, DeviceId, EnergySource, Forecast, GpuId, Intensity, JobId, JobSpec, Objective, Origin, ProfileKey,
    SignalKind, SignalScope, Slot, Work, Zone,
};
use wattune_core::ledger::{AttributionRule, Interval, Metered, OpenInterval, Share};
use wattune_core::profile::{ProgressAccount, Record};
use wattune_core::time::{Monotonic, Now};
use wattune_core::units::{GramsPerKwh, Millijoules, Samples, Seconds};

fn at(seconds: i64) -> DateTime<Utc> {
    DateTime::UNIX_EPOCH + chrono::TimeDelta::seconds(seconds)
}

fn slot(from: i64, to: i64) -> Slot {
    Slot::new(at(from), at(to)).expect("from < to")
}

fn device() -> DeviceId {
    DeviceId::from(&gpu())
}

fn gpu() -> GpuId {
    GpuId::new("GPU-1").expect("an id")
}

fn job_id() -> JobId {
    JobId::new("job-1").expect("an id")
}

fn job() -> StoredJob {
    let spec = JobSpec {
        name: wattune_core::domain::JobName::new("resnet50").expect("a name"),
        gpus: vec![gpu()],
        batch_size: Some(256),
        work: Work::TotalSamples(Samples::new(1e8)),
        objective: Objective::DEFAULT,
        lease: Seconds::new(60.0),
        control: true,
        priority: 0,
        tags: [("team".to_owned(), "vision".to_owned())].into(),
        processes: None,
        offers: Default::default(),
    };
    let last = LastReport { samples: 0.1 + 0.2, at_s: Some(12.5), received: at(7) };
    let progress = StoredProgress { last: Some(last), started_at: Some(at(3)), ..StoredProgress::default() };
    StoredJob { id: job_id(), spec, progress, registered_at: at(1), ended: None, owners: Default::default() }
}

pub(super) async fn store() -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Store::open(dir.path()).await.expect("opens");
    (dir, store)
}

#[tokio::test]
async fn intervals_and_checkpoints_are_written_together() {
    let (dir, store) = store().await;
    let row = |from, to, share, energy| Interval {
        device: device(),
        share,
        slot: slot(from, to),
        energy: Millijoules::new(energy),
        source: EnergySource::Counter,
    };
    let rows =
        [row(0, 60, Share::Job(job_id()), 7), row(60, 120, Share::Idle, 5), row(120, 180, Share::Job(job_id()), 1)];
    let point = Checkpoint {
        device: device(),
        counter: Millijoules::new(13),
        at: at(180),
        read_from: None,
        holders: vec![job_id()],
        rebased_mj: -3,
        estimated: Millijoules::ZERO,
    };
    store.append(&rows, std::slice::from_ref(&point)).await.expect("written");
    store.close().await;
    let again = Store::open(dir.path()).await.expect("opens");
    assert_eq!(again.checkpoints().await.expect("read"), [point]);
    let of_job: Vec<_> = rows.iter().filter(|r| r.share == Share::Job(job_id())).cloned().collect();
    assert_eq!(again.intervals_of(&job_id()).await.expect("read"), of_job);
}

#[tokio::test]
async fn a_failed_transaction_writes_nothing() {
    let (_dir, store) = store().await;
    let good = Interval {
        device: device(),
        share: Share::Job(job_id()),
        slot: slot(0, 60),
        energy: Millijoules::new(5),
        source: EnergySource::Counter,
    };
    let too_much = Interval { energy: Millijoules::new(u64::MAX), ..good.clone() };
    let point = Checkpoint {
        device: device(),
        counter: Millijoules::new(5),
        at: at(60),
        read_from: None,
        holders: vec![],
        rebased_mj: 0,
        estimated: Millijoules::ZERO,
    };
    assert!(store.append(&[good, too_much], &[point]).await.is_err());
    assert_eq!(store.checkpoints().await.expect("read"), []);
    assert_eq!(store.intervals_of(&job_id()).await.expect("read"), []);
}

#[tokio::test]
async fn jobs_are_restored_unchanged() {
    let (_dir, store) = store().await;
    let mut job = job();
    store.save_job(&job).await.expect("written");
    assert_eq!(store.open_jobs().await.expect("read").0, [job.clone()]);
    job.ended = Some((at(99), "lease expired".into()));
    store.save_job(&job).await.expect("written");
    assert_eq!(store.open_jobs().await.expect("read").0, []);
    assert_eq!(store.ended_jobs(10).await.expect("read"), [job.clone()]);
    assert_eq!(store.job(&job_id()).await.expect("read"), Some(job));
}

#[tokio::test]
async fn jobs_of_earlier_versions_without_priority_are_readable() {
    let mut spec = serde_json::to_value(job().spec).expect("serialises");
    spec.as_object_mut().expect("an object").remove("priority");
    let read: JobSpec = serde_json::from_value(spec).expect("readable");
    assert_eq!(read, job().spec);
}

#[test]
fn objectives_of_earlier_versions_are_readable() {
    let objective = r#"{"eta":1.0,"max_slowdown":0.03,"deadline":null}"#;
    assert_eq!(serde_json::from_str::<Objective>(objective).expect("readable"), Objective::DEFAULT);
    let progress = serde_json::to_value(StoredProgress::default()).expect("json");
    let mut without = progress.as_object().expect("an object").clone();
    assert!(without.remove("activity").is_some());
    let read: StoredProgress = serde_json::from_value(without.into()).expect("readable");
    assert_eq!(read, StoredProgress::default());
}

#[tokio::test]
async fn demand_response_events_are_kept_until_long_after_their_end() {
    use wattune_core::domain::{DemandResponse, EventId, Level};
    let (dir, store) = store().await;
    let event = |id: &str, from, to| DemandResponse {
        id: EventId::new(id).expect("an id"),
        slot: slot(from, to),
        target: Level::Share(0.6),
        notice: None,
        ramp: Seconds::ZERO,
        rebound: None,
    };
    for event in [event("a", 0, 10), event("b", 5, 20), event("c", 7, 30)] {
        store.save_event(&event).await.expect("written");
    }
    let amended = event("b", 5, 25);
    store.save_event(&amended).await.expect("written");
    store.delete_event(&event("c", 7, 30).id).await.expect("deleted");
    store.close().await;
    let again = Store::open(dir.path()).await.expect("opens");
    assert_eq!(again.events(at(10)).await.expect("read").0, [event("a", 0, 10), amended.clone()]);
    assert_eq!(again.events(at(11)).await.expect("read").0, std::slice::from_ref(&amended));
    // A clock in the future deletes none.
    assert_eq!(again.events(at(60 * 24 * 400)).await.expect("read").0, []);
    assert_eq!(again.events(at(11)).await.expect("read").0, [amended]);
}

#[tokio::test]
async fn profiles_are_stored_by_job_batch_size_and_gpus() {
    let (_dir, store) = store().await;
    let key = |batch_size| ProfileKey {
        name: wattune_core::domain::JobName::new("resnet50").expect("a name"),
        batch_size,
        gpus: vec![("A40".into(), 2)],
    };
    let record = Record { thermal_trend: Some(-0.012), ..Record::default() };
    store.save_profile(&key(Some(64)), &record, at(1)).await.expect("written");
    assert_eq!(store.profile(&key(Some(64))).await.expect("read"), Some(record.clone()));
    assert_eq!(store.profile(&key(None)).await.expect("read"), None);
    let elsewhere = ProfileKey { gpus: vec![("A40".into(), 1)], ..key(Some(32)) };
    let longer =
        ProfileKey { name: wattune_core::domain::JobName::new("resnet50\"a").expect("a name"), ..key(Some(16)) };
    for other in [key(Some(128)), key(None), elsewhere, longer] {
        store.save_profile(&other, &Record::default(), at(1)).await.expect("written");
    }
    assert_eq!(store.neighbouring_profiles(&key(Some(128))).await.expect("read"), [(64, record)]);
}

#[tokio::test]
async fn the_best_intensity_is_the_newest_of_the_most_trusted() {
    let (_dir, store) = store().await;
    let answer = |source: &str| Forecast {
        zone: Zone::new("GB").expect("a zone"),
        source: source.into(),
        kind: SignalKind::Average,
        scope: SignalScope::Operational,
        issued_at: at(0),
        retrieved_at: at(0),
        provenance: Default::default(),
        expected: CarbonSeries::default(),
        actual: CarbonSeries::default(),
    };
    let point = |value, origin| (slot(0, 1800), Intensity { value: GramsPerKwh::new(value), origin });
    let uk = answer("uk");
    store.append_intensities(&uk, &[point(200.0, Origin::Forecast)]).await.expect("written");
    store.append_intensities(&uk, &[point(180.0, Origin::Estimated)]).await.expect("written");
    store.append_intensities(&uk, &[point(210.0, Origin::Forecast)]).await.expect("written");
    store.append_intensities(&uk, &[point(175.0, Origin::Estimated)]).await.expect("written");
    store.append_intensities(&answer("other"), &[point(1.0, Origin::Measured)]).await.expect("written");
    let key = |source: &str| SourceKey::of(&answer(source));
    let series = store.intensities(&[key("uk")], &slot(600, 700)).await.expect("read");
    assert_eq!(series.points(), [point(175.0, Origin::Estimated)]);
    assert!(store.intensities(&[key("uk")], &slot(1800, 1900)).await.expect("read").is_empty());

    let next = (slot(1800, 3600), Intensity { value: GramsPerKwh::new(220.0), origin: Origin::Forecast });
    store.append_intensities(&uk, &[next]).await.expect("written");
    let came = (next.0, Intensity { value: GramsPerKwh::new(2.0), origin: Origin::Measured });
    store.append_intensities(&answer("other"), &[came]).await.expect("written");
    let series = store.intensities(&[key("uk"), key("other")], &slot(0, 3600)).await.expect("read");
    let best = [point(175.0, Origin::Estimated), came];
    assert_eq!(series.points(), best, "what came beats what the preferred source expected");
    let direct = SourceKey { scope: SignalScope::Lifecycle, ..key("uk") };
    assert!(store.intensities(&[direct], &slot(0, 3600)).await.expect("read").is_empty(), "another scope");
}

#[tokio::test]
async fn published_forecasts_are_kept_unchanged_for_five_weeks() {
    let (_dir, store) = store().await;
    let hour = 3600;
    let issued = |retrieved: i64, value: f64| {
        let intensity = Intensity { value: GramsPerKwh::new(value), origin: Origin::Forecast };
        Forecast {
            zone: Zone::new("DE").expect("a zone"),
            source: "energy_charts".into(),
            kind: SignalKind::Average,
            scope: SignalScope::Unspecified,
            issued_at: at(retrieved),
            retrieved_at: at(retrieved),
            provenance: Default::default(),
            expected: CarbonSeries::from_points(vec![(slot(retrieved, retrieved + hour), intensity)]).0,
            actual: CarbonSeries::default(),
        }
    };
    for (retrieved, value) in [(0, 1.0), (600, 2.0), (hour, 3.5)] {
        store.append_issued(&issued(retrieved, value)).await.expect("written");
    }
    let kept = store.issued_since(at(0)).await.expect("read");
    let values: Vec<f64> = kept.iter().map(|i| i.series.points()[0].1.value.get()).collect();
    assert_eq!(values, [1.0, 3.5], "the first of each hour");
    assert_eq!((kept[1].issued_at, kept[1].series.points()[0].0), (at(hour), slot(hour, 2 * hour)));
    let day = 24 * hour;
    store.append_issued(&issued(20 * 365 * day, 4.0)).await.expect("written");
    assert_eq!(store.issued_since(at(0)).await.expect("read").len(), 3, "a wrong clock makes nothing old");
    for (days, kept) in [(0..=38, 4), (39..=41, 2)] {
        let last = *days.end();
        for passed in days {
            store.begin_day(at(passed * day)).await.expect("noted");
        }
        store.append_issued(&issued(last * day, 5.0)).await.expect("written");
        assert_eq!(store.issued_since(at(0)).await.expect("read").len(), kept, "after {last} days");
    }
}

#[tokio::test]
async fn final_values_stay_final() {
    let (_dir, store) = store().await;
    let zone = Zone::new("GB").expect("a zone");
    let (kind, scope) = (SignalKind::Average, SignalScope::Operational);
    let key = SourceKey { source: "uk".into(), zone, kind, scope };
    assert_eq!(store.final_until(&key).await.expect("read"), None);
    store.set_final_until(&key, at(100), at(100)).await.expect("written");
    store.set_final_until(&key, at(50), at(100)).await.expect("written");
    assert_eq!(store.final_until(&key).await.expect("read"), Some(at(100)));
    // The clock had run ahead when the time was recorded.
    store.set_final_until(&key, at(50), at(70)).await.expect("written");
    assert_eq!(store.final_until(&key).await.expect("read"), Some(at(70)));
}

#[tokio::test]
async fn closed_intervals_can_be_stored() {
    let (_dir, store) = store().await;
    let now = |s: f64| Now {
        utc: at(0) + Seconds::new(s).to_delta(),
        monotonic: Monotonic::default().after(Seconds::new(s)),
    };
    let mut interval = OpenInterval::open(device(), now(0.0), Metered::default());
    let metered = Metered {
        counter: Millijoules::new(3),
        gap: Millijoules::new(4),
        integrated: Millijoules::new(5),
        ..Metered::default()
    };
    let rule = AttributionRule::Holders { jobs: vec![job_id()], unknown_user: false, used: None };
    let rows = interval.close(now(59.9), metered, &rule).expect("long enough");
    store.append(&rows, &[]).await.expect("written");
    assert_eq!(store.intervals_of(&job_id()).await.expect("read"), rows);
    assert_eq!(rows.len(), 3);
}

#[test]
fn samples_of_a_training_checkpoint_do_not_count_for_the_run() {
    let first_at = |minutes: i64, first_samples: f64| {
        let account = ProgressAccount {
            samples: Samples::new(9_000.0),
            active: Seconds::new(5_000.0),
            stalled: Seconds::new(400.0),
            ..ProgressAccount::default()
        };
        let started_at = Some(at(minutes * 60));
        StoredProgress { account, first_samples, started_at, ..StoredProgress::default() }.samples_since(at(0)).get()
    };
    // 9,000 samples in 90 minutes are 1,000 in ten minutes; up to a quarter more is plausible in the first report.
    assert_eq!(first_at(10, 1_000.0), 10_000.0);
    assert_eq!(first_at(10, 1_250.0), 10_250.0);
    assert_eq!(first_at(10, 1_251.0), 9_000.0);
    assert_eq!(first_at(10, 0.0), 9_000.0);
    assert_eq!(
        StoredProgress { first_samples: 5.0, started_at: Some(at(9)), ..StoredProgress::default() }
            .samples_since(at(0))
            .get(),
        0.0,
        "one report has no pace"
    );
}
