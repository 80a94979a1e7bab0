//! The checks of every request before its handler, and the headers of every answer.

use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::time::Instant;
use tracing::Instrument as _;

use super::access::{Need, need_of};
use super::bso;
use super::connection::Connection;
use super::cross_site::CrossSiteGuard;
use super::error::{Denied, Problem};
use super::rate_limits::RateLimits;
use super::shared::Shared;

/// Routes of reports. Connections through which jobs or trials report are closed last, so that no job counts as dead
/// because its report was lost.
const REPORTS: [&str; 3] = ["/v1/jobs/{id}/progress", "/v1/recurring/{name}/trials/{number}/progress", "/report"];

const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");
/// Paths of zeusd's streams, which have a directive of their own about caches.
const ZEUS_STREAMS: [&str; 2] = ["/gpu/stream_power", "/cpu/stream_power"];

/// The checks of one listener. Clones share them.
#[derive(Clone)]
pub(super) struct RequestChecks(Arc<Checks>);

struct Checks {
    shared: Shared,
    guard: CrossSiteGuard,
    rates: RateLimits,
}

impl RequestChecks {
    pub(super) fn new(shared: Shared, guard: CrossSiteGuard, rates: RateLimits) -> Self {
        Self(Arc::new(Checks { shared, guard, rates }))
    }
}

/// Passes a request to its handler if it may be answered, and adds the headers of every answer.
pub(super) async fn pass(State(RequestChecks(checks)): State<RequestChecks>, request: Request, next: Next) -> Response {
    let is_zeus_stream = ZEUS_STREAMS.contains(&request.uri().path());
    let route = request.extensions().get::<MatchedPath>().map_or("unknown", MatchedPath::as_str);
    let span = tracing::debug_span!("request", http.method = %request.method(), http.route = route);
    let response = match span.is_disabled() {
        true => checks.check_and_run(request, next).await,
        false => {
            let begin = Instant::now();
            let logged = async {
                let response = checks.check_and_run(request, next).await;
                let (status, latency_ms) = (response.status().as_u16(), begin.elapsed().as_millis());
                tracing::debug!(http.status = status, latency_ms, "finished processing request");
                response
            };
            logged.instrument(span).await
        }
    };
    with_headers(response, is_zeus_stream)
}

/// Adds the headers of every answer.
pub(super) fn with_headers(mut response: Response, is_zeus_stream: bool) -> Response {
    let headers = response.headers_mut();
    // Zeus's streams have a directive of their own, which their clients expect.
    if !is_zeus_stream {
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    headers.insert(RESOURCE_POLICY, HeaderValue::from_static("same-origin"));
    response
}

impl Checks {
    /// Refuses a request that may come from another web page, lacks the right that its route needs or is one too many,
    /// and passes the sender on to the handlers. Marks connections through which jobs or trials report. Records refused
    /// changes in the audit log, also those of what belongs to others, which the handlers refuse.
    async fn check_and_run(&self, mut request: Request, next: Next) -> Response {
        let shared = &self.shared;
        let Some(connection) = request.extensions().get::<Connection>() else {
            return Problem::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "internal error: the request has no sender (a bug in wattune)",
            )
            .into_response();
        };
        if let Err(refusal) = self.guard.check_from(connection, &request) {
            return Problem::from(refusal).into_response();
        }
        let route = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
        let reporter = route.filter(|route| REPORTS.contains(route)).map(|_| connection.clone());
        let need = route.map(|route| need_of(request.method(), route));
        let asker = shared.access.identify(connection, request.headers(), need == Some(Need::Zeus));
        if let Err(problem) = need.map_or(Ok(()), |need| shared.access.check(need, &asker)) {
            if need > Some(Need::Read) {
                shared.audit_refusal(&asker, request.method(), request.uri().path(), None);
            }
            return if bso::owns(request.uri().path()) { bso::refuse(problem) } else { problem.into_response() };
        }
        if let Err(too_many) = self.rates.count(&request, &asker) {
            return *too_many;
        }
        // Limits and events have records of their own, with what was asked for.
        if need != Some(Need::Jobs) {
            request.extensions_mut().insert(asker);
            return next.run(request).await;
        }
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        request.extensions_mut().insert(asker.clone());
        let response = next.run(request).await;
        if let Some(connection) = reporter.filter(|_| response.status().is_success()) {
            connection.mark_reporting();
        }
        if let Some(Denied(why)) = response.extensions().get() {
            shared.audit_refusal(&asker, &method, &path, Some(why));
        }
        response
    }
}
