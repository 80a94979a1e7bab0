//! WattTime v3: marginal operational carbon intensity (MOER) in steps of five minutes, with an account.
//!
//! `carbon-apis.md` §2 describes the API and its pitfalls. The place is one of WattTime's regions ("CAISO_NORTH"), or
//! coordinates, whose region is requested once. A country is not a region: `carbon.zone = "DE"` is refused. Because
//! some regions have names like countries ("IE"), the text of `[carbon.watttime] zone` is always read as a region's
//! name, unless it is coordinates.

mod parse;
mod session;
mod settings;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use chrono::{DateTime, TimeDelta, Utc};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::Value;

use self::parse::{Row, Rows, SIGNAL};
use self::session::{Session, not_in_plan};
pub use self::settings::Settings;
use super::descriptor::{Descriptor, Table, ZonesError};
use crate::providers::client::json::{note_short, series, unknown_last_day};
use crate::providers::client::{Api, ApiSource, Contribution, Denied, Secret, SharedSettings, abridged};
use crate::providers::error::{ProviderError, SettingsError};
use crate::providers::place::{Place, ZoneName};
use crate::providers::provider::{Actuals, Answer, Provider};
use wattune_core::domain::{
    CarbonSeries, Forecast, Intensity, Origin, Provenance, SignalKind, SignalScope, Slot, Unit,
};
use wattune_core::units::{GramsPerKwh, Seconds};

/// Time between polls. Forecasts are renewed every five minutes, more often than a plan needs.
const CADENCE: TimeDelta = TimeDelta::minutes(15);

/// Longest past span of one request. The API allows 32 days; half of that fits into the default maximum length of an
/// answer.
const LONGEST_WINDOW: TimeDelta = TimeDelta::days(14);

/// Length of a step. Both ends of a requested span are included, so spans are one step shorter to avoid overlaps.
const STEP: TimeDelta = TimeDelta::minutes(5);

pub(super) const DESCRIPTOR: Descriptor = Descriptor {
    name: "watttime",
    summary: Some("marginal, with an account; CAISO_NORTH is free"),
    // Last in the automatic choice, because WattTime's values are marginal and those of the other sources are average.
    rank: Some(4),
    countries: &[],
    #[cfg(any(test, feature = "fuzzing"))]
    fuzz: &[super::FuzzTarget { name: "watttime", parse: parse_any }],
};

impl Settings {
    fn has_account(&self) -> bool {
        Secret::is_there(&self.username_env, self.username_file.as_deref())
            && Secret::is_there(&self.password_env, self.password_file.as_deref())
    }
}

impl Table for Settings {
    fn is_set_up(&self, place: Option<&Place>) -> bool {
        // A country is not one of WattTime's regions, and must not make the automatic chain fail.
        let is_region = place.is_some_and(|place| place.is_code() || place.coordinates().is_some());
        (self.zone.is_some() || is_region) && self.has_account()
    }

    fn build(&self, shared: &SharedSettings<'_>) -> Result<Arc<dyn Provider>, SettingsError> {
        Ok(Arc::new(WattTime::new(self, shared)?))
    }

    fn zones<'a>(
        &'a self,
        shared: SharedSettings<'a>,
        now: DateTime<Utc>,
    ) -> BoxFuture<'a, Result<Vec<ZoneName>, ZonesError>> {
        async move {
            if !self.has_account() {
                return Err(ZonesError::NotSetUp(format!(
                    "register at https://docs.watttime.org and set {} and {}; then its regions are listed here",
                    abridged::variable(&self.username_env),
                    abridged::variable(&self.password_env)
                )));
            }
            let source = WattTime::new(self, &shared)?;
            Ok(source.api.discreet(source.zones(now)).await?)
        }
        .boxed()
    }
}

/// The source for one region: its forecast and its actual values.
struct WattTime {
    api: Api,
    settings: Settings,
    session: Session,
    /// Time of the last refusal of the history, if the account's plan lacks it.
    no_history: Denied,
    /// Date of WattTime's model in the last response that named one.
    model: Mutex<Option<String>>,
}

/// Shows neither the session nor the client's remembered responses, which may contain a token.
impl fmt::Debug for WattTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WattTime").field("place", self.api.place()).finish_non_exhaustive()
    }
}

impl WattTime {
    fn new(own: &Settings, shared: &SharedSettings<'_>) -> Result<Self, SettingsError> {
        let api = Api::new(DESCRIPTOR.name, own.network(), shared, Seconds::from_delta(CADENCE))?;
        let place = api.place();
        if own.zone.is_none() && !place.is_code() && place.coordinates().is_none() {
            let why = "a country is not one of its regions; set carbon.watttime.zone to latitude,longitude (\"37.77,-122.42\") \
                       or to a region's name (\"CAISO_NORTH\")";
            return Err(place.refused(api.source(), why));
        }
        let (session, no_history, model) = Default::default();
        Ok(Self { api, settings: own.clone(), session, no_history, model })
    }

    async fn get(&self, path: &str, query: &[(&str, &str)], now: DateTime<Utc>) -> Result<Value, ProviderError> {
        self.session.get(&self.api, &self.settings, (path, query), now).await
    }

    async fn zones(&self, now: DateTime<Utc>) -> Result<Vec<ZoneName>, ProviderError> {
        parse::zones(&self.get("/v3/my-access", &[("signal_type", SIGNAL)], now).await?)
    }

    /// Returns the region's name. For coordinates, the first region found is used until the next start, or until the
    /// API refuses it, because borders change.
    async fn region(&self, now: DateTime<Utc>) -> Result<String, ProviderError> {
        let place = self.api.place();
        let Some((latitude, longitude)) = place.coordinates() else { return Ok(place.zone().to_string()) };
        if let Some(region) = self.api.pinned() {
            return Ok(region);
        }
        let (latitude, longitude) = (latitude.to_string(), longitude.to_string());
        let query = [("signal_type", SIGNAL), ("latitude", &*latitude), ("longitude", &*longitude)];
        let answer = self.get("/v3/region-from-loc", &query, now).await;
        let found = answer.and_then(|body| parse::region(&body)).map_err(|error| match error {
            ProviderError::Unexpected { status: 200 | 404, message } => {
                let what = format!(
                    "WattTime covers no region at {} ({message}); check that latitude comes first, or choose another source",
                    place.zone()
                );
                ProviderError::Empty { what }
            }
            other => other,
        });
        self.api.pin(found)
    }

    /// Requests the forecast, and drops slots that have ended.
    async fn ahead(&self, region: &str, now: DateTime<Utc>) -> Result<Rows, ProviderError> {
        let hours = u8::from(self.settings.horizon_hours).to_string();
        let query = [("region", region), ("signal_type", SIGNAL), ("horizon_hours", &hours)];
        let mut ahead = parse::rows(&self.get("/v3/forecast", &query, now).await?, region)?;
        let given = ahead.rows.len();
        ahead.rows.retain(|row| now < row.slot.end());
        if ahead.rows.is_empty() {
            let what = format!("{given} values in the forecast for {region}, none for now or later");
            return Err(ProviderError::Empty { what });
        }
        Ok(ahead)
    }

    /// Requests the actual values from `start` to `end`, both included.
    async fn behind(
        &self,
        region: &str,
        (start, end): (DateTime<Utc>, DateTime<Utc>),
        now: DateTime<Utc>,
    ) -> Result<Vec<(Slot, Intensity)>, ProviderError> {
        let text = |t: DateTime<Utc>| t.format("%Y-%m-%dT%H:%M:%SZ").to_string();
        let (start, end) = (text(start), text(end));
        let query = [
            ("region", region),
            ("signal_type", SIGNAL),
            ("start", &start),
            ("end", &end),
            ("include_imputed_marker", "true"),
        ];
        let answer = self.get("/v3/historical", &query, now).await;
        if answer.as_ref().is_err_and(not_in_plan) {
            self.no_history.note(now);
        }
        let origin = |row: &Row| if row.imputed { Origin::Estimated } else { Origin::Measured };
        let actuals = parse::rows(&answer?, region)?.rows.into_iter().filter(|row| row.slot.end() <= now);
        Ok(actuals.map(|row| (row.slot, Intensity { value: row.value, origin: origin(&row) })).collect())
    }

    /// Requests the actual values of the last 24 hours; if the plan has no history, returns no values and adds a note.
    async fn last_day(
        &self,
        region: &str,
        now: DateTime<Utc>,
        notes: &mut Vec<String>,
    ) -> Result<Vec<(Slot, Intensity)>, ProviderError> {
        if self.no_history.stands(now) {
            notes.push(format!("the account's plan has no history of {region}; actual values are unknown"));
            return Ok(Vec::new());
        }
        self.behind(region, (now - TimeDelta::hours(24), now), now).await
    }

    /// Returns a note if the model of WattTime's forecasts changed, because the level of the values may have changed
    /// too.
    fn model_note(&self, model: Option<String>) -> Option<String> {
        let mut known = self.model.lock().unwrap_or_else(PoisonError::into_inner);
        let after = model?;
        let before = known.replace(after.clone()).filter(|before| *before != after)?;
        Some(format!("WattTime's model changed from {before} to {after}; values may lie at another level now"))
    }
}

impl ApiSource for WattTime {
    const UNIT: Unit = Unit::PoundsPerMwh;

    /// Two days: history is complete within hours, and later revisions happen within the next two days.
    const FINAL_AFTER: Seconds = Seconds::new(2.0 * 86_400.0);

    const ACTUALS_WINDOW: TimeDelta = LONGEST_WINDOW;

    fn api(&self) -> &Api {
        &self.api
    }

    async fn answer(&self, now: DateTime<Utc>) -> Result<Answer, ProviderError> {
        let region = self.region(now).await?;
        let mut notes = Vec::new();
        let contributes = self.api.contributes();
        let ahead = match contributes {
            Contribution::Actual => None,
            Contribution::Both | Contribution::Forecast => Some(self.ahead(&region, now).await?),
        };
        let behind = match contributes {
            Contribution::Forecast => Ok(Vec::new()),
            Contribution::Both => self.last_day(&region, now, &mut notes).await,
            // Without actual values there would be no answer, so they are requested even after a refusal.
            Contribution::Actual => self.behind(&region, (now - TimeDelta::hours(24), now), now).await,
        };
        let behind = match (behind, &ahead) {
            (Ok(behind), _) => behind,
            (Err(error), Some(_)) => {
                notes.push(unknown_last_day(&error));
                Vec::new()
            }
            (Err(error), None) => return Err(error),
        };
        let (mut rows, mut issued_at, mut provenance) = (Vec::new(), now, Provenance::default());
        if let Some(ahead) = ahead {
            notes.extend(ahead.warnings.iter().map(|warning| format!("WattTime warns: {warning}")));
            provenance.model.clone_from(&ahead.model);
            notes.extend(self.model_note(ahead.model));
            issued_at = ahead.generated_at.unwrap_or(now).min(now);
            rows = ahead.rows;
        }
        let (expected, odd) = series(rows.iter().map(|row| (row.slot, Some(row.value))), Origin::Forecast);
        notes.extend(odd);
        let actual = CarbonSeries::from_points(behind).0;
        if expected.is_empty() && actual.is_empty() {
            return Err(ProviderError::Empty { what: format!("the history of {region} has no past values") });
        }
        let forecast = Forecast {
            issued_at,
            provenance,
            ..self.api.forecast((SignalKind::Marginal, SignalScope::Operational), now, expected, actual)
        };
        notes.extend(note_short(&forecast, now, u8::from(self.settings.horizon_hours).into()));
        notes.extend(self.api.skew_note());
        Ok(Answer { forecast, notes })
    }

    async fn actuals(&self, span: Slot, now: DateTime<Utc>) -> Actuals<GramsPerKwh> {
        if self.api.contributes() == Contribution::Forecast || self.no_history.stands(now) {
            return Ok(None);
        }
        let end = (span.start() + LONGEST_WINDOW - STEP).min(span.end()).min(now);
        if end <= span.start() {
            return Ok(Some(CarbonSeries::default()));
        }
        let region = self.region(now).await?;
        // Starts one step early, to include a slot that begins before the span and ends in it.
        match self.behind(&region, (span.start() - STEP, end), now).await {
            Err(error) if not_in_plan(&error) => Ok(None),
            answer => {
                let mut rows = answer?;
                rows.retain(|(slot, _)| span.start() < slot.end());
                Ok(Some(CarbonSeries::from_points(rows).0))
            }
        }
    }
}

/// Runs the parsers on any bytes, and the reader of refusals on a refusal with these bytes as its message; neither must
/// cause a panic.
#[cfg(any(test, feature = "fuzzing"))]
fn parse_any(body: &[u8]) {
    use crate::providers::feed::follow_rows;
    let _ = session::with_advice(ProviderError::refused_with(body));
    let Ok(body) = serde_json::from_slice::<Value>(body) else { return };
    if let Ok(parsed) = parse::rows(&body, "CAISO_NORTH") {
        follow_rows(parsed.rows.into_iter().map(|row| (row.slot, row.value)));
    }
    let _ = (parse::region(&body), parse::token(&body), parse::zones(&body));
}
