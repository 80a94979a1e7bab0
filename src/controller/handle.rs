//! Queue of requests to the controller, which handles them one at a time, between ticks.

use std::sync::{Arc, OnceLock};

use futures_util::future::BoxFuture;
use tokio::sync::{mpsc, oneshot};

use super::Controller;
use crate::store::{AuditLog, AuditRecord};

/// Maximum number of waiting requests; further ones are refused.
pub(super) const QUEUE: usize = 128;

type Request = Box<dyn for<'a> FnOnce(&'a mut Controller) -> BoxFuture<'a, ()> + Send>;

/// Error: the controller has too many waiting requests, or is shutting down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the daemon is too busy or shutting down; try again")]
pub struct Busy;

/// Sending end of the queue of requests; cheap to clone.
#[derive(Clone)]
pub struct Handle {
    requests: mpsc::Sender<Request>,
    audit: Arc<OnceLock<AuditLog>>,
}

/// Receiving end of the queue of requests, which the control loop owns.
pub struct Requests {
    requests: mpsc::Receiver<Request>,
    audit: Arc<OnceLock<AuditLog>>,
}

impl Handle {
    /// Returns both ends of a new queue.
    pub fn queue() -> (Self, Requests) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let audit = Arc::<OnceLock<AuditLog>>::default();
        (Self { requests: sender, audit: audit.clone() }, Requests { requests: receiver, audit })
    }

    /// Adds a record to the audit log directly, without the controller. Before the controller has opened the log,
    /// nothing can be controlled, and the record is dropped.
    pub fn audit(&self, record: AuditRecord) {
        if let Some(log) = self.audit.get() {
            log.record(record);
        }
    }

    /// Queues `request` for the controller and returns its result.
    ///
    /// # Errors
    /// If the queue is full, or the controller ends before it responds.
    pub async fn ask<T, F>(&self, request: F) -> Result<T, Busy>
    where
        T: Send + 'static,
        F: for<'a> FnOnce(&'a mut Controller) -> BoxFuture<'a, T> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let boxed: Request = Box::new(move |controller| {
            Box::pin(async move {
                // The caller may have stopped waiting.
                let _ = reply.send(request(controller).await);
            })
        });
        self.requests.try_send(boxed).map_err(|_| Busy)?;
        answer.await.map_err(|_| Busy)
    }
}

impl Requests {
    /// Opens the audit log for all handles.
    pub(super) fn open_audit_log(&self, log: &AuditLog) {
        self.audit.get_or_init(|| log.clone());
    }

    /// Waits for the next request and returns it; `None` once every [`Handle`] is dropped.
    pub async fn next(&mut self) -> Option<PendingRequest> {
        self.requests.recv().await.map(PendingRequest)
    }

    /// Returns the next request, if one is waiting.
    pub fn waiting(&mut self) -> Option<PendingRequest> {
        self.requests.try_recv().ok().map(PendingRequest)
    }
}

/// A waiting request.
pub struct PendingRequest(Request);

impl PendingRequest {
    /// Runs the request on the controller and sends the result to its caller.
    pub async fn answer(self, controller: &mut Controller) {
        (self.0)(controller).await;
    }
}
