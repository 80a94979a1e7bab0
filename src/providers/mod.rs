//! Sources of the grid's signals (carbon intensity and price), and the feed that polls them.
//!
//! A source implements [`Provider`] and turns responses into forecasts, converted to wattune's units and to UTC. The
//! [`Feed`] polls a chain of sources, keeps values that are still valid when sources fail, chooses the active source,
//! and publishes a [`FeedState`]. A failed source shows as a state ("stale since …, using …"); it never stops the
//! daemon and never yields zeros.

mod build;
mod client;
mod error;
mod feed;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod place;
mod provider;
mod settings;
pub mod sources;
#[cfg(test)]
mod testing;

pub use build::{PriceChain, build, build_price};
pub use client::quota::Requests;
pub use client::settings::{BaseUrl, Contribution, Headers, SharedSettings};
pub use error::{ProviderError, SettingsError};
pub use feed::{Feed, FeedHandle, FeedOptions, FeedState, Freshness, Quarantined, Ranks, SourceState};
pub use place::{SourceZones, ZoneName, advice, unknown_zone, zones};
pub use provider::{Actuals, Answer, Provider};
pub use settings::{CarbonSettings, Chain, Currency, PriceSettings, PriceSource};
pub use sources::Source;
pub use sources::file::{self, FileProvider, Settings as FileSettings};
pub use sources::fixed::FixedProvider;
