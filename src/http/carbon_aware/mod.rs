//! The routes of the Carbon Aware SDK's WebAPI, so that its clients can take the daemon for one (`carbon-apis.md` §4).
//!
//! A location is the zone of the daemon's carbon signal, in any letter case; there is no other. Forecasts are those
//! that wattune plans with, as in `GET /v1/carbon/forecast`: corrected, without gaps and at least 48 h long, also while
//! the source is silent. Actual values are those of the ledger. Errors have the SDK's shape.

mod actuals;
mod forecasts;
mod places;
mod query;
mod refusal;
mod wire;

pub(super) use self::actuals::{
    __path_average, __path_averages, __path_by_location, __path_by_locations, __path_lowest, average, averages,
    by_location, by_locations, lowest,
};
pub(super) use self::forecasts::{__path_current, __path_past, current, past};
pub(super) use self::places::{__path_locations, locations};

/// The name of these routes in the OpenAPI description.
pub(super) const TAG: &str = "carbon aware sdk";
