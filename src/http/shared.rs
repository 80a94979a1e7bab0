//! The state that all handlers share, and access to the controller.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::http::Method;
use futures_util::future::BoxFuture;
use tokio::time::Instant;

use super::access::{Access, Asker};
use super::bucket::{Allowance, Buckets};
use super::error::Problem;
use super::status_events::StatusEvents;
use super::zeusd::Zeusd;
use crate::controller::view::StatusView;
use crate::controller::{Caller, Controller, Handle};
use crate::recurring::Recurring;
use crate::store::{AuditAction, AuditOutcome, AuditRecord};

/// Refusals of one sender that are recorded in the audit log, so that a program in a loop cannot fill the disk with them.
pub(super) const RECORDED_REFUSALS: Allowance = Allowance { per_second: 0.1, burst: 100.0 };

/// The readiness flag: set when the daemon is ready to serve, cleared when it stops. Clones share one flag.
#[derive(Clone, Debug, Default)]
pub struct Ready(Arc<AtomicBool>);

impl Ready {
    /// Sets the flag to `ready`.
    pub fn set(&self, ready: bool) {
        self.0.store(ready, Ordering::Release);
    }

    /// Returns true if the daemon is ready to serve.
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// The state that all handlers share. Clones are cheap: each layer and handler makes one for each request.
#[derive(Clone)]
pub(super) struct Shared(Arc<SharedState>);

/// State that [`Shared`] gives access to.
pub(super) struct SharedState {
    pub(super) handle: Handle,
    pub(super) recurring: Recurring,
    pub(super) ready: Ready,
    pub(super) status_events: StatusEvents,
    pub(super) zeusd: Zeusd,
    pub(super) access: Access,
    /// The refusals that may still be recorded in the audit log.
    pub(super) refusals: Buckets,
    pub(super) timeout: Duration,
    pub(super) body_limit: usize,
}

impl Deref for Shared {
    type Target = SharedState;

    fn deref(&self) -> &SharedState {
        &self.0
    }
}

impl From<SharedState> for Shared {
    fn from(state: SharedState) -> Self {
        Self(Arc::new(state))
    }
}

impl Shared {
    /// Records in the audit log that a request was refused because its caller lacks the right to it. If many are
    /// refused in a short time, only their number is recorded. `why` explains the refusal where the route alone does not.
    pub(super) fn audit_refusal(&self, asker: &Asker, method: &Method, path: &str, why: Option<&str>) {
        let Ok(skipped) = self.refusals.take(&asker.identity(), Instant::now()) else { return };
        let path: String = path.chars().take(200).collect();
        let mut reason = format!("{method} {path}");
        if let Some(why) = why {
            reason += ": ";
            reason.extend(why.chars().take(400));
        }
        if skipped > 0 {
            reason += &format!("; {skipped} further requests have been refused since the last record");
        }
        let who = Caller::Client(asker.client()).to_string();
        let record = AuditRecord::new(self.zeusd.now(), who, AuditAction::RefuseAccess);
        self.handle.audit(record.with_outcome(AuditOutcome::Refused, reason));
    }

    /// Sends the controller a query and returns its answer, or a problem if the time limit is exceeded.
    pub(super) async fn ask<T, F>(&self, question: F) -> Result<T, Problem>
    where
        T: Send + 'static,
        F: for<'a> FnOnce(&'a mut Controller) -> BoxFuture<'a, T> + Send + 'static,
    {
        within(self.timeout, self.handle.ask(question)).await
    }

    /// Awaits an answer that does not need the controller, for at most the time limit.
    pub(super) async fn within<T, E: Into<Problem>>(
        &self,
        answer: impl Future<Output = Result<T, E>>,
    ) -> Result<T, Problem> {
        within(self.timeout, answer).await
    }

    pub(super) async fn status(&self) -> Result<StatusView, Problem> {
        self.ask(|controller| Box::pin(async move { controller.status() })).await
    }
}

/// Awaits an answer for at most `limit`; a time-out gives a problem.
pub(super) async fn within<T, E: Into<Problem>>(
    limit: Duration,
    answer: impl Future<Output = Result<T, E>>,
) -> Result<T, Problem> {
    match tokio::time::timeout(limit, answer).await {
        Ok(answer) => answer.map_err(Into::into),
        Err(_) => Err(Problem::timed_out(limit)),
    }
}
