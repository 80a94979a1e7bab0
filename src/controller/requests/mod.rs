//! Requests to the controller, one file for each kind of request, and the caller of a request.

mod account;
mod begin;
mod demand_response;
mod end;
mod found;
mod manual_limit;
mod progress;
mod read;
mod register;
mod when;

pub use register::{NewJob, NewOffers, NewStart, StartBy};
pub use when::{StartBound, WhenRequest};

use std::fmt;

/// Caller of a request, as the ledger and the log state it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// A user of this machine; users are not distinguished.
    Local,
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Local => "local",
        })
    }
}
