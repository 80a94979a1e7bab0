//! The thread of a GPU: carries out reads and writes in turn, and samples in between.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, OnceLock};

use tokio::sync::{Notify, oneshot};

use super::worker::{Observation, Worker, Write, lock};
use super::{Capabilities, GpuError};
use crate::clock::Clock;
use wattune_core::domain::PowerLimit;
use wattune_core::time::Monotonic;
use wattune_core::units::Seconds;

/// Notified whenever the driver has accepted a write, and whenever a write's outcome can be observed, once there is a
/// receiver.
pub(super) type WriteProgress = Arc<OnceLock<Arc<Notify>>>;

/// Callers that wait for a new reading. One reading answers all callers that wait when it starts.
#[derive(Default)]
pub(super) struct Readers {
    pub(super) waiting: Mutex<Vec<Reader>>,
    /// True while the thread's queue holds a task for the callers.
    pub(super) is_queued: AtomicBool,
    /// True if a reading is wanted for which no caller waits.
    pub(super) is_renewal_wanted: AtomicBool,
}

pub(super) struct Reader {
    /// True if everything is to be read, false for energy and power only.
    pub(super) all: bool,
    pub(super) reply: oneshot::Sender<Observation>,
}

pub(super) struct Shared {
    pub(super) observation: Observation,
    pub(super) capabilities: Arc<Capabilities>,
    /// The driver call in progress and the time of its start.
    pub(super) busy: Option<(&'static str, Monotonic)>,
    /// True while the GPU is read back after a write that the driver has accepted.
    pub(super) has_accepted: bool,
}

pub(super) struct Request {
    pub(super) task: Task,
    pub(super) reply: Option<SyncSender<Result<(), GpuError>>>,
}

#[derive(Clone, Copy)]
pub(super) enum Task {
    Read,
    /// A reading for all callers in [`Readers`].
    Answer,
    /// A write, and the power limit that it may overwrite; `None` if the write may overwrite any limit.
    Write(Write, Option<PowerLimit>),
}

impl Task {
    pub(super) fn call(&self) -> &'static str {
        match self {
            Self::Read | Self::Answer => READING,
            Self::Write(write, _) => write.call(),
        }
    }

    /// Carries out the task. Calls `accepted` once the driver has accepted a write, before the GPU is read back.
    pub(super) fn carry_out(
        self,
        worker: &mut Worker,
        clock: &dyn Clock,
        accepted: impl FnOnce(),
    ) -> Result<(), GpuError> {
        match self {
            Self::Write(write, expected) => worker.write(write, expected, || clock.now(), accepted),
            Self::Answer => Ok(()),
            Self::Read => {
                worker.sample(|| clock.now(), true);
                worker.observation().fault.clone().map_or(Ok(()), |(error, _)| Err(error))
            }
        }
    }
}

/// Number of times that the thread looks for the next task before it sleeps, after a write: about a tenth of a millisecond.
const POLLS: u32 = 2048;

pub(super) const READING: &str = "reading the GPU";

impl Shared {
    pub(super) fn publish(&mut self, worker: &Worker) {
        self.observation = worker.observation().clone();
        self.capabilities = worker.capabilities().clone();
        self.busy = None;
        self.has_accepted = false;
    }
}

/// Notifies the receiver of ended writes, if the task was a write.
pub(super) fn notify_of(task: Task, write_progress: &WriteProgress) {
    if let (Task::Write(..), Some(receiver)) = (task, write_progress.get()) {
        receiver.notify_one();
    }
}

/// The thread of a GPU: what it works with, and what it shares with the GPU's handle.
pub(super) struct GpuThread {
    pub(super) worker: Worker,
    pub(super) requests: mpsc::Receiver<Request>,
    /// Interval of the samples.
    pub(super) period: Seconds,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) shared: Arc<Mutex<Shared>>,
    pub(super) readers: Arc<Readers>,
    pub(super) write_progress: WriteProgress,
}

impl GpuThread {
    /// Samples the GPU once in each period and serves requests in between, until the handle is gone.
    pub(super) fn run(mut self) {
        let mut next = self.clock.monotonic();
        loop {
            self.sample(false);
            // Skips samples that are late: the energy meter accepts any interval.
            next = next.after(self.period).max(self.clock.monotonic());
            let mut soon = None;
            loop {
                let wait = next.since(self.clock.monotonic());
                let request = match soon.take().map_or_else(|| self.requests.recv_timeout(wait.to_std()), Ok) {
                    Ok(request) => request,
                    Err(RecvTimeoutError::Timeout) => break,
                    Err(RecvTimeoutError::Disconnected) => return,
                };
                let task = request.task;
                self.serve(request);
                // Tasks without a pause in between do not hold up the samples.
                if self.clock.monotonic() >= next {
                    break;
                }
                if matches!(task, Task::Write(..)) {
                    soon = self.next_soon();
                }
            }
        }
    }

    /// Carries out a request's task and sends the result, then answers the callers that wait for a reading.
    fn serve(&mut self, Request { task, reply }: Request) {
        self.begin(task.call());
        let result = task.carry_out(&mut self.worker, &*self.clock, || {
            lock(&self.shared).has_accepted = true;
            notify_of(task, &self.write_progress);
        });
        lock(&self.shared).publish(&self.worker);
        notify_of(task, &self.write_progress);
        if let Some(reply) = reply {
            // Sending fails if the receiver has stopped waiting.
            let _ = reply.try_send(result);
        }
        if matches!(task, Task::Answer) {
            self.readers.is_queued.store(false, Ordering::Release);
        }
        let waiting = std::mem::take(&mut *lock(&self.readers.waiting));
        if self.readers.is_renewal_wanted.swap(false, Ordering::AcqRel) || !waiting.is_empty() {
            self.sample(waiting.iter().any(|reader| reader.all));
            for reader in waiting {
                let _ = reader.reply.send(self.worker.observation().clone());
            }
        }
    }

    /// Reads the GPU and publishes the new state: everything if `all`, otherwise energy and power.
    fn sample(&mut self, all: bool) {
        self.begin(READING);
        self.worker.sample(|| self.clock.now(), all);
        lock(&self.shared).publish(&self.worker);
    }

    fn begin(&self, call: &'static str) {
        lock(&self.shared).busy = Some((call, self.clock.monotonic()));
    }

    /// Returns the next task if it comes at once. A client that changes a limit again and again sends the next write
    /// less than a tenth of a millisecond after the end of the last one, and waking a thread that sleeps takes a fifth
    /// of that.
    fn next_soon(&self) -> Option<Request> {
        for _ in 0..POLLS {
            if let Ok(request) = self.requests.try_recv() {
                return Some(request);
            }
            // Not `yield_now`, which on a busy machine returns only after the other threads' turns.
            std::hint::spin_loop();
        }
        None
    }
}
