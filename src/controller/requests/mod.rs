//! The requests that others make of the controller, one file each.

mod account;
mod demand_response;
mod end;
mod manual_limit;
mod progress;
mod read;
mod register;

pub use register::NewJob;

use std::fmt;

/// Who makes a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// Somebody on this machine: its users are not told apart.
    Local,
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Local => "local",
        })
    }
}
