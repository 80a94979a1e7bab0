//! Builds the sources that the settings choose.

use std::path::Path;
use std::sync::Arc;

use super::error::SettingsError;
use super::place::automatic_chain;
use super::provider::Provider;
use super::settings::{CarbonSettings, Chain, PriceSettings, PriceSource};
use super::sources::Source;
use super::sources::energy_charts::EnergyChartsPrice;
use super::sources::file::FileProvider;
use wattune_core::units::PricePerMwh;

/// A chain of price sources: groups in order of preference; the sources of a group are equals.
pub type PriceChain = Vec<Vec<Arc<dyn Provider<PricePerMwh>>>>;

/// Builds the chain of carbon-intensity sources that the settings choose: groups in order of preference; the sources of
/// a group are equals. Reads no file and makes no request yet. Counts of requests are kept in files in `state_dir`, or
/// only in memory if `state_dir` is absent.
///
/// # Errors
/// If a chosen source lacks a required setting, or settings contradict each other.
pub fn build(
    settings: &CarbonSettings,
    state_dir: Option<&Path>,
) -> Result<Vec<Vec<Arc<dyn Provider>>>, SettingsError> {
    settings.check()?;
    let groups = match &settings.source {
        Chain::Auto => automatic_chain(settings),
        Chain::Listed(groups) => groups.clone(),
    };
    let shared = settings.shared(state_dir);
    let group = |sources: &Vec<Source>| sources.iter().map(|source| settings.table(*source).build(&shared)).collect();
    groups.iter().map(group).collect()
}

/// Builds the chain of price sources that the settings choose; empty if they choose no source. Reads no file and makes
/// no request yet. Counts of requests are kept in a file in `state_dir`, or only in memory if `state_dir` is absent.
pub fn build_price(
    price: &PriceSettings,
    carbon: &CarbonSettings,
    state_dir: Option<&Path>,
) -> Result<PriceChain, SettingsError> {
    price.check()?;
    let (charts, shared) = (&carbon.energy_charts, carbon.shared(state_dir));
    let source: Arc<dyn Provider<PricePerMwh>> = match price.source {
        PriceSource::None => return Ok(Vec::new()),
        PriceSource::File => {
            Arc::new(FileProvider::of(&price.file, charts.bidding_zone.clone(), shared.poll_interval)?)
        }
        PriceSource::EnergyCharts => Arc::new(EnergyChartsPrice::new(charts, &shared)?),
    };
    Ok(vec![vec![source]])
}
