//! `[carbon.energy_charts]`

use crate::providers::client::network_settings;
use wattune_core::domain::{SignalScope, Zone};

network_settings! {
    /// `[carbon.energy_charts]`
    at "https://api.energy-charts.info", at most 30 an hour;
    /// Lifecycle or operational; the API does not say.
    scope: SignalScope = SignalScope::Unspecified,
    /// The bidding zone whose price is asked for ("DE-LU"); the country's if absent.
    bidding_zone: Option<Zone> = None,
}
