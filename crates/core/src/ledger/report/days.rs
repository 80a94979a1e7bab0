//! Sums of daily totals, added up while the totals are read, because a year has tens of thousands of them.

use std::collections::{HashMap, hash_map};

use chrono::{DateTime, Utc};

use super::ledger_data::{Owner, Sum};
use super::request::Grouping;
use crate::domain::{DeviceId, JobId};
use crate::ledger::Total;
use crate::units::Millijoules;

/// Daily total of one share (owner) of a device for one kind of carbon intensity, with names as the database stores
/// them.
#[derive(Clone, Copy, Debug)]
pub struct DayTotal<'a> {
    /// Start of the day.
    pub day: DateTime<Utc>,
    /// True for average, false for marginal carbon intensities.
    pub is_average: bool,
    /// Identifier of the device.
    pub device: &'a str,
    /// `job`, `idle` or `unattributed`.
    pub share: &'a str,
    /// Identifier of the job; empty for energy without a job, and where the total covers all jobs.
    pub job: &'a str,
    /// Energy and emissions.
    pub total: Total,
}

/// Group whose daily totals are added up: start of the day, device, share and job. The day is absent unless the
/// report's rows separate days; the device is a kind of device unless the rows separate devices.
type Group<'a> = (Option<DateTime<Utc>>, &'a str, &'a str, &'a str);

/// Sums of daily totals for one grouping.
pub struct DaySums<'a> {
    by: &'a Grouping,
    sums: Vec<Sum>,
    places: HashMap<Group<'a>, usize>,
}

impl<'a> DaySums<'a> {
    /// Returns empty sums.
    pub fn new(by: &'a Grouping) -> Self {
        Self { by, sums: Vec::new(), places: HashMap::new() }
    }

    /// Adds a daily total; `None` if one of its names is invalid.
    pub fn add(&mut self, day: &DayTotal<'a>) -> Option<()> {
        // Separate days or devices only if the report's rows separate them; otherwise separate kinds of devices.
        let of_day = matches!(self.by, Grouping::Day | Grouping::Month).then_some(day.day);
        let kind = day.device.split_once(':').map_or("", |(kind, _)| kind);
        let device = if *self.by == Grouping::Device { day.device } else { kind };
        let place = match self.places.entry((of_day, device, day.share, day.job)) {
            hash_map::Entry::Occupied(known) => *known.get(),
            hash_map::Entry::Vacant(new) => {
                let owner = match day.share {
                    "job" if self.by.is_of_jobs() => Owner::Job(JobId::new(day.job).ok()?),
                    "job" => Owner::Jobs,
                    "idle" => Owner::Idle,
                    "unattributed" => Owner::Unattributed,
                    _ => return None,
                };
                let (average, marginal) = (Total::default(), Total::default());
                let device = DeviceId::new(day.device).ok()?;
                self.sums.push(Sum { day: day.day, device, owner, average, marginal });
                *new.insert(self.sums.len() - 1)
            }
        };
        let sum = &mut self.sums[place];
        *if day.is_average { &mut sum.average } else { &mut sum.marginal } += day.total;
        Some(())
    }

    /// Returns the sums with energy, in the order in which each sum's first total was added.
    pub fn finish(mut self) -> Vec<Sum> {
        self.sums.retain(|sum| sum.average.energy > Millijoules::ZERO || sum.marginal.energy > Millijoules::ZERO);
        self.sums
    }
}
