//! The shared part of all sources with a network API: address, place, and time between requests.

use std::sync::{Mutex, PoisonError};

use chrono::{DateTime, TimeDelta, Utc};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use reqwest::header::HeaderMap;
use serde_json::Value;

use super::cache::file_name;
use super::http::Http;
use super::quota::{Requests, Usage};
use super::settings::{BaseUrl, Contribution, Network, SharedSettings};
use crate::providers::error::{ProviderError, SettingsError};
use crate::providers::place::Place;
use crate::providers::provider::{Actuals, Answer, FINAL_AFTER, Provider};
use wattune_core::domain::{
    Forecast, Method, Provenance, Quoted, SignalKind, SignalScope, SignalValue, Slot, TimeSeries, Unit, Zone,
};
use wattune_core::units::{GramsPerKwh, Seconds};

/// Connection to a source's API: address, HTTP client, and the place whose values are requested.
#[derive(Debug)]
pub(in crate::providers) struct Api {
    source: &'static str,
    http: Http,
    base_url: BaseUrl,
    place: Place,
    cadence: Seconds,
    contributes: Contribution,
    methods: Mutex<Vec<Method>>,
    /// Time at which a zone that was determined for the place was last refused.
    zone_refused: Denied,
}

impl Api {
    /// Makes the connection without a request. The place is the source's own `zone` setting, else `carbon.zone`.
    ///
    /// # Errors
    /// If no place is set, or if the place's text looks like coordinates but is no valid `latitude,longitude`.
    pub(in crate::providers) fn new(
        source: &'static str,
        network: Network<'_>,
        shared: &SharedSettings<'_>,
        usual_cadence: Seconds,
    ) -> Result<Self, SettingsError> {
        let place = Place::of(network.zone.or(shared.zone).ok_or(SettingsError::NoZone(source))?);
        if let Some(why) = place.misread() {
            return Err(place.refused(source, why));
        }
        let counted_as = file_name(source, place.zone());
        Ok(Self::about(place, source, network, shared, usual_cadence, &counted_as))
    }

    /// Does the same as [`Self::new`] for a given place. Requests are counted in a file named after `counted_as`.
    pub(in crate::providers) fn about(
        place: Place,
        source: &'static str,
        network: Network<'_>,
        shared: &SharedSettings<'_>,
        usual_cadence: Seconds,
        counted_as: &str,
    ) -> Self {
        Self {
            source,
            http: Http::new(network, shared, Usage::load(shared.state_dir, counted_as, network.requests_per_hour)),
            base_url: network.base_url.clone(),
            place,
            cadence: network.poll_interval.or(shared.poll_interval).unwrap_or(usual_cadence),
            contributes: network.contributes,
            methods: Mutex::default(),
            zone_refused: Denied::default(),
        }
    }

    pub(in crate::providers) fn source(&self) -> &'static str {
        self.source
    }

    pub(in crate::providers) fn place(&self) -> &Place {
        &self.place
    }

    /// Returns the place as the settings write it; the source's answers carry it as their zone.
    pub(in crate::providers) fn zone(&self) -> Zone {
        self.place.zone().clone()
    }

    pub(in crate::providers) fn cadence(&self) -> Seconds {
        self.cadence
    }

    pub(in crate::providers) fn contributes(&self) -> Contribution {
        self.contributes
    }

    pub(in crate::providers) fn requests(&self, now: DateTime<Utc>) -> Requests {
        self.http.usage().requests(now)
    }

    /// Returns the zone, in the source's own code, that an earlier request of this run determined for the place.
    pub(in crate::providers) fn pinned(&self) -> Option<String> {
        self.http.usage().pinned(self.place.zone().as_str())
    }

    /// Returns the zone, in the source's own code, that this run or an earlier one determined for the place.
    pub(in crate::providers) fn last_pinned(&self) -> Option<String> {
        self.http.usage().last_pinned(self.place.zone().as_str())
    }

    /// Stores the zone, in the source's own code, that a request determined for the place, and returns it. If the
    /// request failed, returns the zone that an earlier run determined, if there is one.
    pub(in crate::providers) fn pin(&self, found: Result<String, ProviderError>) -> Result<String, ProviderError> {
        let (usage, place) = (self.http.usage(), self.place.zone().as_str());
        match found {
            Ok(zone) => {
                tracing::info!(source = self.source, zone, "zone of the place determined and stored");
                usage.pin(place, &zone);
                Ok(zone)
            }
            Err(error) => {
                let Some(zone) = self.last_pinned() else { return Err(error) };
                // The next poll repeats a request that did not reach the source, but not one that the source cannot
                // answer.
                let is_unasked = matches!(
                    error,
                    ProviderError::Unreachable { .. } | ProviderError::NoKey { .. } | ProviderError::QuotaSpent { .. }
                );
                if !is_unasked {
                    usage.pin(place, &zone);
                }
                Ok(zone)
            }
        }
    }

    /// Forgets the zone that was determined for the place if `error` says that the source refuses it. The next poll
    /// determines the zone anew, but only once a day, because the new zone may be refused, too.
    fn unpin_refused(&self, error: &ProviderError, now: DateTime<Utc>) {
        let is_refused = matches!(error, ProviderError::Unexpected { status: 400 | 404 | 422, .. });
        if is_refused && self.pinned().is_some() && !self.zone_refused.stands(now) {
            self.zone_refused.note(now);
            self.http.usage().unpin();
            tracing::info!(source = self.source, "zone of the place refused; to be determined anew");
        }
    }

    /// Returns the provenance of the responses that were read since the last call.
    pub(in crate::providers) fn provenance(&self, unit: Unit) -> Provenance {
        let responses = self.http.take_digests().iter().map(ToString::to_string).collect();
        let zone = self.last_pinned().unwrap_or_else(|| self.place.zone().to_string());
        let methods = std::mem::take(&mut *self.methods.lock().unwrap_or_else(PoisonError::into_inner));
        Provenance { unit: Some(unit), zone: Some(zone), model: None, responses, methods }
    }

    /// Stores the methods by which the source computed its values, until the next call of [`Self::provenance`].
    pub(in crate::providers) fn note_methods(&self, methods: impl IntoIterator<Item = Method>) {
        let clean = |method: Method| Method { name: self.http.secrets().without(&method.name), ..method };
        self.methods.lock().unwrap_or_else(PoisonError::into_inner).extend(methods.into_iter().map(clean));
    }

    /// Returns a note if this machine's clock and the source's differ too much.
    pub(in crate::providers) fn skew_note(&self) -> Option<String> {
        self.http.skew_note()
    }

    /// Makes a forecast of these values, with now as the time of issue, because few sources publish when they made a
    /// forecast.
    pub(in crate::providers) fn forecast<V: SignalValue>(
        &self,
        (kind, scope): (SignalKind, SignalScope),
        now: DateTime<Utc>,
        expected: TimeSeries<Quoted<V>>,
        actual: TimeSeries<Quoted<V>>,
    ) -> Forecast<V> {
        Forecast {
            zone: self.zone(),
            source: self.source.to_owned(),
            kind,
            scope,
            issued_at: now,
            retrieved_at: now,
            provenance: Provenance::default(),
            expected,
            actual,
        }
    }

    /// Requests the JSON document at `path` ("/v3/zones") below the base address.
    pub(in crate::providers) async fn get(
        &self,
        path: &str,
        query: &[(&str, &str)],
        headers: HeaderMap,
        now: DateTime<Utc>,
    ) -> Result<Value, ProviderError> {
        self.http.get_json(self.base_url.with(path, query), headers, now).await
    }

    /// Awaits a request, and removes the secrets that were sent (keys, tokens, user names) from its error.
    pub(in crate::providers) async fn discreet<T>(
        &self,
        asking: impl Future<Output = Result<T, ProviderError>>,
    ) -> Result<T, ProviderError> {
        asking.await.map_err(|error| error.cleaned(self.http.secrets()))
    }

    /// Awaits an answer, and removes the secrets that were sent from its notes, or from the error.
    pub(in crate::providers) async fn discreet_answer<V: SignalValue>(
        &self,
        asking: impl Future<Output = Result<Answer<V>, ProviderError>>,
    ) -> Result<Answer<V>, ProviderError> {
        let mut answer = self.discreet(asking).await?;
        for note in &mut answer.notes {
            *note = self.http.secrets().without(note);
        }
        Ok(answer)
    }
}

/// Time at which a route or option of an API was last refused. The route or option is then not requested for a day,
/// because users' plans at a source rarely change.
#[derive(Debug, Default)]
pub(in crate::providers) struct Denied(Mutex<Option<DateTime<Utc>>>);

impl Denied {
    /// Returns true within a day after the last refusal.
    pub(in crate::providers) fn stands(&self, now: DateTime<Utc>) -> bool {
        let since = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        since.is_some_and(|since| (since..since + TimeDelta::days(1)).contains(&now))
    }

    pub(in crate::providers) fn note(&self, now: DateTime<Utc>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
    }

    pub(in crate::providers) fn lift(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// A source with a network API. Each one implements [`Provider`] through its [`Api`].
pub(in crate::providers) trait ApiSource: Send + Sync {
    /// Unit in which the source publishes its values.
    const UNIT: Unit = Unit::GramsPerKwh;

    /// Age from which the source's actual values are final.
    const FINAL_AFTER: Seconds = FINAL_AFTER;

    /// Longest span of one request for actual values.
    const ACTUALS_WINDOW: TimeDelta;

    /// Returns the source's connection.
    fn api(&self) -> &Api;

    /// Returns first the kind, second the scope of the source's values; `None` if they are not known before an answer.
    fn meaning(&self) -> Option<(SignalKind, SignalScope)> {
        None
    }

    /// Requests a forecast, as [`Provider::fetch`] does.
    fn answer(&self, now: DateTime<Utc>) -> impl Future<Output = Result<Answer, ProviderError>> + Send;

    /// Requests actual values, as [`Provider::fetch_actuals`] does.
    fn actuals(&self, span: Slot, now: DateTime<Utc>) -> impl Future<Output = Actuals<GramsPerKwh>> + Send;
}

impl<S: ApiSource> Provider for S {
    fn source(&self) -> &'static str {
        self.api().source
    }

    fn zone(&self) -> Zone {
        self.api().zone()
    }

    fn cadence(&self) -> Seconds {
        self.api().cadence
    }

    fn meaning(&self) -> Option<(SignalKind, SignalScope)> {
        ApiSource::meaning(self)
    }

    fn contributes(&self) -> Contribution {
        self.api().contributes
    }

    fn provenance(&self) -> Provenance {
        self.api().provenance(S::UNIT)
    }

    fn requests(&self, now: DateTime<Utc>) -> Option<Requests> {
        Some(self.api().requests(now))
    }

    fn fetch(&self, now: DateTime<Utc>) -> BoxFuture<'_, Result<Answer, ProviderError>> {
        async move {
            let answer = self.api().discreet_answer(self.answer(now)).await;
            if let Err(error) = &answer {
                self.api().unpin_refused(error, now);
            }
            answer
        }
        .boxed()
    }

    fn fetch_actuals(&self, span: Slot, now: DateTime<Utc>) -> BoxFuture<'_, Actuals<GramsPerKwh>> {
        self.api().discreet(self.actuals(span, now)).boxed()
    }

    fn actuals_window(&self) -> Option<TimeDelta> {
        Some(S::ACTUALS_WINDOW)
    }

    fn final_after(&self) -> Seconds {
        S::FINAL_AFTER
    }
}
