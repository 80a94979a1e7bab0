//! Value of the carbon-intensity forecast that plans use: the expected value or a quantile.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Half width of an 80 % prediction interval in standard deviations of a normal distribution.
pub(super) const FOUR_IN_FIVE: f64 = 1.281_551_565_544_6;
/// Value of the carbon-intensity forecast that plans use: the expected value or a quantile.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Risk {
    /// Plans use the expected value.
    #[default]
    Expected,
    /// Plans use the quantile of this probability, from 0.5 to 0.99.
    Quantile(f64),
}

impl Risk {
    /// Returns the quantile's distance above the expected value in standard deviations, for normal forecast errors.
    pub(super) fn deviations(self) -> f64 {
        match self {
            Self::Expected => 0.0,
            Self::Quantile(probability) => normal_quantile(probability),
        }
    }
}

impl Serialize for Risk {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Expected => serializer.serialize_str("expected"),
            Self::Quantile(probability) => serializer.serialize_f64(*probability),
        }
    }
}

impl<'de> Deserialize<'de> for Risk {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl de::Visitor<'_> for Either {
            type Value = Risk;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("\"expected\" or a probability from 0.5 to 0.99")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Risk, E> {
                let right = text == "expected";
                right.then_some(Risk::Expected).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }

            fn visit_f64<E: de::Error>(self, probability: f64) -> Result<Risk, E> {
                let right = (0.5..=0.99).contains(&probability);
                let wrong = || E::invalid_value(de::Unexpected::Float(probability), &self);
                right.then_some(Risk::Quantile(probability)).ok_or_else(wrong)
            }
        }
        deserializer.deserialize_any(Either)
    }
}

/// Returns the standard normal quantile for probabilities from 0.5 to 0.99, by Newton's method on the series
/// Φ(z) = ½ + φ(z)·(z + z³/3 + z⁵/(3·5) + …).
fn normal_quantile(probability: f64) -> f64 {
    let density = |z: f64| (-0.5 * z * z).exp() / std::f64::consts::TAU.sqrt();
    let distribution = |z: f64| {
        let (mut term, mut sum, mut odd) = (z, z, 3.0);
        while term > 1e-16 * sum {
            term *= z * z / odd;
            sum += term;
            odd += 2.0;
        }
        0.5 + density(z) * sum
    };
    // Φ is concave for z ≥ 0, so no step from 0 upwards overshoots.
    (0..60).fold(0.0, |z, _| z + (probability - distribution(z)) / density(z))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_quantiles_match_tables() {
        assert_eq!(normal_quantile(0.5), 0.0);
        assert!((normal_quantile(0.99) - 2.326_347_874).abs() < 1e-8);
    }

    #[test]
    fn a_risk_is_expected_or_a_probability() {
        #[derive(Debug, PartialEq, Deserialize)]
        struct Table {
            risk: Risk,
        }
        let read = |text: &str| toml::from_str::<Table>(text).map(|t| t.risk).map_err(|e| e.to_string());
        assert_eq!(read("risk = \"expected\""), Ok(Risk::Expected));
        assert_eq!(read("risk = 0.9"), Ok(Risk::Quantile(0.9)));
        for wrong in ["risk = 0.3", "risk = 1.0", "risk = \"mean\"", "risk = true"] {
            let text = read(wrong).expect_err(wrong);
            assert!(text.contains("\"expected\" or a probability from 0.5 to 0.99"), "{text}");
        }
        assert_eq!(
            serde_json::to_string(&[Risk::Expected, Risk::Quantile(0.75)]).expect("json"),
            "[\"expected\",0.75]"
        );
    }
}
