//! The HTTP API, on loopback TCP and a Unix socket.
//!
//! [`Server::bind`] takes the addresses, [`Server::serve`] answers until it is stopped. Handlers hold no state: each
//! sends the controller one query through its [`Handle`], or [`Recurring`], and renders the answer; all event streams
//! share one query. [`guard`] refuses requests from other web pages; every refusal is a [`error::Problem`].

pub mod document;
pub mod error;
mod extract;
pub mod guard;
mod health;
mod listen;
mod live;
pub mod metrics;
mod openapi;
mod page;
mod peer;
mod places;
pub mod report;
mod routes;
mod seat;
mod server;
mod settings;
mod socket;
mod v1;
pub mod wire;
mod write_timeout;

use std::time::Duration;

use futures_util::future::BoxFuture;

pub use health::{HealthView, Ready};
pub use listen::BindError;
pub use server::Server;
pub use settings::Settings;
pub use socket::SocketError;

use crate::controller::view::StatusView;
use crate::controller::{Controller, Handle};
use crate::recurring::Recurring;
use error::Problem;
use live::Live;

/// The state that handlers share.
#[derive(Clone)]
struct Shared {
    handle: Handle,
    recurring: Recurring,
    ready: Ready,
    live: Live,
    timeout: Duration,
    body_limit: usize,
}

impl Shared {
    async fn ask<T, F>(&self, question: F) -> Result<T, Problem>
    where
        T: Send + 'static,
        F: for<'a> FnOnce(&'a mut Controller) -> BoxFuture<'a, T> + Send + 'static,
    {
        self.ask_within(self.timeout, question).await
    }

    async fn ask_within<T, F>(&self, limit: Duration, question: F) -> Result<T, Problem>
    where
        T: Send + 'static,
        F: for<'a> FnOnce(&'a mut Controller) -> BoxFuture<'a, T> + Send + 'static,
    {
        match tokio::time::timeout(limit, self.handle.ask(question)).await {
            Ok(answer) => answer.map_err(Problem::from),
            Err(_) => Err(Problem::timed_out(limit)),
        }
    }

    /// Awaits an answer that does not need the controller, within the time limit.
    async fn within<T, E: Into<Problem>>(&self, answer: impl Future<Output = Result<T, E>>) -> Result<T, Problem> {
        match tokio::time::timeout(self.timeout, answer).await {
            Ok(answer) => answer.map_err(Into::into),
            Err(_) => Err(Problem::timed_out(self.timeout)),
        }
    }

    async fn status(&self) -> Result<StatusView, Problem> {
        self.ask(|controller| Box::pin(async move { controller.status() })).await
    }
}

#[cfg(test)]
mod tests;
