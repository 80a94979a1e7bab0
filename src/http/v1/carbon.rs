//! Routes of the carbon signal (current, forecast and history) and the electricity price.

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::controller::view::{CarbonView, IntensityView, PriceView};
use crate::http::error::Answer;
use crate::http::extract::{Params, invalid};
use crate::http::shared::Shared;
use wattune_core::units::Short;

/// The length of the requested history of carbon intensities.
#[derive(Clone, Copy, Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::http) struct HistoryQuery {
    /// The number of hours up to now, more than 0 and at most 744 (31 days).
    #[serde(default = "a_day")]
    #[param(default = 24.0, maximum = 744)]
    hours: f64,
}

const fn a_day() -> f64 {
    24.0
}

/// Returns the current carbon intensity with its source and freshness.
#[utoipa::path(
    get, path = "/v1/carbon", operation_id = "get_carbon", tag = "carbon",
    responses((status = OK, body = CarbonView))
)]
pub(in crate::http) async fn now(State(shared): State<Shared>) -> Answer<CarbonView> {
    shared.ask(|controller| Box::pin(async move { controller.carbon_now() })).await.map(Json)
}

/// Returns the carbon-intensity forecast that plans use, one value per slot (time step) from now on; empty while there
/// is no signal.
#[utoipa::path(
    get, path = "/v1/carbon/forecast", operation_id = "get_carbon_forecast", tag = "carbon",
    responses((status = OK, body = Vec<IntensityView>))
)]
pub(in crate::http) async fn forecast(State(shared): State<Shared>) -> Answer<Vec<IntensityView>> {
    shared.ask(|controller| Box::pin(async move { controller.carbon_forecast() })).await.map(Json)
}

/// Returns past carbon intensities, one value per slot (time step) up to now, oldest first.
#[utoipa::path(
    get, path = "/v1/carbon/history", operation_id = "get_carbon_history", tag = "carbon", params(HistoryQuery),
    responses((status = OK, body = Vec<IntensityView>))
)]
pub(in crate::http) async fn history(
    State(shared): State<Shared>,
    Params(HistoryQuery { hours }): Params<HistoryQuery>,
) -> Answer<Vec<IntensityView>> {
    if !(hours > 0.0 && hours <= 744.0) {
        let why = format!("is {}; it must be more than 0 and at most 744 (31 days)", Short(hours));
        return Err(invalid("hours", why).into());
    }
    let answer = shared.ask(move |controller| Box::pin(async move { controller.carbon_history(hours).await }));
    Ok(Json(answer.await??))
}

/// Returns the day-ahead electricity price, for now and the time ahead; null if no price source is configured.
#[utoipa::path(
    get, path = "/v1/price", operation_id = "get_price", tag = "carbon",
    responses((status = OK, body = Option<PriceView>))
)]
pub(in crate::http) async fn price(State(shared): State<Shared>) -> Answer<Option<PriceView>> {
    shared.ask(|controller| Box::pin(async move { controller.price_now() })).await.map(Json)
}
