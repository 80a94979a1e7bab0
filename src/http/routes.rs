//! The routes of the API, and the layers around every request and answer.

use std::any::Any;
use std::sync::LazyLock;

use axum::Router;
use axum::extract::{DefaultBodyLimit, MatchedPath, Request, State};
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::trace::{DefaultOnResponse, TraceLayer};
use utoipa::OpenApi;
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouterExt};
use utoipa_axum::routes;

use super::access::{Need, need_of};
use super::error::{Denied, Problem};
use super::guard::{self, Guard};
use super::rates::{self, Rates};
use super::seat::Seat;
use super::shared::Shared;
use super::v1::recurring::trials;
use super::v1::{audit, carbon, demand_response, gpus, jobs, ledger, recurring, status, when};
use super::{bso, carbon_aware, health, metrics, openapi, page, zeusd};

/// Returns all routes with their OpenAPI descriptions.
pub(super) fn documented() -> OpenApiRouter<Shared> {
    OpenApiRouter::with_openapi(openapi::Api::openapi())
        .routes(routes!(status::status))
        .routes(routes!(status::events))
        .routes(routes!(gpus::list))
        .routes(routes!(gpus::show))
        .routes(routes!(gpus::history))
        .routes(routes!(gpus::set_power_limit, gpus::release_power_limit))
        .routes(routes!(carbon::now))
        .routes(routes!(carbon::forecast))
        .routes(routes!(carbon::history))
        .routes(routes!(carbon::price))
        .routes(routes!(when::when))
        .routes(routes!(carbon_aware::current))
        .routes(routes!(carbon_aware::past))
        .routes(routes!(carbon_aware::by_location))
        .routes(routes!(carbon_aware::by_locations))
        .routes(routes!(carbon_aware::lowest))
        .routes(routes!(carbon_aware::average))
        .routes(routes!(carbon_aware::averages))
        .routes(routes!(carbon_aware::locations))
        .routes(routes!(audit::audit))
        .routes(routes!(demand_response::list, demand_response::announce))
        .routes(routes!(demand_response::withdraw))
        .routes(routes!(jobs::register, jobs::list))
        .routes(routes!(jobs::show, jobs::end))
        .routes(routes!(jobs::progress))
        .routes(routes!(jobs::renew_lease))
        .routes(routes!(jobs::begin))
        .routes(routes!(jobs::suspended))
        .routes(routes!(jobs::plan))
        .routes(routes!(jobs::profile))
        .routes(routes!(jobs::emissions))
        .routes(routes!(ledger::report))
        .routes(routes!(ledger::ledger))
        .routes(routes!(recurring::list))
        .routes(routes!(recurring::put, recurring::show, recurring::delete))
        .routes(routes!(trials::begin, trials::list))
        .routes(routes!(trials::show))
        .routes(routes!(trials::progress))
        .routes(routes!(trials::end))
        .routes(routes!(recurring::export))
        .routes(routes!(recurring::import).layer(DefaultBodyLimit::max(recurring::MAX_DOCUMENT_BYTES)))
        .routes(routes!(metrics::metrics))
        .routes(routes!(health::healthz))
        .routes(routes!(health::health))
        .routes(routes!(health::readyz))
        .routes(routes!(description))
        .routes(routes!(page::page))
}

/// Returns all routes as method and path; the method is `*` where the route accepts any.
#[cfg(test)]
pub(super) fn all() -> std::collections::BTreeSet<(String, String)> {
    let description = serde_json::to_value(documented().into_openapi()).expect("JSON");
    let paths = description["paths"].as_object().expect("paths").iter();
    let methods = |item: &serde_json::Value| item.as_object().expect("methods").keys().cloned().collect::<Vec<_>>();
    let documented = paths.flat_map(|(path, item)| methods(item).into_iter().map(|m| (m.to_uppercase(), path.clone())));
    let others = bso::paths().into_iter().chain(zeusd::PATHS.map(|path| ("*".to_owned(), path.to_owned())));
    documented.chain(others).collect()
}

pub(super) static DOCUMENT: LazyLock<String> = LazyLock::new(|| openapi::document(documented().into_openapi()));

/// Returns this OpenAPI description.
#[utoipa::path(
    get, path = "/openapi.json", operation_id = "openapi", tag = "health",
    responses((status = OK, body = serde_json::Value, content_type = "application/json"))
)]
async fn description() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT.as_str())
}

/// Builds the service of one listener, protected by `guard`.
pub(super) fn service(shared: Shared, guard: Guard, rates: Rates) -> Router {
    let (router, _) = documented().split_for_parts();
    let (body_limit, asked) = (shared.body_limit, shared.clone());
    router
        .merge(bso::router())
        .merge(zeusd::routes())
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .with_state(shared)
        .layer(DefaultBodyLimit::max(body_limit))
        .layer(from_fn_with_state(rates, rates::enforce))
        .layer(from_fn_with_state(asked, check_access))
        .layer(from_fn_with_state(guard, guard::enforce))
        .layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn(add_headers))
        .layer(
            TraceLayer::new_for_http()
                .make_span_with(span)
                .on_request(())
                .on_response(DefaultOnResponse::new())
                .on_body_chunk(())
                .on_eos(())
                .on_failure(()),
        )
}

/// Routes of reports. Connections through which jobs or trials report are closed last, so that no job counts as dead
/// because its report was lost.
const REPORTS: [&str; 3] = ["/v1/jobs/{id}/progress", "/v1/recurring/{name}/trials/{number}/progress", "/report"];

/// Refuses a request without the right that its route needs, and passes the sender on to the handlers. Marks connections
/// through which jobs or trials report. Records refused changes in the audit log, also those of what belongs to others,
/// which the handlers refuse.
async fn check_access(State(shared): State<Shared>, mut request: Request, next: Next) -> Response {
    let Some(seat) = request.extensions().get::<Seat>() else {
        return Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "the connection of the request is unknown")
            .into_response();
    };
    let route = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let reporter = route.filter(|route| REPORTS.contains(route)).map(|_| seat.clone());
    let need = route.map(|route| need_of(request.method(), route));
    let asker = shared.access.identify(seat, request.headers(), need == Some(Need::Zeus));
    if let Err(problem) = need.map_or(Ok(()), |need| shared.access.check(need, &asker)) {
        if need > Some(Need::Read) {
            shared.audit_refusal(&asker, request.method(), request.uri().path(), None);
        }
        return if bso::owns(request.uri().path()) { bso::refuse(problem) } else { problem.into_response() };
    }
    // Limits and events have records of their own, with what was asked for.
    if need != Some(Need::Jobs) {
        request.extensions_mut().insert(asker);
        return next.run(request).await;
    }
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    request.extensions_mut().insert(asker.clone());
    let response = next.run(request).await;
    if let Some(seat) = reporter.filter(|_| response.status().is_success()) {
        seat.reported();
    }
    if let Some(Denied(why)) = response.extensions().get() {
        shared.audit_refusal(&asker, &method, &path, Some(why));
    }
    response
}

async fn unknown(uri: Uri) -> Response {
    if bso::owns(uri.path()) {
        return bso::unknown_path();
    }
    let path: String = uri.path().chars().take(200).collect();
    Problem::new(StatusCode::NOT_FOUND, format!("there is no {path}; GET /openapi.json lists the paths"))
        .into_response()
}

async fn wrong_method(method: Method, uri: Uri) -> Problem {
    let path: String = uri.path().chars().take(200).collect();
    let detail = format!("{path} does not accept {method}; the Allow header lists the methods");
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, detail)
}

/// Answers 500 after a handler's panic, which the panic hook has logged.
fn panicked(_panic: Box<dyn Any + Send + 'static>) -> Response {
    tracing::error!("a request was answered with 500: its handler panicked");
    let detail = "an internal error occurred, which is in the daemon's log; power limits are unaffected";
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, detail).into_response()
}

async fn add_headers(request: Request, next: Next) -> Response {
    let is_zeus_stream = ["/gpu/stream_power", "/cpu/stream_power"].contains(&request.uri().path());
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    // Zeus's streams have a directive of their own, which their clients expect.
    if !is_zeus_stream {
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
    response
}

fn span(request: &Request) -> tracing::Span {
    let route = request.extensions().get::<MatchedPath>().map_or("unknown", MatchedPath::as_str);
    tracing::debug_span!("request", http.method = %request.method(), http.route = route)
}
