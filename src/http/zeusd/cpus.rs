//! Readings of CPU packages and their memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use serde::Serialize;

use super::answer::Refusal;
use crate::cpu::watch::{CpuHandle, Observation, ZoneState};
use wattune_core::domain::DeviceKind;
use wattune_core::units::Seconds;

/// Age up to which a reading of the energy counters counts as new.
const NEW: Seconds = Seconds::new(0.002);

/// Energy of a CPU package and its memory, in microjoules.
#[derive(Serialize)]
pub(super) struct EnergyAnswer {
    cpu_energy_uj: Option<u64>,
    dram_energy_uj: Option<u64>,
}

/// Power of a CPU package and its memory, in milliwatts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Power {
    pub(super) cpu_mw: u32,
    pub(super) dram_mw: Option<u32>,
}

/// Power of CPU packages, with the time at which all of them had been read.
#[derive(Serialize)]
pub(super) struct PowerAnswer {
    pub(super) timestamp_ms: i64,
    pub(super) power_mw: BTreeMap<u32, Power>,
}

/// A CPU package and its memory.
#[derive(Clone, Copy)]
pub(super) struct Package<'o> {
    pub(super) id: u32,
    cpu: &'o ZoneState,
    dram: Option<&'o ZoneState>,
}

impl Package<'_> {
    pub(super) fn has_dram(&self) -> bool {
        self.dram.is_some()
    }
}

/// Returns the packages, in ascending order. A package's id is the number of its RAPL zone, as in `intel-rapl:0`.
pub(super) fn packages(observed: &Observation) -> Vec<Package<'_>> {
    let of_kind = |kind| observed.zones.iter().filter(move |zone| zone.device.kind() == kind);
    let name = |zone: &ZoneState| zone.device.as_str().split_once(':').map(|(_, name)| name.to_owned());
    let package = |(place, cpu): (usize, &'_ ZoneState)| {
        let number = cpu.counter_id().strip_prefix("intel-rapl:").and_then(|number| number.parse().ok());
        let id = number.or_else(|| u32::try_from(place).ok());
        (id.unwrap_or_default(), name(cpu))
    };
    let mut packages: Vec<Package<'_>> = of_kind(DeviceKind::Cpu)
        .enumerate()
        .map(|(place, cpu)| {
            let (id, name_of_cpu) = package((place, cpu));
            Package { id, cpu, dram: of_kind(DeviceKind::Dram).find(|dram| name(dram) == name_of_cpu) }
        })
        .collect();
    packages.sort_by_key(|package| package.id);
    packages
}

/// Reads the CPUs now.
pub(super) async fn read(cpu: Option<&CpuHandle>) -> Arc<Observation> {
    let Some(cpu) = cpu.cloned() else { return Arc::default() };
    tokio::task::spawn_blocking(move || cpu.sample_within(NEW)).await.unwrap_or_default()
}

/// Returns the CPUs' latest state, or reads them if there is none.
pub(super) async fn known(cpu: Option<&CpuHandle>) -> Arc<Observation> {
    match cpu.map(CpuHandle::observe).filter(|observed| observed.at.is_some()) {
        Some(observed) => observed,
        None => read(cpu).await,
    }
}

/// Selects packages by their ids; without ids, all.
pub(super) fn select(observed: &Observation, ids: Option<&[u64]>) -> Result<Vec<u32>, Refusal> {
    let known: Vec<u32> = packages(observed).iter().map(|package| package.id).collect();
    let Some(ids) = ids else { return Ok(known) };
    let find = |id: &u64| {
        let found = known.iter().find(|known| u64::from(**known) == *id);
        found.copied().ok_or_else(|| Refusal::Error(format!("CPU {id} not found")))
    };
    ids.iter().map(find).collect()
}

/// Returns the energy of a zone: the counter's value, and its range for each time that it wrapped.
fn energy_uj(zone: &ZoneState) -> Result<u64, String> {
    match (&zone.problem, zone.counter_uj) {
        (None, Some(counter)) => Ok(counter + u64::from(zone.wraps) * zone.range_uj.unwrap_or_default()),
        (problem, _) => Err(problem.clone().unwrap_or_else(|| format!("{} was never read", zone.path))),
    }
}

fn unreadable(failed: BTreeMap<u32, String>) -> Refusal {
    let failure = |(id, why)| (id, (StatusCode::INTERNAL_SERVER_ERROR, format!("IOError: {why}")));
    Refusal::Devices(failed.into_iter().map(failure).collect())
}

/// Returns the energy of packages and, with `dram`, of their memory.
pub(super) fn energy(
    observed: &Observation,
    ids: &[u32],
    cpu: bool,
    dram: bool,
) -> Result<BTreeMap<u32, EnergyAnswer>, Refusal> {
    let (mut answers, mut failed) = (BTreeMap::new(), BTreeMap::new());
    for package in packages(observed).into_iter().filter(|package| ids.contains(&package.id)) {
        let of = |zone: Option<&ZoneState>| zone.map(energy_uj).transpose();
        let (cpu, dram) = (of(Some(package.cpu).filter(|_| cpu)), of(package.dram.filter(|_| dram)));
        match (cpu, dram) {
            (Ok(cpu_energy_uj), Ok(dram_energy_uj)) => {
                answers.insert(package.id, EnergyAnswer { cpu_energy_uj, dram_energy_uj });
            }
            (Err(why), _) | (_, Err(why)) => drop(failed.insert(package.id, why)),
        }
    }
    if failed.is_empty() { Ok(answers) } else { Err(unreadable(failed)) }
}

/// Returns the mean power of packages between two states.
fn power_between(before: &Observation, after: &Observation, ids: &[u32]) -> Result<BTreeMap<u32, Power>, Refusal> {
    let (mut answers, mut failed) = (BTreeMap::new(), BTreeMap::new());
    let earlier = packages(before);
    for package in packages(after).into_iter().filter(|package| ids.contains(&package.id)) {
        let Some(then) = earlier.iter().find(|earlier| earlier.id == package.id) else { continue };
        let dram = match (then.dram, package.dram) {
            (Some(then), Some(now)) => milliwatts(then, now).map(Some),
            _ => Ok(None),
        };
        match milliwatts(then.cpu, package.cpu).and_then(|cpu_mw| Ok(Power { cpu_mw, dram_mw: dram? })) {
            Ok(power) => drop(answers.insert(package.id, power)),
            Err(why) => drop(failed.insert(package.id, why)),
        }
    }
    if failed.is_empty() { Ok(answers) } else { Err(unreadable(failed)) }
}

/// Returns the mean power of a zone between two readings, over the time that passed between them.
fn milliwatts(before: &ZoneState, after: &ZoneState) -> Result<u32, String> {
    let gained = energy_uj(after)?.saturating_sub(energy_uj(before)?);
    let span = match (before.at, after.at) {
        (Some(before), Some(after)) => after.monotonic.since(before.monotonic).to_std().as_micros(),
        _ => 0,
    };
    let power = u128::from(gained) * 1000 / span.max(1);
    Ok(u32::try_from(power).unwrap_or(u32::MAX))
}

/// Meter of the mean power between two calls.
pub(super) struct PowerMeter {
    cpu: CpuHandle,
    last: Arc<Observation>,
}

impl PowerMeter {
    /// Reads the CPUs for the first time.
    pub(super) async fn start(cpu: CpuHandle) -> Self {
        let last = read(Some(&cpu)).await;
        Self { cpu, last }
    }

    /// Returns the mean power since the last call, and the time of the reading as Unix milliseconds.
    pub(super) async fn power(&mut self, ids: &[u32]) -> Result<(BTreeMap<u32, Power>, Option<i64>), Refusal> {
        let now = read(Some(&self.cpu)).await;
        let before = std::mem::replace(&mut self.last, now);
        let power = power_between(&before, &self.last, ids)?;
        Ok((power, self.last.at.map(|at| at.utc.timestamp_millis())))
    }
}

/// Measures the mean power of packages over `period`.
pub(super) async fn power(
    cpu: Option<&CpuHandle>,
    ids: &[u32],
    period: Duration,
) -> Result<BTreeMap<u32, Power>, Refusal> {
    let Some(cpu) = cpu.cloned().filter(|_| !ids.is_empty()) else { return Ok(BTreeMap::new()) };
    let mut meter = PowerMeter::start(cpu).await;
    tokio::time::sleep(period).await;
    Ok(meter.power(ids).await?.0)
}
