//! Requests to the controller, one file each, with their callers.

mod account;
mod demand_response;
mod end;
mod manual_limit;
mod progress;
mod read;
mod register;

pub use register::NewJob;

use std::fmt;

/// Caller of a request, for the ledger and the log.
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
