//! Routes of the GPUs, and of manual overrides of their power limits.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::controller::GpuRef;
use crate::controller::view::{GpuView, LimitSpanView};
use crate::http::access::By;
use crate::http::error::{Answer, Problem};
use crate::http::extract::{FromPath, Named, Payload, Wire, finite, invalid};
use crate::http::shared::Shared;
use wattune_core::domain::InvalidJob;
use wattune_core::units::{Seconds, Short, Watts};

/// The parameters in the URL path of a GPU.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(in crate::http) struct GpuPath {
    /// The GPU's index, UUID or PCI bus id.
    id: String,
}

impl FromPath for GpuRef {
    type Parameters = GpuPath;

    fn parse(path: GpuPath) -> Result<Self, Problem> {
        Ok(Self::parse(&path.id))
    }
}

/// A manual override of a GPU's power limit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"power_limit_w": 225, "ttl_s": 600}))]
pub(in crate::http) struct SetPowerLimit {
    /// The power limit to set, from the GPU's minimum up to its maximum usable limit.
    power_limit_w: f64,
    /// The time until the override expires, unless the override is renewed or released before. 1 to 604800 s.
    #[schema(minimum = 1, maximum = 604_800)]
    ttl_s: f64,
}

impl Wire for SetPowerLimit {
    const HINTS: &'static [(&'static str, &'static str)] = &[
        ("power_limit_w", "give watts, within the GPU's power_limit_min_w and power_limit_max_w"),
        ("ttl_s", "give seconds, from 1 to 604800: an override always expires"),
    ];
}

impl SetPowerLimit {
    /// Returns the power limit and its time to live. The error is a value that no GPU allows; the requested GPU's own
    /// range is checked later.
    fn checked(self) -> Result<(Watts, Seconds), InvalidJob> {
        let limit = finite("power_limit_w", Watts::try_new(self.power_limit_w))?;
        let ttl = finite("ttl_s", Seconds::try_new(self.ttl_s))?;
        if limit <= Watts::ZERO {
            let why = format!("is {}; it must be more than 0 watts", Short(self.power_limit_w));
            return Err(invalid("power_limit_w", why));
        }
        if !(1.0..=604_800.0).contains(&ttl.get()) {
            let why = format!("is {}; it must be from 1 to 604800 seconds", Short(self.ttl_s));
            return Err(invalid("ttl_s", why));
        }
        Ok((limit, ttl))
    }
}

/// Lists all GPUs by index.
#[utoipa::path(
    get, path = "/v1/gpus", operation_id = "list_gpus", tag = "gpus",
    responses((status = OK, body = Vec<GpuView>))
)]
pub(in crate::http) async fn list(State(shared): State<Shared>) -> Answer<Vec<GpuView>> {
    shared.ask(|controller| Box::pin(async move { controller.gpus() })).await.map(Json)
}

/// Returns one GPU.
#[utoipa::path(
    get, path = "/v1/gpus/{id}", operation_id = "get_gpu", tag = "gpus", params(GpuPath),
    responses((status = OK, body = GpuView), (status = NOT_FOUND, response = Problem))
)]
pub(in crate::http) async fn show(State(shared): State<Shared>, Named(which): Named<GpuRef>) -> Answer<GpuView> {
    Ok(Json(shared.ask(move |controller| Box::pin(async move { controller.gpu(&which) })).await??))
}

/// Returns a GPU's power limits and power draw of the last 24 hours, oldest first, without times when no daemon was
/// running.
#[utoipa::path(
    get, path = "/v1/gpus/{id}/history", operation_id = "get_gpu_history", tag = "gpus", params(GpuPath),
    responses((status = OK, body = Vec<LimitSpanView>), (status = NOT_FOUND, response = Problem))
)]
pub(in crate::http) async fn history(
    State(shared): State<Shared>,
    Named(which): Named<GpuRef>,
) -> Answer<Vec<LimitSpanView>> {
    Ok(Json(shared.ask(move |controller| Box::pin(async move { controller.gpu_history(&which) })).await??))
}

/// Overrides a GPU's power limit for a limited time. The override takes precedence over the GPU's job.
#[utoipa::path(
    put, path = "/v1/gpus/{id}/power-limit", operation_id = "set_power_limit", tag = "gpus", params(GpuPath),
    request_body = SetPowerLimit,
    responses(
        (status = OK, body = GpuView, description = "The GPU; its limit follows within a tick"),
        (status = FORBIDDEN, response = Problem),
        (status = NOT_FOUND, response = Problem)
    )
)]
pub(in crate::http) async fn set_power_limit(
    State(shared): State<Shared>,
    By(by): By,
    Named(which): Named<GpuRef>,
    Payload(body): Payload<SetPowerLimit>,
) -> Answer<GpuView> {
    let (limit, ttl) = body.checked()?;
    let answer =
        shared.ask(move |controller| Box::pin(async move { controller.set_override(&which, limit, ttl, by).await }));
    Ok(Json(answer.await??))
}

/// Releases a GPU from a manual override or an external limit: the GPU's job controls the power limit again.
#[utoipa::path(
    delete, path = "/v1/gpus/{id}/power-limit", operation_id = "release_power_limit", tag = "gpus", params(GpuPath),
    responses((status = OK, body = GpuView), (status = NOT_FOUND, response = Problem))
)]
pub(in crate::http) async fn release_power_limit(
    State(shared): State<Shared>,
    By(by): By,
    Named(which): Named<GpuRef>,
) -> Answer<GpuView> {
    let answer = shared.ask(move |controller| Box::pin(async move { controller.release_override(&which, by).await }));
    Ok(Json(answer.await??))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::extract::{assert_refused, read};

    #[test]
    fn invalid_limits_are_refused() {
        let limit = |text: &str| Ok::<_, Problem>(read::<SetPowerLimit>(text.as_bytes())?.checked()?);
        let table = [
            (r#"{"power_limit_w":0,"ttl_s":600}"#, 422, Some("power_limit_w"), "more than 0 watts"),
            (r#"{"power_limit_w":225}"#, 422, Some("ttl_s"), "an override always expires"),
            (r#"{"power_limit_w":225,"ttl_s":1e300}"#, 422, Some("ttl_s"), "from 1 to 604800 seconds"),
            (r#"{"power_limit_w":225,"ttl_s":0}"#, 422, Some("ttl_s"), "from 1 to 604800 seconds"),
        ];
        assert_refused(limit, &table);
        assert_eq!(limit(r#"{"power_limit_w":225,"ttl_s":600}"#), Ok((Watts::new(225.0), Seconds::new(600.0))));
    }
}
