//! The bodies of the Carbon Aware SDK's WebAPI.

use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::controller::view::CarbonSlot;

/// Forecast of a location, in the shape of the Carbon Aware SDK.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(in crate::http) struct SdkForecast {
    /// Time of the data from which wattune made the forecast.
    #[schema(value_type = String, format = DateTime)]
    pub(super) generated_at: Stamp,
    /// Time of the request.
    #[schema(value_type = String, format = DateTime)]
    pub(super) requested_at: Stamp,
    /// Location as requested.
    pub(super) location: String,
    /// Start of the requested time; by default that of the first point.
    #[schema(value_type = String, format = DateTime)]
    pub(super) data_start_at: Stamp,
    /// End of the requested time; by default the start of the last point.
    #[schema(value_type = String, format = DateTime)]
    pub(super) data_end_at: Stamp,
    /// Length of the window in minutes; 0 without one.
    pub(super) window_size: u32,
    /// Points with the lowest value.
    pub(super) optimal_data_points: Vec<SdkPoint>,
    /// Points of the forecast, oldest first; with a window, means of the windows that begin at each point.
    pub(super) forecast_data: Vec<SdkPoint>,
}

/// Point of a forecast.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(in crate::http) struct SdkPoint {
    /// Location as requested.
    pub(super) location: String,
    /// Start of the point.
    #[schema(value_type = String, format = DateTime)]
    pub(super) timestamp: Stamp,
    /// Length of the point in minutes.
    #[schema(value_type = f64)]
    pub(super) duration: Minutes,
    /// Carbon intensity in gCO2e/kWh.
    pub(super) value: f64,
}

/// Actual carbon intensity.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(in crate::http) struct SdkEmissions {
    /// Location as requested.
    pub(super) location: String,
    /// Start of the slot.
    #[schema(value_type = String, format = DateTime)]
    pub(super) time: Stamp,
    /// Carbon intensity in gCO2e/kWh.
    pub(super) rating: f64,
    /// Length of the slot as a .NET time span: `01:00:00`.
    pub(super) duration: String,
}

impl SdkEmissions {
    pub(super) fn new(location: &str, slot: &CarbonSlot) -> Self {
        Self {
            location: location.to_owned(),
            time: Stamp(slot.slot.start()),
            rating: slot.g_per_kwh,
            duration: time_span(slot.slot.end() - slot.slot.start()),
        }
    }
}

/// Mean of the actual carbon intensities within a time.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(in crate::http) struct SdkMean {
    /// Location as requested.
    pub(super) location: String,
    /// Start as requested.
    #[schema(value_type = String, format = DateTime)]
    pub(super) start_time: Stamp,
    /// End as requested.
    #[schema(value_type = String, format = DateTime)]
    pub(super) end_time: Stamp,
    /// Mean carbon intensity in gCO2e/kWh, weighted by time.
    pub(super) carbon_intensity: f64,
}

/// Request for the mean within a time.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(in crate::http) struct SdkMeanRequest {
    /// Location: the daemon's zone.
    pub(super) location: String,
    /// Start of the time.
    pub(super) start_time: String,
    /// End of the time.
    pub(super) end_time: String,
}

/// Request for the forecast that was current at a time.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(in crate::http) struct SdkForecastRequest {
    /// Time at which the forecast was current.
    pub(super) requested_at: String,
    /// Location: the daemon's zone.
    pub(super) location: String,
    /// Start of the time; by default that of the first point.
    pub(super) data_start_at: Option<String>,
    /// End of the time; by default that of the last point.
    pub(super) data_end_at: Option<String>,
    /// Length in minutes of the work to be done; null or 0 for the points themselves.
    pub(super) window_size: Option<i64>,
}

/// Place of a location.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(in crate::http) struct SdkPlace {
    /// Latitude in degrees; null where the zone has no coordinates.
    pub(super) latitude: Option<f64>,
    /// Longitude in degrees; null where the zone has no coordinates.
    pub(super) longitude: Option<f64>,
    /// Name of the location.
    pub(super) name: String,
}

/// Time in whole seconds with its offset from UTC, as the SDK writes it: `2026-11-25T18:00:00+00:00`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp(pub(super) DateTime<Utc>);

impl Serialize for Stamp {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0.to_rfc3339_opts(SecondsFormat::Secs, false))
    }
}

/// Length in minutes. Whole numbers are written without a decimal point, because clients in typed languages expect
/// integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Minutes(pub(super) TimeDelta);

impl Serialize for Minutes {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let whole = self.0.num_minutes();
        if TimeDelta::minutes(whole) == self.0 {
            return serializer.serialize_i64(whole);
        }
        serializer.serialize_f64(self.0.as_seconds_f64() / 60.0)
    }
}

/// Writes a length as a .NET time span: `[days.]hours:minutes:seconds[.fraction]`.
fn time_span(length: TimeDelta) -> String {
    let (days, rest) = (length.num_days(), length.num_seconds() % 86_400);
    let days = if days > 0 { format!("{days}.") } else { String::new() };
    // .NET counts in 100 ns.
    let ticks = length.subsec_nanos() / 100;
    let fraction = if ticks > 0 { format!(".{ticks:07}") } else { String::new() };
    format!("{days}{:02}:{:02}:{:02}{fraction}", rest / 3600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_written_as_dotnet_writes_them() {
        let table = [
            (TimeDelta::minutes(5), "00:05:00", "5"),
            (TimeDelta::hours(1), "01:00:00", "60"),
            (TimeDelta::hours(24), "1.00:00:00", "1440"),
            (TimeDelta::seconds(90), "00:01:30", "1.5"),
            (TimeDelta::milliseconds(60_500), "00:01:00.5000000", "1.0083333333333333"),
        ];
        for (length, span, minutes) in table {
            assert_eq!(time_span(length), span);
            assert_eq!(serde_json::to_string(&Minutes(length)).expect("JSON"), minutes);
        }
        let stamp = serde_json::to_string(&Stamp(DateTime::UNIX_EPOCH + TimeDelta::nanoseconds(999))).expect("JSON");
        assert_eq!(stamp, "\"1970-01-01T00:00:00+00:00\"");
    }
}
