//! The requests that others make of the controller, one file each.

mod account;
mod caller;
mod demand_response;
mod end;
mod manual_limit;
mod progress;
mod read;
mod register;

pub use caller::Caller;
pub use register::NewJob;
