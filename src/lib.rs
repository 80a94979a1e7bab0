//! wattune makes GPU training follow the clean hours of the grid.

pub mod cli;
pub mod clock;
pub mod config;
pub mod controller;
pub mod domain;
pub mod forecast;
pub mod gpu;
pub mod http;
pub mod ledger;
pub mod plan;
pub mod profile;
pub mod providers;
pub mod simulate;
pub mod store;
pub mod telemetry;
pub mod units;
