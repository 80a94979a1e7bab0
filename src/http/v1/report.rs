//! Reports and the ledger.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, Utc};

use crate::http::Shared;
use crate::http::error::Problem;
use crate::http::extract::Params;
use crate::http::openapi::Problems;
use crate::http::report::{ReportView, page};
use crate::http::wire::ledger::{LedgerPageView, LedgerQuery, ReportFormat, ReportQuery};
use crate::store::Store;

/// Returns the database and the daemon's time. Reading the database needs no tick of the control loop.
async fn store(shared: &Shared) -> Result<(Store, DateTime<Utc>), Problem> {
    shared.ask(|controller| Box::pin(async move { (controller.store(), controller.now().utc) })).await
}

/// Returns energy and emissions of a span of time by job, name, GPU, label, day or month.
#[utoipa::path(
    get, path = "/v1/report", operation_id = "get_report", tag = "ledger", params(ReportQuery),
    responses(
        (status = OK, content((ReportView = "application/json"), (String = "text/csv"), (String = "text/html"))),
        (status = UNPROCESSABLE_ENTITY, response = Problem),
        Problems
    )
)]
pub(in crate::http) async fn report(
    State(shared): State<Shared>,
    Params(query): Params<ReportQuery>,
) -> Result<Response, Problem> {
    let format = query.format;
    let (store, now) = store(&shared).await?;
    let wanted = query.checked(now)?;
    let report = shared.within(store.report(wanted)).await?;
    let view = ReportView::of(&report);
    let (media_type, body) = match format {
        ReportFormat::Json => return Ok(Json(view).into_response()),
        ReportFormat::Csv => {
            let bytes = view.csv().map_err(|e| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, e.to_string()))?;
            ("text/csv; charset=utf-8", bytes)
        }
        ReportFormat::Html => ("text/html; charset=utf-8", page(&view).into_bytes()),
    };
    let mut response = ([(header::CONTENT_TYPE, HeaderValue::from_static(media_type))], body).into_response();
    if format == ReportFormat::Html {
        let policy = HeaderValue::from_static("default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'");
        response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    Ok(response)
}

/// Returns the ledger of a span of at most seven days: its intervals with their current owners, page by page. The first
/// page also has all settlements of the span's hours, in all versions, and the corrections made within it.
#[utoipa::path(
    get, path = "/v1/ledger", operation_id = "get_ledger", tag = "ledger", params(LedgerQuery),
    responses((status = OK, body = LedgerPageView), (status = UNPROCESSABLE_ENTITY, response = Problem), Problems)
)]
pub(in crate::http) async fn ledger(
    State(shared): State<Shared>,
    Params(query): Params<LedgerQuery>,
) -> Result<Json<LedgerPageView>, Problem> {
    let (store, now) = store(&shared).await?;
    let (span, after, limit) = query.checked(now)?;
    let page = shared.within(store.ledger_page(&span, after, limit)).await?;
    Ok(Json(LedgerPageView::of(page, &span)))
}
