//! What changes, as it changes.

use std::convert::Infallible;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::IntoResponse;
use axum::response::sse::{KeepAlive, Sse};
use futures_util::StreamExt;

use crate::http::Shared;
use crate::http::error::Problem;
use crate::http::guard::check_listener;
use crate::http::openapi::Problems;
use crate::http::seat::Seat;

/// A comment is sent when nothing else was for so long: whoever hears nothing for longer has lost the daemon.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// Server-sent events: `status` with the answer of `GET /v1/status`, of at most 50 jobs and problems, at once and whenever it has changed, once a second
/// at most; `problem` while the daemon cannot tell. At most 32 clients of one user at once, and 64 in all. Events have no ids: nothing is sent
/// again after a break. Whoever reads nothing for 30 s while there is something to send is disconnected.
#[utoipa::path(
    get, path = "/v1/events", operation_id = "get_events", tag = "status",
    responses(
        (status = OK, body = String, content_type = "text/event-stream", description = "It ends with the daemon"),
        (status = SERVICE_UNAVAILABLE, response = Problem),
        Problems
    )
)]
pub(in crate::http) async fn events(
    State(shared): State<Shared>,
    Extension(seat): Extension<Seat>,
    headers: HeaderMap,
) -> Result<impl IntoResponse, Problem> {
    check_listener(&headers)?;
    let events = shared.live.listen(seat.peer())?.map(Ok::<_, Infallible>);
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(HEARTBEAT)))
}
