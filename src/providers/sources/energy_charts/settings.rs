//! Settings of Energy-Charts.

use crate::providers::client::network_settings;
use wattune_core::domain::{SignalScope, Zone};

network_settings! {
    /// Settings of the table `[carbon.energy_charts]`.
    at "https://api.energy-charts.info", at most 30 an hour;
    /// Scope of the values, lifecycle or operational, which the API does not name.
    scope: SignalScope = SignalScope::Unspecified,
    /// Bidding zone whose price is requested ("DE-LU"); the one of the place if absent.
    bidding_zone: Option<Zone> = None,
}
