//! The daemon's handle of a GPU. Each GPU has a thread of its own, so that a hanging driver call blocks that GPU only.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, SyncSender, TrySendError};
use std::sync::{Arc, Mutex};

use tokio::sync::{Notify, oneshot};

use super::thread::{GpuThread, READING, Reader, Readers, Request, Shared, Task, WriteProgress, notify_of};
use super::worker::{Observation, Watching, Worker, Write, lock};
use super::{Capabilities, GpuDevice, GpuError};
use crate::clock::Clock;
use wattune_core::domain::{GpuIdentity, PowerLimit};
use wattune_core::units::{Millijoules, Seconds};

/// The times at which a device is read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sampling {
    /// Reads on a thread of the device's own, at this interval.
    Every(Seconds),
    /// Reads on the caller's thread at each refresh of the handle, for clocks that advance only on command.
    OnRequest,
}

/// The daemon's handle for reading and writing a GPU. Clones are cheap and share the GPU.
#[derive(Clone)]
pub struct GpuHandle(Arc<Parts>);

struct Parts {
    identity: GpuIdentity,
    clock: Arc<dyn Clock>,
    call_timeout: Seconds,
    shared: Arc<Mutex<Shared>>,
    link: Link,
    watching: Arc<Watching>,
    recorded_ahead: Arc<Mutex<Option<Millijoules>>>,
    readers: Arc<Readers>,
    write_progress: WriteProgress,
}

enum Link {
    Thread(SyncSender<Request>),
    Inline(Box<Mutex<Worker>>),
}

impl GpuHandle {
    /// Wraps a device in a handle and starts the device's thread, unless `sampling` is [`Sampling::OnRequest`].
    /// `full_every` is the interval of full reads; reads in between fetch energy and power only. A driver call that
    /// takes longer than `call_timeout` is reported as a fault.
    pub fn start(
        device: Box<dyn GpuDevice>,
        clock: Arc<dyn Clock>,
        sampling: Sampling,
        full_every: Seconds,
        call_timeout: Seconds,
    ) -> Self {
        let identity = device.identity().clone();
        let (watching, recorded_ahead) = (Arc::new(Watching::default()), Arc::new(Mutex::new(None)));
        let worker = Worker::new(device, full_every, watching.clone(), recorded_ahead.clone());
        let shared = Shared {
            observation: worker.observation().clone(),
            capabilities: worker.capabilities().clone(),
            busy: None,
            has_accepted: false,
        };
        let (shared, readers) = (Arc::new(Mutex::new(shared)), Arc::new(Readers::default()));
        let write_progress = WriteProgress::default();
        let link = match sampling {
            Sampling::OnRequest => Link::Inline(Box::new(Mutex::new(worker))),
            Sampling::Every(period) => {
                // One place for a read or a write, and one for the callers that wait for a reading.
                let (sender, requests) = mpsc::sync_channel(2);
                let thread = GpuThread {
                    worker,
                    requests,
                    period,
                    clock: clock.clone(),
                    shared: shared.clone(),
                    readers: readers.clone(),
                    write_progress: write_progress.clone(),
                };
                let index = identity.index;
                if let Err(error) = std::thread::Builder::new().name(format!("gpu{index}")).spawn(|| thread.run()) {
                    tracing::error!(gpu.index = index, %error, "cannot start the GPU's thread");
                    let message = format!("the GPU's thread cannot be started: {error}");
                    let fault = GpuError::Driver { call: READING, message };
                    lock(&shared).observation.fault = Some((fault, clock.now()));
                }
                Link::Thread(sender)
            }
        };
        Self(Arc::new(Parts {
            identity,
            clock,
            call_timeout,
            shared,
            link,
            watching,
            recorded_ahead,
            readers,
            write_progress,
        }))
    }

    /// Returns the GPU's identity.
    pub fn identity(&self) -> &GpuIdentity {
        &self.0.identity
    }

    /// Returns the GPU's capabilities, as the driver's latest answers show them.
    pub fn capabilities(&self) -> Arc<Capabilities> {
        lock(&self.0.shared).capabilities.clone()
    }

    /// Returns the latest state without waiting. A driver call that exceeds the time-out appears as a fault.
    pub fn observe(&self) -> Observation {
        let shared = lock(&self.0.shared);
        let mut observation = shared.observation.clone();
        if let Some((call, since)) = shared.busy {
            let now = self.0.clock.now();
            let after = now.monotonic.since(since);
            if after > self.0.call_timeout && observation.fault.is_none() {
                observation.fault = Some((GpuError::TimedOut { call, after }, now.back_to(since)));
            }
        }
        observation
    }

    /// Applies `read` to the latest state and the capabilities. Returns the result and the age of the state; `None` if the
    /// state is older than `oldest`, or the GPU has a fault.
    pub fn recent<T>(
        &self,
        oldest: Seconds,
        read: impl FnOnce(&Observation, &Capabilities) -> T,
    ) -> Option<(T, Seconds)> {
        let shared = lock(&self.0.shared);
        let observed = Some(&shared.observation).filter(|observed| observed.fault.is_none())?;
        let age = self.0.clock.monotonic().since(observed.at?.monotonic);
        (age <= oldest).then(|| (read(observed, &shared.capabilities), age))
    }

    /// Starts or stops reading how much each process uses the GPU ([`Observation::process_use`]).
    pub fn watch_processes(&self, on: bool) {
        self.0.watching.utilization.store(on, Ordering::Relaxed);
    }

    /// Starts or stops reading which processes have the GPU open ([`Observation::processes`]).
    pub fn list_processes(&self, on: bool) {
        self.0.watching.list.store(on, Ordering::Relaxed);
    }

    /// Continues the ledger of an earlier daemon. That daemon has already recorded `ahead` of the energy by which the
    /// GPU's counter will increase next ([`Meter::continue_ledger`](wattune_core::ledger::Meter::continue_ledger)).
    pub fn continue_ledger(&self, ahead: Millijoules) {
        *lock(&self.0.recorded_ahead) = Some(ahead);
    }

    /// Reads the GPU now if it has no thread ([`Sampling::OnRequest`]).
    pub fn refresh(&self) {
        if let Link::Inline(worker) = &self.0.link {
            let mut worker = lock(worker);
            worker.sample(|| self.0.clock.now(), true);
            lock(&self.0.shared).publish(&worker);
        }
    }

    /// Requests a reading that starts after this call: of everything if `all`, otherwise of energy and power. The
    /// receiver gets the new state once the GPU has answered, however long that takes.
    pub fn request_reading(&self, all: bool) -> oneshot::Receiver<Observation> {
        let (reply, answer) = oneshot::channel();
        match &self.0.link {
            Link::Inline(_) => {
                self.refresh();
                let _ = reply.send(self.observe());
            }
            Link::Thread(sender) => {
                let mut waiting = lock(&self.0.readers.waiting);
                // While a driver call hangs, callers stop waiting.
                waiting.retain(|reader| !reader.reply.is_closed());
                waiting.push(Reader { all, reply });
                drop(waiting);
                self.queue_reading(sender);
            }
        }
        answer
    }

    /// Requests a reading of energy and power, which appears in later observations, without waiting for it.
    pub fn renew(&self) {
        match &self.0.link {
            Link::Inline(_) => self.refresh(),
            Link::Thread(sender) => {
                self.0.readers.is_renewal_wanted.store(true, Ordering::Release);
                self.queue_reading(sender);
            }
        }
    }

    fn queue_reading(&self, sender: &SyncSender<Request>) {
        if !self.0.readers.is_queued.swap(true, Ordering::AcqRel)
            && sender.try_send(Request { task: Task::Answer, reply: None }).is_err()
        {
            // The thread looks for callers after each task, so the tasks in the full queue suffice.
            self.0.readers.is_queued.store(false, Ordering::Release);
        }
    }

    /// Returns the time after which a driver call counts as a fault.
    pub fn call_timeout(&self) -> Seconds {
        self.0.call_timeout
    }

    /// Queues a write; its outcome appears in [`Observation::last_write`]. Returns false if an earlier write is still
    /// queued. If `expected` is given, a power limit is written only while the GPU still has `expected`, since an
    /// external writer may have changed it.
    pub fn request(&self, write: Write, expected: Option<PowerLimit>) -> bool {
        let task = Task::Write(write, expected);
        match &self.0.link {
            Link::Thread(sender) => sender.try_send(Request { task, reply: None }).is_ok(),
            Link::Inline(_) => {
                // The outcome appears in the observation, as with a thread.
                let _ = self.carry_out_inline(task);
                true
            }
        }
    }

    /// Returns true while the GPU is read back after a write that the driver has accepted.
    pub fn has_accepted(&self) -> bool {
        lock(&self.0.shared).has_accepted
    }

    /// Notifies `receiver`, from now on, whenever the driver has accepted a write to the GPU, and again when the write has
    /// ended and its outcome can be observed. A handle has one receiver, the first.
    pub fn notify_of_writes(&self, receiver: &Arc<Notify>) {
        self.0.write_progress.get_or_init(|| Arc::clone(receiver));
    }

    /// Writes and waits for the outcome for at most `timeout`. Blocks the calling thread: not for async tasks.
    pub fn write_and_wait(&self, write: Write, timeout: Seconds) -> Result<(), GpuError> {
        self.carry_out(Task::Write(write, None), timeout)
    }

    /// Reads everything after all queued writes, and returns the new state within at most `timeout`. Blocks the calling
    /// thread: not for async tasks.
    pub fn read_and_wait(&self, timeout: Seconds) -> Result<Observation, GpuError> {
        self.carry_out(Task::Read, timeout)?;
        Ok(lock(&self.0.shared).observation.clone())
    }

    fn carry_out(&self, task: Task, timeout: Seconds) -> Result<(), GpuError> {
        let Link::Thread(sender) = &self.0.link else { return self.carry_out_inline(task) };
        let timed_out = || GpuError::TimedOut { call: task.call(), after: timeout };
        let (reply, answer) = mpsc::sync_channel(1);
        let until = self.0.clock.monotonic().after(timeout);
        let mut request = Request { task, reply: Some(reply) };
        while let Err(refused) = sender.try_send(request) {
            match refused {
                TrySendError::Full(back) if self.0.clock.monotonic() < until => request = back,
                _ => return Err(timed_out()),
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let left = until.since(self.0.clock.monotonic());
        answer.recv_timeout(left.to_std()).unwrap_or_else(|_| Err(timed_out()))
    }

    fn carry_out_inline(&self, task: Task) -> Result<(), GpuError> {
        let Link::Inline(worker) = &self.0.link else { return Ok(()) };
        let mut worker = lock(worker);
        let result = task.carry_out(&mut worker, &*self.0.clock, || {});
        lock(&self.0.shared).publish(&worker);
        notify_of(task, &self.0.write_progress);
        result
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;
    use crate::clock::{ManualClock, SystemClock};
    use crate::gpu::simulated::{Physics, SimulatedGpu};
    use wattune_core::domain::LimitRange;
    use wattune_core::units::Watts;

    const fn w(watts: u32) -> PowerLimit {
        PowerLimit::from_milliwatts(watts * 1000)
    }

    #[tokio::test]
    async fn the_end_of_a_write_is_reported_once_its_outcome_can_be_observed() {
        let range = LimitRange { min: w(100), max: w(300), default: w(300) };
        let idle = Watts::new(30.0);
        let physics = Physics { range, original_limit: w(300), idle, settling: Seconds::new(2.0), noise: 0.0, seed: 7 };
        let system: Arc<dyn Clock> = Arc::new(SystemClock::start());
        let manual: Arc<dyn Clock> = Arc::new(ManualClock::at(DateTime::UNIX_EPOCH));
        let (second, minute) = (Seconds::new(1.0), Seconds::new(60.0));
        for (clock, sampling) in [(system, Sampling::Every(second)), (manual, Sampling::OnRequest)] {
            let gpu = SimulatedGpu::new(physics.clone(), clock.clone());
            let handle = GpuHandle::start(Box::new(gpu.device(0, "A40")), clock, sampling, second, minute);
            let ended = Arc::new(Notify::new());
            handle.notify_of_writes(&ended);
            for limit in [w(250), w(200)] {
                let write = Write::PowerLimit(limit);
                assert!(handle.request(write, None));
                let outcome = loop {
                    // The driver's acceptance may be reported by itself.
                    tokio::time::timeout(minute.to_std(), ended.notified()).await.expect("reported");
                    match handle.observe().last_write.filter(|last| last.write == write) {
                        Some(outcome) => break outcome,
                        None => continue,
                    }
                };
                assert_eq!((outcome.result, handle.has_accepted()), (Ok(()), false));
                assert_eq!((outcome.shown, handle.observe().reading.requested), (Some(limit), Some(limit)));
            }
        }
    }
}
