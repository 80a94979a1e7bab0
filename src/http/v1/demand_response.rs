//! Routes of demand-response events: temporary targets for the sum of all GPUs' power limits.

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::controller::{EventView, NewEvent};
use crate::http::access::By;
use crate::http::error::{Answer, Problem};
use crate::http::extract::{FromPath, Named, Payload, Wire};
use crate::http::shared::Shared;
use wattune_core::domain::{DemandResponse, EventId};

/// The parameters in the URL path of a demand-response event.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(in crate::http) struct EventPath {
    /// The event's id.
    id: String,
}

impl FromPath for EventId {
    type Parameters = EventPath;

    fn parse(path: EventPath) -> Result<Self, Problem> {
        Self::new(path.id).map_err(|error| Problem::new(StatusCode::NOT_FOUND, error.to_string()))
    }
}

impl Wire for NewEvent {
    const HINTS: &'static [(&'static str, &'static str)] = &[
        ("id", "give a text of 1 to 64 letters, digits, '-', '_', '.' and ':'"),
        ("start", "give a time in RFC 3339 with its zone, such as \"2026-12-01T17:00:00Z\""),
        ("end", "give a time in RFC 3339 with its zone, after start"),
        ("target_w", "give watts, 1 or more, or target_pct in its place"),
        ("target_pct", "give percent of the sum of the GPUs' maximum limits, more than 1 and at most 100"),
        ("notice_s", "give seconds, 0 or more, or leave it out"),
        ("ramp_s", "give seconds, 0 or more and no longer than the notice"),
        ("rebound_w", "give watts, 1 or more, or leave it out"),
        ("rebound_pct", "give percent of the sum of the GPUs' maximum limits, more than 1 and at most 100"),
        ("rebound_s", "give seconds, more than 0"),
    ];
}

/// Lists all demand-response events by start, both configured and announced ones, except those that ended more than a
/// week ago.
#[utoipa::path(
    get, path = "/v1/demand-response", operation_id = "list_demand_response", tag = "demand response",
    responses((status = OK, body = Vec<EventView>))
)]
pub(in crate::http) async fn list(State(shared): State<Shared>) -> Answer<Vec<EventView>> {
    shared.ask(|controller| Box::pin(async move { controller.events() })).await.map(Json)
}

/// Announces an event, or replaces the event with the same id. The event survives restarts of the daemon, and the power
/// limits follow it at once.
#[utoipa::path(
    post, path = "/v1/demand-response", operation_id = "announce_demand_response", tag = "demand response",
    request_body = NewEvent,
    responses(
        (status = CREATED, body = EventView, headers(("location" = String, description = "The address at which to withdraw it"))),
        (status = OK, body = EventView, description = "The event has replaced an earlier event with the same id"),
        (status = CONFLICT, description = "The configuration has an event with that id, or there are too many events")
    )
)]
pub(in crate::http) async fn announce(
    State(shared): State<Shared>,
    By(by): By,
    Payload(body): Payload<NewEvent>,
) -> Result<impl IntoResponse, Problem> {
    let event = DemandResponse::try_from(body)?;
    let location = format!("/v1/demand-response/{}", event.id);
    let announced =
        shared.ask(move |controller| Box::pin(async move { controller.announce(event, by).await })).await??;
    let status = if announced.is_new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, [(header::LOCATION, location)], Json(announced.view)))
}

/// Withdraws a demand-response event, even a running one.
#[utoipa::path(
    delete, path = "/v1/demand-response/{id}", operation_id = "withdraw_demand_response", tag = "demand response",
    params(EventPath),
    responses(
        (status = OK, body = EventView, description = "The withdrawn event"),
        (status = NOT_FOUND, response = Problem),
        (status = CONFLICT, description = "The event is part of the configuration")
    )
)]
pub(in crate::http) async fn withdraw(
    State(shared): State<Shared>,
    By(by): By,
    Named(id): Named<EventId>,
) -> Answer<EventView> {
    let answer = shared.ask(move |controller| Box::pin(async move { controller.withdraw(&id, by).await }));
    Ok(Json(answer.await??))
}
