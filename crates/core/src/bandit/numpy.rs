//! Random generator that returns the same numbers as NumPy's `default_rng(seed)`: PCG64, seeded through `SeedSequence`,
//! with normals, bounded integers and `Generator.choice(n, n, replace=False)` (`zeus-protocols.md` §3.6).
//!
//! Zeus's reference implementation uses NumPy's generator, so that an experiment with the same seed can be repeated
//! here draw for draw. The tables of the ziggurat method for normals are computed here; normals agree with NumPy's to
//! about 2e-14, everything else exactly.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

/// Multiplier of PCG64's 128-bit linear congruential generator.
const MULTIPLIER: u128 = 0x2360_ED05_1FC6_5DA4_4385_DF64_9FCC_F645;
/// Absolute value from which on normals are drawn from the tail; smaller ones are drawn from the ziggurat, a stack of
/// layers with equal areas below the bell curve.
const TAIL: f64 = 3.654_152_885_361_009;
/// Area of each layer of the ziggurat.
const AREA: f64 = 0.004_928_673_233_974_658;
/// Number of different values of a random mantissa, which has 52 bits.
const MANTISSA: f64 = 4_503_599_627_370_496.0;
/// Number of layers of the ziggurat.
const LAYERS: usize = 256;
/// Maximum number of rejected values in one draw. A valid generator rejects fewer than half of the values, mostly under
/// one percent, and never reaches this limit; a damaged state that repeats one value might reject values forever.
const REJECTIONS: u32 = 1000;

/// Random generator with a storable state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Generator {
    #[serde(with = "decimal")]
    state: u128,
    #[serde(with = "decimal")]
    increment: u128,
    /// Upper half of a 64-bit number whose lower half was returned as a 32-bit draw; the next 32-bit draw returns the
    /// upper half. `None` if there is none left.
    half: Option<u32>,
}

impl Generator {
    /// Returns the generator of `numpy.random.default_rng(seed)`.
    pub fn new(seed: u64) -> Self {
        let words = seed_sequence(seed);
        let (state, stream) =
            (u128::from(words[0]) << 64 | u128::from(words[1]), u128::from(words[2]) << 64 | u128::from(words[3]));
        let mut made = Self { state: 0, increment: stream << 1 | 1, half: None };
        made.step();
        made.state = made.state.wrapping_add(state);
        made.step();
        made
    }

    /// Returns true if the state is valid for PCG64: the increment is odd. With an even increment the sequence repeats
    /// too soon; it may even consist of one value.
    pub fn is_sound(&self) -> bool {
        self.increment & 1 == 1
    }

    fn step(&mut self) {
        self.state = self.state.wrapping_mul(MULTIPLIER).wrapping_add(self.increment);
    }

    #[expect(clippy::cast_possible_truncation, reason = "the halves of 128 bits, and 6 of them")]
    fn next_64(&mut self) -> u64 {
        self.step();
        (((self.state >> 64) ^ self.state) as u64).rotate_right((self.state >> 122) as u32)
    }

    #[expect(clippy::cast_possible_truncation, reason = "the halves of 64 bits")]
    fn next_32(&mut self) -> u32 {
        if let Some(half) = self.half.take() {
            return half;
        }
        let both = self.next_64();
        self.half = Some((both >> 32) as u32);
        both as u32
    }

    #[expect(clippy::cast_precision_loss, reason = "53 bits")]
    fn unit(&mut self) -> f64 {
        (self.next_64() >> 11) as f64 / 9_007_199_254_740_992.0
    }

    /// Returns NumPy's `integers(0, n)`: a random number from 0 to n − 1. For n ≤ 1 returns 0 without a draw.
    #[expect(clippy::cast_possible_truncation, reason = "the halves of 64 bits")]
    pub fn below(&mut self, n: u32) -> u32 {
        if n <= 1 {
            return 0;
        }
        let mut product = u64::from(self.next_32()) * u64::from(n);
        if (product as u32) < n {
            let threshold = (u32::MAX - (n - 1)) % n;
            for _ in 0..REJECTIONS {
                if (product as u32) >= threshold {
                    break;
                }
                product = u64::from(self.next_32()) * u64::from(n);
            }
        }
        (product >> 32) as u32
    }

    /// Returns NumPy's `choice(n, n, replace=False)`: the numbers 0 to n − 1 in random order.
    pub fn shuffled(&mut self, n: u32) -> Vec<u32> {
        if n <= 1 {
            return (0..n).collect();
        }
        let mut order: Vec<u32> = Vec::with_capacity(n as usize);
        for j in 0..n {
            let drawn = self.below(j + 1);
            order.push(if order.contains(&drawn) { j } else { drawn });
        }
        for i in (1..n).rev() {
            let other = self.below(i + 1);
            order.swap(i as usize, other as usize);
        }
        order
    }

    /// Returns NumPy's `standard_normal()`: a random number from the standard normal distribution.
    #[expect(clippy::cast_precision_loss, reason = "52 bits")]
    pub fn normal(&mut self) -> f64 {
        let Ziggurat { accepted, width, density } = &*ZIGGURAT;
        for _ in 0..REJECTIONS {
            let bits = self.next_64();
            let layer = (bits & 0xff) as usize;
            let negative = bits >> 8 & 1 == 1;
            let mantissa = bits >> 9 & 0x000f_ffff_ffff_ffff;
            let x = mantissa as f64 * width[layer];
            let x = if negative { -x } else { x };
            if mantissa < accepted[layer] {
                return x;
            }
            if layer == 0 {
                for _ in 0..REJECTIONS {
                    let beyond = -(-self.unit()).ln_1p() / TAIL;
                    let height = -(-self.unit()).ln_1p();
                    if 2.0 * height > beyond * beyond {
                        let x = TAIL + beyond;
                        return if mantissa >> 8 & 1 == 1 { -x } else { x };
                    }
                }
                return 0.0;
            }
            if (density[layer - 1] - density[layer]) * self.unit() + density[layer] < (-0.5 * x * x).exp() {
                return x;
            }
        }
        0.0
    }
}

struct Ziggurat {
    accepted: [u64; LAYERS],
    width: [f64; LAYERS],
    density: [f64; LAYERS],
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "floors of what lies between 0 and 2^52")]
static ZIGGURAT: LazyLock<Ziggurat> = LazyLock::new(|| {
    let bell = |x: f64| (-0.5 * x * x).exp();
    let base = AREA / bell(TAIL);
    let mut z = Ziggurat { accepted: [0; LAYERS], width: [0.0; LAYERS], density: [0.0; LAYERS] };
    z.accepted[0] = (TAIL / base * MANTISSA) as u64;
    z.width[0] = base / MANTISSA;
    z.width[LAYERS - 1] = TAIL / MANTISSA;
    z.density[0] = 1.0;
    z.density[LAYERS - 1] = bell(TAIL);
    let mut edge = TAIL;
    for layer in (1..LAYERS - 1).rev() {
        let inner = (-2.0 * (AREA / edge + bell(edge)).ln()).sqrt();
        z.accepted[layer + 1] = (inner / edge * MANTISSA) as u64;
        z.width[layer] = inner / MANTISSA;
        z.density[layer] = bell(inner);
        edge = inner;
    }
    z
});

/// Returns the four 64-bit words that NumPy's `SeedSequence(seed)` generates as the state of PCG64.
#[expect(clippy::cast_possible_truncation, reason = "the halves of 64 bits")]
fn seed_sequence(seed: u64) -> [u64; 4] {
    let mut constant: u32 = 0x43b0_d7e5;
    let mut hash = |mut value: u32| {
        value ^= constant;
        constant = constant.wrapping_mul(0x931e_8875);
        value = value.wrapping_mul(constant);
        value ^ value >> 16
    };
    let mix = |x: u32, y: u32| {
        let mixed = 0xca01_f9dd_u32.wrapping_mul(x).wrapping_sub(0x4973_f715_u32.wrapping_mul(y));
        mixed ^ mixed >> 16
    };
    let mut pool = [seed as u32, (seed >> 32) as u32, 0, 0].map(&mut hash);
    for from in 0..pool.len() {
        for to in 0..pool.len() {
            if from != to {
                pool[to] = mix(pool[to], hash(pool[from]));
            }
        }
    }
    let mut constant: u32 = 0x8b51_f9dd;
    let mut word = |k: usize| {
        let mut value = pool[k % pool.len()] ^ constant;
        constant = constant.wrapping_mul(0x58f3_8ded);
        value = value.wrapping_mul(constant);
        u64::from(value ^ value >> 16)
    };
    std::array::from_fn(|i| word(2 * i) | word(2 * i + 1) << 32)
}

/// Serialisation of 128-bit numbers as text, because not every JSON reader supports such numbers.
mod decimal {
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(number: &u128, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(number)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u128, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|_| de::Error::invalid_value(de::Unexpected::Str(&text), &"an integer as text"))
    }
}
