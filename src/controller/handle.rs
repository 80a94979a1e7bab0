//! Queue of requests to the controller, which handles them one at a time, between ticks.

use std::sync::{Arc, OnceLock};

use futures_util::future::BoxFuture;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::Controller;
use super::requests::{ClientCommand, WriteRefused};
use crate::clock::Clock;
use crate::store::{AuditLog, AuditRecord};

/// Maximum number of waiting requests; further ones are refused.
pub(super) const QUEUE: usize = 128;
/// Maximum number of clients' commands that wait to be queued for their GPUs; the senders of further ones wait.
const COMMANDS: usize = 128;

type Request = Box<dyn for<'a> FnOnce(&'a mut Controller) -> BoxFuture<'a, ()> + Send>;

/// Error: the controller has too many waiting requests, or is shutting down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the daemon is too busy or shutting down; try again")]
pub struct Busy;

/// Sending end of the queue of requests; cheap to clone.
#[derive(Clone)]
pub struct Handle {
    requests: mpsc::Sender<Request>,
    commands: mpsc::Sender<ClientCommand>,
    audit: Arc<OnceLock<AuditLog>>,
}

/// Receiving end of the queue of requests, which the control loop owns.
pub struct Requests {
    requests: mpsc::Receiver<Request>,
    commands: mpsc::Receiver<ClientCommand>,
    audit: Arc<OnceLock<AuditLog>>,
}

impl Handle {
    /// Returns both ends of a new queue.
    pub fn queue() -> (Self, Requests) {
        let ((requests, asked), (commands, commanded)) = (mpsc::channel(QUEUE), mpsc::channel(COMMANDS));
        let audit = Arc::<OnceLock<AuditLog>>::default();
        let handle = Self { requests, commands, audit: audit.clone() };
        (handle, Requests { requests: asked, commands: commanded, audit })
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

impl Handle {
    /// Sends a client's command to the controller. Waits until `until` at most while too many others wait, so that
    /// clients that write without a pause do not displace other requests.
    ///
    /// # Errors
    /// If the time is over or the controller has ended. The command's writes are then recorded as failed in the audit
    /// log, with the time of `clock`.
    pub async fn command(&self, command: ClientCommand, until: Instant, clock: &dyn Clock) -> Result<(), WriteRefused> {
        let refused = match tokio::time::timeout_at(until, self.commands.reserve()).await {
            Ok(Ok(place)) => {
                place.send(command);
                return Ok(());
            }
            Ok(Err(_)) => WriteRefused::Ending,
            Err(_) => WriteRefused::GivenUp,
        };
        for record in command.records_of_unsent(clock.utc(), &refused) {
            self.audit(record);
        }
        Err(refused)
    }
}

impl Requests {
    /// Opens the audit log for all handles.
    pub(super) fn open_audit_log(&self, log: &AuditLog) {
        self.audit.get_or_init(|| log.clone());
    }

    /// Waits for the next request and returns it; `None` once every [`Handle`] is dropped.
    pub async fn next(&mut self) -> Option<PendingRequest> {
        tokio::select! {
            biased;
            asked = self.requests.recv() => asked.map(Pending::Request),
            command = self.commands.recv() => command.map(Pending::Command),
        }
        .map(PendingRequest)
    }

    /// Returns the clients' commands that were not handled. No further ones are accepted.
    pub(super) async fn take_commands(&mut self) -> Vec<ClientCommand> {
        self.commands.close();
        let mut taken = Vec::new();
        // Also waits for senders that have a place already.
        while let Some(command) = self.commands.recv().await {
            taken.push(command);
        }
        taken
    }

    /// Returns the next request, if one is waiting.
    pub fn waiting(&mut self) -> Option<PendingRequest> {
        let asked = self.requests.try_recv().map(Pending::Request);
        asked.or_else(|_| self.commands.try_recv().map(Pending::Command)).ok().map(PendingRequest)
    }
}

/// A waiting request.
pub struct PendingRequest(Pending);

enum Pending {
    Request(Request),
    Command(ClientCommand),
}

impl PendingRequest {
    /// Runs the request on the controller and sends the result to its caller.
    pub async fn answer(self, controller: &mut Controller) {
        match self.0 {
            Pending::Request(request) => request(controller).await,
            Pending::Command(command) => controller.queue_client_command(command).await,
        }
    }
}
