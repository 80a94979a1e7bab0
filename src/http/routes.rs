//! The routes of the API, and the layers around every request and answer.

use std::any::Any;
use std::sync::LazyLock;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::{Method, StatusCode, Uri, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use tower_http::catch_panic::CatchPanicLayer;
use utoipa::OpenApi;
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter, UtoipaMethodRouterExt};
use utoipa_axum::routes;

use super::cross_site::CrossSiteGuard;
use super::error::Problem;
use super::rate_limits::RateLimits;
use super::request_checks::{self, RequestChecks};
use super::shared::Shared;
use super::v1::recurring::trials;
use super::v1::{audit, carbon, demand_response, gpus, jobs, ledger, recurring, status, when};
use super::{bso, carbon_aware, health, metrics, openapi, page, zeusd};

/// The routes of the API, each with its OpenAPI description.
static ROUTES: &[fn() -> UtoipaMethodRouter<Shared>] = &[
    || routes!(status::status),
    || routes!(status::events),
    || routes!(gpus::list),
    || routes!(gpus::show),
    || routes!(gpus::history),
    || routes!(gpus::set_power_limit, gpus::release_power_limit),
    || routes!(carbon::now),
    || routes!(carbon::forecast),
    || routes!(carbon::history),
    || routes!(carbon::price),
    || routes!(when::when),
    || routes!(carbon_aware::current),
    || routes!(carbon_aware::past),
    || routes!(carbon_aware::by_location),
    || routes!(carbon_aware::by_locations),
    || routes!(carbon_aware::lowest),
    || routes!(carbon_aware::average),
    || routes!(carbon_aware::averages),
    || routes!(carbon_aware::locations),
    || routes!(audit::audit),
    || routes!(demand_response::list, demand_response::announce),
    || routes!(demand_response::withdraw),
    || routes!(jobs::register, jobs::list),
    || routes!(jobs::show, jobs::end),
    || routes!(jobs::progress),
    || routes!(jobs::renew_lease),
    || routes!(jobs::begin),
    || routes!(jobs::suspended),
    || routes!(jobs::plan),
    || routes!(jobs::profile),
    || routes!(jobs::emissions),
    || routes!(ledger::report),
    || routes!(ledger::ledger),
    || routes!(recurring::list),
    || routes!(recurring::put, recurring::show, recurring::delete),
    || routes!(trials::begin, trials::list),
    || routes!(trials::show),
    || routes!(trials::progress),
    || routes!(trials::end),
    || routes!(recurring::export),
    || routes!(recurring::import).layer(DefaultBodyLimit::max(recurring::MAX_DOCUMENT_BYTES)),
    || routes!(metrics::metrics),
    || routes!(health::healthz),
    || routes!(health::health),
    || routes!(health::readyz),
    || routes!(description),
    || routes!(page::page),
];

/// Returns all routes with the OpenAPI description of the API.
fn documented() -> OpenApiRouter<Shared> {
    let empty = OpenApiRouter::with_openapi(openapi::Api::openapi());
    ROUTES.iter().fold(empty, |router, route| router.routes(route()))
}

/// Returns all routes. The description of each is dropped at once: together they take 3 MB.
fn undocumented() -> Router<Shared> {
    ROUTES.iter().fold(Router::new(), |router, route| {
        let (_, descriptions, methods) = route();
        descriptions.paths.keys().fold(router, |router, path| router.route(path, methods.clone()))
    })
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
pub(super) fn service(shared: Shared, guard: CrossSiteGuard, rates: RateLimits) -> Router {
    let body_limit = shared.body_limit;
    let checks = RequestChecks::new(shared.clone(), guard, rates);
    undocumented()
        .merge(bso::router())
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(body_limit))
        // These routes read no bodies.
        .merge(zeusd::routes())
        .with_state(shared)
        // Every request pays for every layer, since each has an allocated future of its own; so there is one for all checks.
        .layer((CatchPanicLayer::custom(panicked), from_fn_with_state(checks, request_checks::pass)))
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
    request_checks::with_headers(Problem::new(StatusCode::INTERNAL_SERVER_ERROR, detail).into_response(), false)
}
