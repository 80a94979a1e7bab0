//! Limits how often one sender may change something, so that a program in a loop leaves the daemon to others.
//!
//! Limited are changes of limits, events and jobs, which the control loop makes one at a time, and separately those of
//! recurring jobs, which share one connection to the database. Reading, reporting and renewing are not limited. Neither are
//! the writes of Zeus's clients, which wait in a short queue for each GPU. Requests without the right to their route do
//! not count.

use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use tokio::time::Instant;

use super::access::Asker;
use super::bso;
use super::bucket::{Allowance, Buckets};
use super::error::Problem;

/// Changes of limits, events and jobs.
const CHANGES: Allowance = Allowance { per_second: 200.0, burst: 2000.0 };
/// Changes of recurring jobs.
const RECURRING: Allowance = Allowance { per_second: 2000.0, burst: 20_000.0 };

/// Routes whose requests, unless they only read, are changes of limits, events and jobs.
const CHANGE_ROUTES: [&str; 7] = [
    "/v1/gpus/{id}/power-limit",
    "/v1/demand-response",
    "/v1/demand-response/{id}",
    "/v1/jobs",
    "/v1/jobs/{id}",
    "/v1/jobs/{id}/begin",
    "/v1/jobs/{id}/suspended",
];
/// Routes whose requests, unless they only read, are changes of recurring jobs.
const RECURRING_ROUTES: [&str; 6] = [
    "/v1/recurring/{name}",
    "/v1/recurring/{name}/import",
    "/v1/recurring/{name}/trials",
    "/v1/recurring/{name}/trials/{number}/end",
    "/jobs",
    "/trials",
];
/// Route that begins a trial on GET.
const BEGINS_ON_GET: &str = "/jobs/batch_size";

/// The changes that each sender may still make now. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct RateLimits {
    changes: Buckets,
    recurring: Buckets,
}

impl Default for RateLimits {
    fn default() -> Self {
        Self { changes: Buckets::new(CHANGES), recurring: Buckets::new(RECURRING) }
    }
}

impl RateLimits {
    /// Returns the allowances that a request needs; `None` if it is not limited.
    fn of(&self, method: &Method, route: &str) -> Option<&Buckets> {
        let reads = [Method::GET, Method::HEAD].contains(method);
        match route {
            BEGINS_ON_GET => Some(&self.recurring),
            _ if reads => None,
            _ if CHANGE_ROUTES.contains(&route) => Some(&self.changes),
            _ if RECURRING_ROUTES.contains(&route) => Some(&self.recurring),
            _ => None,
        }
    }
}

impl RateLimits {
    /// Counts a request of `asker`.
    ///
    /// # Errors
    /// The answer 429, if the request is a change and its sender makes too many.
    pub(super) fn count(&self, request: &Request, asker: &Asker) -> Result<(), Box<Response>> {
        let route = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str).unwrap_or_default();
        let Some(buckets) = self.of(request.method(), route) else { return Ok(()) };
        let Err(wait) = buckets.take(&asker.identity(), Instant::now()) else { return Ok(()) };
        let Allowance { per_second, burst } = buckets.allowance();
        let detail = format!(
            "too many changes by this user: at most {per_second} times a second, or {burst} times at once after a pause; \
             try again in {:.0} ms",
            wait.as_secs_f64() * 1e3
        );
        let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, detail);
        let is_of_zeus = bso::owns(request.uri().path());
        let mut response = if is_of_zeus { bso::refuse(problem) } else { problem.into_response() };
        // Whole seconds only.
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        Err(Box::new(response))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::routes;

    #[test]
    fn changes_are_limited_and_reports_are_not() {
        let limits = RateLimits::default();
        let limit = |method: &str, route: &str| {
            let method = method.parse().expect("a method");
            limits.of(&method, route).map(|buckets| buckets.allowance().per_second)
        };
        let table = [
            ("PUT", "/v1/gpus/{id}/power-limit", Some(200.0)),
            ("GET", "/v1/jobs", None),
            ("POST", "/v1/jobs", Some(200.0)),
            ("POST", "/v1/jobs/{id}/progress", None),
            ("PUT", "/v1/recurring/{name}", Some(2000.0)),
            ("POST", "/v1/recurring/{name}/trials/{number}/progress", None),
            ("GET", "/jobs/batch_size", Some(2000.0)),
            ("POST", "/report", None),
            ("PATCH", "/trials", Some(2000.0)),
        ];
        for (method, route, per_second) in table {
            assert_eq!(limit(method, route), per_second, "{method} {route}");
        }
        let all = routes::all();
        for route in CHANGE_ROUTES.into_iter().chain(RECURRING_ROUTES).chain([BEGINS_ON_GET]) {
            assert!(all.iter().any(|(_, known)| known == route), "{route}");
        }
    }
}
