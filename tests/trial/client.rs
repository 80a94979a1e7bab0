//! A training job of a trial: it trains at the pace that its GPU's limit allows, reports, and knows the truth about itself.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use super::case::{FOUND_W, IDLE_W, JobPlan, LOAD_W};
use super::support::{Curve, FakeDriver, rate};

/// Diminishing returns, as real GPUs have them.
const CURVE: Curve = &[(100.0, 40.0), (130.0, 66.0), (180.0, 90.0), (230.0, 98.0), (280.0, 102.0), (350.0, 104.0)];
const STEP: Duration = Duration::from_millis(50);
/// So many answers that its GPU is unknown are understood: that is longer than one is ever lost, with its taking up.
const UNKNOWN: u32 = 200;
/// What noise on the speed is drawn for anew, in samples.
const GRAIN: f64 = 50.0;

/// The daemon as its clients see it, which changes with each restart.
#[derive(Clone, Default)]
pub(crate) struct Address(Arc<Mutex<Reached>>);

#[derive(Clone, Default)]
struct Reached {
    base: Option<String>,
    since: Option<Instant>,
}

impl Address {
    pub(crate) fn is_at(&self, base: Option<String>) {
        let since = base.is_some().then(Instant::now);
        *self.0.lock().expect("not poisoned") = Reached { base, since };
    }

    pub(crate) fn base(&self) -> Option<String> {
        self.0.lock().expect("not poisoned").base.clone()
    }

    /// Since when the same daemon has been there.
    pub(crate) fn since(&self) -> Option<Instant> {
        self.0.lock().expect("not poisoned").since
    }
}

/// What became of a job.
#[derive(Clone, Debug, Default)]
pub(crate) struct Record {
    pub(crate) id: Option<String>,
    pub(crate) registered: Option<Instant>,
    pub(crate) last_report: Option<Instant>,
    pub(crate) ended: Option<Instant>,
    /// When the daemon went on after it had been stopped.
    pub(crate) unfrozen: Option<Instant>,
    /// All energy of its GPU when it was registered and when it ended, in joules.
    pub(crate) energy_j: (f64, f64),
    /// Seconds that it took, and that it would have taken at the limit found, pauses in both.
    pub(crate) took_s: f64,
    pub(crate) base_s: f64,
    /// All of its declared work was done.
    pub(crate) finished: bool,
    /// How long each answered report took, in milliseconds.
    pub(crate) answers: Vec<(Instant, Duration)>,
    /// What the daemon may not say.
    pub(crate) refusals: Vec<String>,
    /// The daemon warned of it.
    pub(crate) warned: bool,
}

/// A running job.
pub(crate) struct Client {
    pub(crate) plan: JobPlan,
    pub(crate) record: Arc<Mutex<Record>>,
    task: tokio::task::JoinHandle<()>,
}

impl Client {
    pub(crate) fn start(plan: JobPlan, seed: u64, driver: Arc<FakeDriver>, address: Address) -> Self {
        let record = Arc::new(Mutex::new(Record::default()));
        // Whoever reports seldom, as from a shell, comes with a new connection each time.
        let http = client(if plan.report_s < 0.5 { 4 } else { 0 });
        let job = Job { plan: plan.clone(), seed, driver, address, record: Arc::clone(&record), http };
        Self { plan, record, task: tokio::spawn(job.run()) }
    }

    pub(crate) fn record(&self) -> Record {
        self.record.lock().expect("not poisoned").clone()
    }

    /// Whether the daemon knew it before a moment, and it goes on.
    pub(crate) fn is_known_since(&self, at: Instant) -> bool {
        let record = self.record();
        // The daemon has had a report or two, and its GPU under control.
        let known = record.registered.is_some_and(|since| at.saturating_duration_since(since) > Duration::from_secs(3));
        known && record.ended.is_none()
    }

    /// The daemon was stopped for so long: no lease goes on meanwhile.
    pub(crate) fn excuse(&self, span: Duration) {
        let mut record = self.record.lock().expect("not poisoned");
        record.last_report = record.last_report.or(record.registered).map(|last| last + span);
        record.unfrozen = Some(Instant::now());
    }

    /// Until when the daemon may keep a limit for it; `None` while nobody knows.
    pub(crate) fn holds_until(&self) -> Option<Instant> {
        let record = self.record();
        if !self.plan.silent {
            return record.ended;
        }
        record
            .ended
            .map(|_| record.last_report.or(record.registered).unwrap_or_else(Instant::now))
            .map(|last| last + Duration::from_secs_f64(self.plan.lease_s + 2.0))
    }

    pub(crate) async fn finish(self) -> (JobPlan, Record) {
        self.task.await.expect("a client does not panic");
        let record = self.record.lock().expect("not poisoned").clone();
        (self.plan, record)
    }
}

pub(crate) fn http() -> reqwest::Client {
    client(4)
}

/// A client that keeps so many connections.
fn client(kept: usize) -> reqwest::Client {
    // Only a second installation fails.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = reqwest::Client::builder().no_proxy().tls_certs_only([]).pool_max_idle_per_host(kept);
    builder.timeout(Duration::from_secs(15)).build().expect("a client")
}

struct Job {
    plan: JobPlan,
    seed: u64,
    driver: Arc<FakeDriver>,
    address: Address,
    record: Arc<Mutex<Record>>,
    http: reqwest::Client,
}

impl Job {
    async fn run(self) {
        if self.register().await.is_none() {
            self.note(|record| record.ended = Some(Instant::now()));
            return;
        }
        self.load(LOAD_W);
        self.train().await;
        self.load(IDLE_W);
        let used = self.driver.used_j(self.plan.gpu);
        self.note(|record| record.energy_j.1 = used);
        if !self.plan.silent {
            self.end().await;
            // It is registered until then: a daemon that was stopped answers late.
            let used = self.driver.used_j(self.plan.gpu);
            self.note(|record| record.energy_j.1 = used);
        }
        self.note(|record| record.ended = Some(Instant::now()));
    }

    fn note(&self, change: impl FnOnce(&mut Record)) {
        change(&mut self.record.lock().expect("not poisoned"));
    }

    fn load(&self, watts: f64) {
        self.driver.set(self.plan.gpu, json!({ "demand_w": watts }));
    }

    /// Asks until the daemon is there and the GPU is free.
    async fn register(&self) -> Option<()> {
        let plan = &self.plan;
        let body = json!({
            "name": format!("trial-{}", plan.gpu), "gpus": [plan.gpu], "lease_s": plan.lease_s,
            "work": {"total_samples": plan.declared_s * rate(CURVE, FOUND_W)},
            "objective": {"max_slowdown": plan.max_slowdown},
        });
        let mut unknown = 0;
        for _ in 0..300 {
            if let Some(base) = self.address.base()
                && let Ok(answer) = self.http.post(format!("{base}/v1/jobs")).json(&body).send().await
            {
                let status = answer.status().as_u16();
                let text = answer.text().await.unwrap_or_default();
                match (status, serde_json::from_str::<Value>(&text)) {
                    (201, Ok(view)) => {
                        let used = self.driver.used_j(plan.gpu);
                        self.note(|record| {
                            record.id = view["job_id"].as_str().map(str::to_owned);
                            record.registered = Some(Instant::now());
                            record.energy_j.0 = used;
                        });
                        return Some(());
                    }
                    (409 | 503, Ok(_)) => {}
                    // A GPU that was lost when the daemon came has no index before it is back.
                    (404, Ok(_)) if unknown < UNKNOWN => unknown += 1,
                    _ => self.note(|record| record.refusals.push(format!("registration: {status} {text}"))),
                }
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        None
    }

    async fn train(&self) {
        let plan = &self.plan;
        let total = plan.declared_s * rate(CURVE, FOUND_W);
        let (mut done, mut paused, mut reported) = (0.0_f64, false, Instant::now());
        let mut asking: Option<tokio::task::JoinHandle<()>> = None;
        let begun = Instant::now();
        let mut last = begun;
        while begun.elapsed().as_secs_f64() < plan.runs_s && done < total {
            tokio::time::sleep(STEP).await;
            let now = Instant::now();
            let step_s = (now - last).as_secs_f64();
            last = now;
            let at_s = (now - begun).as_secs_f64();
            if self.pauses_at(at_s) != paused {
                paused = !paused;
                self.load(plan.pauses.filter(|_| paused).map_or(LOAD_W, |p| p.watts));
            }
            let (took_s, base_s) = if paused {
                (step_s, step_s)
            } else {
                let pace = self.driver.limit_w(plan.gpu).map_or(0.0, |limit| rate(CURVE, limit));
                let wanted = pace * self.speed(done) * step_s;
                // The last step ends when the work does.
                let part = if wanted > 0.0 { ((total - done) / wanted).clamp(0.0, 1.0) } else { 1.0 };
                done += wanted * part;
                (step_s * part, step_s * part * pace / rate(CURVE, FOUND_W))
            };
            let finished = done >= total;
            self.note(|record| {
                record.took_s += took_s;
                record.base_s += base_s;
                record.finished = finished;
            });
            let due = now - reported >= Duration::from_secs_f64(plan.report_s) && !paused;
            if (due || finished) && asking.as_ref().is_none_or(tokio::task::JoinHandle::is_finished) {
                reported = now;
                asking = self.report(done, at_s);
            }
        }
        if let Some(asking) = asking {
            let _ = asking.await;
        }
    }

    fn pauses_at(&self, at_s: f64) -> bool {
        self.plan.pauses.is_some_and(|p| at_s % (p.every_s + p.for_s) > p.every_s)
    }

    /// Its speed relative to the mean, which follows from the work done alone: the same at any limit.
    fn speed(&self, done: f64) -> f64 {
        let grain = (done / GRAIN) as u64;
        let mut dice = ChaCha8Rng::seed_from_u64(self.seed ^ (grain << 20));
        1.0 + self.plan.noise * dice.random_range(-1.7..1.7)
    }

    fn report(&self, samples: f64, at_s: f64) -> Option<tokio::task::JoinHandle<()>> {
        let base = self.address.base()?;
        let id = self.record.lock().expect("not poisoned").id.clone()?;
        let lease_s = self.plan.lease_s;
        let (http, record, address) = (self.http.clone(), Arc::clone(&self.record), self.address.clone());
        Some(tokio::spawn(async move {
            let asked = Instant::now();
            let url = format!("{base}/v1/jobs/{id}/progress");
            let answer = http.post(url).json(&json!({ "samples": samples, "at_s": at_s })).send().await;
            let stays = address.base().as_ref() == Some(&base);
            let mut record = record.lock().expect("not poisoned");
            match answer {
                Ok(answer) if answer.status().is_success() => {
                    record.last_report = Some(Instant::now());
                    if record.unfrozen.is_none_or(|since| since < asked) {
                        record.answers.push((asked, asked.elapsed()));
                    }
                }
                // 503: the daemon says that it cannot at the moment.
                Ok(answer) if answer.status().as_u16() != 503 => {
                    let last = record.last_report.or(record.registered);
                    let silence = last.map_or(0.0, |last| last.elapsed().as_secs_f64());
                    // A lease that ran out in a pause, or while the daemon was away, is over.
                    if silence < 0.9 * lease_s {
                        record.refusals.push(format!("report {silence:.1} s after the last: {}", answer.status()));
                    }
                }
                Err(error) if stays => {
                    let what = format!("report: {}", if error.is_timeout() { "no answer" } else { "no connection" });
                    if !record.refusals.contains(&what) {
                        record.refusals.push(what);
                    }
                }
                _ => {}
            }
        }))
    }

    async fn end(&self) {
        let Some(id) = self.record.lock().expect("not poisoned").id.clone() else { return };
        for _ in 0..150 {
            if let Some(base) = self.address.base() {
                let url = format!("{base}/v1/jobs/{id}");
                if let Ok(view) = self.http.get(&url).send().await
                    && let Ok(view) = view.json::<Value>().await
                {
                    let warned = view["warnings"].as_array().is_some_and(|w| !w.is_empty());
                    self.note(|record| record.warned |= warned);
                }
                if let Ok(answer) = self.http.delete(&url).send().await
                    && answer.status().as_u16() != 503
                {
                    return;
                }
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        self.note(|record| record.refusals.push("it could not be ended for 30 s".into()));
    }
}
