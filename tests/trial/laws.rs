//! What must hold at every moment of a trial.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::case::{BOARDS, FOUND_W, Fault};

/// Above its default a GPU may be set only if nobody had lowered its limit.
const DEFAULT_W: f64 = 320.0;
/// A limit that nobody wants is back by then, also on a machine that is busy.
const BACK: Duration = Duration::from_secs(12);
/// A GPU that is not measured or steered as wanted is a problem by then.
const KNOWN: Duration = Duration::from_secs(14);

/// What a trial knows of one GPU at a moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) limit_w: Option<f64>,
    /// A job, somebody's wish or a fault may keep its limit where it is.
    pub(crate) is_wanted: bool,
    /// What somebody asked for through the API, while nothing else is wrong with the GPU but `fault`.
    pub(crate) asked_w: Option<f64>,
}

/// A fault, and whether the daemon said so.
#[derive(Clone, Debug)]
pub(crate) struct Suffered {
    pub(crate) gpu: usize,
    pub(crate) fault: Fault,
    pub(crate) since: Instant,
    pub(crate) is_reported: bool,
}

/// Keeps watch over the GPUs' limits and over what the daemon says.
pub(crate) struct Laws {
    /// The limits that a GPU may be given back to: more than one where nobody could have known which.
    found_w: [BTreeSet<u32>; BOARDS],
    wanted_at: [Instant; BOARDS],
    /// What another program set under a job, which is to stay until that job ends.
    theirs_w: [Option<(u32, usize)>; BOARDS],
    pub(crate) breaches: Vec<String>,
    begun: Instant,
}

impl Laws {
    pub(crate) fn new() -> Self {
        let begun = Instant::now();
        Self {
            found_w: std::array::from_fn(|_| BTreeSet::from([FOUND_W as u32])),
            wanted_at: [begun; BOARDS],
            theirs_w: [None; BOARDS],
            breaches: Vec::new(),
            begun,
        }
    }

    pub(crate) fn breach(&mut self, what: impl std::fmt::Display) {
        self.breaches.push(format!("{:.1} s: {what}", self.begun.elapsed().as_secs_f64()));
    }

    /// When that was, in seconds from the start.
    pub(crate) fn seconds(&self, at: Instant) -> f64 {
        at.saturating_duration_since(self.begun).as_secs_f64()
    }

    /// Another program has set a limit. What was there before may be what the daemon gives back, if it was just writing.
    pub(crate) fn set_by_others(&mut self, gpu: usize, watts: u32, is_sure: bool) {
        if is_sure {
            self.found_w[gpu].clear();
        }
        self.found_w[gpu].insert(watts);
        self.wanted_at[gpu] = Instant::now();
        self.theirs_w[gpu] = None;
    }

    /// What another program has just set is left alone from now on for as long as a job goes on, or not any more.
    pub(crate) fn leave_alone(&mut self, gpu: usize, theirs: Option<(u32, usize)>) {
        self.theirs_w[gpu] = theirs;
    }

    /// The job for whose time another program's limit is left alone.
    pub(crate) fn left_alone_for(&self, gpu: usize) -> Option<usize> {
        self.theirs_w[gpu].map(|(_, job)| job)
    }

    pub(crate) fn is_found(&self, gpu: usize, limit_w: f64) -> bool {
        self.found_w[gpu].iter().any(|found| (f64::from(*found) - limit_w).abs() < 0.5)
    }

    /// What was found, in words.
    pub(crate) fn found(&self, gpu: usize) -> String {
        format!("{:?} W", self.found_w[gpu])
    }

    /// No limit above the ceiling, and none that nobody wants.
    pub(crate) fn limit(&mut self, gpu: usize, seen: Seen) {
        let now = Instant::now();
        let Some(limit_w) = seen.limit_w else { return };
        let ceiling = |found: &u32| if f64::from(*found) < DEFAULT_W { f64::from(*found) } else { 350.0 };
        let highest = self.found_w[gpu].iter().map(ceiling).fold(0.0, f64::max);
        if limit_w > highest + 0.5 {
            self.breach(format!("GPU {gpu} has a limit of {limit_w} W, above its ceiling of {highest} W"));
            // Once is enough.
            self.found_w[gpu].insert(limit_w as u32);
        }
        let theirs = self.theirs_w[gpu].map(|(watts, _)| watts);
        if let Some(theirs) = theirs.filter(|theirs| (f64::from(*theirs) - limit_w).abs() > 0.5) {
            self.breach(format!(
                "another program set GPU {gpu} to {theirs} W under a job, and it is now at {limit_w} W"
            ));
            self.theirs_w[gpu] = None;
        }
        if seen.is_wanted || self.is_found(gpu, limit_w) {
            self.wanted_at[gpu] = now;
        } else if now - self.wanted_at[gpu] > BACK {
            let found = self.found(gpu);
            self.breach(format!("GPU {gpu} stays at {limit_w} W, which nobody wants; found at {found}"));
            self.wanted_at[gpu] = now + Duration::from_secs(60);
        }
    }

    /// Every fault that lasts is told. `problems` are the status' sentences.
    pub(crate) fn problems(&mut self, faults: &mut [Suffered], up_since: Instant, seen: &[Seen], problems: &Value) {
        let now = Instant::now();
        let reported =
            problems.as_array().map(|list| list.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("\n"));
        let reported = reported.unwrap_or_default();
        for suffered in faults.iter_mut().filter(|f| !f.is_reported && f.fault.is_a_problem()) {
            let gpu = suffered.gpu;
            let steering = matches!(suffered.fault, Fault::SetsFail | Fault::SetsIgnored | Fault::SetsDenied);
            let is_off =
                seen[gpu].asked_w.is_some_and(|asked| seen[gpu].limit_w.is_some_and(|l| (l - asked).abs() > 1.0));
            if steering && !is_off {
                suffered.since = now;
            } else if reported.contains(&format!("GPU {gpu}")) {
                suffered.is_reported = true;
            } else if now.duration_since(suffered.since.max(up_since)) > KNOWN {
                suffered.is_reported = true;
                let fault = suffered.fault;
                self.breach(format!("GPU {gpu} suffers {fault:?} for {KNOWN:?} and `problems` says: {reported:?}"));
            }
        }
    }
}
