//! The tail of the normal distribution, as a logarithm, so that no tail is too thin (docs/model.md section 7).

use crate::real::Real;

/// Chebyshev coefficients, in y = 2t − 1, of ln(erfc(x)·e^{x²}/t) with t = 2/(2 + x), x ≥ 0; computed to 40 digits. The error is
/// below 1e-15.
const SERIES: [f64; 25] = [
    -1.302_653_719_781_709_4,
    0.641_969_792_356_490_3,
    0.019_476_473_204_185_836,
    -0.009_561_514_786_808_632,
    -0.000_946_595_344_482_036_9,
    0.000_366_839_497_852_761_45,
    4.252_332_480_690_777e-5,
    -2.027_857_811_253_424e-5,
    -1.624_290_004_647_025_5e-6,
    1.303_655_835_580_523_2e-6,
    1.562_644_172_206_614_3e-8,
    -8.523_809_591_492_654e-8,
    6.529_054_439_098_851_5e-9,
    5.059_343_495_551_469e-9,
    -9.913_641_564_930_33e-10,
    -2.273_651_222_931_836e-10,
    9.646_791_102_015_526e-11,
    2.394_038_083_041_114_7e-12,
    -6.886_027_526_497_553e-12,
    8.944_879_273_090_726e-13,
    3.130_921_399_342_958e-13,
    -1.127_082_236_125_236_5e-13,
    3.810_905_255_189_232e-16,
    7.106_097_613_609_237e-15,
    -1.523_028_201_457_104_7e-15,
];
/// Halvings of the bracket in which a quantile is sought.
const HALVINGS: usize = 64;
/// Standard deviations within which quantiles are sought.
const REACH: f64 = 8.0;

/// ln P(Z > z) of a standard normal variable; error below 1e-14 of it, or 1e-15.
#[inline(always)]
pub fn ln_tail<R: Real>(z: R) -> R {
    let zero = R::splat(0.0);
    let positive = zero.less(z);
    let x = R::select(positive, z, -z) * R::splat(std::f64::consts::FRAC_1_SQRT_2);
    let t = R::splat(2.0) / (R::splat(2.0) + x);
    let y = R::splat(4.0) * t - R::splat(2.0);
    let (mut ahead, mut here) = (zero, zero);
    for &coefficient in SERIES[1..].iter().rev() {
        (ahead, here) = (here, y * here - ahead + R::splat(coefficient));
    }
    let series = R::splat(0.5) * (R::splat(SERIES[0]) + y * here) - ahead;
    let beyond = (R::splat(0.5) * t).ln() + series - x * x;
    let within = (R::splat(1.0) - beyond.exp()).ln();
    R::select(positive, beyond, within)
}

/// z with P(Z > z) = `tail`, which lies between 1e-15 and 1 − 1e-15.
pub fn upper_quantile(tail: f64) -> f64 {
    let goal = Real::ln(tail);
    let (mut low, mut high) = (-REACH, REACH);
    for _ in 0..HALVINGS {
        let middle = 0.5 * (low + high);
        if ln_tail(middle) > goal {
            low = middle;
        } else {
            high = middle;
        }
    }
    0.5 * (low + high)
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
            assert!((ln_tail(z) - tail.ln()).abs() < 4e-15 * (1.0 + tail.ln().abs()), "{z}");
        }
    }

    #[test]
    fn quantiles_undo_the_tail() {
        for (z, tail) in &KNOWN[..5] {
            assert!((upper_quantile(*tail) - z).abs() < 1e-9);
        }
    }
}
