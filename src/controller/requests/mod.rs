//! Requests to the controller, one file for each kind of request, and the caller of a request.

mod account;
mod audit;
mod audit_values;
mod begin;
mod caller;
mod client_commands;
mod client_queue;
mod client_write;
mod demand_response;
mod end;
mod found_jobs;
mod manual_limit;
mod owners;
mod places;
mod progress;
mod read;
mod register;
mod when;

pub use audit::of_restored;
pub use caller::{Caller, Client};
pub(in crate::controller) use client_commands::ClientCommands;
pub use client_commands::{ClientCommand, ClientWait, OverrideRequest, Setting, WriteRefused};
pub use register::{NewJob, NewOffers, NewStart, StartBy};
pub use when::{StartBound, WhenRequest};
