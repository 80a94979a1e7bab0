//! Route of the audit log: who changed what, page by page.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::controller::{ControlError, GpuRef};
use crate::http::error::Problem;
use crate::http::extract::{Params, default_number, invalid, optional_whole_number, page_length, whole_number};
use crate::http::shared::Shared;
use crate::reports::{AuditEntry, audit_csv};
use crate::store::{AuditPage, AuditQuery};
use wattune_core::domain::InvalidJob;
use wattune_core::time::is_usable;

/// The format of the audit log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(in crate::http) enum AuditFormat {
    /// JSON with the number of the next page.
    #[default]
    Json,
    /// CSV with a header line.
    Csv,
}

/// The selection of a part of the audit log, in pages.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::http) struct AuditParams {
    /// The number of the last record of the previous page, which that page gives as `next_after`. The first page if
    /// absent.
    #[serde(default, deserialize_with = "optional_whole_number")]
    #[param(maximum = 9_223_372_036_854_775_807_i64)]
    after: Option<u64>,
    /// The maximum number of records per page, 1 to 10000.
    #[serde(default = "default_number::<1000>", deserialize_with = "whole_number")]
    #[param(default = 1000, minimum = 1, maximum = 10000)]
    limit: u32,
    /// The index, UUID or PCI bus id of the GPU that the records concern. All records if absent.
    gpu: Option<String>,
    /// The id of the job that the records concern. All records if absent.
    job: Option<String>,
    /// The earliest time of the records, in RFC 3339. All records if absent.
    since: Option<String>,
    /// The format of the records.
    #[serde(default)]
    format: AuditFormat,
}

impl AuditParams {
    fn checked(self, gpu: Option<String>) -> Result<AuditQuery, InvalidJob> {
        let limit = page_length(self.limit, 10_000)?;
        if self.after.is_some_and(|after| i64::try_from(after).is_err()) {
            return Err(invalid("after", "is not the number of a record; use next_after of the previous page"));
        }
        let since = self.since.as_deref().map(time).transpose()?;
        Ok(AuditQuery { after: self.after, limit, gpu, job: self.job, since })
    }
}

fn time(text: &str) -> Result<DateTime<Utc>, InvalidJob> {
    let parsed = DateTime::parse_from_rfc3339(text).map(|time| time.to_utc());
    parsed.ok().filter(|at| is_usable(*at)).ok_or_else(|| {
        let short: String = text.chars().take(80).collect();
        invalid("since", format!("is {short:?}; give a time in RFC 3339 with its zone, such as 2026-12-01T17:00:00Z"))
    })
}

/// One page of the audit log.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(in crate::http) struct AuditPageView {
    /// The records, oldest first.
    records: Vec<AuditEntry>,
    /// The value of `after` for the next page; null on the last page.
    next_after: Option<u64>,
}

impl From<AuditPage> for AuditPageView {
    fn from(page: AuditPage) -> Self {
        let records = page.records.into_iter().map(|(number, record)| AuditEntry { number, record });
        Self { records: records.collect(), next_after: page.next_after }
    }
}

/// Returns the audit log page by page, oldest first: who changed what on which GPU, job or cap, the state before and
/// after, and the outcome. Refused attempts are included. Records are kept for 400 days. Only root
/// and the daemon's own user can read the log, over the Unix socket, and holders of a token with the scope `admin`.
#[utoipa::path(
    get, path = "/v1/audit", operation_id = "get_audit", tag = "audit", params(AuditParams),
    responses(
        (status = OK, content((AuditPageView = "application/json"), (String = "text/csv"))),
        (status = FORBIDDEN, response = Problem),
        (status = NOT_FOUND, description = "There is no GPU with that index")
    )
)]
pub(in crate::http) async fn audit(
    State(shared): State<Shared>,
    Params(params): Params<AuditParams>,
) -> Result<Response, Problem> {
    let (format, which) = (params.format, params.gpu.clone());
    let found = shared.ask(move |controller| {
        Box::pin(async move {
            let gpu = which.map(|text| match (GpuRef::parse(&text), controller.gpu(&GpuRef::parse(&text))) {
                (_, Ok(gpu)) => Ok(gpu.uuid),
                (GpuRef::Index(_), Err(error)) => Err(error),
                // A GPU that was removed since has records, too.
                (GpuRef::Id(id), Err(_)) => Ok(id),
            });
            Ok::<_, ControlError>((gpu.transpose()?, controller.audit_log()))
        })
    });
    let (gpu, log) = found.await??;
    let page = AuditPageView::from(shared.within(log.page(params.checked(gpu)?)).await?);
    match format {
        AuditFormat::Json => Ok(Json(page).into_response()),
        AuditFormat::Csv => {
            let body =
                audit_csv(page.records).map_err(|e| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, e.to_string()))?;
            let media_type = HeaderValue::from_static("text/csv; charset=utf-8");
            Ok(([(header::CONTENT_TYPE, media_type)], body).into_response())
        }
    }
}
