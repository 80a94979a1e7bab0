//! A job as it is registered.

use std::collections::BTreeMap;

use wattune::controller::{Caller, GpuRef, NewJob};
use wattune_core::domain::{JobName, Objective, Work};
use wattune_core::units::Seconds;

/// A job of unknown work on the first GPU, kept for a day without a report.
pub(crate) fn job(name: &str, max_slowdown: f64) -> NewJob {
    NewJob {
        name: JobName::new(name).expect("a name"),
        gpus: vec![GpuRef::Index(0)],
        batch_size: None,
        work: Work::Unknown,
        objective: Objective::slower_by(max_slowdown).expect("in range"),
        lease: Some(Seconds::new(86_400.0)),
        control: true,
        priority: 0,
        tags: BTreeMap::new(),
        processes: None,
        replaces: None,
        offers: Default::default(),
        by: Caller::Local,
        user: None,
    }
}
