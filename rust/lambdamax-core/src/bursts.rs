//! Bursty and even arrivals: how many more requests a window holds around an arrival than at any time (docs/model.md section 5).

use crate::real::{Dual, LaneMask, Lanes, Real};

type D = Dual<Lanes>;

/// Shares of the final dispersion by windows, fitted to gamma renewals; docs/model.md says how well.
const EARLY_SCALE: f64 = 0.7;
const EARLY_DECAY: f64 = -0.15;
const EARLY_POWER: (f64, f64) = (0.1, 0.7);
const LATE: (f64, f64) = (6.0, 0.9);
const EVEN: (f64, f64) = (3.5, 0.5);
/// Arrivals in a window below which the window is as good as a point.
const SHORTEST_WINDOW: f64 = 1e-12;

/// Arrivals whose gaps have a given coefficient of variation, in eight lanes.
#[derive(Clone, Copy, Debug)]
pub struct Bursts {
    /// c² − 1, the excess of an endless window.
    endless: Lanes,
    scale: Lanes,
    power: Lanes,
    rise: Lanes,
    even: LaneMask,
}

impl Bursts {
    /// From the coefficients of variation of the gaps; 1 is Poisson.
    pub fn new(gap_cv: Lanes) -> Self {
        let one = Lanes::splat(1.0);
        let variance = gap_cv * gap_cv;
        let at_least_one = variance.max(one);
        Self {
            endless: variance - one,
            scale: Lanes::splat(EARLY_SCALE) * (at_least_one.ln() * Lanes::splat(0.5 * EARLY_DECAY)).exp(),
            power: Lanes::splat(EARLY_POWER.0) + Lanes::splat(EARLY_POWER.1) / at_least_one,
            rise: Lanes::splat(LATE.0) / (at_least_one + Lanes::splat(LATE.1)),
            even: variance.less(one),
        }
    }

    /// Index of dispersion of the arrivals in windows with `mean` arrivals, less one: by so much the number of other arrivals in a
    /// window around an arrival exceeds that in any window; at least −`mean`, since there are none or more.
    #[inline(always)]
    pub fn excess(&self, mean: D) -> D {
        let one = D::splat(1.0);
        let mean = mean.max(D::splat(SHORTEST_WINDOW));
        let early = (mean.ln().scale(self.power)).exp().scale(self.scale);
        let even = mean + (mean * mean).scale(Lanes::splat(EVEN.0)) / mean.offset(Lanes::splat(EVEN.1));
        let odds = D::select(self.even, even, early + mean.scale(self.rise));
        (odds / (one + odds)).scale(self.endless).max(-mean)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn excess(gap_cv: f64, mean: f64) -> f64 {
        Bursts::new(Lanes::splat(gap_cv)).excess(D::constant(Lanes::splat(mean))).value.0[0]
    }

    #[test]
    fn poisson_arrivals_have_none() {
        assert_eq!(excess(1.0, 0.3).to_bits(), 0.0_f64.to_bits());
    }

    #[test]
    fn long_windows_have_the_squared_variation_of_the_gaps() {
        for gap_cv in [0.0, 0.5, 1.5, 4.0, 13.0] {
            let endless = gap_cv * gap_cv - 1.0;
            assert!((excess(gap_cv, 1e9) / endless - 1.0).abs() < 1e-6);
        }
    }

    #[test]
    fn short_windows_have_little() {
        assert!(excess(0.0, 1e-6).abs() < 1e-5);
        assert!(excess(2.0, 1e-9) < 0.01);
    }
}
