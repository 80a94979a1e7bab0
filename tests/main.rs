//! Integration tests: the real daemon as a process, and the rules that the sources keep.

mod api;
mod architecture;
mod bad_input;
mod bandit;
mod caps;
mod caps_random;
mod carbon_budget;
mod carbon_chain;
mod carbon_cli;
mod carbon_days;
mod carbon_faults;
mod cli;
mod clocks;
mod cpu;
mod crash;
mod disk;
mod energy_truth;
mod faults;
mod forecast_file;
mod fuzz;
mod jobs;
mod ledger;
mod ledger_sources;
mod ledger_states;
mod metrics;
mod nvml;
mod page;
mod pausing;
mod recurring;
mod recurring_faults;
mod report;
mod report_http;
mod report_verify;
mod simulate;
#[allow(dead_code, unused_imports, reason = "shared with the trial, which uses other parts of it")]
mod support;
