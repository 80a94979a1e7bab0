//! The requests that others make of the controller, one file each.

mod account;
mod demand_response;
mod end;
mod manual_limit;
mod progress;
mod read;
mod register;

pub use register::NewJob;
