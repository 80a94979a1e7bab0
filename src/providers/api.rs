//! What all sources behind a network share: where they are, what they are asked about, and how often.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use chrono::{DateTime, TimeDelta, Utc};
use reqwest::header::HeaderMap;
use serde_json::Value;

use super::cache::file_name;
use super::fetch::Http;
use super::place::Place;
use super::settings::Common;
use super::usage::{Requests, Usage};
use super::{Answer, BaseUrl, CarbonSettings, Contribution, ProviderError, SettingsError, Source};
use wattune_core::domain::{Method, Provenance, SignalValue, Unit, Zone};
use wattune_core::units::Seconds;

/// A source's address, its client, and the place it is asked about.
#[derive(Debug)]
pub(super) struct Api {
    source: &'static str,
    http: Http,
    base_url: BaseUrl,
    place: Place,
    cadence: Seconds,
    contributes: Contribution,
    methods: Mutex<Vec<Method>>,
}

impl Api {
    /// Connects to nothing yet. The place is the source's own zone, else `carbon.zone`, else `usual_zone`.
    ///
    /// # Errors
    /// If no place is set and the source has no usual one.
    pub(super) fn new(
        source: Source,
        settings: &CarbonSettings,
        (common, base_url): (Common<'_>, &BaseUrl),
        usual_zone: Option<&str>,
        usual_cadence: Seconds,
        state_dir: Option<&Path>,
    ) -> Result<Self, SettingsError> {
        let usual = || usual_zone.map(|z| Zone::new(z).expect("a plain word"));
        let zone = common.zone.or(settings.zone.as_ref()).cloned().or_else(usual);
        let place = Place::of(&zone.ok_or(SettingsError::NoZone(source.name()))?);
        if let Some(why) = place.misread() {
            return Err(place.refused(source.name(), why));
        }
        let counted_as = file_name(source.name(), place.zone());
        Ok(Self::about(place, source, settings, (common, base_url), usual_cadence, state_dir, &counted_as))
    }

    /// The same for a place that is known, with its requests counted in a file of the name `counted_as`.
    pub(super) fn about(
        place: Place,
        source: Source,
        settings: &CarbonSettings,
        (common, base_url): (Common<'_>, &BaseUrl),
        usual_cadence: Seconds,
        state_dir: Option<&Path>,
        counted_as: &str,
    ) -> Self {
        let usage = Usage::load(state_dir, counted_as, common.requests_per_hour);
        Self {
            source: source.name(),
            http: Http::new(settings, common, usage),
            base_url: base_url.clone(),
            place,
            cadence: common.poll_interval.or(settings.poll_interval_s).unwrap_or(usual_cadence),
            contributes: common.contributes,
            methods: Mutex::default(),
        }
    }

    /// The source's name.
    pub(super) fn source(&self) -> &'static str {
        self.source
    }

    /// What it is asked about.
    pub(super) fn place(&self) -> &Place {
        &self.place
    }

    /// The same as the zone of its answers: as it stands in the settings.
    pub(super) fn zone(&self) -> Zone {
        self.place.zone().clone()
    }

    /// After how long a new answer is to be expected.
    pub(super) fn cadence(&self) -> Seconds {
        self.cadence
    }

    /// What of its answers is used.
    pub(super) fn contributes(&self) -> Contribution {
        self.contributes
    }

    /// How often it was asked.
    pub(super) fn requests(&self, now: DateTime<Utc>) -> Requests {
        self.http.usage().requests(now)
    }

    /// The zone that the source found for the place before, in its own code.
    pub(super) fn pinned(&self) -> Option<String> {
        self.http.usage().pinned(self.place.zone().as_str())
    }

    /// Remembers the zone that the source found for the place.
    pub(super) fn pin(&self, zone: &str) {
        self.http.usage().pin(self.place.zone().as_str(), zone);
    }

    /// From what was read since this was asked last.
    pub(super) fn provenance(&self, unit: Unit) -> Provenance {
        let responses = self.http.take_digests().iter().map(ToString::to_string).collect();
        let zone = self.pinned().unwrap_or_else(|| self.place.zone().to_string());
        let methods = std::mem::take(&mut *self.methods.lock().unwrap_or_else(PoisonError::into_inner));
        Provenance { unit: Some(unit), zone: Some(zone), model: None, responses, methods }
    }

    /// Remembers by which methods values were made, until [`Self::provenance`] is asked.
    pub(super) fn note_methods(&self, methods: impl IntoIterator<Item = Method>) {
        let clean = |method: Method| Method { name: self.http.secrets().without(&method.name), ..method };
        self.methods.lock().unwrap_or_else(PoisonError::into_inner).extend(methods.into_iter().map(clean));
    }

    /// A word about a clock that is off.
    pub(super) fn skew_note(&self) -> Option<String> {
        self.http.skew_note()
    }

    /// The JSON at `path` ("/v3/zones") below the base address.
    ///
    /// # Errors
    /// As [`Http::get_json`].
    pub(super) async fn get(
        &self,
        path: &str,
        query: &[(&str, &str)],
        headers: HeaderMap,
        now: DateTime<Utc>,
    ) -> Result<Value, ProviderError> {
        self.http.get_json(self.base_url.with(path, query), headers, now).await
    }

    /// What comes of asking, without anything that was sent in its error.
    pub(super) async fn discreet<T>(
        &self,
        asking: impl Future<Output = Result<T, ProviderError>>,
    ) -> Result<T, ProviderError> {
        asking.await.map_err(|error| error.cleaned(self.http.secrets()))
    }

    /// The same for an answer, whose notes may repeat what was sent, too.
    pub(super) async fn discreet_answer<V: SignalValue>(
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

/// A refusal that is not put to the test again for a day: plans do not change more often than that.
#[derive(Debug, Default)]
pub(super) struct Denied(Mutex<Option<DateTime<Utc>>>);

impl Denied {
    /// Whether it was refused within the last day.
    pub(super) fn stands(&self, now: DateTime<Utc>) -> bool {
        let since = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        since.is_some_and(|since| (since..since + TimeDelta::days(1)).contains(&now))
    }

    /// It was refused just now.
    pub(super) fn note(&self, now: DateTime<Utc>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
    }

    /// It may be asked again at once.
    pub(super) fn lift(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// What a source behind a network tells of itself, which is what its `api` field knows.
macro_rules! told_by_api {
    ($unit:ident) => {
        fn provenance(&self) -> wattune_core::domain::Provenance {
            self.api.provenance(wattune_core::domain::Unit::$unit)
        }

        fn source(&self) -> &'static str {
            self.api.source()
        }

        fn zone(&self) -> wattune_core::domain::Zone {
            self.api.zone()
        }

        fn cadence(&self) -> wattune_core::units::Seconds {
            self.api.cadence()
        }

        fn contributes(&self) -> $crate::providers::Contribution {
            self.api.contributes()
        }

        fn requests(&self, now: chrono::DateTime<chrono::Utc>) -> Option<$crate::providers::Requests> {
            Some(self.api.requests(now))
        }
    };
}
pub(super) use told_by_api;
