//! Metric families and their series, in the order in which they were added.

use chrono::{DateTime, Utc};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

pub(super) type Labels = Vec<(String, String)>;

/// A metric with one series per item of a list: name, unit, help, and the function that returns an item's value, `None`
/// for no series.
pub(super) type Metric<I> = (&'static str, &'static str, &'static str, fn(&I) -> Option<f64>);

/// Returns 1 for true and 0 for false.
pub(super) fn flag(on: bool) -> f64 {
    f64::from(u8::from(on))
}

/// Returns a time as seconds since the Unix epoch.
pub(super) fn unix_time(at: DateTime<Utc>) -> f64 {
    at.timestamp_micros() as f64 / 1e6
}

/// All metric families.
#[derive(Debug, Default)]
pub(super) struct Families(Vec<Family>);

/// One metric with its series.
#[derive(Debug)]
pub(super) struct Family {
    name: &'static str,
    unit: Option<Unit>,
    help: &'static str,
    kind: MetricType,
    series: Vec<(Labels, f64)>,
}

impl Families {
    /// Adds a gauge. The unit, if not empty, is appended to the metric's name.
    pub(super) fn gauge(&mut self, name: &'static str, unit: &'static str, help: &'static str) -> &mut Family {
        self.family(name, unit, help, MetricType::Gauge)
    }

    /// Adds a counter. The unit, if not empty, and `_total` are appended to the metric's name.
    pub(super) fn counter(&mut self, name: &'static str, unit: &'static str, help: &'static str) -> &mut Family {
        self.family(name, unit, help, MetricType::Counter)
    }

    /// Adds an info metric, which has labels and no value. `_info` is appended to the metric's name.
    pub(super) fn info(&mut self, name: &'static str, help: &'static str) -> &mut Family {
        self.family(name, "", help, MetricType::Info)
    }

    /// Adds a family for each metric, with a series for each item. `new` is [`Self::gauge`] or [`Self::counter`].
    pub(super) fn each<I, const N: usize>(
        &mut self,
        new: for<'f> fn(&'f mut Self, &'static str, &'static str, &'static str) -> &'f mut Family,
        metrics: &[Metric<I>],
        items: &[I],
        labels: impl Fn(&I) -> [(&'static str, String); N],
    ) {
        for (name, unit, help, value) in metrics {
            let family = new(self, name, unit, help);
            for item in items {
                family.add(labels(item), value(item));
            }
        }
    }

    fn family(&mut self, name: &'static str, unit: &str, help: &'static str, kind: MetricType) -> &mut Family {
        let unit = (!unit.is_empty()).then(|| Unit::Other(unit.to_owned()));
        self.0.push(Family { name, unit, help, kind, series: Vec::new() });
        let last = self.0.len() - 1;
        &mut self.0[last]
    }

    /// Returns the names of metrics without series.
    #[cfg(test)]
    pub(super) fn without_series(&self) -> Vec<&'static str> {
        self.0.iter().filter(|f| f.series.is_empty()).map(|f| f.name).collect()
    }
}

impl Family {
    fn encode_value(&self, encoder: &mut MetricEncoder, value: &f64) -> Result<(), std::fmt::Error> {
        match self.kind {
            MetricType::Counter => encoder.encode_counter::<NoLabelSet, f64, f64>(value, None),
            _ => encoder.encode_gauge(value),
        }
    }

    /// Adds one series; none if the value is absent or not finite.
    pub(super) fn add<'k>(
        &mut self,
        labels: impl IntoIterator<Item = (&'k str, String)>,
        value: impl Into<Option<f64>>,
    ) -> &mut Self {
        if let Some(value) = value.into().filter(|v| v.is_finite()) {
            self.series.push((labels.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(), value));
        }
        self
    }

    /// Adds one set of labels to an info metric.
    pub(super) fn push<'k>(&mut self, labels: impl IntoIterator<Item = (&'k str, String)>) -> &mut Self {
        self.add(labels, 1.0)
    }

    /// Adds one series for each state in `values`, labelled with the state under `key`: 1 for states for which
    /// `present` is true, 0 for the others.
    pub(super) fn states<'k>(
        &mut self,
        labels: &[(&'k str, String)],
        key: &'k str,
        values: impl IntoIterator<Item = &'static str>,
        present: impl Fn(&str) -> bool,
    ) {
        for state in values {
            self.add(labels.iter().cloned().chain([(key, state.to_owned())]), flag(present(state)));
        }
    }
}

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        for family in self.0.iter().filter(|f| !f.series.is_empty()) {
            let metric = encoder.encode_descriptor(family.name, family.help, family.unit.as_ref(), family.kind)?;
            family.encode(metric)?;
        }
        Ok(())
    }
}

impl EncodeMetric for Family {
    fn encode(&self, mut encoder: MetricEncoder) -> Result<(), std::fmt::Error> {
        for (labels, value) in &self.series {
            if matches!(self.kind, MetricType::Info) {
                encoder.encode_info(labels)?;
            } else if labels.is_empty() {
                self.encode_value(&mut encoder, value)?;
            } else {
                self.encode_value(&mut encoder.encode_family(labels)?, value)?;
            }
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        self.kind
    }
}
