//! The loop of a running daemon: a timer and events activate the tick; questions are answered in between.

use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::{Controller, Requests};
use crate::domain::GpuId;
use crate::gpu::journal::Restored;

/// Runs until `cancel`, then shuts down in order. Answers with what became of each board that wattune had set.
pub async fn run(
    mut controller: Controller,
    mut requests: Requests,
    cancel: CancellationToken,
) -> Vec<(GpuId, Restored)> {
    let mut timer = tokio::time::interval(controller.tick_period().to_std());
    // A late tick is no reason for two.
    timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut signal = controller.signal();
    let mut feed_alive = true;
    loop {
        tokio::select! {
            biased;
            () = cancel.cancelled() => break,
            _ = timer.tick() => controller.tick().await,
            changed = signal.changed(), if feed_alive => {
                feed_alive = changed.is_ok();
                controller.tick().await;
            }
            asked = requests.next() => match asked {
                Some(asked) => asked.answer(&mut controller).await,
                None => break,
            },
        }
    }
    controller.shut_down().await
}
