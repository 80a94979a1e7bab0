//! Settings of Energinet.

use crate::providers::client::network_settings;
use wattune_core::domain::SignalScope;

network_settings! {
    /// Settings of the table `[carbon.energinet]`.
    at "https://api.energidataservice.dk", at most 60 an hour;
    /// Scope of the values, lifecycle or operational, which the API does not name.
    scope: SignalScope = SignalScope::Unspecified,
}
