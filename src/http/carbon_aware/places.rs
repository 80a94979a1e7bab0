//! The location that the daemon has, and the route that lists it.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use super::refusal::SdkProblem;
use super::wire::SdkPlace;
use crate::controller::view::SlotsAhead;
use crate::http::shared::Shared;

/// Returns the daemon's forecast and zone.
pub(super) async fn signal(shared: &Shared) -> Result<SlotsAhead, SdkProblem> {
    Ok(shared.ask(|controller| Box::pin(async move { controller.carbon_slots_ahead() })).await?)
}

/// Checks that a location is the daemon's zone.
pub(super) fn check_location(given: &str, signal: &SlotsAhead) -> Result<(), SdkProblem> {
    let zone = signal.zone.as_deref();
    match zone.is_some_and(|zone| zone.eq_ignore_ascii_case(given)) {
        true => Ok(()),
        false => Err(SdkProblem::unknown_location(given, zone)),
    }
}

/// Returns the daemon's location, in the shape of the Carbon Aware SDK.
#[utoipa::path(
    get, path = "/locations", operation_id = "sdk_locations", tag = super::TAG,
    responses(
        (status = OK, body = BTreeMap<String, SdkPlace>),
        (status = NO_CONTENT, description = "No source has responded yet"),
    )
)]
pub(in crate::http) async fn locations(State(shared): State<Shared>) -> Result<Response, SdkProblem> {
    let Some(zone) = signal(&shared).await?.zone else { return Ok(StatusCode::NO_CONTENT.into_response()) };
    Ok(Json(BTreeMap::from([(zone.clone(), place(zone))])).into_response())
}

fn place(zone: String) -> SdkPlace {
    let degrees = |text: &str, most: f64| text.trim().parse::<f64>().ok().filter(|degrees| degrees.abs() <= most);
    let coordinates = zone.split_once(',').and_then(|(lat, lon)| Some((degrees(lat, 90.0)?, degrees(lon, 180.0)?)));
    let (latitude, longitude) = coordinates.unzip();
    SdkPlace { latitude, longitude, name: zone }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coordinates_come_from_the_zone() {
        let table = [
            ("DE", None, None),
            ("52.52,13.40", Some(52.52), Some(13.4)),
            ("a,b", None, None),
            ("152.52,13.40", None, None),
        ];
        for (zone, latitude, longitude) in table {
            let place = place(zone.to_owned());
            assert_eq!((place.latitude, place.longitude, place.name.as_str()), (latitude, longitude, zone));
        }
    }
}
