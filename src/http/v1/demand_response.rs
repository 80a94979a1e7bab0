//! Demand-response events: temporary targets for the sum of all GPUs' power limits.

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

/// Lists all events by their start: configured ones, announced ones, and those that ended less than a week ago.
#[utoipa::path(
    get, path = "/v1/demand-response", operation_id = "list_demand_response", tag = "demand response",
    responses((status = OK, body = Vec<EventView>), Problems)
)]
pub(in crate::http) async fn list(State(shared): State<Shared>) -> Result<Json<Vec<EventView>>, Problem> {
    Ok(Json(shared.ask(|controller| Box::pin(async move { controller.events() })).await?))
}

/// Announces an event, or replaces the one with the same id. It survives restarts; limits follow at once.
#[utoipa::path(
    post, path = "/v1/demand-response", operation_id = "announce_demand_response", tag = "demand response",
    request_body = NewEvent,
    responses(
        (status = CREATED, body = EventView, headers(("location" = String, description = "The address at which to withdraw it"))),
        (status = OK, body = EventView, description = "The event replaced one with the same id"),
        (
            status = CONFLICT, body = Problem, content_type = "application/problem+json",
            description = "The configuration has an event with that id, or there are too many events"
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

/// Withdraws an event, even a running one.
#[utoipa::path(
    delete, path = "/v1/demand-response/{id}", operation_id = "withdraw_demand_response", tag = "demand response",
    params(("id" = String, Path, description = "The event's id")),
    responses(
        (status = OK, body = EventView, description = "The withdrawn event"),
        (status = NOT_FOUND, response = Problem),
        (
            status = CONFLICT, body = Problem, content_type = "application/problem+json",
            description = "The event is part of the configuration"
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
