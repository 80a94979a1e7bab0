//! GPUs, and manual overrides of their limits.

use axum::Json;
use axum::extract::State;

use crate::controller::view::{GpuView, LimitSpanView};
use crate::controller::{Caller, GpuRef};
use crate::http::Shared;
use crate::http::error::Problem;
use crate::http::extract::{Payload, Segment};
use crate::http::openapi::Problems;
use crate::http::wire::SetPowerLimit;

/// Lists all GPUs by index.
#[utoipa::path(
    get, path = "/v1/gpus", operation_id = "list_gpus", tag = "gpus",
    responses((status = OK, body = Vec<GpuView>), Problems)
)]
pub(in crate::http) async fn list(State(shared): State<Shared>) -> Result<Json<Vec<GpuView>>, Problem> {
    Ok(Json(shared.ask(|controller| Box::pin(async move { controller.gpus() })).await?))
}

/// Returns one GPU.
#[utoipa::path(
    get, path = "/v1/gpus/{id}", operation_id = "get_gpu", tag = "gpus",
    params(("id" = String, Path, description = "Index, UUID or PCI bus id")),
    responses((status = OK, body = GpuView), (status = NOT_FOUND, response = Problem), Problems)
)]
pub(in crate::http) async fn show(
    State(shared): State<Shared>,
    Segment(id): Segment,
) -> Result<Json<GpuView>, Problem> {
    let which = GpuRef::parse(&id);
    Ok(Json(shared.ask(move |controller| Box::pin(async move { controller.gpu(&which) })).await??))
}

/// Returns a GPU's limits and draw of the last 24 hours, oldest first, without times in which no daemon was running.
#[utoipa::path(
    get, path = "/v1/gpus/{id}/history", operation_id = "get_gpu_history", tag = "gpus",
    params(("id" = String, Path, description = "Index, UUID or PCI bus id")),
    responses((status = OK, body = Vec<LimitSpanView>), (status = NOT_FOUND, response = Problem), Problems)
)]
pub(in crate::http) async fn history(
    State(shared): State<Shared>,
    Segment(id): Segment,
) -> Result<Json<Vec<LimitSpanView>>, Problem> {
    let which = GpuRef::parse(&id);
    Ok(Json(shared.ask(move |controller| Box::pin(async move { controller.gpu_history(&which) })).await??))
}

/// Overrides a GPU's limit for a limited time. The override takes precedence over the GPU's job.
#[utoipa::path(
    put, path = "/v1/gpus/{id}/power-limit", operation_id = "set_power_limit", tag = "gpus",
    params(("id" = String, Path, description = "Index, UUID or PCI bus id")),
    request_body = SetPowerLimit,
    responses(
        (status = OK, body = GpuView, description = "The GPU; its limit follows within a tick"),
        (status = FORBIDDEN, response = Problem),
        (status = NOT_FOUND, response = Problem),
        (status = UNPROCESSABLE_ENTITY, response = Problem),
        Problems
    )
)]
pub(in crate::http) async fn set_power_limit(
    State(shared): State<Shared>,
    Segment(id): Segment,
    Payload(body): Payload<SetPowerLimit>,
) -> Result<Json<GpuView>, Problem> {
    let which = GpuRef::parse(&id);
    let (limit, ttl) = body.checked()?;
    let answer = shared.ask(move |controller| {
        Box::pin(async move { controller.set_override(&which, limit, ttl, Caller::Local).await })
    });
    Ok(Json(answer.await??))
}

/// Ends a manual override, or wattune's yielding to an external writer's limit: the job controls the GPU again.
#[utoipa::path(
    delete, path = "/v1/gpus/{id}/power-limit", operation_id = "release_power_limit", tag = "gpus",
    params(("id" = String, Path, description = "Index, UUID or PCI bus id")),
    responses((status = OK, body = GpuView), (status = NOT_FOUND, response = Problem), Problems)
)]
pub(in crate::http) async fn release_power_limit(
    State(shared): State<Shared>,
    Segment(id): Segment,
) -> Result<Json<GpuView>, Problem> {
    let which = GpuRef::parse(&id);
    let answer =
        shared.ask(move |controller| Box::pin(async move { controller.release_override(&which, Caller::Local).await }));
    Ok(Json(answer.await??))
}
