//! Work that would hold up the tasks of the daemon's async runtime, which has one thread.

use tokio::runtime::{Handle, RuntimeFlavor};

/// Runs `work`, which computes for more than a millisecond or waits for the disk, on the calling thread. If that is a
/// thread of an async runtime, another one takes over the runtime's other tasks for as long as `work` takes.
pub fn in_place<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        // There is no runtime, or one without a further thread that could take over.
        _ => work(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_blocks_a_thread_of_a_runtime_does_not_hold_up_the_other_tasks() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().expect("built");
        let (sender, receiver) = std::sync::mpsc::channel();
        let blocked = runtime.spawn(async move {
            let patience = std::time::Duration::from_secs(10);
            // Queued behind this task, on its thread.
            tokio::spawn(async move { sender.send(()) });
            in_place(|| receiver.recv_timeout(patience))
        });
        assert_eq!(runtime.block_on(blocked).expect("no panic"), Ok(()));
    }
}
