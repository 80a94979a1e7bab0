//! Routes of the daemon's status, as one answer or as a stream of events.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::IntoResponse;
use axum::response::sse::{KeepAlive, Sse};
use axum::{Extension, Json};
use futures_util::StreamExt;

use crate::controller::view::StatusView;
use crate::http::connection::Connection;
use crate::http::cross_site::check_listener;
use crate::http::error::{Answer, Problem};
use crate::http::shared::Shared;

/// Returns the daemon's mode, the carbon signal, the GPUs and their owners, the open jobs, and current problems.
#[utoipa::path(
    get, path = "/v1/status", operation_id = "get_status", tag = "status",
    responses((status = OK, body = StatusView))
)]
pub(in crate::http) async fn status(State(shared): State<Shared>) -> Answer<StatusView> {
    shared.status().await.map(Json)
}

/// The interval of comments (lines without content) in a stream that has no events to send. A client that receives
/// nothing for longer than this has lost its connection to the daemon.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// Streams server-sent events. The event `status` has the answer of `GET /v1/status`, limited to 50 jobs and 50
/// problems; it is sent at once and after each change, at most once a second. The event `problem` is sent while the
/// status is not available. At most 32 clients per user and 64 in total can be connected. Events have no ids: nothing
/// is repeated after a reconnect. A client that reads nothing for 30 s while there is something to send is
/// disconnected.
#[utoipa::path(
    get, path = "/v1/events", operation_id = "get_events", tag = "status",
    responses(
        (status = OK, body = String, content_type = "text/event-stream", description = "The stream ends with the daemon"),
        (status = SERVICE_UNAVAILABLE, response = Problem)
    )
)]
pub(in crate::http) async fn events(
    State(shared): State<Shared>,
    Extension(connection): Extension<Connection>,
    headers: HeaderMap,
) -> Result<impl IntoResponse, Problem> {
    check_listener(&headers)?;
    let events = shared.status_events.listen(connection.user())?.map(Ok::<_, Infallible>);
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(HEARTBEAT)))
}
