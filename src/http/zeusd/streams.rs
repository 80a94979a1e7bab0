//! Streams of power as server-sent events. A device is read only while it has subscribers, once for all of them.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use futures_util::stream::select_all;
use futures_util::{StreamExt, stream};
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::{Instant, Interval, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::cpus::{Power, PowerMeter};
use super::gpus;
use crate::cpu::watch::CpuHandle;
use crate::gpu::handle::GpuHandle;
use wattune_core::units::Seconds;

/// The interval of comments in a stream, so that a client without events can notice that it should stop.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// Streamed device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Device {
    Gpu(u32),
    Cpu(u32),
}

/// Newest event of a device as sent to all its subscribers; `None` before the first one.
type Newest = Option<Bytes>;

/// Devices whose power is read at present. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Streams(Arc<Mutex<HashMap<Device, watch::Sender<Newest>>>>);

/// Event about a GPU.
#[derive(Serialize)]
struct GpuEvent {
    timestamp_ms: i64,
    gpu_id: u32,
    power_mw: u32,
}

/// Event about a CPU package.
#[derive(Serialize)]
struct CpuEvent {
    timestamp_ms: i64,
    cpu_id: u32,
    #[serde(flatten)]
    power: Power,
}

/// Sending end of a device's events.
struct Publisher {
    streams: Streams,
    device: Device,
    sender: watch::Sender<Newest>,
}

impl Publisher {
    /// Makes an event the newest one, with which later subscribers begin; sends it to the present ones if `is_change`.
    fn publish(&self, event: &impl Serialize, is_change: bool) {
        if let Ok(text) = serde_json::to_string(event) {
            self.sender.send_if_modified(|newest| {
                *newest = Some(format!("data: {text}\n\n").into());
                is_change
            });
        }
    }

    /// Returns whether anyone listens. If not, the next subscriber begins anew.
    fn is_wanted(&self) -> bool {
        let mut streams = self.streams.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_wanted = self.sender.receiver_count() > 0;
        if !is_wanted {
            streams.remove(&self.device);
        }
        is_wanted
    }
}

impl Streams {
    fn subscribe<F>(&self, device: Device, read: impl FnOnce(Publisher) -> F) -> watch::Receiver<Newest>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut streams = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = streams.get(&device) {
            let mut receiver = sender.subscribe();
            receiver.mark_changed();
            return receiver;
        }
        let sender = watch::Sender::new(None);
        let receiver = sender.subscribe();
        streams.insert(device, sender.clone());
        tokio::spawn(read(Publisher { streams: self.clone(), device, sender }));
        receiver
    }

    /// Streams the power of GPUs, which are read every `period`, until `stop`.
    pub(super) fn of_gpus(&self, gpus: Vec<GpuHandle>, period: Duration, stop: CancellationToken) -> Response {
        let subscribe = |gpu: GpuHandle| {
            let device = Device::Gpu(gpu.identity().index);
            self.subscribe(device, move |publisher| read_gpu(gpu, period, publisher))
        };
        respond(gpus.into_iter().map(subscribe).collect(), stop)
    }

    /// Streams the power of CPU packages, which are read every `period`, until `stop`.
    pub(super) fn of_cpus(
        &self,
        cpu: Option<&CpuHandle>,
        ids: &[u32],
        period: Duration,
        stop: CancellationToken,
    ) -> Response {
        let subscribe = |id: &u32| {
            let (cpu, id) = (cpu?.clone(), *id);
            Some(self.subscribe(Device::Cpu(id), move |publisher| read_cpu(cpu, id, period, publisher)))
        };
        respond(ids.iter().filter_map(subscribe).collect(), stop)
    }
}

/// Reads a GPU while someone listens, and publishes its power.
async fn read_gpu(gpu: GpuHandle, period: Duration, publisher: Publisher) {
    let (mut timer, mut last) = (interval(period), None);
    loop {
        timer.tick().await;
        if !publisher.is_wanted() {
            return;
        }
        match gpus::timed_power(&gpu, Seconds::new(period.as_secs_f64() / 2.0)).await {
            Ok((power_mw, Some(at))) => {
                let is_change = last.replace(power_mw) != Some(power_mw);
                let (timestamp_ms, gpu_id) = (at.utc.timestamp_millis(), gpu.identity().index);
                publisher.publish(&GpuEvent { timestamp_ms, gpu_id, power_mw }, is_change);
            }
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(gpu.uuid = %gpu.identity().id, "the power of this GPU is not streamed: {error}")
            }
        }
    }
}

/// Reads the CPUs while someone listens, and publishes a package's power.
async fn read_cpu(cpu: CpuHandle, cpu_id: u32, period: Duration, publisher: Publisher) {
    let (mut timer, mut last) = (interval(period), None);
    timer.tick().await;
    let mut meter = PowerMeter::start(cpu).await;
    loop {
        timer.tick().await;
        if !publisher.is_wanted() {
            return;
        }
        match meter.power(&[cpu_id]).await {
            Ok((power, Some(timestamp_ms))) => {
                let Some(power) = power.get(&cpu_id).copied() else { continue };
                let is_change = last.replace(power) != Some(power);
                publisher.publish(&CpuEvent { timestamp_ms, cpu_id, power }, is_change);
            }
            Ok((_, None)) => {}
            Err(error) => tracing::debug!("the power of CPU {cpu_id} is not streamed: {error:?}"),
        }
    }
}

fn interval(period: Duration) -> Interval {
    let mut timer = tokio::time::interval(period);
    timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
    timer
}

/// Returns the events of devices, and comments in between, until `stop`.
fn respond(devices: Vec<watch::Receiver<Newest>>, stop: CancellationToken) -> Response {
    let events = devices.into_iter().map(|device| stream::unfold(device, next_event).boxed());
    let comments = tokio::time::interval_at(Instant::now() + HEARTBEAT, HEARTBEAT);
    let comments = stream::unfold(comments, next_comment).boxed();
    let sent = select_all(events.chain([comments])).take_until(stop.cancelled_owned());
    let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-cache")];
    (headers, Body::from_stream(sent.map(Ok::<_, Infallible>))).into_response()
}

/// Returns the next event; a slow reader gets only the newest one.
async fn next_event(mut device: watch::Receiver<Newest>) -> Option<(Bytes, watch::Receiver<Newest>)> {
    loop {
        device.changed().await.ok()?;
        let newest = device.borrow_and_update().clone();
        if let Some(event) = newest {
            return Some((event, device));
        }
    }
}

async fn next_comment(mut timer: Interval) -> Option<(Bytes, Interval)> {
    timer.tick().await;
    Some((Bytes::from_static(b":\n\n"), timer))
}
