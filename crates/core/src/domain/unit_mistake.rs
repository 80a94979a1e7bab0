//! Detects numbers that were most likely given in another unit. The messages continue a sentence that begins with the
//! field and "is".

use crate::units::{GramsPerKwh, Short, Watts};

/// Upper bound of the power of a GPU.
const MOST_POWER_PER_GPU: Watts = Watts::new(5_000.0);
/// Upper bound of the power of all GPUs of a node.
pub const MOST_POWER_PER_NODE: Watts = Watts::new(50_000.0);
/// Lower bound of intensities above zero.
const LEAST_INTENSITY: GramsPerKwh = GramsPerKwh::new(1.0);

/// Checks a power or power limit of `gpus` GPUs, or of a whole node if their number is unknown.
///
/// # Errors
/// For power above what they can draw; the message converts it from milliwatts.
pub fn check_power(given: Watts, gpus: Option<u32>) -> Result<(), String> {
    let most = gpus.map_or(MOST_POWER_PER_NODE, |gpus| MOST_POWER_PER_GPU * f64::from(gpus));
    if given <= most {
        return Ok(());
    }
    let of = match gpus {
        None => "the GPUs of one node draw".to_owned(),
        Some(1) => "a GPU draws".to_owned(),
        Some(gpus) => format!("{gpus} GPUs draw"),
    };
    let (most, meant) = (most.get(), Short(given.get() / 1000.0));
    Err(format!("{}, and {of} at most {most} watts; in milliwatts: {meant} watts", Short(given.get())))
}

/// Checks a carbon intensity.
///
/// # Errors
/// For intensities between 0 and 1 g/kWh; the message converts them from kilograms.
pub fn check_intensity(given: GramsPerKwh) -> Result<(), String> {
    if given <= GramsPerKwh::ZERO || given >= LEAST_INTENSITY {
        return Ok(());
    }
    let (given, meant) = (Short(given.get()), Short(given.get() * 1000.0));
    Err(format!("{given}; it is in grams of CO2 equivalent per kWh: {given} kg/kWh are {meant} g/kWh"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_power_beyond_what_gpus_draw_was_given_in_milliwatts() {
        let said = |watts, gpus| check_power(Watts::new(watts), gpus).err().unwrap_or_default();
        for (watts, gpus) in [(50_000.0, None), (5_000.0, Some(1)), (40_000.0, Some(8)), (0.0, None)] {
            assert_eq!(said(watts, gpus), "", "{watts} {gpus:?}");
        }
        assert_eq!(
            said(2e6, None),
            "2000000, and the GPUs of one node draw at most 50000 watts; in milliwatts: 2000 watts"
        );
        assert_eq!(said(3e5, Some(1)), "300000, and a GPU draws at most 5000 watts; in milliwatts: 300 watts");
        assert!(said(2.4e6, Some(8)).ends_with("8 GPUs draw at most 40000 watts; in milliwatts: 2400 watts"));
        assert!(said(1e300, None).starts_with("1e300, and"));
    }

    #[test]
    fn an_intensity_below_a_gram_was_given_in_kilograms() {
        let said = |intensity| check_intensity(GramsPerKwh::new(intensity)).err().unwrap_or_default();
        for intensity in [0.0, 1.0, 35.0, 475.0] {
            assert_eq!(said(intensity), "", "{intensity}");
        }
        assert!(said(0.035).ends_with("0.035 kg/kWh are 35 g/kWh"));
    }
}
