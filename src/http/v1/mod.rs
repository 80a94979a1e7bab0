//! The routes of the daemon's own API, by resource.

pub(super) mod audit;
pub(super) mod carbon;
pub(super) mod demand_response;
pub(super) mod gpus;
pub(super) mod jobs;
pub(super) mod ledger;
pub(super) mod recurring;
pub(super) mod status;
pub(super) mod when;
