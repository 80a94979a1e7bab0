//! Days without any source, on a clock that moves when told to, and days of 23 and 25 hours.

use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::{DateTime, DurationRound, TimeDelta, Timelike, Utc};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use wattune::clock::{Clock, ManualClock};
use wattune::controller::{Controller, Parts, Phase, ProgressReport, Settings as ControlSettings};
use wattune::gpu::handle::Sampling;
use wattune::gpu::simulated::{LoadCurve, Physics, SimulatedGpu};
use wattune::providers::{Answer, CarbonSettings, Feed, FeedOptions, FileProvider, Provider, ProviderError};
use wattune_core::domain::{
    CarbonSeries, Forecast, Intensity, JobId, LimitRange, Origin, PowerLimit, SignalKind, SignalScope, Slot, Zone,
};
use wattune_core::units::{GramsPerKwh, SamplesPerSecond, Seconds, Watts};

use crate::support;

const HOUR: TimeDelta = TimeDelta::hours(1);

/// In the night after it, clocks in Europe are set back: what is followed here goes by UTC, and takes no notice.
fn start() -> DateTime<Utc> {
    "2025-10-25T00:00:00Z".parse().expect("a moment")
}

/// Clean at noon, dirty at night.
fn grid(t: DateTime<Utc>) -> f64 {
    300.0 - 150.0 * ((f64::from(t.hour()) - 12.0) / 24.0 * std::f64::consts::TAU).cos()
}

/// Tells the grid, 12 hours ahead and a week back, until it fails for good.
struct Failing {
    name: &'static str,
    up_until: DateTime<Utc>,
}

impl Failing {
    fn answer(&self, now: DateTime<Utc>) -> Forecast {
        let hour = now.duration_trunc(HOUR).expect("a moment");
        let series = |from: i32, to: i32, origin: Origin| {
            let point = |h: i32| {
                let start = hour + HOUR * h;
                (Slot::new(start, start + HOUR).expect("an hour"), Intensity { value: grams(start), origin })
            };
            CarbonSeries::from_points((from..to).map(point).collect()).0
        };
        Forecast {
            zone: self.zone(),
            source: self.name.to_owned(),
            kind: SignalKind::Average,
            scope: SignalScope::Lifecycle,
            issued_at: now,
            retrieved_at: now,
            provenance: Default::default(),
            expected: series(0, 12, Origin::Forecast),
            actual: series(-7 * 24, 0, Origin::Measured),
        }
    }
}

fn grams(t: DateTime<Utc>) -> GramsPerKwh {
    GramsPerKwh::new(grid(t))
}

impl Provider for Failing {
    fn source(&self) -> &'static str {
        self.name
    }

    fn zone(&self) -> Zone {
        Zone::new("DE").expect("a zone")
    }

    fn cadence(&self) -> Seconds {
        Seconds::new(3600.0)
    }

    fn fetch(&self, now: DateTime<Utc>) -> BoxFuture<'_, Result<Answer, ProviderError>> {
        let failure = ProviderError::ServerError { status: 500, message: "out of order".to_owned() };
        std::future::ready(if now < self.up_until { Ok(self.answer(now).into()) } else { Err(failure) }).boxed()
    }
}

struct Outage {
    clock: Arc<ManualClock>,
    feed: Feed,
    controller: Controller,
    gpu: SimulatedGpu,
    job: JobId,
    _state: tempfile::TempDir,
}

impl Outage {
    /// A job on one GPU that goes on for longer than any of this.
    async fn start(sources: [Failing; 2]) -> Self {
        let clock = Arc::new(ManualClock::at(start()));
        let chain = sources.map(|s| vec![Arc::new(s) as Arc<dyn Provider>]).into();
        let feed = Feed::start(chain, FeedOptions::default(), clock.now()).await;
        let watts = |w: u32| PowerLimit::from_milliwatts(w * 1000);
        let range = LimitRange { min: watts(100), max: watts(300), default: watts(300) };
        let (original_limit, idle, settling) = (range.max, Watts::new(25.0), Seconds::new(0.5));
        let physics = Physics { range, original_limit, idle, settling, noise: 0.0, seed: 1 };
        let gpu = SimulatedGpu::new(physics, clock.clone());
        let (demand, floor, peak) = (Watts::new(280.0), Watts::new(70.0), SamplesPerSecond::new(400.0));
        gpu.run(Some(LoadCurve::saturating(&range, demand, floor, peak)));
        let state = tempfile::tempdir().expect("a directory");
        let parts = Parts {
            settings: ControlSettings { tick_s: Seconds::new(10.0), ..ControlSettings::default() },
            ..Parts::new(
                state.path(),
                clock.clone(),
                vec![Box::new(gpu.device(0, "Long"))],
                Sampling::OnRequest,
                feed.subscribe(),
            )
        };
        let mut controller = Controller::start(parts).await.expect("starts");
        controller.tick().await;
        // With known work the sweep is affordable at once.
        let work = wattune_core::domain::Work::TotalSamples(wattune_core::units::Samples::new(1e8));
        let long = wattune::controller::NewJob { work, ..support::job("long", 0.05) };
        let job = JobId::new(controller.register(long).await.expect("registered").job_id).expect("an id");
        Self { clock, feed, controller, gpu, job, _state: state }
    }

    async fn step(&mut self, span: Seconds) {
        self.clock.advance(span);
        self.feed.poll_due(self.clock.now()).await;
        let at = self.clock.monotonic().since(wattune_core::time::Monotonic::default());
        let report = ProgressReport::new(self.gpu.work_done(), Some(at));
        self.controller.progress(&self.job, report).await.expect("taken");
        self.controller.tick().await;
    }

    /// Nothing that is planned with is missing or zero: neither the present, nor the two days ahead, nor the plan.
    fn check(&self) {
        let (now, least) = (self.clock.utc(), 100.0);
        let carbon = self.controller.carbon_now();
        assert!(carbon.planned_with_g_per_kwh > least, "{now}: {carbon:#?}");
        let ahead = self.controller.carbon_forecast();
        assert!(ahead.iter().all(|s| s.intensity_g_per_kwh > least), "{now}: {ahead:#?}");
        if carbon.basis.as_str() != "constant" {
            assert!(carbon.intensity_g_per_kwh.is_some_and(|v| v > least), "{now}: {carbon:#?}");
            assert!(ahead.windows(2).all(|pair| pair[0].end == pair[1].start), "{now}: {ahead:#?}");
            assert_eq!(ahead.first().map(|s| s.start), Some(now));
            assert_eq!(ahead.last().map(|s| s.end), Some(now + TimeDelta::hours(48)));
        }
        let plan = self.controller.plan_of(&self.job).expect("a job");
        assert!(plan.segments.iter().all(|s| s.intensity_g_per_kwh > least), "{now}: {plan:#?}");
        assert!(!plan.applied || !plan.segments.is_empty(), "{now}: {plan:#?}");
    }
}

/// From one moment on the present rests on this basis and this source.
type Rung = (&'static str, Option<String>, DateTime<Utc>);

#[tokio::test]
#[ignore = "takes minutes unoptimised; `cargo test --release -p wattune-benches --test slow -- --ignored` runs it"]
async fn three_days_without_a_source_go_down_the_ladder_and_limits_keep_following() {
    let (first_fails, second_fails) = (start() + HOUR * 8, start() + HOUR * 14);
    let sources =
        [Failing { name: "first", up_until: first_fails }, Failing { name: "second", up_until: second_fails }];
    let mut outage = Outage::start(sources).await;
    let mut rungs: Vec<Rung> = Vec::new();
    // By basis: limits at clean and at dirty times.
    let mut limits: BTreeMap<&str, [Vec<f64>; 2]> = BTreeMap::new();
    let end = second_fails + TimeDelta::days(3);
    while outage.clock.utc() < end {
        let phase = outage.controller.jobs()[0].phase;
        outage.step(Seconds::new(if phase == Some(Phase::Planned) { 1200.0 } else { 1.0 })).await;
        outage.check();
        let (now, carbon) = (outage.clock.utc(), outage.controller.carbon_now());
        assert!(carbon.basis_since <= now);
        if rungs.last().is_none_or(|r| (r.0, &r.1) != (carbon.basis.as_str(), &carbon.source)) {
            rungs.push((carbon.basis.as_str(), carbon.source.clone(), carbon.basis_since));
        }
        assert_eq!(rungs.last().map(|r| r.2), Some(carbon.basis_since), "since it is so");
        if phase == Some(Phase::Planned) {
            // What it is planned with is near what the grid does, whoever says it.
            assert!((carbon.planned_with_g_per_kwh - grid(now)).abs() < 45.0, "{now}: {carbon:#?}");
            let of = limits.entry(carbon.basis.as_str()).or_default();
            let usual = grid(now);
            if !(200.0..400.0).contains(&usual) {
                of[usize::from(usual > 300.0)].push(outage.gpu.limit().watts().get());
            }
        }
        if now > second_fails + TimeDelta::days(1) {
            assert!(
                carbon.sources.iter().all(|s| s.last_error.is_some() && s.circuit.as_str() == "open"),
                "{carbon:#?}"
            );
            let since: Vec<_> = carbon.sources.iter().map(|s| s.failing_since.expect("reported")).collect();
            assert!(since[0] >= first_fails && since[0] < first_fails + HOUR * 2, "{carbon:#?}");
            assert!(since[1] >= second_fails && since[1] < second_fails + HOUR * 2, "{carbon:#?}");
        }
    }
    let rung = |basis, source: &str| (basis, Some(source.to_owned()));
    let names: Vec<_> = rungs.iter().map(|(basis, source, _)| (*basis, source.clone())).collect();
    let shown: Vec<_> = names.iter().filter(|(_, source)| source.is_some()).cloned().collect();
    // Two sources agree in kind, so each in its turn is followed as long as it covers the present.
    let expected = [
        rung("source", "first"),
        rung("source", "second"),
        rung("source", "first"),
        rung("source", "second"),
        rung("local", "second"),
        rung("daily_shape", "second"),
    ];
    assert_eq!(shown, expected, "{rungs:#?}");
    let since = |i: usize| rungs[rungs.len() - expected.len() + i].2;
    assert!(since(1) > first_fails && since(1) <= first_fails + HOUR * 3, "stale after two cadences: {rungs:#?}");
    // Its last answer reached twelve hours ahead.
    assert!((second_fails + HOUR * 10..=second_fails + HOUR * 13).contains(&since(4)), "{rungs:#?}");
    // Outcomes are a day old then.
    assert!((second_fails + HOUR * 23..=second_fails + HOUR * 25).contains(&since(5)), "{rungs:#?}");
    for basis in ["source", "local", "daily_shape"] {
        let [clean, dirty] = &limits[basis];
        let mean = |of: &Vec<f64>| of.iter().sum::<f64>() / of.len() as f64;
        assert!(!clean.is_empty() && !dirty.is_empty(), "{basis}: {limits:?}");
        assert!(mean(clean) > mean(dirty) + 10.0, "{basis}: {} W, {} W", mean(clean), mean(dirty));
    }
    outage.controller.shut_down().await;
}

#[tokio::test]
async fn without_anything_ever_said_there_is_the_constant_for_days() {
    let never = |name| Failing { name, up_until: start() };
    let mut outage = Outage::start([never("first"), never("second")]).await;
    let end = start() + TimeDelta::days(3);
    while outage.clock.utc() < end {
        let phase = outage.controller.jobs()[0].phase;
        outage.step(Seconds::new(if phase == Some(Phase::Planned) { 3600.0 } else { 1.0 })).await;
        outage.check();
        let carbon = outage.controller.carbon_now();
        assert_eq!(
            (carbon.basis.as_str(), carbon.basis_since, carbon.planned_with_g_per_kwh),
            ("constant", start(), 475.0)
        );
        assert_eq!((carbon.intensity_g_per_kwh, &carbon.source), (None, &None), "{carbon:#?}");
    }
    let plan = outage.controller.plan_of(&outage.job).expect("a job");
    assert!(plan.applied && plan.segments.iter().all(|s| s.intensity_g_per_kwh == 475.0), "{plan:#?}");
    outage.controller.shut_down().await;
}

/// Rows in local time with its offset, an hour each, from one local midnight to the next.
fn local_day(midnight: &str, offsets: [i32; 2], changes_at: &str) -> String {
    let [midnight, changes_at]: [DateTime<Utc>; 2] = [midnight, changes_at].map(|t| t.parse().expect("a moment"));
    let mut text = String::from("timestamp,value\n");
    let mut at = midnight;
    loop {
        let hours = if at < changes_at { offsets[0] } else { offsets[1] };
        let zone = chrono::FixedOffset::east_opt(hours * 3600).expect("an offset");
        let local = at.with_timezone(&zone);
        if at > midnight && local.hour() == 0 {
            return text;
        }
        text += &format!("{},{}\n", local.to_rfc3339(), 100 + (at - midnight).num_hours());
        at += HOUR;
    }
}

#[tokio::test]
async fn days_of_23_and_25_hours_are_contiguous() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("day.csv");
    let days = [
        ("2025-03-29T23:00:00Z", [1, 2], "2025-03-30T01:00:00Z", 23),
        ("2025-10-25T22:00:00Z", [2, 1], "2025-10-26T01:00:00Z", 25),
    ];
    for (midnight, offsets, changes_at, hours) in days {
        let text = local_day(midnight, offsets, changes_at);
        std::fs::write(&path, &text).expect("written");
        let settings: CarbonSettings =
            toml::from_str(&format!("source = \"file\"\nfile.path = {:?}", path.display().to_string())).expect("right");
        let midnight: DateTime<Utc> = midnight.parse().expect("a moment");
        let answer = FileProvider::new(&settings.file, &settings.shared(None))
            .expect("right")
            .fetch(midnight)
            .await
            .expect("readable");
        assert_eq!(answer.notes.iter().filter(|n| !n.contains("h ahead")).count(), 0, "{:?}", answer.notes);
        let slots: Vec<(Slot, f64)> =
            answer.forecast.expected.points().iter().map(|(slot, v)| (*slot, v.value.get())).collect();
        let wanted: Vec<(Slot, f64)> = (0..hours)
            .map(|h| {
                (Slot::new(midnight + HOUR * h, midnight + HOUR * (h + 1)).expect("an hour"), 100.0 + f64::from(h))
            })
            .collect();
        assert_eq!(slots, wanted, "{text}");
        // Without offsets one of its hours would be there twice, or none: no guess is made.
        let bare: String = text.lines().map(|l| l.replacen("+01:00", "", 1).replacen("+02:00", "", 1) + "\n").collect();
        std::fs::write(&path, bare).expect("written");
        let refused = FileProvider::new(&settings.file, &settings.shared(None))
            .expect("right")
            .fetch(midnight)
            .await
            .expect_err("no zone");
        assert!(refused.to_string().contains("has no zone"), "{refused}");
    }
}
