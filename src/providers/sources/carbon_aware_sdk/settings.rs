//! Settings of the Carbon Aware SDK.

use crate::providers::client::network_settings;
use wattune_core::domain::{SignalKind, SignalScope};

network_settings! {
    /// Settings of the table `[carbon.carbon_aware_sdk]`.
    at "http://127.0.0.1:5073", at most 120 an hour;
    /// Kind of the values, average or marginal: it depends on the SDK's data source, and responses do not name it.
    kind: SignalKind = SignalKind::Unspecified,
    /// Scope of the values, lifecycle or operational, which depends on the SDK's data source and is not in responses.
    scope: SignalScope = SignalScope::Unspecified,
}
