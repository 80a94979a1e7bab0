//! The OpenAPI description of the API, generated from the handlers.

use utoipa::openapi::content::ContentBuilder;
use utoipa::openapi::{Ref, RefOr, Response, ResponseBuilder};
use utoipa::{OpenApi, ToResponse};

use super::carbon_aware;
use super::error::{PROBLEM_JSON, Problem};
use super::v1::audit::AuditFormat;
use super::v1::jobs::JobState;
use super::v1::ledger::ReportFormat;
use super::v1::recurring::trials::TrialOrder;

/// The parts of the description that all routes share.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "wattune",
        description = "Controls the power limits of GPU training jobs by the grid's carbon intensity. Field names \
                       carry the unit; absent values are null or left out, never zero; times are \
                       RFC 3339 in UTC; errors are RFC 9457 problem details.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    tags(
        (name = "status", description = "The daemon as a whole"),
        (name = "gpus", description = "GPUs and manual overrides of their limits"),
        (name = "demand response", description = "Temporary caps on the node's power"),
        (name = "carbon", description = "The carbon signal"),
        (name = "carbon aware sdk", description = "The carbon signal in the shapes of the Carbon Aware SDK's WebAPI"),
        (name = "jobs", description = "Training runs"),
        (name = "ledger", description = "Energy and emissions: reports and the ledger"),
        (name = "recurring jobs", description = "The choice of a job's batch size from run to run"),
        (name = "audit", description = "The log of all control actions"),
        (name = "health", description = "Health, metrics and description"),
    ),
    components(schemas(Problem, AuditFormat, JobState, ReportFormat, TrialOrder), responses(Problem))
)]
pub(super) struct Api;

impl<'r> ToResponse<'r> for Problem {
    fn response() -> (&'r str, RefOr<Response>) {
        let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
        let response = ResponseBuilder::new()
            .description("The reason why the request was refused, and what would be right")
            .content(PROBLEM_JSON, content)
            .build();
        ("Problem", response.into())
    }
}

/// Renders the description of these routes as JSON.
pub(super) fn document(routes: utoipa::openapi::OpenApi) -> String {
    let mut document = serde_json::to_value(routes).unwrap_or_default();
    name_units(&mut document);
    operations(&mut document).for_each(describe_responses);
    document.sort_all_objects();
    document.to_string()
}

/// Units by the suffix of a field's name; of several matching suffixes, the first counts.
const UNITS: [(&str, &str); 17] = [
    ("_g_per_kwh", "gCO2e/kWh"),
    ("_kwh", "kWh"),
    ("_mj", "mJ"),
    ("samples_per_s", "samples/s"),
    ("samples_per_s_error", "a fraction"),
    ("joules_per_sample", "J per sample"),
    ("_uncertainty", "a fraction"),
    ("slowdown", "a fraction; 0.03 is 3 %"),
    ("_pct", "percent"),
    ("_mhz", "MHz"),
    ("_limits_w", "W each"),
    ("measuring_w", "W each"),
    ("_w", "W"),
    ("_j", "J"),
    ("_g", "gCO2e"),
    ("_c", "°C"),
    ("_s", "s"),
];

/// Adds to each field's description the unit that the suffix of its name stands for.
fn name_units(document: &mut serde_json::Value) {
    let schemas = document.pointer_mut("/components/schemas").and_then(serde_json::Value::as_object_mut);
    for schema in schemas.into_iter().flat_map(|s| s.values_mut()) {
        let Some(properties) = schema.get_mut("properties").and_then(serde_json::Value::as_object_mut) else {
            continue;
        };
        for (name, property) in properties {
            let Some((_, unit)) = UNITS.iter().find(|(suffix, _)| name.ends_with(suffix)) else { continue };
            let Some(property) = property.as_object_mut() else { continue };
            let description = property.get("description").and_then(serde_json::Value::as_str).unwrap_or_default();
            let description = format!("{description} Unit: {unit}.").trim_start().to_owned();
            property.insert("description".into(), description.into());
        }
    }
}

/// Returns all operations in the description.
fn operations(document: &mut serde_json::Value) -> impl Iterator<Item = &mut serde_json::Value> {
    let paths = document.get_mut("paths").and_then(serde_json::Value::as_object_mut);
    paths
        .into_iter()
        .flat_map(|p| p.values_mut())
        .filter_map(serde_json::Value::as_object_mut)
        .flat_map(|o| o.values_mut())
}

/// Completes an operation's responses with: descriptions, which OpenAPI 3.1 requires; a problem as the body of each
/// refusal; and the refusals that all operations with a path, query parameters or a body share, for unreadable
/// addresses, invalid parameters, and bodies that are invalid, too large, late or of another media type. The routes of
/// the Carbon Aware SDK state their refusals themselves, which have another shape.
fn describe_responses(operation: &mut serde_json::Value) {
    let summary = operation.get("summary").cloned().unwrap_or_default();
    let parameters = operation.get("parameters").and_then(serde_json::Value::as_array);
    let has = |place| parameters.is_some_and(|p| p.iter().any(|p| p.get("in").is_some_and(|found| found == place)));
    let own = operation.pointer("/tags/0").is_none_or(|tag| tag != carbon_aware::TAG);
    let shared: [(bool, &[&str]); 4] = [
        (own, &["default"]),
        (own && has("path"), &["400"]),
        (own && has("query"), &["422"]),
        (own && operation.get("requestBody").is_some(), &["400", "408", "413", "415", "422"]),
    ];
    let Some(responses) = operation.get_mut("responses").and_then(serde_json::Value::as_object_mut) else { return };
    for (status, response) in responses.iter_mut().filter_map(|(status, r)| Some((status, r.as_object_mut()?))) {
        if response.contains_key("$ref") {
            continue;
        }
        response.entry("description").or_insert_with(|| summary.clone());
        if status.starts_with(['4', '5']) {
            let problem = serde_json::json!({"schema": {"$ref": "#/components/schemas/Problem"}});
            response.entry("content").or_insert_with(|| serde_json::json!({ PROBLEM_JSON: problem }));
        }
    }
    for status in shared.into_iter().filter(|(applies, _)| *applies).flat_map(|(_, statuses)| statuses) {
        let refusal = || serde_json::json!({"$ref": "#/components/responses/Problem"});
        responses.entry(*status).or_insert_with(refusal);
    }
}

#[cfg(test)]
mod tests {
    use crate::http::routes::DOCUMENT;

    #[test]
    fn every_route_and_schema_is_described() {
        let document: serde_json::Value = serde_json::from_str(&DOCUMENT).expect("JSON");
        let paths = document["paths"].as_object().expect("paths");
        let (mut routes, mut ids) = (Vec::new(), std::collections::BTreeSet::new());
        for (path, item) in paths {
            for (method, operation) in item.as_object().expect("operations") {
                routes.push(format!("{} {path}", method.to_uppercase()));
                let id = operation["operationId"].as_str().expect("operation id");
                assert!(ids.insert(id.to_owned()), "{id} is the id of two operations");
                for (status, answer) in operation["responses"].as_object().expect("responses") {
                    assert!(answer.get("$ref").or(answer.get("description")).is_some(), "{method} {path} {status}");
                }
                assert!(operation["summary"].is_string(), "{method} {path} has no summary");
                if operation["tags"][0] == crate::http::carbon_aware::TAG {
                    continue;
                }
                assert_eq!(operation["responses"]["default"]["$ref"], "#/components/responses/Problem");
                // Invalid content gives 422, unreadable content 400.
                let parameters = operation["parameters"].as_array().into_iter().flatten();
                let queries = parameters.filter(|p| p["in"] == "query").count();
                let has_body = operation.get("requestBody").is_some();
                let says = |status: &str| operation["responses"].get(status).is_some();
                for (status, must) in [
                    ("400", path.contains('{') || has_body),
                    ("408", has_body),
                    ("413", has_body),
                    ("415", has_body),
                    ("422", queries > 0 || has_body),
                ] {
                    assert!(says(status) || !must, "{method} {path} does not say {status}");
                }
            }
        }
        routes.sort();
        insta::assert_snapshot!(routes.join("\n"), @r"
        DELETE /v1/demand-response/{id}
        DELETE /v1/gpus/{id}/power-limit
        DELETE /v1/jobs/{id}
        DELETE /v1/recurring/{name}
        GET /
        GET /emissions/average-carbon-intensity
        GET /emissions/bylocation
        GET /emissions/bylocations
        GET /emissions/bylocations/best
        GET /emissions/forecasts/current
        GET /health
        GET /healthz
        GET /locations
        GET /metrics
        GET /openapi.json
        GET /readyz
        GET /v1/audit
        GET /v1/carbon
        GET /v1/carbon/forecast
        GET /v1/carbon/history
        GET /v1/demand-response
        GET /v1/events
        GET /v1/gpus
        GET /v1/gpus/{id}
        GET /v1/gpus/{id}/history
        GET /v1/jobs
        GET /v1/jobs/{id}
        GET /v1/jobs/{id}/emissions
        GET /v1/jobs/{id}/plan
        GET /v1/jobs/{id}/profile
        GET /v1/ledger
        GET /v1/price
        GET /v1/recurring
        GET /v1/recurring/{name}
        GET /v1/recurring/{name}/export
        GET /v1/recurring/{name}/trials
        GET /v1/recurring/{name}/trials/{number}
        GET /v1/report
        GET /v1/status
        GET /v1/when
        POST /emissions/average-carbon-intensity/batch
        POST /emissions/forecasts/batch
        POST /v1/demand-response
        POST /v1/jobs
        POST /v1/jobs/{id}/begin
        POST /v1/jobs/{id}/lease
        POST /v1/jobs/{id}/progress
        POST /v1/jobs/{id}/suspended
        POST /v1/recurring/{name}/import
        POST /v1/recurring/{name}/trials
        POST /v1/recurring/{name}/trials/{number}/end
        POST /v1/recurring/{name}/trials/{number}/progress
        PUT /v1/gpus/{id}/power-limit
        PUT /v1/recurring/{name}
        ");
        let schemas = document["components"]["schemas"].as_object().expect("schemas");
        let mut references = Vec::new();
        collect_references(&document, &mut references);
        for reference in references {
            let found = document.pointer(reference.strip_prefix('#').expect("local"));
            assert!(found.is_some(), "{reference} leads nowhere");
        }
        insta::assert_snapshot!(schemas.keys().cloned().collect::<Vec<_>>().join("\n"), @r"
        AccountKind
        AccountView
        ActualView
        ArmView
        AuditAction
        AuditEntry
        AuditFormat
        AuditOutcome
        AuditPageView
        AuditRecord
        AuditState
        BasisLevel
        BatchEffectView
        BatchFigures
        BeginJob
        BeginReason
        BeginTrial
        BudgetView
        CapView
        CarbonView
        Circuit
        ComparisonView
        CompletenessView
        Concern
        Contribution
        CorrectionView
        CpuSource
        CpuView
        CpuZoneKind
        CpuZoneView
        DeviceView
        EmbodiedView
        EndTrial
        EnergyMethod
        EnergyOwner
        EventOrigin
        EventState
        EventView
        Finality
        GapView
        GpuSelector
        GpuState
        GpuView
        HealthView
        IntensityKind
        IntensityOrigin
        IntensityScope
        IntensitySourceView
        IntensityView
        IntervalView
        JobState
        JobSuspended
        JobView
        LedgerEntry
        LedgerPageView
        LedgerRow
        LedgerView
        LimitSpanView
        MarginalCostsView
        MeasuredBy
        MethodView
        Mode
        NewEvent
        ObjectiveSpec
        ObjectiveView
        PartsView
        PastForecastView
        Pausable
        PausingCosts
        PausingView
        Phase
        PlanView
        PlanningView
        PointView
        PresentPrice
        PriceSlotView
        PriceView
        Problem
        ProcessesView
        ProfileView
        ProgressOrigin
        ProgressView
        RecordedView
        RecurringDocument
        RecurringEntry
        RecurringObjective
        RecurringPolicy
        RecurringSpec
        RecurringStage
        RecurringView
        RegisterJob
        RenewLease
        ReportFormat
        ReportProgress
        ReportRow
        ReportTrial
        ReportView
        RestatementView
        RolledUpRow
        RowKind
        RowState
        SavedView
        SavingFigures
        SavingView
        SavingsView
        ScoreView
        SdkEmissions
        SdkForecast
        SdkForecastRequest
        SdkMean
        SdkMeanRequest
        SdkPlace
        SdkPoint
        SdkProblem
        SegmentActivity
        SegmentView
        SetPowerLimit
        SettledView
        SignalFreshness
        SourceView
        StartSpec
        StartView
        StatusView
        StorageView
        SuspendSpec
        SuspendView
        TermsView
        TrialDocument
        TrialEnding
        TrialKind
        TrialOrder
        TrialState
        TrialView
        UnknownView
        VerdictView
        VersionView
        Wanted
        WhenView
        WindowView
        WorkSpec
        ");
        assert_eq!(document["info"]["title"], "wattune");
        assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
        assert_eq!(document["info"]["license"]["identifier"], "Apache-2.0");
    }

    fn collect_references(value: &serde_json::Value, into: &mut Vec<String>) {
        match value {
            serde_json::Value::Object(map) => {
                into.extend(map.get("$ref").and_then(|r| r.as_str()).map(str::to_owned));
                map.values().for_each(|v| collect_references(v, into));
            }
            serde_json::Value::Array(list) => list.iter().for_each(|v| collect_references(v, into)),
            _ => {}
        }
    }

    #[test]
    fn descriptions_spell_out_the_units() {
        let document: serde_json::Value = serde_json::from_str(&DOCUMENT).expect("JSON");
        let described = |schema: &str, field: &str| {
            let text = &document["components"]["schemas"][schema]["properties"][field]["description"];
            text.as_str().unwrap_or_default().to_owned()
        };
        let table = [
            ("GpuView", "power_w", "Unit: W."),
            ("GpuView", "energy_j", "Unit: J."),
            ("GpuView", "temperature_c", "Unit: °C."),
            ("CarbonView", "intensity_g_per_kwh", "Unit: gCO2e/kWh."),
            ("JobView", "carbon_g", "Unit: gCO2e."),
            ("JobView", "lease_s", "Unit: s."),
            ("PointView", "samples_per_s", "Unit: samples/s."),
            ("PlanView", "expected_carbon_at_max_g", "Unit: gCO2e."),
            ("SetPowerLimit", "power_limit_w", "Unit: W."),
        ];
        for (schema, field, unit) in table {
            let text = described(schema, field);
            assert!(text.ends_with(unit), "{schema}.{field}: {text:?}");
        }
        assert!(!described("GpuView", "pci_bus_id").contains("Unit"));
    }
}
