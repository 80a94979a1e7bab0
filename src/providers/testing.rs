//! Helpers of the sources' tests.

use chrono::{DateTime, Utc};
use wiremock::matchers::path;
use wiremock::{Mock, MockServer, Request, ResponseTemplate};

use super::client::settings::BaseUrl;
use wattune_core::domain::CarbonSeries;

/// Parses a time.
pub(in crate::providers) fn at(text: &str) -> DateTime<Utc> {
    DateTime::parse_from_rfc3339(text).expect(text).to_utc()
}

/// Returns an answer with status 200.
pub(in crate::providers) fn ok(body: impl Into<String>) -> ResponseTemplate {
    ResponseTemplate::new(200).set_body_string(body)
}

/// Returns an answer that was sent at the time that a test uses as now: otherwise it would be noted that the clocks differ.
pub(in crate::providers) fn ok_at(now: DateTime<Utc>, body: impl Into<String>) -> ResponseTemplate {
    ok(body).insert_header("date", now.format("%a, %d %b %Y %H:%M:%S GMT").to_string().as_str())
}

/// Returns an answer with this status.
pub(in crate::providers) fn status(status: u16, body: &str) -> ResponseTemplate {
    ResponseTemplate::new(status).set_body_string(body)
}

/// Starts a server with these answers by path.
pub(in crate::providers) async fn serve(routes: &[(&str, ResponseTemplate)]) -> MockServer {
    let server = MockServer::start().await;
    for (route, template) in routes {
        Mock::given(path(*route)).respond_with(template.clone()).mount(&server).await;
    }
    server
}

/// Returns the address of a server as a source's setting.
pub(in crate::providers) fn base_url(server: &MockServer) -> BaseUrl {
    BaseUrl::try_from(server.uri()).expect("an address")
}

/// Returns the requests with this path that a server has received, in order.
pub(in crate::providers) async fn requests(server: &MockServer, route: &str) -> Vec<Request> {
    let all = server.received_requests().await.expect("recorded");
    all.into_iter().filter(|request| request.url.path() == route).collect()
}

/// Returns the value of a parameter in a request's query.
pub(in crate::providers) fn asks(request: &Request, field: &str) -> Option<String> {
    request.url.query_pairs().find(|(name, _)| name == field).map(|(_, value)| value.into_owned())
}

/// Returns the values of a series in gCO2e/kWh.
pub(in crate::providers) fn values(series: &CarbonSeries) -> Vec<f64> {
    series.points().iter().map(|(_, i)| i.value.get()).collect()
}
