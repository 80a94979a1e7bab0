//! A thread that reads the node's CPUs, and what it makes of the readings: metered energy and CPU time that only grow.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Node, Usage, ZoneReading};
use crate::clock::Clock;
use wattune_core::domain::{Claim, DeviceId, InvalidJob, JobId, Processes};
use wattune_core::ledger::{Mark, Metered, WrappingMeter};
use wattune_core::time::{Monotonic, Now};
use wattune_core::units::{Seconds, Watts};

/// When the CPUs are read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// On a thread of its own, this often; more often where a counter could otherwise turn twice in between.
    Every(Seconds),
    /// Only when [`CpuHandle::sample`] is called: for clocks that do not run by themselves.
    OnRequest,
}

/// Readings are not closer together than this, whatever a counter's range.
const FASTEST: Seconds = Seconds::new(0.05);

/// One zone as it is known.
#[derive(Clone, Debug, PartialEq)]
pub struct ZoneState {
    /// What it measures.
    pub device: DeviceId,
    /// Where it is read.
    pub path: String,
    /// When it was read last; absent before it ever was.
    pub at: Option<Now>,
    /// Energy since the daemon first read it.
    pub metered: Metered,
    /// The counter's last value in microjoules, consistent with `metered`.
    pub counter_uj: Option<u64>,
    /// Where the counter starts again from zero, in microjoules.
    pub range_uj: Option<u64>,
    /// Mean power between the last two readings; absent while it is not read.
    pub power: Option<Watts>,
    /// How often the counter turned.
    pub wraps: u32,
    /// How often it was reset.
    pub resets: u32,
    /// How often it went forward by more than any package can use.
    pub jumps: u32,
    /// How often it was read elsewhere than before, from another counter.
    pub moves: u32,
    /// Why it is not read now, in words a person can act on.
    pub problem: Option<String>,
}

/// CPU time since the daemon started, in microseconds. It only grows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TimeState {
    /// All there was: cores × time.
    pub capacity_us: u64,
    /// What all processes used of it.
    pub busy_us: u64,
    /// What each followed job's processes used since it is followed.
    pub jobs: BTreeMap<JobId, u64>,
}

/// All that is known at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observation {
    /// When it was read; absent before the first reading.
    pub at: Option<Now>,
    /// Zones that are or were there, packages first.
    pub zones: Vec<ZoneState>,
    /// CPU time.
    pub time: TimeState,
    /// The last reading of it.
    pub usage: Usage,
    /// What keeps zones from being read.
    pub problems: Vec<String>,
}

/// The daemon's end of the node's CPUs.
#[derive(Clone)]
pub struct CpuHandle {
    clock: Arc<dyn Clock>,
    source: &'static str,
    on_request: bool,
    worker: Arc<Mutex<Worker>>,
    seen: Arc<Mutex<Arc<Observation>>>,
}

impl CpuHandle {
    /// Puts a node behind a handle. With [`Pace::Every`] its thread ends when the last handle has gone.
    pub fn start(node: Box<dyn Node>, clock: Arc<dyn Clock>, pace: Pace) -> Self {
        let source = node.source();
        let worker = Worker { node, meters: BTreeMap::new(), last: None, observation: Observation::default() };
        let on_request = pace == Pace::OnRequest;
        let handle = Self { clock, source, on_request, worker: Arc::new(Mutex::new(worker)), seen: Arc::default() };
        if let Pace::Every(period) = pace {
            let (worker, seen) = (Arc::downgrade(&handle.worker), handle.seen.clone());
            let clock = handle.clock.clone();
            let body = move || {
                while let Some(worker) = worker.upgrade() {
                    let wait = {
                        let mut worker = lock(&worker);
                        *lock(&seen) = worker.sample(&*clock);
                        worker.period(period)
                    };
                    drop(worker);
                    std::thread::sleep(wait.to_std());
                }
            };
            // Without the thread, CPUs are never read, which shows as just that.
            if let Err(error) = std::thread::Builder::new().name("cpu".into()).spawn(body) {
                tracing::error!(%error, "cannot start the thread that reads the CPUs");
            }
        }
        handle
    }

    /// Where its energy comes from: `rapl` or `simulated`.
    pub fn source(&self) -> &'static str {
        self.source
    }

    /// The newest that is known, without waiting.
    pub fn observe(&self) -> Arc<Observation> {
        lock(&self.seen).clone()
    }

    /// Reads everything now if nobody else does ([`Pace::OnRequest`]).
    pub fn refresh(&self) {
        if self.on_request {
            self.sample();
        }
    }

    /// Reads everything now. Blocks: not for async tasks.
    pub fn sample(&self) -> Arc<Observation> {
        let seen = lock(&self.worker).sample(&*self.clock);
        *lock(&self.seen) = seen.clone();
        seen
    }

    /// Finds the processes that a job claims. Blocks: not for async tasks.
    ///
    /// # Errors
    /// If they are not there.
    pub fn resolve(&self, claim: &Claim) -> Result<Processes, InvalidJob> {
        lock(&self.worker).node.resolve(claim)
    }

    /// Counts a job's CPU time from now on. Blocks: not for async tasks.
    pub fn follow(&self, job: &JobId, processes: &Processes) {
        let mut worker = lock(&self.worker);
        worker.node.follow(job, processes);
        let seen = worker.sample(&*self.clock);
        *lock(&self.seen) = seen;
    }

    /// Counts it no longer. Blocks: not for async tasks.
    pub fn unfollow(&self, job: &JobId) {
        lock(&self.worker).node.unfollow(job);
    }
}

struct Worker {
    node: Box<dyn Node>,
    meters: BTreeMap<DeviceId, ZoneMeter>,
    /// When CPU time was read last, and the node's counter of it then.
    last: Option<(Monotonic, Option<u64>)>,
    observation: Observation,
}

/// A zone's meter, whichever of several counters of the same package it is read from.
struct ZoneMeter {
    /// Where its last reading came from.
    path: String,
    meter: WrappingMeter,
    /// Where others were left.
    left: BTreeMap<String, Mark>,
}

impl ZoneMeter {
    fn at(path: &str) -> Self {
        Self { path: path.to_owned(), meter: WrappingMeter::default(), left: BTreeMap::new() }
    }

    /// Takes a reading; answers whether it comes from another counter than the one before.
    fn take(&mut self, at: Monotonic, counter_uj: u64, range_uj: Option<u64>, path: &str) -> bool {
        if self.path == path {
            self.meter.observe(at, counter_uj, range_uj);
            return false;
        }
        let before = std::mem::replace(&mut self.path, path.to_owned());
        self.left.extend(self.meter.mark().map(|mark| (before, mark)));
        self.meter.rebase(at, counter_uj, range_uj, self.left.remove(path));
        true
    }
}

impl Worker {
    /// The pace that counters need: half of the time in which the smallest could turn.
    fn period(&self, asked: Seconds) -> Seconds {
        let ranges = self.observation.zones.iter().filter_map(|zone| zone.range_uj);
        let needed = ranges.map(|range| WrappingMeter::longest_span(range) / 2.0).reduce(Seconds::min);
        needed.map_or(asked, |needed| asked.min(needed.max(FASTEST)))
    }

    fn sample(&mut self, clock: &dyn Clock) -> Arc<Observation> {
        let usage = self.node.usage();
        let zones = self.node.zones();
        // The clock after the counters: energy, CPU time and time belong together.
        let now = clock.now();
        self.take_usage(usage, now);
        self.take_zones(zones.readings, now);
        self.observation.problems = zones.problems;
        self.observation.at = Some(now);
        Arc::new(self.observation.clone())
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time since the last reading")]
    fn take_usage(&mut self, usage: Usage, now: Now) {
        let time = &mut self.observation.time;
        if let Some((then, before)) = self.last.replace((now.monotonic, usage.busy_us)) {
            let span = now.monotonic.since(then).get() * 1e6;
            time.capacity_us += (span * f64::from(usage.cores.unwrap_or_default())).round() as u64;
            if let (Some(before), Some(busy)) = (before, usage.busy_us) {
                time.busy_us += busy.saturating_sub(before);
            }
        }
        time.jobs = usage.jobs.iter().map(|(job, used)| (job.clone(), used.used_us)).collect();
        self.observation.usage = usage;
    }

    fn take_zones(&mut self, readings: Vec<ZoneReading>, now: Now) {
        for zone in &mut self.observation.zones {
            if !readings.iter().any(|reading| reading.device == zone.device) {
                let since = zone.at.map(|at| format!(" since {}", at.utc.format("%FT%TZ"))).unwrap_or_default();
                zone.problem.get_or_insert_with(|| format!("{} is not there{since}", zone.path));
                zone.power = None;
            }
        }
        for reading in readings {
            let known = self.observation.zones.iter().position(|zone| zone.device == reading.device);
            let place = known.unwrap_or_else(|| {
                self.observation.zones.push(ZoneState::unread(&reading));
                self.observation.zones.len() - 1
            });
            let zone = &mut self.observation.zones[place];
            (zone.path, zone.range_uj) = (reading.path, reading.range_uj);
            match reading.counter_uj {
                Ok(counter) => {
                    let meter = self.meters.entry(reading.device).or_insert_with(|| ZoneMeter::at(&zone.path));
                    zone.moves += u32::from(meter.take(now.monotonic, counter, reading.range_uj, &zone.path));
                    let meter = &meter.meter;
                    zone.at = Some(now);
                    zone.counter_uj = Some(counter);
                    zone.metered = meter.metered();
                    zone.power = meter.power();
                    (zone.wraps, zone.resets, zone.jumps) = (meter.wraps(), meter.resets(), meter.jumps());
                    zone.problem = None;
                }
                Err(problem) => (zone.power, zone.problem) = (None, Some(problem)),
            }
        }
    }
}

impl ZoneState {
    /// The kernel's name for the counter, wherever its files are shown: `intel-rapl:0`.
    pub fn counter_id(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    /// What somebody should look at, in words; that it is not read now first.
    pub fn concerns(&self) -> Vec<String> {
        let jumps = (self.jumps > 0).then(|| {
            format!(
                "its counter went ahead by more than any package can use, {} time(s); that energy is booked as a gap's",
                self.jumps
            )
        });
        let moves = (self.moves > 0).then(|| {
            format!(
                "it is read from another counter than before, {} time(s), now {}; what was used at the change is in no \
                 book until the first counter is back",
                self.moves, self.path
            )
        });
        self.problem
            .clone()
            .into_iter()
            .chain(jumps)
            .chain(moves)
            .map(|why| format!("{}: {why}", self.device))
            .collect()
    }

    fn unread(reading: &ZoneReading) -> Self {
        Self {
            device: reading.device.clone(),
            path: reading.path.clone(),
            at: None,
            metered: Metered::default(),
            counter_uj: None,
            range_uj: reading.range_uj,
            power: None,
            wraps: 0,
            resets: 0,
            jumps: 0,
            moves: 0,
            problem: None,
        }
    }
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
