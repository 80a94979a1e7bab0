//! Writes of Zeus's clients: one queue for each GPU, so that writes to a GPU are done strictly in order and those to
//! different GPUs at the same time.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::{mpsc, oneshot, watch};

use super::answer::{Refusal, of_write};
use crate::controller::{Claim, ClientWrite, Handle, Setting, WriteRefused};
use crate::gpu::GpuError;
use crate::gpu::thread::GpuHandle;
use wattune_core::domain::GpuId;
use wattune_core::units::Seconds;

/// The maximum number of writes that wait for one GPU.
const QUEUE: usize = 256;
/// The longest wait between two looks at a write that the driver has not completed. The end of a write is reported; what
/// else a write waits for is not.
const STEP: Duration = Duration::from_millis(10);
/// The pause before a request is sent again to a controller whose queue is full.
const BUSY: Duration = Duration::from_millis(10);

/// Queues of writes. Clones share them.
#[derive(Clone)]
pub(super) struct Control {
    handle: Handle,
    timeout: Duration,
    queues: Arc<Mutex<HashMap<GpuId, mpsc::Sender<Command>>>>,
}

struct Command {
    writes: Vec<ClientWrite>,
    /// `None` if the client does not wait.
    reply: Option<oneshot::Sender<Result<(), WriteRefused>>>,
}

impl Control {
    /// Creates the queues; a write may take `timeout`.
    pub(super) fn new(handle: Handle, timeout: Duration) -> Self {
        Self { handle, timeout, queues: Arc::default() }
    }

    /// Writes the settings to all GPUs. With `block`, waits for the outcomes; otherwise returns once the writes are queued,
    /// except those that another owner of the GPU forbids.
    pub(super) async fn write(
        &self,
        gpus: Vec<GpuHandle>,
        settings: &[Setting],
        claim: Claim,
        block: bool,
    ) -> Result<(), Refusal> {
        let mut failed = if block { BTreeMap::new() } else { self.forbidden(&gpus, settings, claim.clone()).await };
        let mut awaited = Vec::new();
        for gpu in gpus {
            let (index, id) = (gpu.identity().index, &gpu.identity().id);
            if failed.contains_key(&index) {
                continue;
            }
            let writes = settings.iter().map(|setting| ClientWrite::new(id.clone(), *setting, claim.clone())).collect();
            let (reply, answer) = if block { Some(oneshot::channel()).unzip() } else { (None, None) };
            if self.send(&gpu, Command { writes, reply }).is_err() {
                let full = format!("GPU {index} has {QUEUE} writes waiting; try again later");
                failed.insert(index, (axum::http::StatusCode::INTERNAL_SERVER_ERROR, full));
            } else if let Some(answer) = answer {
                awaited.push(async move { (index, answer.await) });
            }
        }
        for (index, outcome) in join_all(awaited).await {
            match outcome {
                Ok(Ok(())) => {}
                Ok(Err(refused)) => drop(failed.insert(index, of_write(&refused))),
                Err(_) => drop(failed.insert(index, (axum::http::StatusCode::INTERNAL_SERVER_ERROR, died(index)))),
            }
        }
        if failed.is_empty() { Ok(()) } else { Err(Refusal::Devices(failed)) }
    }

    /// Returns the GPUs that the client may not change now, because another owner controls them.
    async fn forbidden(
        &self,
        gpus: &[GpuHandle],
        settings: &[Setting],
        claim: Claim,
    ) -> BTreeMap<u32, (axum::http::StatusCode, String)> {
        let ids: Vec<_> = gpus.iter().map(|gpu| (gpu.identity().index, gpu.identity().id.clone())).collect();
        let settings = settings.to_vec();
        let asked = self.handle.ask(move |controller| {
            Box::pin(async move {
                let refusal = |(index, id): (u32, GpuId)| {
                    let refused = controller.check_claim(&id, &claim).err()?;
                    for setting in &settings {
                        controller.audit_client_write(&id, *setting, &claim, None, &Err(refused.clone()));
                    }
                    Some((index, refused))
                };
                ids.into_iter().filter_map(refusal).collect::<Vec<_>>()
            })
        });
        let refused = asked.await.unwrap_or_default();
        refused.into_iter().map(|(index, refused)| (index, of_write(&refused))).collect()
    }

    fn send(&self, gpu: &GpuHandle, command: Command) -> Result<(), ()> {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let queue = queues.entry(gpu.identity().id.clone()).or_insert_with(|| {
            let (sender, receiver) = mpsc::channel(QUEUE);
            tokio::spawn(work(self.handle.clone(), gpu.clone(), self.timeout, receiver));
            sender
        });
        queue.try_send(command).map_err(drop)
    }
}

fn died(index: u32) -> String {
    format!("Management task for GPU {index} unexpectedly terminated while handling the request.")
}

/// Does the writes of one GPU, one after the other.
async fn work(handle: Handle, gpu: GpuHandle, timeout: Duration, mut commands: mpsc::Receiver<Command>) {
    let mut ended = gpu.watch_ended_writes();
    while let Some(Command { writes, reply }) = commands.recv().await {
        let mut outcome = Ok(());
        for write in writes {
            let done = tokio::time::timeout(timeout, carry_out(&handle, &mut ended, write)).await;
            let done = done.unwrap_or_else(|_| {
                let after = Seconds::new(timeout.as_secs_f64());
                Err(GpuError::TimedOut { call: "a write", after }.into())
            });
            // Of several errors the first one counts, and the later writes are tried all the same.
            outcome = outcome.and(done);
        }
        match (reply, outcome) {
            (Some(reply), outcome) => drop(reply.send(outcome)),
            (None, Err(refused)) => {
                tracing::warn!("a Zeus client's write, for which it does not wait, failed: {refused}")
            }
            (None, Ok(())) => {}
        }
    }
}

async fn carry_out(
    handle: &Handle,
    ended: &mut watch::Receiver<()>,
    mut write: ClientWrite,
) -> Result<(), WriteRefused> {
    loop {
        // A write that ends during the step is not missed.
        ended.mark_unchanged();
        let mut step = write.clone();
        let asked = handle.ask(move |controller| {
            Box::pin(async move {
                let outcome = controller.step_client_write(&mut step).await;
                (step, outcome)
            })
        });
        match asked.await {
            Ok((_, Some(outcome))) => return outcome,
            Ok((step, None)) => {
                write = step;
                // The worker has a handle to the GPU, so the sender is there.
                let _ = tokio::time::timeout(STEP, ended.changed()).await;
            }
            Err(_) => tokio::time::sleep(BUSY).await,
        }
    }
}
