//! The thread that reads the node's CPUs, and accumulates energy and CPU time in totals that only grow.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{CpuSource, Node, ProcessUser, Usage, ZoneReading};
use crate::clock::Clock;
use crate::gpu::handle::Sampling;
use wattune_core::domain::{DeviceId, InvalidJob, JobId, Process, ProcessSelector, Processes};
use wattune_core::ledger::{CounterPosition, Metered, WrappingCounter};
use wattune_core::time::{Monotonic, Now};
use wattune_core::units::{Seconds, Watts};

/// The shortest interval between readings, however small a counter's range is.
const SHORTEST_PERIOD: Seconds = Seconds::new(0.05);

/// The latest state of one RAPL zone.
#[derive(Clone, Debug, PartialEq)]
pub struct ZoneState {
    /// The measured device.
    pub device: DeviceId,
    /// The zone's directory.
    pub path: String,
    /// The time of the latest reading, if there is one.
    pub at: Option<Now>,
    /// The energy since the daemon's first reading of the zone.
    pub metered: Metered,
    /// The latest counter value in microjoules, up to which `metered` includes the counter's increase.
    pub counter_uj: Option<u64>,
    /// The value in microjoules at which the counter wraps to zero.
    pub range_uj: Option<u64>,
    /// The mean power between the latest two readings; `None` while the zone cannot be read.
    pub power: Option<Watts>,
    /// The number of times that the counter wrapped to zero.
    pub wraps: u32,
    /// The number of counter resets.
    pub resets: u32,
    /// The number of counter increases that exceed the energy that a package can use.
    pub jumps: u32,
    /// The number of times that the zone was read from another of its counters than before.
    pub moves: u32,
    /// The reason why the zone cannot be read, with the remedy; `None` if it can.
    pub problem: Option<String>,
}

/// The CPU time since the daemon started, in microseconds. It only grows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TimeState {
    /// The available CPU time: number of cores × time.
    pub capacity_us: u64,
    /// The CPU time of all processes.
    pub busy_us: u64,
    /// The CPU time of each job's processes since [`CpuHandle::follow`].
    pub jobs: BTreeMap<JobId, u64>,
}

/// The latest state of the node's CPUs, as last read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observation {
    /// The time of the latest reading, if there is one.
    pub at: Option<Now>,
    /// All zones that are or once were present, packages first.
    pub zones: Vec<ZoneState>,
    /// The CPU time since the daemon started.
    pub time: TimeState,
    /// The latest reading of CPU time.
    pub usage: Usage,
    /// The reasons why zones cannot be read.
    pub problems: Vec<String>,
}

/// The daemon's handle for reading the node's CPUs.
#[derive(Clone)]
pub struct CpuHandle {
    clock: Arc<dyn Clock>,
    source: CpuSource,
    pid_namespace: Option<u64>,
    on_request: bool,
    worker: Arc<Mutex<Worker>>,
    observed: Arc<Mutex<Arc<Observation>>>,
}

impl CpuHandle {
    /// Wraps a node in a handle. With [`Sampling::Every`], a thread reads the node at the given interval, or more often
    /// if a counter could wrap twice within it. The thread ends when the last clone of the handle is dropped.
    pub fn start(node: Box<dyn Node>, clock: Arc<dyn Clock>, sampling: Sampling) -> Self {
        let (source, pid_namespace) = (node.source(), node.pid_namespace());
        let worker = Worker { node, meters: BTreeMap::new(), last: None, observation: Observation::default() };
        let on_request = sampling == Sampling::OnRequest;
        let (worker, observed) = (Arc::new(Mutex::new(worker)), Arc::default());
        let handle = Self { clock, source, pid_namespace, on_request, worker, observed };
        if let Sampling::Every(period) = sampling {
            let (worker, observed) = (Arc::downgrade(&handle.worker), handle.observed.clone());
            let clock = handle.clock.clone();
            let body = move || {
                while let Some(worker) = worker.upgrade() {
                    let wait = {
                        let mut worker = lock(&worker);
                        *lock(&observed) = worker.sample(&*clock);
                        worker.period(period)
                    };
                    drop(worker);
                    std::thread::sleep(wait.to_std());
                }
            };
            // Without the thread, the CPUs are never read; the status API reports this.
            if let Err(error) = std::thread::Builder::new().name("cpu".into()).spawn(body) {
                tracing::error!(%error, "cannot start the thread that reads CPU energy; CPU energy is not recorded");
            }
        }
        handle
    }

    /// Returns the source of the energy: `rapl` or `simulated`.
    pub fn source(&self) -> CpuSource {
        self.source
    }

    /// Returns the inode number of the namespace of process ids in which jobs name their processes; `None` if unknown.
    pub fn pid_namespace(&self) -> Option<u64> {
        self.pid_namespace
    }

    /// Returns the latest state without waiting.
    pub fn observe(&self) -> Arc<Observation> {
        lock(&self.observed).clone()
    }

    /// Reads everything now if the handle has no thread ([`Sampling::OnRequest`]).
    pub fn refresh(&self) {
        if self.on_request {
            self.sample();
        }
    }

    /// Reads everything now and returns the new state. Blocks the calling thread: not for async tasks.
    pub fn sample(&self) -> Arc<Observation> {
        let observed = lock(&self.worker).sample(&*self.clock);
        *lock(&self.observed) = observed.clone();
        observed
    }

    /// Returns a state that is at most `age` old, after a new reading if needed. Blocks the calling thread: not for
    /// async tasks.
    pub fn sample_within(&self, age: Seconds) -> Arc<Observation> {
        let mut worker = lock(&self.worker);
        let now = self.clock.monotonic();
        let known = worker.observation.at.is_some_and(|at| now.since(at.monotonic) <= age);
        let observed = if known { Arc::new(worker.observation.clone()) } else { worker.sample(&*self.clock) };
        *lock(&self.observed) = observed.clone();
        observed
    }

    /// Returns the processes or the control group that a job named, after a check that they exist. Blocks: not for
    /// async tasks.
    pub fn resolve(&self, selector: &ProcessSelector) -> Result<Processes, InvalidJob> {
        lock(&self.worker).node.resolve(selector)
    }

    /// Checks that processes are those of a user, as [`Node::check_user`]. Blocks: not for async tasks.
    ///
    /// # Errors
    /// The reason why they are not.
    pub fn check_user(&self, processes: &Processes, user: u32) -> Result<(), String> {
        lock(&self.worker).node.check_user(processes, user)
    }

    /// Returns the users of processes, as [`Node::users`]. Blocks: not for async tasks.
    pub fn users(&self, pids: &[u32]) -> Vec<ProcessUser> {
        lock(&self.worker).node.users(pids)
    }

    /// Counts a job's CPU time from now on. Blocks the calling thread: not for async tasks.
    pub fn follow(&self, job: &JobId, processes: &Processes) {
        let mut worker = lock(&self.worker);
        worker.node.follow(job, processes);
        let observed = worker.sample(&*self.clock);
        *lock(&self.observed) = observed;
    }

    /// Counts the CPU time of further processes for a job that the daemon found by itself. Blocks the calling thread: not for async tasks.
    pub fn extend(&self, job: &JobId, found: &[Process]) {
        lock(&self.worker).node.extend(job, found);
    }

    /// Stops counting a job's CPU time. Blocks the calling thread: not for async tasks.
    pub fn unfollow(&self, job: &JobId) {
        lock(&self.worker).node.unfollow(job);
    }
}

struct Worker {
    node: Box<dyn Node>,
    meters: BTreeMap<DeviceId, ZoneMeter>,
    /// First the time of the latest reading of CPU time; second the CPU time in microseconds that all processes had
    /// used by then, if known.
    last: Option<(Monotonic, Option<u64>)>,
    observation: Observation,
}

/// Meters a zone's energy, which may come from different counters of the same package over time.
struct ZoneMeter {
    /// The directory of the counter that was read last.
    path: String,
    meter: WrappingCounter,
    /// Last values of the counters that were read before the counter at `path`, by their directories.
    marks: BTreeMap<String, CounterPosition>,
}

impl ZoneMeter {
    fn at(path: &str) -> Self {
        Self { path: path.to_owned(), meter: WrappingCounter::default(), marks: BTreeMap::new() }
    }

    /// Records a counter value. Returns true if it comes from another counter than the previous value.
    fn record(&mut self, at: Monotonic, counter_uj: u64, range_uj: Option<u64>, path: &str) -> bool {
        if self.path == path {
            self.meter.observe(at, counter_uj, range_uj);
            return false;
        }
        let before = std::mem::replace(&mut self.path, path.to_owned());
        self.marks.extend(self.meter.mark().map(|mark| (before, mark)));
        self.meter.rebase(at, counter_uj, range_uj, self.marks.remove(path));
        true
    }
}

impl Worker {
    /// Returns the reading interval: `asked`, or a shorter one if a counter could wrap twice within it.
    fn period(&self, asked: Seconds) -> Seconds {
        let ranges = self.observation.zones.iter().filter_map(|zone| zone.range_uj);
        let needed = ranges.map(|range| WrappingCounter::longest_span(range) / 2.0).reduce(Seconds::min);
        needed.map_or(asked, |needed| asked.min(needed.max(SHORTEST_PERIOD)))
    }

    fn sample(&mut self, clock: &dyn Clock) -> Arc<Observation> {
        let usage = self.node.usage();
        let zones = self.node.zones();
        // The clock is read after the counters, so that the time fits the values.
        let now = clock.now();
        self.record_usage(usage, now);
        self.record_zones(zones.readings, now);
        self.observation.problems = zones.problems;
        self.observation.at = Some(now);
        Arc::new(self.observation.clone())
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time since the last reading")]
    fn record_usage(&mut self, usage: Usage, now: Now) {
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

    fn record_zones(&mut self, readings: Vec<ZoneReading>, now: Now) {
        for zone in &mut self.observation.zones {
            if !readings.iter().any(|reading| reading.device == zone.device) {
                let since = zone.at.map(|at| format!(" since {}", at.utc.format("%FT%TZ"))).unwrap_or_default();
                zone.problem.get_or_insert_with(|| format!("{} is missing{since}", zone.path));
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
                    zone.moves += u32::from(meter.record(now.monotonic, counter, reading.range_uj, &zone.path));
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
    /// Returns the kernel's name of the counter (`intel-rapl:0`), independent of where its files are mounted.
    pub fn counter_id(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    /// Returns warnings about the zone. If the zone cannot be read, the first one says so.
    pub fn concerns(&self) -> Vec<String> {
        let jumps = (self.jumps > 0).then(|| {
            format!(
                "its counter jumped forward by more than any package can use, {} time(s); that energy is recorded as a gap",
                self.jumps
            )
        });
        let moves = (self.moves > 0).then(|| {
            format!(
                "it is read from another counter than before, {} time(s), now {}; energy used at the change is missing \
                 until the first counter is back",
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
