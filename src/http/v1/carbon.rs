//! The carbon signal: now, ahead, behind; the price beside it.

use axum::Json;
use axum::extract::State;

use crate::controller::view::{CarbonView, IntensityView, PriceView};
use crate::http::Shared;
use crate::http::error::Problem;
use crate::http::extract::Params;
use crate::http::openapi::Problems;
use crate::http::wire::HistoryQuery;

/// The signal now: intensity, source, freshness.
#[utoipa::path(
    get, path = "/v1/carbon", operation_id = "get_carbon", tag = "carbon",
    responses((status = OK, body = CarbonView), Problems)
)]
pub(in crate::http) async fn now(State(shared): State<Shared>) -> Result<Json<CarbonView>, Problem> {
    Ok(Json(shared.ask(|controller| Box::pin(async move { controller.carbon_now() })).await?))
}

/// What is planned with, slot by slot from now on; empty while there is no signal.
#[utoipa::path(
    get, path = "/v1/carbon/forecast", operation_id = "get_carbon_forecast", tag = "carbon",
    responses((status = OK, body = Vec<IntensityView>), Problems)
)]
pub(in crate::http) async fn forecast(State(shared): State<Shared>) -> Result<Json<Vec<IntensityView>>, Problem> {
    Ok(Json(shared.ask(|controller| Box::pin(async move { controller.carbon_forecast() })).await?))
}

/// What was, slot by slot up to now, oldest first.
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

/// The day-ahead price, now and ahead; null where the settings name no source of prices.
#[utoipa::path(
    get, path = "/v1/price", operation_id = "get_price", tag = "carbon",
    responses((status = OK, body = Option<PriceView>), Problems)
)]
pub(in crate::http) async fn price(State(shared): State<Shared>) -> Result<Json<Option<PriceView>>, Problem> {
    Ok(Json(shared.ask(|controller| Box::pin(async move { controller.price_now() })).await?))
}
