//! The control loop: a timer and changes of the carbon feed start a tick; requests are handled between ticks.

use std::pin::pin;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::cap::restore_within;
use super::handle::QUEUE;
use super::requests::of_restored;
use super::{Controller, Requests};
use crate::gpu::journal::{Journal, JournalError, boot_id};
use crate::gpu::restore::Restored;
use crate::store::{AuditAction, AuditRecord, DAEMON, StoreError};
use wattune_core::domain::GpuId;

/// The time for which the loop does not sleep while a client waits for its write.
const POLLING: Duration = Duration::from_micros(300);

/// Runs the control loop until `cancel` is triggered or every request handle is dropped, then shuts down. Returns the
/// result of restoring each GPU whose limit wattune had set.
pub async fn run(
    mut controller: Controller,
    mut requests: Requests,
    cancel: CancellationToken,
) -> Vec<(GpuId, Restored)> {
    requests.open_audit_log(controller.store.audit());
    let mut timer = tokio::time::interval(controller.tick_period().to_std());
    // If a tick takes longer than the period, the ticks missed meanwhile are not made up for.
    timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut signal, write_progress) = (controller.signal(), controller.gpus.write_progress());
    let mut feed_alive = true;
    loop {
        tokio::select! {
            biased;
            () = cancel.cancelled() => break,
            _ = timer.tick() => {
                controller.tick().await;
                controller.continue_client_commands().await;
                answer_waiting(&mut controller, &mut requests).await;
            }
            changed = signal.changed(), if feed_alive => {
                feed_alive = changed.is_ok();
                controller.tick().await;
            }
            () = written(&write_progress, controller.gpus.client_commands().is_awaited()) => {
                controller.continue_client_commands().await;
                // Clients that write without a pause do not starve other requests.
                if let Some(asked) = requests.waiting() {
                    asked.answer(&mut controller).await;
                }
            }
            asked = requests.next() => match asked {
                Some(asked) => asked.answer(&mut controller).await,
                None => break,
            },
        }
    }
    controller.refuse_client_commands(requests.take_commands().await);
    controller.shut_down().await
}

/// Waits until a GPU has accepted or ended a write. If a client waits for one, looks for it again and again at first, with
/// other tasks in between: to wake a thread that sleeps takes a fifth of the time of a fast driver's write.
async fn written(write_progress: &Notify, is_awaited: bool) {
    let mut notified = pin!(write_progress.notified());
    let end = Instant::now() + POLLING;
    while is_awaited && Instant::now() < end {
        tokio::select! {
            biased;
            () = &mut notified => return,
            () = tokio::task::yield_now() => {}
        }
    }
    notified.await;
}

/// Handles the waiting requests after a tick. Otherwise ticks that take longer than their period, for example because
/// another process locks the database, would starve requests.
async fn answer_waiting(controller: &mut Controller, requests: &mut Requests) {
    let end = Instant::now() + controller.tick_period().to_std();
    for _ in 0..QUEUE {
        if Instant::now() >= end {
            return;
        }
        let Some(asked) = requests.waiting() else { return };
        asked.answer(controller).await;
    }
}

/// Result of the control loop.
#[derive(Debug)]
pub struct Ended {
    /// Result of restoring each GPU whose limit wattune had set.
    pub restored: Vec<(GpuId, Restored)>,
    /// Message of the panic that ended the loop; `None` if the loop ended without a panic.
    pub died: Option<String>,
}

/// Runs the control loop in a task of its own. If the task panics, restores the GPUs' original limits nevertheless.
///
/// # Errors
/// If the loop panicked and the journal of original limits cannot be read.
pub async fn supervise(
    controller: Controller,
    requests: Requests,
    cancel: CancellationToken,
) -> Result<Ended, JournalError> {
    let (handles, timeout) = (controller.gpus.handles(), controller.settings.restore_timeout());
    let (cap, keeps) = (controller.cap.last(), controller.cap.keeps_on_exit());
    let state_dir = controller.gpus.state_dir().to_path_buf();
    let (store, clock) = (controller.store(), controller.clock.clone());
    let died = match tokio::spawn(run(controller, requests, cancel)).await {
        Ok(restored) => return Ok(Ended { restored, died: None }),
        Err(died) => died.to_string(),
    };
    tracing::error!("the control loop panicked ({died}); restoring the GPUs' original limits");
    // The loop's memory is lost, but the journal file records its writes to GPUs.
    let mut journal = Journal::open(&state_dir, boot_id())?;
    let cap = cap.get().filter(|_| keeps);
    let restoring = tokio::task::spawn_blocking(move || restore_within(&mut journal, &handles.all(), timeout, cap));
    let restored = restoring.await.unwrap_or_else(|error| {
        tracing::error!("panic while restoring the original limits ({error}); run `wattune restore`");
        Vec::new()
    });
    for (id, outcome) in &restored {
        let record = AuditRecord::new(clock.utc(), DAEMON, AuditAction::RestorePowerLimit);
        store.audit().record(of_restored(record, id, outcome, None));
    }
    if let Err(error) = store.audit().flush().await {
        tracing::error!("the audit log lacks the restored limits: {error}");
    }
    Ok(Ended { restored, died: Some(died) })
}

impl Controller {
    /// Restores the original limits, then closes the ledger's intervals and stores the jobs, which stay registered for
    /// the next daemon. Returns the result of restoring each GPU whose limit wattune had set.
    pub async fn shut_down(mut self) -> Vec<(GpuId, Restored)> {
        // The restored limits have to fit under the node's cap, unless the settings say otherwise.
        let (timeout, cap) = (self.settings.restore_timeout(), self.cap.at_exit(&self.snapshot().demand()));
        self.record_writes();
        let before = self.limits_in_force();
        let (gpus, restored) = self.gpus.restore(timeout, cap).await;
        self.gpus = gpus;
        self.record_restored(&restored, &before);
        self.accounting.refresh_cpu(&mut node!(self)).await;
        self.accounting.close_all_intervals(&mut node!(self));
        self.write_backlog().await;
        self.accounting.checkpoint_now(&mut node!(self)).await;
        if let Err(error) = self.end_ledger().await {
            self.accounting.record_store_fault(&error);
        }
        self.accounting.store_jobs(&mut node!(self)).await;
        self.accounting.log_unwritten();
        self.store.close().await;
        restored
    }

    /// Closes the ledger's open block (the intervals recorded since the last full hour), does the next step of the
    /// ledger's upkeep, and stores the list of hours whose emissions remain to be computed.
    async fn end_ledger(&mut self) -> Result<(), StoreError> {
        self.accounting.end_block(&mut node!(self)).await?;
        self.step_ledger().await?;
        self.accounting.defer(&self.store).await
    }
}
