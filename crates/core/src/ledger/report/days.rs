//! Sums over days' totals, told apart as far as a report tells them apart: a year has tens of thousands of totals.

use std::collections::{HashMap, hash_map};

use chrono::{DateTime, Utc};

use super::books::{Sum, Whose};
use super::grouping::By;
use crate::domain::{DeviceId, JobId};
use crate::ledger::Total;
use crate::units::Millijoules;

/// A day's total of one share of a device in a book, with names as stored.
#[derive(Clone, Copy, Debug)]
pub struct DayTotal<'a> {
    /// The day's beginning.
    pub day: DateTime<Utc>,
    /// Whether it is of the book of average intensities, not of marginal ones.
    pub is_average: bool,
    /// The device.
    pub device: &'a str,
    /// `job`, `idle` or `unattributed`.
    pub share: &'a str,
    /// The job; empty where it is of no job or of all.
    pub job: &'a str,
    /// The total.
    pub total: Total,
}

/// The day, the device or its kind, the share and the job, as far as a grouping tells them apart.
type Group<'a> = (Option<DateTime<Utc>>, &'a str, &'a str, &'a str);

/// Sums of days' totals for one grouping.
pub struct DaySums<'a> {
    by: &'a By,
    sums: Vec<Sum>,
    places: HashMap<Group<'a>, usize>,
}

impl<'a> DaySums<'a> {
    /// Returns empty sums.
    pub fn new(by: &'a By) -> Self {
        Self { by, sums: Vec::new(), places: HashMap::new() }
    }

    /// Adds a day's total; `None` if a name in it is none.
    pub fn add(&mut self, day: &DayTotal<'a>) -> Option<()> {
        // Days and devices are told apart only where a report's rows are such, otherwise kinds of devices.
        let of_day = matches!(self.by, By::Day | By::Month).then_some(day.day);
        let kind = day.device.split_once(':').map_or("", |(kind, _)| kind);
        let device = if *self.by == By::Device { day.device } else { kind };
        let place = match self.places.entry((of_day, device, day.share, day.job)) {
            hash_map::Entry::Occupied(known) => *known.get(),
            hash_map::Entry::Vacant(new) => {
                let whose = match day.share {
                    "job" if self.by.is_of_jobs() => Whose::Job(JobId::new(day.job).ok()?),
                    "job" => Whose::Jobs,
                    "idle" => Whose::Idle,
                    "unattributed" => Whose::Unattributed,
                    _ => return None,
                };
                let (average, marginal) = (Total::default(), Total::default());
                let device = DeviceId::new(day.device).ok()?;
                self.sums.push(Sum { day: day.day, device, whose, average, marginal });
                *new.insert(self.sums.len() - 1)
            }
        };
        let sum = &mut self.sums[place];
        *if day.is_average { &mut sum.average } else { &mut sum.marginal } += day.total;
        Some(())
    }

    /// Returns the sums that have energy, in the order of their first totals.
    pub fn finish(mut self) -> Vec<Sum> {
        self.sums.retain(|sum| sum.average.energy > Millijoules::ZERO || sum.marginal.energy > Millijoules::ZERO);
        self.sums
    }
}
