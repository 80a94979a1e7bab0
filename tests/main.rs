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
mod crash;
mod disk;
mod energy_truth;
mod faults;
mod forecast_file;
mod fuzz;
mod jobs;
mod ledger;
mod nvml;
mod pausing;
mod recurring;
mod simulate;
mod support;
