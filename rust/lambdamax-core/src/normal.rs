//! The tail of the normal distribution and its quantiles (docs/model.md section 7).

use crate::real::{Lanes, Real};

/// Coefficients, in y = 2t − 1, of erfc(x)·e^{x²}/t with t = 2/(2 + x), x ≥ 0: a Chebyshev series computed to 40 digits, in powers of y. The
/// relative error is below 4e-16.
const SERIES: [f64; 25] = [
    0.510_791_352_621_011_5,
    0.343_580_342_206_906_7,
    0.139_736_046_278_014_75,
    0.018_221_115_753_294_92,
    -0.010_755_330_944_036_532,
    -0.003_239_592_529_527_153_4,
    0.001_545_306_014_101_328_6,
    0.000_418_647_971_066_050_8,
    -0.000_331_536_576_690_146_1,
    -1.718_525_417_040_69e-5,
    7.223_418_829_504_806e-5,
    -1.707_663_814_507_957_2e-5,
    -1.084_298_532_996_441e-5,
    8.067_106_211_220_23e-6,
    -5.776_423_611_511_427e-7,
    -1.835_078_540_898_153e-6,
    1.030_569_921_529_110_5e-6,
    1.572_054_006_679_415_7e-8,
    -3.262_460_935_296_672e-7,
    1.497_143_526_022_312e-7,
    3.600_084_529_207_993_5e-8,
    -5.145_629_434_357_736e-8,
    6.520_434_614_401_54e-9,
    6.597_367_302_900_275e-9,
    -1.911_173_728_607_894e-9,
];
/// 1/√(2π).
const PEAK_DENSITY: f64 = 0.398_942_280_401_432_7;
/// Hastings' approximation of a quantile in w = √(−2·ln P), (numerator, denominator less 1); its error is below 4.5e-4 (Abramowitz and Stegun 26.2.23).
const HASTINGS: ([f64; 3], [f64; 3]) = ([2.515_517, 0.802_853, 0.010_328], [1.432_788, 0.189_269, 0.001_308]);
/// Newton steps from there to the last digits.
const NEWTON_STEPS: usize = 3;

/// P(Z > z) of a standard normal variable and its density at z, each to 2e-15 of it; beyond 37 standard deviations both stay where they are there.
#[inline(always)]
pub fn upper_tail(z: Lanes) -> (Lanes, Lanes) {
    let (zero, half, one, two) = (Lanes::ZERO, Lanes::splat(0.5), Lanes::splat(1.0), Lanes::splat(2.0));
    let x = z.abs() * Lanes::splat(std::f64::consts::FRAC_1_SQRT_2);
    let t = two / (two + x);
    let decay = (-(z * z) * half).exp();
    let beyond = half * t * series(t + t - one) * decay;
    (Lanes::select(zero.less(z), beyond, one - beyond), decay * Lanes::splat(PEAK_DENSITY))
}

/// The series at y: its four interleaved parts, in powers of y⁴, run side by side.
#[inline(always)]
fn series(y: Lanes) -> Lanes {
    let squared = y * y;
    let fourth = squared * squared;
    let mut parts = [Lanes::splat(SERIES[24]), Lanes::ZERO, Lanes::ZERO, Lanes::ZERO];
    let mut power = 24;
    while power > 0 {
        power -= 4;
        let mut part = 0;
        while part < 4 {
            parts[part] = parts[part].fused(fourth, Lanes::splat(SERIES[power + part]));
            part += 1;
        }
    }
    let [none, first, second, third] = parts;
    third.fused(y, second).fused(squared, first.fused(y, none))
}

/// z with P(Z > z) = `tail`, which lies between 1e-15 and 1 − 1e-15; to 1e-14.
pub fn upper_quantile(tail: Lanes) -> Lanes {
    let rest = Lanes::splat(1.0) - tail;
    let smaller = tail.min(rest);
    let goal = smaller.ln();
    let mut z = near_quantile(smaller);
    for _ in 0..NEWTON_STEPS {
        let (above, density) = upper_tail(z);
        z = z + (above.ln() - goal) * above / density;
    }
    Lanes::select(rest.less(tail), -z, z)
}

/// z with P(Z > z) = `tail`, to 4.5e-4.
#[inline(always)]
pub fn near_quantile(tail: Lanes) -> Lanes {
    let rest = Lanes::splat(1.0) - tail;
    let w = (Lanes::splat(-2.0) * tail.min(rest).ln()).sqrt();
    let ([a, b, c], [d, e, f]) = (HASTINGS.0.map(Lanes::splat), HASTINGS.1.map(Lanes::splat));
    let z = w - (a + w * (b + w * c)) / (Lanes::splat(1.0) + w * (d + w * (e + w * f)));
    Lanes::select(rest.less(tail), -z, z)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// (z, P(Z > z)) to 17 digits.
    const KNOWN: [(f64, f64); 6] = [
        (0.0, 0.5),
        (1.0, 0.158_655_253_931_457_05),
        (-1.5, 0.933_192_798_731_141_9),
        (3.0, 0.001_349_898_031_630_094_6),
        (6.0, 9.865_876_450_376_982e-10),
        (20.0, 2.753_624_118_606_233_6e-89),
    ];

    #[test]
    fn the_tail_is_that_of_tables() {
        for (z, tail) in KNOWN {
            let found = upper_tail(Lanes::splat(z)).0.0[0];
            assert!((found / tail - 1.0).abs() < 2e-15 * (1.0 + z * z), "{z}: {found}");
        }
    }

    #[test]
    fn the_density_is_the_slope_of_the_tail() {
        for (z, _) in KNOWN {
            let at = |z: f64| upper_tail(Lanes::splat(z));
            let slope = (at(z - 1e-5).0.0[0] - at(z + 1e-5).0.0[0]) / 2e-5;
            assert!((at(z).1.0[0] / slope - 1.0).abs() < 1e-7, "{z}");
        }
    }

    #[test]
    fn quantiles_undo_the_tail() {
        for (z, tail) in &KNOWN[..5] {
            let found = upper_quantile(Lanes::splat(*tail)).0[0];
            assert!((found - z).abs() < 1e-14 * (1.0 + z.abs()), "{z}: {found}");
        }
    }
}
