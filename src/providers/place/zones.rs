//! The list of zones that each source serves.

use std::path::Path;

use chrono::{DateTime, Utc};
use serde::Serialize;

use super::ZoneName;
use crate::providers::client::settings::SharedSettings;
use crate::providers::settings::CarbonSettings;
use crate::providers::sources::Source;
use wattune_core::domain::Zone;

/// The zones that a source serves.
#[derive(Clone, Debug, Serialize)]
pub struct SourceZones {
    /// Name of the source in the settings.
    pub source: &'static str,
    /// Kind of the source's values, and whether they need a key or an account.
    pub what: &'static str,
    /// The zones; empty if they are not known.
    pub zones: Vec<ZoneName>,
    /// Reason why the zones are not known, with the remedy; absent if they are known.
    pub problem: Option<String>,
}

/// Lists the zones of all sources, those without a key first. Sources that need a key, an account or an address are
/// asked over the network if the settings hold what the request needs.
pub async fn zones(settings: &CarbonSettings, state_dir: Option<&Path>, now: DateTime<Utc>) -> Vec<SourceZones> {
    // A source that sends a request must be built with a zone, but its list of zones does not depend on that zone.
    let any = Zone::new("CAISO_NORTH").ok();
    let shared = SharedSettings { zone: any.as_ref(), ..settings.shared(state_dir) };
    let mut sources = Source::ALL.to_vec();
    sources.sort_by_key(|source| source.descriptor().countries.is_empty());
    let mut all = Vec::new();
    for source in sources {
        let Some(what) = source.descriptor().summary else { continue };
        let (zones, problem) = match settings.table(source).zones(shared, now).await {
            Ok(zones) => (zones, None),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        all.push(SourceZones { source: source.name(), what, zones, problem });
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::providers::place::Place;

    #[tokio::test]
    async fn listed_zones_are_found_by_name_and_can_be_written_as_zone() {
        let mut all = Vec::new();
        let settings = CarbonSettings::default();
        for source in Source::ALL.iter().filter(|source| !source.descriptor().countries.is_empty()) {
            all.extend(
                settings.table(*source).zones(settings.shared(None), DateTime::UNIX_EPOCH).await.expect("known"),
            );
        }
        let codes = |name: &str| -> Vec<String> {
            all.iter().filter(|zone| zone.name.contains(name)).map(|zone| zone.code.clone()).collect()
        };
        assert_eq!((codes("Germany"), codes("London")), (vec!["DE".to_owned()], vec!["GB-13".to_owned()]));
        for zone in &all {
            let place = Place::of(&Zone::new(zone.code.clone()).expect("a zone"));
            assert!(place.country().is_some(), "{}", zone.code);
        }
    }
}
