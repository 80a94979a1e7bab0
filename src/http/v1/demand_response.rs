//! Demand-response events: for a while the limits of all boards add up to no more than a target.

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;

use crate::controller::{Caller, EventView, NewEvent};
use crate::http::Shared;
use crate::http::error::Problem;
use crate::http::extract::{Payload, Segment};
use crate::http::openapi::Problems;
use wattune_core::domain::{DemandResponse, EventId};

/// All events by their start: those of the settings, those announced, those over for less than a week.
#[utoipa::path(
    get, path = "/v1/demand-response", operation_id = "list_demand_response", tag = "demand response",
    responses((status = OK, body = Vec<EventView>), Problems)
)]
pub(in crate::http) async fn list(State(shared): State<Shared>) -> Result<Json<Vec<EventView>>, Problem> {
    Ok(Json(shared.ask(|controller| Box::pin(async move { controller.events() })).await?))
}

/// Announces an event, or replaces the one of the same id. It is kept over restarts; limits follow at once.
#[utoipa::path(
    post, path = "/v1/demand-response", operation_id = "announce_demand_response", tag = "demand response",
    request_body = NewEvent,
    responses(
        (status = CREATED, body = EventView, headers(("location" = String, description = "Where it is withdrawn"))),
        (status = OK, body = EventView, description = "An event of that id was known; this one is in its place"),
        (
            status = CONFLICT, body = Problem, content_type = "application/problem+json",
            description = "The settings have an event of that id, or there are too many"
        ),
        (status = UNPROCESSABLE_ENTITY, response = Problem),
        Problems
    )
)]
pub(in crate::http) async fn announce(
    State(shared): State<Shared>,
    Payload(body): Payload<NewEvent>,
) -> Result<impl IntoResponse, Problem> {
    let event = DemandResponse::try_from(body)?;
    let location = format!("/v1/demand-response/{}", event.id);
    let announced = shared
        .ask(move |controller| Box::pin(async move { controller.announce(event, Caller::Local).await }))
        .await??;
    let status = if announced.is_new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, [(header::LOCATION, location)], Json(announced.view)))
}

/// Withdraws an event, also in its midst.
#[utoipa::path(
    delete, path = "/v1/demand-response/{id}", operation_id = "withdraw_demand_response", tag = "demand response",
    params(("id" = String, Path, description = "The event's id")),
    responses(
        (status = OK, body = EventView, description = "The event as it was"),
        (status = NOT_FOUND, response = Problem),
        (
            status = CONFLICT, body = Problem, content_type = "application/problem+json",
            description = "It stands in the settings"
        ),
        Problems
    )
)]
pub(in crate::http) async fn withdraw(
    State(shared): State<Shared>,
    Segment(id): Segment,
) -> Result<Json<EventView>, Problem> {
    let id = EventId::new(id).map_err(|error| Problem::new(StatusCode::NOT_FOUND, error.to_string()))?;
    Ok(Json(
        shared.ask(move |controller| Box::pin(async move { controller.withdraw(&id, Caller::Local).await })).await??,
    ))
}
