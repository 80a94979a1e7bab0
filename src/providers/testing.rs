//! Helpers of the sources' tests.

use chrono::{DateTime, Utc};
use wiremock::matchers::path;
use wiremock::{Mock, MockServer, ResponseTemplate};

use wattune_core::domain::CarbonSeries;

/// Parses a time.
pub(in crate::providers) fn at(text: &str) -> DateTime<Utc> {
    DateTime::parse_from_rfc3339(text).expect(text).to_utc()
}

/// Starts a server with these answers by path.
pub(in crate::providers) async fn serve(routes: &[(&str, ResponseTemplate)]) -> MockServer {
    let server = MockServer::start().await;
    for (route, template) in routes {
        Mock::given(path(*route)).respond_with(template.clone()).mount(&server).await;
    }
    server
}

/// Returns the values of a series in gCO2e/kWh.
pub(in crate::providers) fn values(series: &CarbonSeries) -> Vec<f64> {
    series.points().iter().map(|(_, i)| i.value.get()).collect()
}
