//! The carbon signal: now, forecast and history; the electricity price.

use axum::Json;
use axum::extract::State;

use crate::controller::view::{CarbonView, IntensityView, PriceView};
use crate::http::Shared;
use crate::http::error::Problem;
use crate::http::extract::Params;
use crate::http::openapi::Problems;
use crate::http::wire::HistoryQuery;

/// Returns the current intensity with its source and freshness.
#[utoipa::path(
    get, path = "/v1/carbon", operation_id = "get_carbon", tag = "carbon",
    responses((status = OK, body = CarbonView), Problems)
)]
pub(in crate::http) async fn now(State(shared): State<Shared>) -> Result<Json<CarbonView>, Problem> {
    Ok(Json(shared.ask(|controller| Box::pin(async move { controller.carbon_now() })).await?))
}

/// Returns the forecast that plans use, slot by slot from now on; empty while there is no signal.
#[utoipa::path(
    get, path = "/v1/carbon/forecast", operation_id = "get_carbon_forecast", tag = "carbon",
    responses((status = OK, body = Vec<IntensityView>), Problems)
)]
pub(in crate::http) async fn forecast(State(shared): State<Shared>) -> Result<Json<Vec<IntensityView>>, Problem> {
    Ok(Json(shared.ask(|controller| Box::pin(async move { controller.carbon_forecast() })).await?))
}

/// Returns past intensities, slot by slot up to now, oldest first.
#[utoipa::path(
    get, path = "/v1/carbon/history", operation_id = "get_carbon_history", tag = "carbon", params(HistoryQuery),
    responses((status = OK, body = Vec<IntensityView>), (status = UNPROCESSABLE_ENTITY, response = Problem), Problems)
)]
pub(in crate::http) async fn history(
    State(shared): State<Shared>,
    Params(query): Params<HistoryQuery>,
) -> Result<Json<Vec<IntensityView>>, Problem> {
    let hours = query.checked()?;
    let answer = shared.ask(move |controller| Box::pin(async move { controller.carbon_history(hours).await }));
    Ok(Json(answer.await??))
}

/// Returns the day-ahead price, now and ahead; null if no price source is configured.
#[utoipa::path(
    get, path = "/v1/price", operation_id = "get_price", tag = "carbon",
    responses((status = OK, body = Option<PriceView>), Problems)
)]
pub(in crate::http) async fn price(State(shared): State<Shared>) -> Result<Json<Option<PriceView>>, Problem> {
    Ok(Json(shared.ask(|controller| Box::pin(async move { controller.price_now() })).await?))
}
