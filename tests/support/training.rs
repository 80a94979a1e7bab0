//! A training job in real time: its throughput follows the limit that the fake GPU really has.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use super::FakeDriver;

/// Limit in watts and samples per second there; linear in between.
pub(crate) type Curve = &'static [(f64, f64)];

/// A client that reports progress ten times a second until it is told to stop.
pub(crate) struct Training {
    stop: Arc<AtomicBool>,
    base: Arc<Mutex<String>>,
    task: tokio::task::JoinHandle<Vec<Value>>,
}

/// What a job does in a second at a limit.
pub(crate) fn rate(curve: Curve, limit: f64) -> f64 {
    let next = curve.partition_point(|p| p.0 < limit);
    match (next.checked_sub(1).map(|i| curve[i]), curve.get(next)) {
        (Some(a), Some(b)) => a.1 + (b.1 - a.1) * (limit - a.0) / (b.0 - a.0),
        (Some(a), None) => a.1,
        (None, Some(b)) => b.1,
        (None, None) => 0.0,
    }
}

impl Training {
    /// Trains as job `id` of the daemon at `base` on these GPUs, at the pace of the slowest, beginning with `done`
    /// samples.
    pub(crate) fn start(base: &str, id: &str, driver: &Arc<FakeDriver>, gpus: Vec<(usize, Curve)>, done: f64) -> Self {
        let pace = move |driver: &FakeDriver| {
            let each = gpus.iter().filter_map(|(b, curve)| Some(rate(curve, driver.limit_w(*b)?)));
            each.fold(f64::INFINITY, f64::min)
        };
        Self::start_at(base, id, driver, pace, done)
    }

    /// As [`Self::start`], at a pace that follows from what the GPUs are set to.
    pub(crate) fn start_at(
        base: &str,
        id: &str,
        driver: &Arc<FakeDriver>,
        pace: impl Fn(&FakeDriver) -> f64 + Send + 'static,
        mut done: f64,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (reported, driver) = (stop.clone(), driver.clone());
        let path = format!("/v1/jobs/{id}/progress");
        let base = Arc::new(Mutex::new(base.to_owned()));
        let target = base.clone();
        let client = reqwest::Client::builder().no_proxy().tls_certs_only([]).build().expect("a client");
        let task = tokio::spawn(async move {
            let mut answers = Vec::new();
            let begun = super::now();
            let mut last = 0.0;
            while !reported.load(Ordering::Relaxed) {
                tokio::time::sleep(Duration::from_millis(100)).await;
                let at = (super::now() - begun).as_seconds_f64();
                done += pace(&driver) * (at - last);
                last = at;
                let body = json!({ "samples": done, "at_s": at });
                let url = format!("{}{path}", target.lock().expect("not poisoned"));
                // A daemon that was killed comes back, or the test ends.
                if let Ok(answer) = client.post(&url).json(&body).send().await
                    && let Ok(answer) = answer.json().await
                {
                    answers.push(answer);
                }
            }
            answers
        });
        Self { stop, base, task }
    }

    /// Reports to another daemon from now on.
    pub(crate) fn report_to(&self, base: &str) {
        *self.base.lock().expect("not poisoned") = base.to_owned();
    }

    /// Stops training; answers with what the daemon said to each report.
    pub(crate) async fn stop(self) -> Vec<Value> {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.expect("no panic")
    }
}
