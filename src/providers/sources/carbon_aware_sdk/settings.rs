//! `[carbon.carbon_aware_sdk]`

use crate::providers::client::network_settings;
use wattune_core::domain::{SignalKind, SignalScope};

network_settings! {
    /// `[carbon.carbon_aware_sdk]`
    at "http://127.0.0.1:5073", at most 120 an hour;
    /// Average or marginal, which depends on the data source behind the SDK; its answers do not say.
    kind: SignalKind = SignalKind::Unspecified,
    /// Lifecycle or operational, likewise.
    scope: SignalScope = SignalScope::Unspecified,
}
