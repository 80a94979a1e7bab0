//! Right that each route needs: one table of all routes.

/// Right that a request must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::http) enum Need {
    /// Nothing: the answer says nothing about this machine or its jobs.
    Open,
    /// Checks of its own, in the order of Zeus's daemon.
    Zeus,
    /// Reading.
    Read,
    /// Registering, reporting and ending jobs and trials. Those of others need [`Need::Control`], which the handler checks.
    Jobs,
    /// Limits, clocks, caps.
    Control,
    /// The audit log.
    Admin,
}

/// Any method.
const ANY: &str = "*";

/// All routes with their methods.
#[rustfmt::skip]
pub(super) const TABLE: &[(&str, &str, Need)] = &[
    ("GET",    "/",                                            Need::Open),
    ("GET",    "/openapi.json",                                Need::Open),
    ("GET",    "/health",                                      Need::Open),
    ("GET",    "/healthz",                                     Need::Open),
    ("GET",    "/readyz",                                      Need::Open),
    ("GET",    "/metrics",                                     Need::Read),
    ("GET",    "/v1/status",                                   Need::Read),
    ("GET",    "/v1/events",                                   Need::Read),
    ("GET",    "/v1/gpus",                                     Need::Read),
    ("GET",    "/v1/gpus/{id}",                                Need::Read),
    ("GET",    "/v1/gpus/{id}/history",                        Need::Read),
    ("PUT",    "/v1/gpus/{id}/power-limit",                    Need::Control),
    ("DELETE", "/v1/gpus/{id}/power-limit",                    Need::Control),
    ("GET",    "/v1/carbon",                                   Need::Read),
    ("GET",    "/v1/carbon/forecast",                          Need::Read),
    ("GET",    "/v1/carbon/history",                           Need::Read),
    ("GET",    "/v1/price",                                    Need::Read),
    ("GET",    "/v1/when",                                     Need::Read),
    ("GET",    "/v1/audit",                                    Need::Admin),
    ("GET",    "/v1/demand-response",                          Need::Read),
    ("POST",   "/v1/demand-response",                          Need::Control),
    ("DELETE", "/v1/demand-response/{id}",                     Need::Control),
    ("GET",    "/v1/jobs",                                     Need::Read),
    ("POST",   "/v1/jobs",                                     Need::Jobs),
    ("GET",    "/v1/jobs/{id}",                                Need::Read),
    ("DELETE", "/v1/jobs/{id}",                                Need::Jobs),
    ("POST",   "/v1/jobs/{id}/progress",                       Need::Jobs),
    ("POST",   "/v1/jobs/{id}/lease",                          Need::Jobs),
    ("POST",   "/v1/jobs/{id}/begin",                          Need::Jobs),
    ("POST",   "/v1/jobs/{id}/suspended",                      Need::Jobs),
    ("GET",    "/v1/jobs/{id}/plan",                           Need::Read),
    ("GET",    "/v1/jobs/{id}/profile",                        Need::Read),
    ("GET",    "/v1/jobs/{id}/emissions",                      Need::Read),
    ("GET",    "/v1/report",                                   Need::Read),
    ("GET",    "/v1/ledger",                                   Need::Read),
    ("GET",    "/v1/recurring",                                Need::Read),
    ("GET",    "/v1/recurring/{name}",                         Need::Read),
    ("PUT",    "/v1/recurring/{name}",                         Need::Jobs),
    ("DELETE", "/v1/recurring/{name}",                         Need::Jobs),
    ("GET",    "/v1/recurring/{name}/export",                  Need::Read),
    ("POST",   "/v1/recurring/{name}/import",                  Need::Jobs),
    ("GET",    "/v1/recurring/{name}/trials",                  Need::Read),
    ("POST",   "/v1/recurring/{name}/trials",                  Need::Jobs),
    ("GET",    "/v1/recurring/{name}/trials/{number}",         Need::Read),
    ("POST",   "/v1/recurring/{name}/trials/{number}/progress", Need::Jobs),
    ("POST",   "/v1/recurring/{name}/trials/{number}/end",     Need::Jobs),
    ("GET",    "/emissions/average-carbon-intensity",          Need::Read),
    ("POST",   "/emissions/average-carbon-intensity/batch",    Need::Read),
    ("GET",    "/emissions/bylocation",                        Need::Read),
    ("GET",    "/emissions/bylocations",                       Need::Read),
    ("GET",    "/emissions/bylocations/best",                  Need::Read),
    ("GET",    "/emissions/forecasts/current",                 Need::Read),
    ("POST",   "/emissions/forecasts/batch",                   Need::Read),
    ("GET",    "/locations",                                   Need::Read),
    // Zeus's batch size server: its jobs are recurring jobs. With a slash at its end, a path only redirects.
    ("POST",   "/jobs",                                        Need::Jobs),
    ("DELETE", "/jobs",                                        Need::Jobs),
    ("GET",    "/jobs/batch_size",                             Need::Jobs),
    ("POST",   "/report",                                      Need::Jobs),
    ("PATCH",  "/trials",                                      Need::Jobs),
    (ANY,      "/jobs/",                                       Need::Open),
    (ANY,      "/jobs/batch_size/",                            Need::Open),
    (ANY,      "/report/",                                     Need::Open),
    (ANY,      "/trials/",                                     Need::Open),
    // Zeus's daemon.
    (ANY,      "/discover",                                    Need::Zeus),
    (ANY,      "/time",                                        Need::Zeus),
    (ANY,      "/gpu/",                                        Need::Zeus),
    (ANY,      "/gpu/{*rest}",                                 Need::Zeus),
    (ANY,      "/cpu/",                                        Need::Zeus),
    (ANY,      "/cpu/{*rest}",                                 Need::Zeus),
    (ANY,      "/auth/",                                       Need::Zeus),
    (ANY,      "/auth/{*rest}",                                Need::Zeus),
];

/// Returns what a route needs. A method that the route does not have, which is refused anyway, needs the most that one of
/// the route's methods does; an unlisted route needs everything.
pub(super) fn of(method: &str, route: &str) -> Need {
    let rows = || TABLE.iter().filter(|(_, path, _)| *path == route);
    let exact = rows().find(|(listed, ..)| *listed == method || *listed == ANY);
    exact.map(|(.., need)| *need).or_else(|| rows().map(|(.., need)| *need).max()).unwrap_or(Need::Admin)
}
