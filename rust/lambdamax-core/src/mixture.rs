//! Mixtures of shifted gamma laws by the Wilson–Hilferty transform: tails and quantiles of latencies (docs/model.md section 7).

use crate::normal::{ln_tail, upper_quantile};
use crate::real::{Dual, LaneMask, Lanes, Real};
use crate::root::{self, Bracket, Function, Root, Sample};

type D = Dual<Lanes>;

/// Least mean of a gamma law [s]; a time that is certain has this much.
const LEAST_MEAN_S: f64 = 1e-12;
/// Largest shape of a gamma law.
const MOST_SHAPE: f64 = 1e4;
/// Relative room on either side of a bracket for rounding.
const ROOM: f64 = 1e-9;
/// Weight below which a component cannot be seen in any percentile.
const LEAST_WEIGHT: f64 = 1e-18;
/// Share of a bracket by which its coordinate begins above zero, so that steps are short beside the bracket, not beside t.
const BEGINS: f64 = 1e-3;

/// A gamma law: ((x/mean)^⅓ − center)·steepness is nearly standard normal.
#[derive(Clone, Copy, Debug)]
pub struct Gamma {
    mean: Lanes,
    center: Lanes,
    steepness: Lanes,
}

impl Gamma {
    /// With this mean [s] and variance [s²], kept where the transform makes sense.
    #[inline(always)]
    pub fn new(mean: Lanes, variance: Lanes) -> Self {
        let one = Lanes::splat(1.0);
        let mean = mean.max(Lanes::splat(LEAST_MEAN_S));
        let shape = mean * mean / variance.max(mean * mean / Lanes::splat(MOST_SHAPE));
        Self { mean, center: one - one / (Lanes::splat(9.0) * shape), steepness: Lanes::splat(3.0) * shape.sqrt() }
    }

    /// The value with a standard normal quantile.
    #[inline(always)]
    fn quantile(&self, z: Lanes) -> Lanes {
        let root = (self.center + z / self.steepness).max(Lanes::splat(0.0));
        self.mean * root * root * root
    }
}

/// One law of a mixture, moved to the right.
#[derive(Clone, Copy, Debug)]
pub struct Component {
    /// Its share.
    pub weight: Lanes,
    /// Where it begins [s].
    pub shift: Lanes,
    /// The law.
    pub gamma: Gamma,
}

/// A percentile, in eight lanes.
#[derive(Clone, Copy, Debug)]
pub struct Level {
    /// ln(1 − p/100).
    pub ln_tail: Lanes,
    /// The standard normal quantile.
    pub z: Lanes,
}

impl Level {
    /// Of no percentile, where none is asked for.
    pub const NONE: Self = Self { ln_tail: Lanes::ZERO, z: Lanes::ZERO };

    /// Of percentiles above 0 and below 100.
    pub fn of(percentile: Lanes) -> Self {
        let tail = |lane: usize| 1.0 - percentile.0[lane] / 100.0;
        let mut known = (f64::NAN, f64::NAN);
        let z = Lanes::from_fn(|lane| {
            if known.0 != tail(lane) {
                known = (tail(lane), upper_quantile(tail(lane)));
            }
            known.1
        });
        Self { ln_tail: Lanes::from_fn(|lane| Real::ln(tail(lane))), z }
    }
}

/// A mixture; components without weight do not count.
#[derive(Clone, Debug, Default)]
pub struct Mixture {
    /// Its laws.
    pub components: Vec<Component>,
}

impl Mixture {
    /// ln P(X > t); `constant` makes a constant of the kind of number that t is.
    #[inline(always)]
    pub fn ln_survival<R: Real>(&self, t: R, constant: impl Fn(Lanes) -> R) -> R {
        let zero = R::splat(0.0);
        let mut survival = zero;
        for one in &self.components {
            let x = (t - constant(one.shift)).max(zero) / constant(one.gamma.mean);
            let root = (x.ln() * R::splat(1.0 / 3.0)).exp();
            let z = (root - constant(one.gamma.center)) * constant(one.gamma.steepness);
            let tail = R::select(zero.less(x), ln_tail(z).exp(), R::splat(1.0));
            survival = survival + constant(one.weight) * tail;
        }
        survival.ln()
    }

    /// The value that is exceeded with this probability; where a part of the law sits on one point, from the left.
    pub fn quantile(&self, level: &Level) -> Lanes {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: both features were detected on the line above.
            return unsafe { self.quantile_with_fma(level) };
        }
        self.quantile_in_lanes(level)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    fn quantile_with_fma(&self, level: &Level) -> Lanes {
        self.quantile_in_lanes(level)
    }

    #[inline(always)]
    fn quantile_in_lanes(&self, level: &Level) -> Lanes {
        let (low, high) = self.between(level);
        let wide = Lanes::splat(ROOM) * high;
        let (low, high) = ((low - wide).max(Lanes::ZERO), high + wide);
        let begin = low - (high - low) * Lanes::splat(BEGINS);
        let mut excess = Exceeded { mixture: self, level: *level, begin };
        let (low, high) = (low - begin, high - begin);
        let (f_low, f_high) = (excess.sample(low).f, excess.sample(high).f);
        let zero = Lanes::splat(0.0);
        let inside = f_low.value.less(zero).and(zero.at_most(f_high.value));
        let bracket = Bracket { low, high, f_low, f_high };
        let middle = begin + (low + high) * Lanes::splat(0.5);
        if !Lanes::any(inside) {
            return middle;
        }
        let Root { at, .. } = root::solve(bracket, bracket.guess(), inside, &mut excess);
        Lanes::select(inside, begin + at, middle)
    }

    /// The least and the largest quantile of the components: the mixture's lies between them.
    #[inline(always)]
    fn between(&self, level: &Level) -> (Lanes, Lanes) {
        let zero = Lanes::splat(0.0);
        let (mut low, mut high) = (Lanes::splat(f64::MAX), zero);
        for one in &self.components {
            let quantile = one.shift + one.gamma.quantile(level.z);
            let counts = Lanes::splat(LEAST_WEIGHT).less(one.weight);
            low = Lanes::select(counts, low.min(quantile), low);
            high = Lanes::select(counts, high.max(quantile), high);
        }
        (low.min(high), high)
    }
}

/// ln q − ln P(X > t), which rises through zero at the quantile.
struct Exceeded<'a> {
    mixture: &'a Mixture,
    level: Level,
    /// Where the coordinate begins [s].
    begin: Lanes,
}

impl Function for Exceeded<'_> {
    #[inline(always)]
    fn sample(&mut self, x: Lanes) -> Sample {
        let t = D::variable(self.begin + x);
        let survival = self.mixture.ln_survival(t, D::constant);
        Sample { f: D::constant(self.level.ln_tail) - survival, carried: t }
    }

    /// Laws that have begun: each may begin with a jump.
    #[inline(always)]
    fn piece(&self, x: Lanes) -> Lanes {
        let (one, t) = (Lanes::splat(1.0), self.begin + x);
        let begun = |sum: Lanes, law: &Component| sum + Lanes::select(law.shift.less(t), one, Lanes::ZERO);
        self.mixture.components.iter().fold(Lanes::ZERO, begun)
    }
}

/// Lanes in which a number is finite.
#[inline(always)]
pub fn finite(x: Lanes) -> LaneMask {
    x.abs().less(Lanes::splat(f64::INFINITY))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn law(weight: f64, shift: f64, mean: f64, variance: f64) -> Component {
        let gamma = Gamma::new(Lanes::splat(mean), Lanes::splat(variance));
        Component { weight: Lanes::splat(weight), shift: Lanes::splat(shift), gamma }
    }

    fn quantile(components: Vec<Component>, percentile: f64) -> f64 {
        Mixture { components }.quantile(&Level::of(Lanes::splat(percentile))).0[0]
    }

    #[test]
    fn an_exponential_has_its_quantiles_within_two_percent() {
        for percentile in [50.0, 90.0, 99.0] {
            let exact = -(1.0 - percentile / 100.0_f64).ln();
            assert!((quantile(vec![law(1.0, 0.0, 1.0, 1.0)], percentile) / exact - 1.0).abs() < 0.02);
        }
    }

    #[test]
    fn a_quantile_of_a_mixture_leaves_its_share_above() {
        let components = vec![law(0.7, 1.0, 0.3, 0.02), law(0.25, 3.0, 0.3, 0.02), law(0.05, 1.0, 9.0, 80.0)];
        let mixture = Mixture { components };
        for percentile in [50.0, 72.0, 90.0, 99.0, 99.9] {
            let level = Level::of(Lanes::splat(percentile));
            let t = mixture.quantile(&level);
            let left = mixture.ln_survival(t, |x| x).exp().0[0];
            assert!((left / (1.0 - percentile / 100.0) - 1.0).abs() < 1e-9);
        }
    }

    #[test]
    fn a_certain_time_is_its_own_quantile() {
        assert!((quantile(vec![law(1.0, 0.5, 0.0, 0.0)], 99.0) - 0.5).abs() < 1e-9);
    }
}
