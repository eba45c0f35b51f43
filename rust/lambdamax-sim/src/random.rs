//! Random numbers: xoshiro256++ streams, one uniform per draw, and inverse distribution functions.
//!
//! Everything is made of additions, multiplications, divisions, square roots and the core's own `exp` and `ln`, so a seed gives the
//! same bits on every machine. One uniform per draw lets two designs share their random numbers.

use lambdamax_core::real::Real;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// What a stream is for; streams of one replication are 2^128 draws apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Gaps between arrivals.
    Arrivals,
    /// Prompt lengths, or rows of a trace drawn at random.
    Prompts,
    /// Output lengths.
    Outputs,
    /// Whether a prompt begins with the common prefix.
    Prefixes,
    /// Errors that options share.
    Errors,
    /// Prices.
    Prices,
    /// Errors of one option alone.
    OwnErrors,
}

/// A stream of uniform numbers.
#[derive(Clone, Debug)]
pub struct Stream(Xoshiro256PlusPlus);

impl Stream {
    /// The stream of one purpose in one replication; replications are 2^192 draws apart.
    pub fn new(seed: u64, replication: u32, purpose: Purpose) -> Self {
        let mut generator = Xoshiro256PlusPlus::seed_from_u64(seed);
        (0..replication).for_each(|_| generator.long_jump());
        (0..purpose as u32).for_each(|_| generator.jump());
        Self(generator)
    }

    /// Strictly between 0 and 1, on a lattice of 2^52 midpoints.
    pub fn uniform(&mut self) -> f64 {
        ((self.0.next_u64() >> 12) as f64 + 0.5) * (1.0 / 4_503_599_627_370_496.0)
    }
}

macro_rules! with_fma {
    ($(#[$doc:meta])* $name:ident, $inner:ident, $formula:path) => {
        $(#[$doc])*
        pub fn $name(x: f64) -> f64 {
            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("fma") {
                // SAFETY: the feature was detected on the line above.
                return unsafe { $inner(x) };
            }
            $formula(x)
        }

        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "fma")]
        fn $inner(x: f64) -> f64 {
            $formula(x)
        }
    };
}

with_fma!(
    /// Natural logarithm.
    ln, ln_fused, Real::ln
);
with_fma!(
    /// e^x.
    exp, exp_fused, Real::exp
);

/// Unit exponential with distribution function `u`: −ln(1 − u), with u for 1 − u, which is as likely.
pub fn exponential(u: f64) -> f64 {
    -ln(u)
}

fn horner(coefficients: &[f64], x: f64) -> f64 {
    coefficients.iter().rev().fold(0.0, |sum, c| sum * x + c)
}

/// Standard normal with distribution function `u` (Wichura 1988, AS 241, PPND16; relative error about 1e-16).
pub fn normal(u: f64) -> f64 {
    let q = u - 0.5;
    if q.abs() <= 0.425 {
        let r = 0.180625 - q * q;
        return q * horner(&CENTRE_NUMERATOR, r) / horner(&CENTRE_DENOMINATOR, r);
    }
    let r = (-ln(if q < 0.0 { u } else { 1.0 - u })).sqrt();
    let tail = if r <= 5.0 {
        horner(&TAIL_NUMERATOR, r - 1.6) / horner(&TAIL_DENOMINATOR, r - 1.6)
    } else {
        horner(&FAR_NUMERATOR, r - 5.0) / horner(&FAR_DENOMINATOR, r - 5.0)
    };
    if q < 0.0 { -tail } else { tail }
}

const CENTRE_NUMERATOR: [f64; 8] = [
    3.387_132_872_796_366_5,
    1.331_416_678_917_843_8e2,
    1.971_590_950_306_551_3e3,
    1.373_169_376_550_946e4,
    4.592_195_393_154_987e4,
    6.726_577_092_700_87e4,
    3.343_057_558_358_813e4,
    2.509_080_928_730_122_7e3,
];
const CENTRE_DENOMINATOR: [f64; 8] = [
    1.0,
    4.231_333_070_160_091e1,
    6.871_870_074_920_579e2,
    5.394_196_021_424_751e3,
    2.121_379_430_158_659_7e4,
    3.930_789_580_009_271e4,
    2.872_908_573_572_194_3e4,
    5.226_495_278_852_854e3,
];
const TAIL_NUMERATOR: [f64; 8] = [
    1.423_437_110_749_683_5,
    4.630_337_846_156_546,
    5.769_497_221_460_691,
    3.647_848_324_763_204_5,
    1.270_458_252_452_368_4,
    2.417_807_251_774_506e-1,
    2.272_384_498_926_918_4e-2,
    7.745_450_142_783_414e-4,
];
const TAIL_DENOMINATOR: [f64; 8] = [
    1.0,
    2.053_191_626_637_759,
    1.676_384_830_183_803_8,
    6.897_673_349_851e-1,
    1.481_039_764_274_800_8e-1,
    1.519_866_656_361_645_7e-2,
    5.475_938_084_995_345e-4,
    1.050_750_071_644_416_9e-9,
];
const FAR_NUMERATOR: [f64; 8] = [
    6.657_904_643_501_103,
    5.463_784_911_164_114,
    1.784_826_539_917_291_3,
    2.965_605_718_285_049e-1,
    2.653_218_952_657_612_4e-2,
    1.242_660_947_388_078_4e-3,
    2.711_555_568_743_487_6e-5,
    2.010_334_399_292_288_1e-7,
];
const FAR_DENOMINATOR: [f64; 8] = [
    1.0,
    5.998_322_065_558_88e-1,
    1.369_298_809_227_358e-1,
    1.487_536_129_085_061_5e-2,
    7.868_691_311_456_133e-4,
    1.846_318_317_510_054_8e-5,
    1.421_511_758_316_446e-7,
    2.044_263_103_389_939_8e-15,
];

/// Gamma law with unit mean and coefficient of variation `cv`: shape 1/cv².
#[derive(Clone, Copy, Debug)]
pub struct Gamma {
    shape: f64,
    log_gamma: f64,
}

impl Gamma {
    /// `cv` above 0.
    pub fn new(cv: f64) -> Self {
        let shape = 1.0 / (cv * cv);
        Self { shape, log_gamma: log_gamma(shape) }
    }

    /// The value with distribution function `u`: safeguarded Newton in the logarithm of x.
    pub fn quantile(&self, u: f64) -> f64 {
        let (mut low, mut high) = (-690.0, ln(self.shape + 1.0) + 12.0);
        let mut y = self.first_guess(u).clamp(low, high);
        for _ in 0..200 {
            let x = exp(y);
            let excess = self.distribution(x) - u;
            if excess < 0.0 {
                low = y
            } else {
                high = y
            }
            let slope = exp(self.shape * y - x - self.log_gamma);
            let newton = y - excess / slope;
            let next = if newton > low && newton < high { newton } else { 0.5 * (low + high) };
            let settled = (next - y).abs() < 1e-13;
            y = next;
            if settled {
                break;
            }
        }
        exp(y) / self.shape
    }

    /// Logarithm of x: Wilson and Hilferty's cube for large shapes, the leading power for small ones.
    fn first_guess(&self, u: f64) -> f64 {
        let ninth = 1.0 / (9.0 * self.shape);
        let root = 1.0 - ninth + normal(u) * ninth.sqrt();
        if self.shape >= 1.0 && root > 0.1 {
            return ln(self.shape) + 3.0 * ln(root);
        }
        (ln(u) + self.log_gamma + ln(self.shape)) / self.shape
    }

    /// P(shape, x): the series below the mean, Lentz's continued fraction above it.
    fn distribution(&self, x: f64) -> f64 {
        let front = exp(self.shape * ln(x) - x - self.log_gamma);
        if x < self.shape + 1.0 { front * self.series(x) } else { 1.0 - front * self.fraction(x) }
    }

    fn series(&self, x: f64) -> f64 {
        let (mut term, mut sum, mut k) = (1.0 / self.shape, 1.0 / self.shape, self.shape);
        while term > 1e-17 * sum {
            k += 1.0;
            term *= x / k;
            sum += term;
        }
        sum
    }

    fn fraction(&self, x: f64) -> f64 {
        let mut b = x + 1.0 - self.shape;
        let (mut c, mut d) = (1e300, 1.0 / b);
        let mut value = d;
        for i in 1..10_000 {
            let a = -f64::from(i) * (f64::from(i) - self.shape);
            b += 2.0;
            d = 1.0 / (a * d + b);
            c = b + a / c;
            value *= d * c;
            if (d * c - 1.0).abs() < 1e-16 {
                break;
            }
        }
        value
    }
}

/// ln Γ(x) for x > 0 by Stirling's series after a shift past 10.
fn log_gamma(x: f64) -> f64 {
    let (mut z, mut product) = (x, 1.0);
    while z < 10.0 {
        product *= z;
        z += 1.0;
    }
    let w = 1.0 / (z * z);
    let series = horner(&[1.0 / 12.0, -1.0 / 360.0, 1.0 / 1260.0, -1.0 / 1680.0, 1.0 / 1188.0], w) / z;
    const HALF_LN_TWO_PI: f64 = 0.918_938_533_204_672_7;
    (z - 0.5) * ln(z) - z + HALF_LN_TWO_PI + series - ln(product)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(cv: f64) -> (f64, f64) {
        let gamma = Gamma::new(cv);
        let mut stream = Stream::new(5, 0, Purpose::Arrivals);
        let draws: Vec<f64> = (0..20_000).map(|_| gamma.quantile(stream.uniform())).collect();
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        let square = draws.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / draws.len() as f64;
        (mean, square.sqrt() / mean)
    }

    #[test]
    fn the_normal_quantile_has_its_known_values() {
        let known = [
            (0.975, 1.959_963_984_540_054),
            (0.5, 0.0),
            (1e-3, -3.090_232_306_167_813_5),
            (1e-12, -7.034_483_825_301_132),
        ];
        for (u, z) in known {
            assert!((normal(u) - z).abs() < 1e-13 * z.abs().max(1.0), "{u}: {}", normal(u));
        }
    }

    #[test]
    fn gamma_of_shape_one_is_exponential_and_of_shape_two_is_erlang() {
        for u in [1e-9, 0.01, 0.3, 0.5, 0.9, 0.999_999] {
            let x = Gamma::new(1.0).quantile(u);
            assert!((x + ln(1.0 - u)).abs() < 1e-9 * x.max(1e-3), "{u}: {x}");
            let y = 2.0 * Gamma::new(0.5f64.sqrt()).quantile(u);
            assert!((1.0 - (1.0 + y) * exp(-y) - u).abs() < 1e-11, "{u}: {y}");
        }
    }

    #[test]
    fn gamma_draws_have_the_mean_and_spread_asked_for() {
        for (cv, tolerance) in [(0.2, 0.01), (1.0, 0.02), (3.0, 0.08)] {
            let (mean, spread) = sample(cv);
            assert!(
                (mean - 1.0).abs() < tolerance && (spread / cv - 1.0).abs() < 2.0 * tolerance,
                "{cv}: {mean} {spread}"
            );
        }
    }

    #[test]
    fn streams_are_reproducible_and_apart() {
        let first = |seed, replication, purpose| Stream::new(seed, replication, purpose).uniform();
        let one = first(1, 0, Purpose::Arrivals);
        assert_eq!(one.to_bits(), first(1, 0, Purpose::Arrivals).to_bits());
        for other in [first(2, 0, Purpose::Arrivals), first(1, 1, Purpose::Arrivals), first(1, 0, Purpose::Outputs)] {
            assert_ne!(one.to_bits(), other.to_bits());
        }
    }

    #[test]
    fn the_generator_is_the_published_one() {
        let mut generator = Xoshiro256PlusPlus::seed_from_u64(0);
        assert_eq!(generator.next_u64(), 5_987_356_902_031_041_503);
    }
}
