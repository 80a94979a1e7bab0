//! The protocol of Zeus's daemon, zeusd, so that Zeus's clients work unchanged. `docs/src/explanation/zeus-protocols.md`
//! describes it and lists where wattune differs.
//!
//! Readings are made for each request. Writes go through the controller, where each is a manual override that its client
//! owns: `control` orders them, `clients` ends them with the client's process.

mod answer;
mod clients;
mod control;
mod cpus;
mod gpus;
mod query;
mod rights;
mod settings;
mod state;
mod streams;

pub use settings::{ApiGroup, ZeusSettings};
pub(super) use state::Zeusd;

use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use axum::{Json, Router};
use serde::Serialize;

use self::answer::Refusal;
use self::gpus::PowerAnswer;
use self::query::{Parameter, Query};
use super::access::{Access, Asker, Claims};
use super::cross_site::check_listener;
use super::error::Problem;
use super::shared::Shared;
use crate::controller::Setting;
use crate::gpu::Write;
use crate::gpu::handle::GpuHandle;
use wattune_core::domain::PowerLimit;

/// The paths of the protocol.
pub(super) const PATHS: [&str; 8] =
    ["/discover", "/time", "/gpu/", "/gpu/{*rest}", "/cpu/", "/cpu/{*rest}", "/auth/", "/auth/{*rest}"];

/// Returns the routes. Each route accepts any method, because a wrong method must have the same answer as an unknown
/// path.
pub(super) fn routes() -> Router<Shared> {
    PATHS.into_iter().fold(Router::new(), |router, path| router.route(path, any(answer)))
}

/// Answers a request, with the checks in the order of Zeus's daemon.
async fn answer(State(shared): State<Shared>, request: Request) -> Result<Response, Refusal> {
    // Taken apart instead of extracted, which would clone each part.
    let (Parts { method, uri, headers, extensions, .. }, _) = request.into_parts();
    let Some(asker) = extensions.get::<Asker>() else {
        let unknown = Problem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal error: the request has no sender (a bug in wattune)",
        );
        return Ok(unknown.into_response());
    };
    let (zeusd, path, query) = (&shared.zeusd, uri.path(), uri.query().unwrap_or_default());
    if let Some(group) = ApiGroup::of(path).filter(|group| !zeusd.settings.enable.contains(group)) {
        let name = group.as_str();
        return Err(Refusal::Disabled(format!("API group '{name}' is not enabled on this server.")));
    }
    let is_open = ["/discover", "/time"].contains(&path);
    if path.starts_with("/auth/") {
        return whoami(&shared, asker, &method, path);
    }
    if !is_open {
        let group = ApiGroup::of(path);
        if let Err(refusal) = rights::check(&shared.access, asker, group) {
            if group == Some(ApiGroup::GpuControl) {
                shared.audit_refusal(asker, &method, path, None);
            }
            return Err(refusal);
        }
    }
    if path.ends_with("/stream_power")
        && let Err(refusal) = check_listener(&headers)
    {
        return Ok(Problem::from(refusal).into_response());
    }
    match method {
        Method::GET if path == "/discover" => Ok(Json(zeusd.discover(&shared.access, asker).await).into_response()),
        Method::GET => zeusd.read(path, query).await,
        Method::POST => zeusd.write(path, query, asker).await.map(|()| StatusCode::OK.into_response()),
        _ => Err(Refusal::NoRoute),
    }
}

/// Answers a request about the client's token.
fn whoami(shared: &Shared, asker: &Asker, method: &Method, path: &str) -> Result<Response, Refusal> {
    if !asker.takes_tokens {
        return Err(Refusal::Disabled("Authentication is not enabled on this server.".into()));
    }
    rights::check(&shared.access, asker, None)?;
    let claims: &Claims = rights::claims(asker)?;
    match (method, path) {
        (&Method::GET, "/auth/whoami") => Ok(Json(claims).into_response()),
        _ => Err(Refusal::NoRoute),
    }
}

/// Answer of `/discover`.
#[derive(Serialize)]
struct Discovered {
    gpus: Vec<DiscoveredGpu>,
    cpus: Vec<DiscoveredCpu>,
    enabled_api_groups: Vec<&'static str>,
    auth_required: bool,
}

#[derive(Serialize)]
struct DiscoveredGpu {
    id: u32,
    name: String,
    pci_address: String,
    cumulative_energy_available: bool,
}

#[derive(Serialize)]
struct DiscoveredCpu {
    id: u32,
    dram_available: bool,
}

/// Answer of `/time`.
#[derive(Serialize)]
struct TimeAnswer {
    timestamp_ms: i64,
}

const GPU_IDS: Parameter = Parameter::text("gpu_ids");
const BLOCK: Parameter = Parameter::flag("block");
const LIMIT: [Parameter; 3] = [GPU_IDS, Parameter::number("power_limit_mw"), BLOCK];
const PERSISTENCE: [Parameter; 3] = [GPU_IDS, Parameter::flag("enabled"), BLOCK];
const CLOCKS: [Parameter; 4] = [GPU_IDS, Parameter::number("min_clock_mhz"), Parameter::number("max_clock_mhz"), BLOCK];
const CPU_IDS: Parameter = Parameter::text("cpu_ids").optional();

impl Zeusd {
    async fn read(&self, path: &str, query: &str) -> Result<Response, Refusal> {
        Ok(match path {
            "/time" => Json(TimeAnswer { timestamp_ms: self.now_ms() }).into_response(),
            "/gpu/get_power" => {
                let power_mw = gpus::power(&self.asked_gpus(query)?).await?;
                Json(PowerAnswer { timestamp_ms: self.now_ms(), power_mw }).into_response()
            }
            "/gpu/get_cumulative_energy" => Json(gpus::energy(&self.asked_gpus(query)?).await?).into_response(),
            "/gpu/get_power_limit" => Json(gpus::limits(&self.asked_gpus(query)?).await?).into_response(),
            "/gpu/get_power_limit_constraints" => Json(gpus::ranges(&self.asked_gpus(query)?).await?).into_response(),
            "/gpu/get_persistence_mode" => Json(gpus::persistence(&self.asked_gpus(query)?).await?).into_response(),
            "/gpu/stream_power" => {
                let asked = Query::parse(query, &[GPU_IDS.optional()])?.indices("gpu_ids", "GPU")?;
                let gpus = self.devices.gpus();
                let known: Vec<u32> = gpus.iter().map(|gpu| gpu.identity().index).collect();
                check_streamed("GPU", asked.as_deref(), &known)?;
                let gpus = gpus.into_iter().filter(|gpu| is_asked(gpu, asked.as_deref())).collect();
                let period = Self::period(self.settings.gpu_power_poll_hz);
                self.streams.of_gpus(gpus, period, self.stop.clone())
            }
            "/cpu/get_cumulative_energy" => {
                let parameters = [CPU_IDS, Parameter::flag("cpu"), Parameter::flag("dram")];
                let query = Query::parse(query, &parameters)?;
                let asked = query.indices("cpu_ids", "CPU")?;
                let observed = cpus::read(self.devices.cpu()).await;
                let ids = cpus::select(&observed, asked.as_deref())?;
                Json(cpus::energy(&observed, &ids, query.flag("cpu"), query.flag("dram"))?).into_response()
            }
            "/cpu/get_power" => {
                let asked = Query::parse(query, &[CPU_IDS])?.indices("cpu_ids", "CPU")?;
                let ids = cpus::select(&*cpus::known(self.devices.cpu()).await, asked.as_deref())?;
                let period = Self::period(self.settings.cpu_power_poll_hz);
                let power_mw = cpus::power(self.devices.cpu(), &ids, period).await?;
                Json(cpus::PowerAnswer { timestamp_ms: self.now_ms(), power_mw }).into_response()
            }
            "/cpu/stream_power" => {
                let asked = Query::parse(query, &[CPU_IDS])?.indices("cpu_ids", "CPU")?;
                let known = cpus::select(&*cpus::known(self.devices.cpu()).await, None)?;
                check_streamed("CPU", asked.as_deref(), &known)?;
                let is_asked = |id: &u32| asked.as_ref().is_none_or(|asked| asked.contains(&u64::from(*id)));
                let ids: Vec<u32> = known.into_iter().filter(is_asked).collect();
                let period = Self::period(self.settings.cpu_power_poll_hz);
                self.streams.of_cpus(self.devices.cpu(), &ids, period, self.stop.clone())
            }
            _ => return Err(Refusal::NoRoute),
        })
    }

    async fn write(&self, path: &str, query: &str, asker: &Asker) -> Result<(), Refusal> {
        match path {
            "/gpu/set_power_limit" => {
                let query = Query::parse(query, &LIMIT)?;
                let limit = PowerLimit::from_milliwatts(query.number("power_limit_mw"));
                self.set(&query, &[Setting::PowerLimit(limit)], asker).await
            }
            "/gpu/set_persistence_mode" => {
                let query = Query::parse(query, &PERSISTENCE)?;
                self.set(&query, &[Setting::Other(Write::Persistence(query.flag("enabled")))], asker).await
            }
            "/gpu/set_gpu_locked_clocks" => {
                let query = Query::parse(query, &CLOCKS)?;
                let (min_mhz, max_mhz) = (query.number("min_clock_mhz"), query.number("max_clock_mhz"));
                self.set(&query, &[Setting::Other(Write::LockClockRange { min_mhz, max_mhz })], asker).await
            }
            "/gpu/set_mem_locked_clocks" => {
                let query = Query::parse(query, &CLOCKS)?;
                let (min_mhz, max_mhz) = (query.number("min_clock_mhz"), query.number("max_clock_mhz"));
                self.set(&query, &[Setting::Other(Write::LockMemoryClocks { min_mhz, max_mhz })], asker).await
            }
            "/gpu/reset_gpu_locked_clocks" => self.reset(query, &[Write::ResetClocks], asker).await,
            "/gpu/reset_mem_locked_clocks" => self.reset(query, &[Write::ResetMemoryClocks], asker).await,
            "/gpu/reset_locked_clocks" => {
                self.reset(query, &[Write::ResetClocks, Write::ResetMemoryClocks], asker).await
            }
            _ => Err(Refusal::NoRoute),
        }
    }

    async fn reset(&self, query: &str, writes: &[Write], asker: &Asker) -> Result<(), Refusal> {
        let query = Query::parse(query, &[GPU_IDS, BLOCK])?;
        let settings: Vec<Setting> = writes.iter().map(|write| Setting::Other(*write)).collect();
        self.set(&query, &settings, asker).await
    }

    async fn set(&self, query: &Query<'_>, settings: &[Setting], asker: &Asker) -> Result<(), Refusal> {
        let asked = query.indices("gpu_ids", "GPU")?.unwrap_or_default();
        let gpus = self.devices.gpus();
        let is_known = |index: &&u64| gpus.iter().any(|gpu| u64::from(gpu.identity().index) == **index);
        if let Some(unknown) = asked.iter().find(|index| !is_known(index)) {
            return Err(Refusal::NoSuchGpu(*unknown));
        }
        let gpus = gpus.into_iter().filter(|gpu| is_asked(gpu, Some(&asked))).collect();
        self.control.write(gpus, settings, self.override_request(asker), query.flag("block")).await
    }

    /// Returns the GPUs that a reading is about: those that the query names, or all.
    fn asked_gpus(&self, query: &str) -> Result<Vec<GpuHandle>, Refusal> {
        let asked = Query::parse(query, &[GPU_IDS.optional()])?.indices("gpu_ids", "GPU")?;
        let gpus = self.devices.gpus();
        let is_known = |index: &u64| gpus.iter().any(|gpu| u64::from(gpu.identity().index) == *index);
        if let Some(unknown) = asked.iter().flatten().find(|index| !is_known(index)) {
            return Err(Refusal::Error(format!("GPU {unknown} not found")));
        }
        Ok(gpus.into_iter().filter(|gpu| is_asked(gpu, asked.as_deref())).collect())
    }

    /// Returns what this client may use.
    async fn discover(&self, access: &Access, asker: &Asker) -> Discovered {
        let may = |group: &&ApiGroup| rights::check(access, asker, Some(**group)).is_ok();
        let enabled: Vec<ApiGroup> = self.settings.enable.iter().filter(may).copied().collect();
        let reads_gpus = enabled.contains(&ApiGroup::GpuControl) || enabled.contains(&ApiGroup::GpuRead);
        let gpus = if reads_gpus { self.devices.gpus() } else { Vec::new() };
        let gpu = |gpu: GpuHandle| DiscoveredGpu {
            id: gpu.identity().index,
            name: gpu.identity().model.clone(),
            pci_address: pci_address(&gpu.identity().pci_bus_id),
            cumulative_energy_available: gpu.capabilities().energy_counter.is_ok(),
        };
        let observed = match enabled.contains(&ApiGroup::CpuRead) {
            true => cpus::known(self.devices.cpu()).await,
            false => Default::default(),
        };
        let cpu = |package: cpus::Package<'_>| DiscoveredCpu { id: package.id, dram_available: package.has_dram() };
        Discovered {
            gpus: gpus.into_iter().map(gpu).collect(),
            cpus: cpus::packages(&observed).into_iter().map(cpu).collect(),
            enabled_api_groups: enabled.iter().map(|group| group.as_str()).collect(),
            auth_required: rights::requires_token(asker),
        }
    }

    fn now_ms(&self) -> i64 {
        self.now().timestamp_millis()
    }
}

fn is_asked(gpu: &GpuHandle, asked: Option<&[u64]>) -> bool {
    asked.is_none_or(|asked| asked.contains(&u64::from(gpu.identity().index)))
}

/// Checks that all devices to be streamed exist.
fn check_streamed(what: &str, asked: Option<&[u64]>, known: &[u32]) -> Result<(), Refusal> {
    let is_unknown = |id: &u64| !known.iter().any(|known| u64::from(*known) == *id);
    let unknown: Vec<u64> = asked.into_iter().flatten().copied().filter(is_unknown).collect();
    match unknown.is_empty() {
        true => Ok(()),
        false => Err(Refusal::Error(format!("Unknown {what} indices: {unknown:?}. Available: {known:?}"))),
    }
}

/// Returns a PCI address as `lspci -D` shows it: a domain of four digits, all in lower case.
fn pci_address(bus_id: &str) -> String {
    let lower = bus_id.to_lowercase();
    match lower.split_once(':') {
        Some((domain, rest)) if domain.len() > 4 && domain[..domain.len() - 4].bytes().all(|digit| digit == b'0') => {
            format!("{}:{rest}", &domain[domain.len() - 4..])
        }
        _ => lower,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pci_addresses_have_a_domain_of_four_digits_where_it_fits() {
        let table = [
            ("00000000:01:00.0", "0000:01:00.0"),
            ("0000:AF:00.0", "0000:af:00.0"),
            ("00000009:01:00.0", "0009:01:00.0"),
            ("00010000:01:00.0", "00010000:01:00.0"),
        ];
        for (bus_id, address) in table {
            assert_eq!(pci_address(bus_id), address);
        }
    }
}
