//! Whole jobs: each job with all of its parts, the later jobs that continue it by its key.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};

use super::job::{JobFacts, Saved, SavedEffects};
use crate::domain::{JobId, Slot};
use crate::units::Samples;

/// A job with all of its parts. A job that no other one continues has one part.
#[derive(Clone, Debug)]
pub struct WholeJob<'a> {
    parts: Vec<&'a JobFacts>,
}

impl<'a> WholeJob<'a> {
    /// Returns the whole jobs that consist of `parts`.
    pub fn all(parts: impl IntoIterator<Item = &'a JobFacts>) -> Vec<Self> {
        let mut jobs: BTreeMap<&JobId, Vec<&'a JobFacts>> = BTreeMap::new();
        for part in parts {
            jobs.entry(part.first()).or_default().push(part);
        }
        let whole = |mut parts: Vec<&'a JobFacts>| {
            parts.sort_by_key(|part| part.registered_at);
            Self { parts }
        };
        jobs.into_values().map(whole).collect()
    }

    /// Returns the parts, oldest first.
    pub fn parts(&self) -> &[&'a JobFacts] {
        &self.parts
    }

    /// Returns the time at which the last part ended; `None` while a part runs.
    pub fn ended_at(&self) -> Option<DateTime<Utc>> {
        let ends: Option<Vec<DateTime<Utc>>> = self.parts.iter().map(|part| part.ended_at).collect();
        ends?.into_iter().max()
    }

    /// Returns true if the job ended later than the span's start and not later than the span's end. A job's end
    /// therefore belongs to only one of two adjacent spans.
    pub fn ended_within(&self, span: &Slot) -> bool {
        self.ended_at().is_some_and(|end| span.start() < end && end <= span.end())
    }

    /// Returns the emissions that all parts saved together; `None` unless known for each part.
    pub fn saved(&self) -> Option<Saved> {
        let each: Option<Vec<Saved>> = self.compared().map(|part| part.saved).collect();
        each?.into_iter().reduce(|a, b| a + b)
    }

    /// Returns the effects whose sum is the saving of all parts; `None` unless known for each part.
    pub fn effects(&self) -> Option<SavedEffects> {
        let each: Option<Vec<SavedEffects>> = self.compared().map(|part| part.effects).collect();
        each?.into_iter().reduce(|a, b| a + b)
    }

    /// Returns the parts that are compared with a reference. A part without work is compared with nothing, such as one
    /// that a scheduler took back to its queue before its start.
    fn compared(&self) -> impl Iterator<Item = &'a JobFacts> + '_ {
        self.parts.iter().copied().filter(|part| part.samples > Samples::ZERO || part.saved.is_some())
    }
}
