//! One thread per board, so that a driver call that hangs stops nothing but its board.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::worker::{Observation, Worker, Write};
use super::{Capabilities, GpuDevice, GpuError};
use crate::clock::Clock;
use wattune_core::domain::{Board, PowerLimit};
use wattune_core::time::Monotonic;
use wattune_core::units::{Millijoules, Seconds};

/// When a board is read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sampling {
    /// On a thread of its own, this often.
    Every(Seconds),
    /// In the caller's thread, whenever [`GpuHandle::refresh`] is called: for clocks that do not run by themselves.
    OnRequest,
}

/// The daemon's end of a board.
#[derive(Clone)]
pub struct GpuHandle {
    board: Arc<Board>,
    clock: Arc<dyn Clock>,
    call_timeout: Seconds,
    shared: Arc<Mutex<Shared>>,
    link: Link,
    watching: Arc<AtomicBool>,
    owed: Arc<AtomicU64>,
}

#[derive(Clone)]
enum Link {
    Thread(SyncSender<Request>),
    Inline(Arc<Mutex<Worker>>),
}

struct Shared {
    observation: Observation,
    capabilities: Arc<Capabilities>,
    /// What the thread is doing at the driver, and since when.
    busy: Option<(&'static str, Monotonic)>,
}

struct Request {
    task: Task,
    reply: Option<SyncSender<Result<(), GpuError>>>,
}

#[derive(Clone, Copy)]
enum Task {
    Read,
    /// A write, and the limit that it is to replace.
    Write(Write, Option<PowerLimit>),
}

impl Task {
    fn call(&self) -> &'static str {
        match self {
            Self::Read => READING,
            Self::Write(write, _) => write.call(),
        }
    }

    fn carry_out(self, worker: &mut Worker, clock: &dyn Clock) -> Result<(), GpuError> {
        match self {
            Self::Write(write, over) => worker.write(write, over, || clock.now()),
            Self::Read => {
                worker.sample(|| clock.now(), true);
                worker.observation().fault.clone().map_or(Ok(()), |(error, _)| Err(error))
            }
        }
    }
}

const READING: &str = "reading the board";

impl GpuHandle {
    /// Puts a device behind a handle and reads it for the first time. `full_every` is how often everything is read
    /// rather than energy and power alone; after `call_timeout` without an answer the board counts as unresponsive.
    pub fn start(
        device: Box<dyn GpuDevice>,
        clock: Arc<dyn Clock>,
        sampling: Sampling,
        full_every: Seconds,
        call_timeout: Seconds,
    ) -> Self {
        let board = Arc::new(device.board().clone());
        let (watching, owed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let worker = Worker::new(device, full_every, watching.clone(), owed.clone());
        let shared = Shared {
            observation: worker.observation().clone(),
            capabilities: worker.capabilities().clone(),
            busy: None,
        };
        let shared = Arc::new(Mutex::new(shared));
        let link = match sampling {
            Sampling::OnRequest => Link::Inline(Arc::new(Mutex::new(worker))),
            Sampling::Every(period) => {
                let (sender, receiver) = mpsc::sync_channel(1);
                let (clock, shared, index) = (clock.clone(), shared.clone(), board.index);
                let body = move || run(worker, &receiver, period, &*clock, &shared);
                // Failing to start a thread leaves a handle whose board never answers, which is reported as such.
                if let Err(error) = std::thread::Builder::new().name(format!("gpu{index}")).spawn(body) {
                    tracing::error!(gpu.index = index, %error, "cannot start the board's thread");
                }
                Link::Thread(sender)
            }
        };
        Self { board, clock, call_timeout, shared, link, watching, owed }
    }

    /// Who it is.
    pub fn board(&self) -> &Board {
        &self.board
    }

    /// What it can do, as far as was found when it was opened last.
    pub fn capabilities(&self) -> Arc<Capabilities> {
        lock(&self.shared).capabilities.clone()
    }

    /// The newest that is known, without waiting. A call that has not come back for longer than the time-out shows as
    /// a fault.
    pub fn observe(&self) -> Observation {
        let shared = lock(&self.shared);
        let mut observation = shared.observation.clone();
        if let Some((call, since)) = shared.busy {
            let now = self.clock.now();
            let after = now.monotonic.since(since);
            if after > self.call_timeout && observation.fault.is_none() {
                observation.fault = Some((GpuError::TimedOut { call, after }, now));
            }
        }
        observation
    }

    /// Whether it is asked from now on what each process uses ([`Observation::process_use`]).
    pub fn watch_processes(&self, on: bool) {
        self.watching.store(on, Ordering::Relaxed);
    }

    /// Has the next `energy` that the counter gains left out: it was booked before this handle was made.
    pub fn owe(&self, energy: Millijoules) {
        self.owed.fetch_add(energy.get(), Ordering::Relaxed);
    }

    /// Reads the board now if nobody else does ([`Sampling::OnRequest`]).
    pub fn refresh(&self) {
        if let Link::Inline(worker) = &self.link {
            let mut worker = lock(worker);
            worker.sample(|| self.clock.now(), true);
            lock(&self.shared).publish(&worker);
        }
    }

    /// Asks for a write without waiting for it; its end shows in [`Observation::last_write`]. Returns whether it was
    /// taken: a board that still works on an earlier one refuses. With `over`, a limit is written only over that one:
    /// somebody else may have set another since it was read.
    pub fn request(&self, write: Write, over: Option<PowerLimit>) -> bool {
        let task = Task::Write(write, over);
        match &self.link {
            Link::Thread(sender) => sender.try_send(Request { task, reply: None }).is_ok(),
            Link::Inline(_) => {
                // The outcome stands in the observation, as it would for a thread.
                let _ = self.carry_out_inline(task);
                true
            }
        }
    }

    /// Writes and waits for the end, at most `timeout`. Blocks: not for async tasks.
    ///
    /// # Errors
    /// What the driver says, or [`GpuError::TimedOut`].
    pub fn write_and_wait(&self, write: Write, timeout: Seconds) -> Result<(), GpuError> {
        self.carry_out(Task::Write(write, None), timeout)
    }

    /// Reads everything anew, after whatever was asked for before, and waits for it at most `timeout`. Blocks: not for
    /// async tasks.
    ///
    /// # Errors
    /// Why the board does not answer.
    pub fn read_and_wait(&self, timeout: Seconds) -> Result<Observation, GpuError> {
        self.carry_out(Task::Read, timeout)?;
        Ok(lock(&self.shared).observation.clone())
    }

    fn carry_out(&self, task: Task, timeout: Seconds) -> Result<(), GpuError> {
        let Link::Thread(sender) = &self.link else { return self.carry_out_inline(task) };
        let timed_out = || GpuError::TimedOut { call: task.call(), after: timeout };
        let (reply, answer) = mpsc::sync_channel(1);
        let until = self.clock.monotonic().after(timeout);
        let mut request = Request { task, reply: Some(reply) };
        while let Err(refused) = sender.try_send(request) {
            match refused {
                TrySendError::Full(back) if self.clock.monotonic() < until => request = back,
                _ => return Err(timed_out()),
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let left = until.since(self.clock.monotonic());
        answer.recv_timeout(left.to_std()).unwrap_or_else(|_| Err(timed_out()))
    }

    fn carry_out_inline(&self, task: Task) -> Result<(), GpuError> {
        let Link::Inline(worker) = &self.link else { return Ok(()) };
        let mut worker = lock(worker);
        let result = task.carry_out(&mut worker, &*self.clock);
        lock(&self.shared).publish(&worker);
        result
    }
}

impl Shared {
    fn publish(&mut self, worker: &Worker) {
        self.observation = worker.observation().clone();
        self.capabilities = worker.capabilities().clone();
        self.busy = None;
    }
}

fn run(
    mut worker: Worker,
    requests: &mpsc::Receiver<Request>,
    period: Seconds,
    clock: &dyn Clock,
    shared: &Mutex<Shared>,
) {
    let begin = |call| lock(shared).busy = Some((call, clock.monotonic()));
    let mut next = clock.monotonic();
    loop {
        begin(READING);
        worker.sample(|| clock.now(), false);
        lock(shared).publish(&worker);
        // Late samples are not made up for: the meter takes any spacing.
        next = next.after(period).max(clock.monotonic());
        loop {
            let wait = next.since(clock.monotonic());
            match requests.recv_timeout(wait.to_std()) {
                Ok(Request { task, reply }) => {
                    begin(task.call());
                    let result = task.carry_out(&mut worker, clock);
                    lock(shared).publish(&worker);
                    if let Some(reply) = reply {
                        // Whoever waited may have given up.
                        let _ = reply.try_send(result);
                    }
                }
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
