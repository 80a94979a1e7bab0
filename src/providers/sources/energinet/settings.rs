//! `[carbon.energinet]`

use crate::providers::client::network_settings;
use wattune_core::domain::SignalScope;

network_settings! {
    /// `[carbon.energinet]`
    at "https://api.energidataservice.dk", at most 60 an hour;
    /// Lifecycle or operational; the API does not say.
    scope: SignalScope = SignalScope::Unspecified,
}
