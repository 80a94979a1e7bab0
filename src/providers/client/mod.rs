//! Access to sources: HTTP with quotas and redaction of secrets, keys, readers of bodies, and the forecast that is
//! stored for a restart.

pub(super) mod abridged;
pub(super) mod api;
pub(super) mod cache;
pub(super) mod checks;
pub(super) mod http;
pub(super) mod json;
pub(super) mod quota;
pub(super) mod redact;
pub(super) mod secret;
pub(super) mod settings;
pub(super) mod time;

pub(super) use api::{Api, ApiSource, Denied};
pub(super) use secret::Secret;
pub(super) use settings::{Contribution, Network, SharedSettings, network_settings, number_setting};
