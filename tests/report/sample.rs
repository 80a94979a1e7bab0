//! A small ledger whose figures are known.

use std::path::Path;

use chrono::{DateTime, Utc};
use serde_json::{Value, json};
use wattune::store::{Checkpoint, DueReason, SettlementInput, SourceKey, Store, StoredJob, StoredProgress};
use wattune_core::domain::{
    CarbonSeries, DeviceId, EnergySource, Forecast, GpuId, Intensity, JobId, JobName, JobSpec, Objective, Origin,
    SignalKind, SignalScope, Slot, Work, Zone,
};
use wattune_core::ledger::chain::Digest;
use wattune_core::ledger::entry::Entry;
use wattune_core::ledger::{Interval, Settings, Share};
use wattune_core::profile::ProgressAccount;
use wattune_core::units::{GramsPerKwh, Millijoules, Samples, Seconds};

use crate::support::{Ended, wattune};

pub(crate) const KWH: u64 = 3_600_000_000;

pub(super) fn at(hours: f64) -> DateTime<Utc> {
    let begin: DateTime<Utc> = "2026-03-01T00:00:00Z".parse().expect("a time");
    begin + Seconds::new(hours * 3600.0).to_delta()
}

pub(super) fn slot(from: f64, to: f64) -> Slot {
    Slot::new(at(from), at(to)).expect("from < to")
}

pub(super) fn device(name: &str) -> DeviceId {
    DeviceId::new(name).expect("an id")
}

pub(super) fn job(name: &str) -> Share {
    Share::Job(JobId::new(name).expect("an id"))
}

pub(super) fn row(of: &str, share: Share, from: f64, to: f64, mj: u64) -> Interval {
    let (device, energy) = (device(of), Millijoules::new(mj));
    Interval { device, share, slot: slot(from, to), energy, source: EnergySource::Counter }
}

pub(super) fn said(kind: SignalKind, retrieved: f64) -> Forecast {
    Forecast {
        zone: Zone::new("DE").expect("a zone"),
        source: if kind == SignalKind::Marginal { "watttime" } else { "energy_charts" }.into(),
        kind,
        scope: SignalScope::Lifecycle,
        issued_at: at(retrieved),
        retrieved_at: at(retrieved),
        provenance: Default::default(),
        expected: CarbonSeries::default(),
        actual: CarbonSeries::default(),
    }
}

pub(super) fn intensity(hour: f64, value: f64, origin: Origin) -> (Slot, Intensity) {
    (slot(hour, hour + 1.0), Intensity { value: GramsPerKwh::new(value), origin })
}

pub(super) fn stored(id: &str, name: &str, team: Option<&str>, from: f64, to: Option<f64>) -> StoredJob {
    let tags = team.map(|team| ("team".to_owned(), team.to_owned())).into_iter().collect();
    let spec = JobSpec {
        name: JobName::new(name).expect("a name"),
        gpus: vec![GpuId::new("GPU-0").expect("an id")],
        batch_size: None,
        work: Work::Unknown,
        objective: Objective::DEFAULT,
        lease: Seconds::new(60.0),
        control: true,
        priority: 0,
        tags,
        processes: None,
        offers: Default::default(),
    };
    let account = ProgressAccount {
        samples: Samples::new(2e6),
        active: Seconds::new(3600.0),
        stalled: Seconds::ZERO,
        ..ProgressAccount::default()
    };
    let progress = StoredProgress { account, ..StoredProgress::default() };
    let ended = to.map(|to| (at(to), "ended by its owner".to_owned()));
    let id = JobId::new(id).expect("an id");
    StoredJob { id, spec, progress, registered_at: at(from), ended, owners: Default::default() }
}

struct Keeper {
    store: Store,
    counters: std::collections::BTreeMap<DeviceId, u64>,
}

impl Keeper {
    async fn append(&mut self, rows: &[Interval]) {
        for row in rows {
            *self.counters.entry(row.device.clone()).or_default() += row.energy.get();
        }
        let end = rows.iter().map(|row| row.slot.end()).max().expect("rows");
        let point = |(device, counter): (&DeviceId, &u64)| Checkpoint {
            device: device.clone(),
            counter: Millijoules::new(*counter),
            at: end,
            read_from: None,
            holders: Vec::new(),
            rebased_mj: 0,
            estimated: Millijoules::ZERO,
        };
        let points: Vec<Checkpoint> = self.counters.iter().map(point).collect();
        self.store.append(rows, &points).await.expect("written");
    }

    async fn settle(&self, now: f64) {
        for (hour, why) in self.store.due_hours().await.expect("read") {
            self.settle_hour(hour, why, now).await;
        }
    }

    async fn settle_hour(&self, hour: DateTime<Utc>, why: DueReason, now: f64) {
        for kind in [SignalKind::Marginal, SignalKind::Average] {
            let sources = [SourceKey::of(&said(kind, 0.0))];
            let settling = SettlementInput { kind, sources: &sources, silent: &[], at: at(now), why };
            self.store.settle_hour(hour, &settling).await.expect("settled");
        }
    }
}

/// A ledger of four hours: two jobs, idle and unattributed energy, a processor, a gap over a full hour, an hour that was
/// settled twice, one without an intensity, and a last block that is still open.
pub(crate) async fn keep(dir: &Path) {
    let store = Store::open(dir).await.expect("opens");
    let mut keeper = Keeper { store, counters: std::collections::BTreeMap::new() };
    let settings = Settings {
        node: Some("node-1".into()),
        pue: Some(1.5),
        pue_source: Some("annual report".into()),
        pue_date: Some("2026-01-01".into()),
        ..Settings::default()
    };
    let terms = settings.terms(at(0.0), "host", Digest::of("settings"));
    keeper.store.append_entry(&Entry::Terms(terms)).await.expect("noted");
    keeper.store.save_job(&stored("a", "resnet50", Some("vision"), 0.0, Some(2.0))).await.expect("saved");
    keeper.store.save_job(&stored("b", "=bert|<b>", None, 2.0, None)).await.expect("saved");
    let average = said(SignalKind::Average, 0.0);
    let expected = [intensity(0.0, 200.0, Origin::Forecast), intensity(1.0, 300.0, Origin::Measured)];
    keeper.store.append_intensities(&average, &expected).await.expect("written");
    let marginal = [intensity(0.0, 700.0, Origin::Measured)];
    keeper.store.append_intensities(&said(SignalKind::Marginal, 0.0), &marginal).await.expect("written");

    keeper.append(&[row("GPU-0", job("a"), 0.0, 1.0, KWH), row("cpu:package-0", job("a"), 0.0, 1.0, KWH / 10)]).await;
    keeper.store.close_block(at(1.0)).await.expect("closed");
    keeper.settle(1.0).await;
    keeper.append(&[row("GPU-0", job("a"), 1.0, 2.0, 2 * KWH), row("cpu:package-0", Share::Idle, 1.0, 2.0, 7)]).await;
    keeper.store.close_block(at(2.0)).await.expect("closed");
    keeper.settle(2.0).await;
    // The first hour comes out dearer than was expected, and final.
    let came = [intensity(0.0, 250.0, Origin::Measured)];
    keeper.store.append_intensities(&average, &came).await.expect("written");
    keeper.store.set_final_until(&SourceKey::of(&average), at(1.0), at(1.0)).await.expect("settled");
    keeper.settle_hour(at(0.0), DueReason::Intensity, 2.5).await;

    let gap = |from, to, mj| {
        let row = row("GPU-0", Share::Unattributed, from, to, mj);
        Interval { source: EnergySource::CounterGap, ..row }
    };
    keeper.append(&[gap(2.5, 3.0, KWH / 4), gap(3.0, 3.25, KWH / 8), row("GPU-0", Share::Idle, 3.25, 3.5, 1)]).await;
    keeper.store.close_block(at(3.6)).await.expect("closed");
    keeper.settle(3.6).await;
    keeper.append(&[row("GPU-0", job("b"), 3.5, 3.75, KWH / 2)]).await;
    keeper.store.close().await;
}

pub(crate) async fn ledger() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    keep(dir.path()).await;
    dir
}

pub(crate) fn report(dir: &Path, arguments: &[&str]) -> Ended {
    let mut command = wattune(&["report"]);
    command.args(arguments).arg("--state-dir").arg(dir);
    Ended::of(&mut command)
}

/// What came of a job, by its version.
pub(crate) fn outcome(job: &str, version: u32, saved: Value) -> Entry {
    let sure = |mean: f64| json!({ "low": mean - 10.0, "mean": mean, "high": mean + 20.0 });
    let saving = match saved.as_f64() {
        Some(grams) => json!({
            "time_at_reference_s": 3600.0, "energy_at_reference_j": 2e7, "carbon_at_reference_g": 1000.0,
            "carbon_reduction_pct": sure(grams / 10.0), "carbon_reduction_g": sure(grams), "time_increase_pct": sure(1.0),
            "energy_effect_pct": null, "timing_effect_pct": null,
        }),
        None => saved,
    };
    let basis = json!({ "points": [], "epochs": [], "mix": [], "same_sensors": true });
    let entry = json!({
        "kind": "outcome", "at": at(2.0), "job": job, "version": version, "why": "it ended", "active_s": 3600.0,
        "samples": 2e6, "against_max": { "unknown": "not this one" },
        "against_original": { "limits": [], "basis": basis, "frozen": [], "saving": saving },
    });
    serde_json::from_value(entry).expect("an entry")
}
