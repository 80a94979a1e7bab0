//! Writes of Zeus's clients, which the controller carries out: those to one GPU strictly in order, those to different GPUs
//! at the same time.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::http::StatusCode;
use futures_util::future::join_all;
use tokio::time::Instant;

use super::answer::{Refusal, of_write};
use crate::controller::{ClientCommand, ClientWait, Devices, Handle, OverrideRequest, Setting, WriteRefused};
use crate::gpu::GpuError;
use crate::gpu::handle::GpuHandle;
use wattune_core::units::Seconds;

/// Way of writes to the controller. Clones share it.
#[derive(Clone)]
pub(super) struct Control {
    handle: Handle,
    devices: Devices,
    timeout: Duration,
}

impl Control {
    /// Creates the way to the controller. A client waits at most `timeout` for its writes.
    pub(super) fn new(handle: Handle, devices: Devices, timeout: Duration) -> Self {
        Self { handle, devices, timeout }
    }

    /// Writes the settings to all GPUs. With `block`, waits for the outcomes; otherwise returns once the writes are queued,
    /// except those that another owner of the GPU forbids.
    pub(super) async fn write(
        &self,
        gpus: Vec<GpuHandle>,
        settings: &[Setting],
        request: OverrideRequest,
        block: bool,
    ) -> Result<(), Refusal> {
        let command = |gpu: &GpuHandle| ClientCommand::new(&gpu.identity().id, settings, &request, block);
        let outcomes = join_all(gpus.iter().map(|gpu| self.answer(command(gpu))));
        let mut failed = BTreeMap::new();
        for (gpu, outcome) in gpus.iter().zip(outcomes.await) {
            let index = gpu.identity().index;
            match outcome {
                Some(Ok(())) => {}
                Some(Err(refused)) => drop(failed.insert(index, of_write(&refused))),
                None => drop(failed.insert(index, (StatusCode::INTERNAL_SERVER_ERROR, died(index)))),
            }
        }
        if failed.is_empty() { Ok(()) } else { Err(Refusal::Devices(failed)) }
    }

    /// Sends a command and returns its answer; `None` if the controller has ended.
    async fn answer(&self, (command, mut wait): (ClientCommand, ClientWait)) -> Option<Result<(), WriteRefused>> {
        let until = Instant::now() + self.timeout;
        let after = Seconds::new(self.timeout.as_secs_f64());
        let timed_out = || Some(Err(GpuError::TimedOut { call: "a write", after }.into()));
        match self.handle.command(command, until, self.devices.clock()).await {
            Ok(()) => tokio::time::timeout_at(until, wait.answer()).await.unwrap_or_else(|_| {
                wait.give_up();
                timed_out()
            }),
            Err(WriteRefused::GivenUp) => timed_out(),
            Err(refused) => Some(Err(refused)),
        }
    }
}

fn died(index: u32) -> String {
    format!("Management task for GPU {index} unexpectedly terminated while handling the request.")
}
