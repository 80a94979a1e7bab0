//! Requests to the controller, one file for each kind of request, and the caller of a request.

mod account;
mod audit;
mod begin;
mod client_write;
mod demand_response;
mod end;
mod found;
mod manual_limit;
mod progress;
mod read;
mod register;
mod when;

pub(super) use audit::of_restored;
pub use client_write::{Claim, ClientWrite, Setting, WriteRefused};
pub use register::{NewJob, NewOffers, NewStart, StartBy};
pub use when::{StartBound, WhenRequest};

use std::fmt;

use wattune_core::domain::Process;

/// Caller of a request, as the ledger and the log state it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// A user of this machine; users are not distinguished.
    Local,
    /// A client of Zeus's protocols.
    Zeus {
        /// Process of the client; `None` over TCP, where it is unknown.
        process: Option<Process>,
        /// Number of the client's user; `None` if the kernel does not report the user.
        user: Option<u32>,
    },
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local => f.write_str("local"),
            Self::Zeus { process: Some(process), .. } => write!(f, "Zeus client, process {}", process.pid),
            Self::Zeus { user: Some(user), .. } => write!(f, "Zeus client over TCP, user {user}"),
            Self::Zeus { .. } => f.write_str("Zeus client over TCP"),
        }
    }
}
