//! The HTTP API, on loopback TCP and a Unix socket.
//!
//! [`Server::bind`] opens the addresses, [`Server::serve`] answers requests until it is stopped. Handlers hold no
//! state: each sends the controller one query through its [`crate::controller::Handle`], or asks
//! [`crate::recurring::Recurring`], and renders the answer; all event streams share one query. `cross_site`
//! refuses requests from other web pages, `access` those without the right that their route needs. Each refusal of a
//! request is an `error::Problem`.
//!
//! `zeusd` answers the protocol of Zeus's daemon. It also reads devices itself, since each answer is a new reading.

mod access;
mod bso;
mod bucket;
mod carbon_aware;
mod connection;
mod cross_site;
mod error;
mod eviction;
mod extract;
mod health;
mod listen;
mod metrics;
mod openapi;
mod page;
mod peer;
mod rate_limits;
mod request_checks;
mod routes;
mod server;
mod settings;
mod shared;
mod socket;
mod status_events;
mod tls;
mod tracked_io;
mod v1;
mod zeusd;

pub use access::{Claims, Examined, KeyError, ListError, Scope, TokenError, TokenKeys, UnknownScope};
pub use health::HealthView;
pub use listen::BindError;
pub use server::Server;
pub use settings::{Settings, SocketMode};
pub use shared::Ready;
pub use socket::SocketError;
pub use tls::TlsError;
pub use zeusd::{ApiGroup, ZeusSettings};

#[cfg(test)]
mod tests;
