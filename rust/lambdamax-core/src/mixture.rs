//! Mixtures of shifted gamma laws by the Wilson–Hilferty transform: tails and quantiles of latencies (docs/model.md section 7).

use crate::normal::{near_quantile, upper_quantile, upper_tail};
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

/// Least (x/mean)^⅓ from which a quantile is sought; where laws begin, tails can be endlessly steep.
const LEAST_ROOT: f64 = 0.05;
/// A few roundings beyond where a law begins.
const JUST_AFTER: f64 = 1.0 + 8.0 * f64::EPSILON;
/// Relative change of a tail by which its quantile is the end of a piece on which it is flat, and not any of its points: half of the requests
/// are below the eighth of sixteen classes.
const HAIR: f64 = 1e-12;

/// A gamma law: ((x/mean)^⅓ − center)·steepness is nearly standard normal.
#[derive(Clone, Copy, Debug)]
pub struct Gamma {
    mean: Lanes,
    /// 1/mean.
    rate: Lanes,
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
        let center = one - one / (Lanes::splat(9.0) * shape);
        Self { mean, rate: one / mean, center, steepness: Lanes::splat(3.0) * shape.sqrt() }
    }

    /// P(X > x) and the density at x [1/s]; all of the law lies above zero.
    #[inline(always)]
    fn survival(&self, x: Lanes) -> (Lanes, Lanes) {
        let (zero, third) = (Lanes::ZERO, Lanes::splat(1.0 / 3.0));
        let begun = zero.less(x);
        let scaled = x * self.rate;
        let inverse_root = scaled.inverse_cube_root();
        let root_slope = inverse_root * inverse_root;
        let (tail, density) = upper_tail((scaled * root_slope - self.center) * self.steepness);
        let density = density * (self.steepness * self.rate * third) * root_slope;
        (Lanes::select(begun, tail, Lanes::splat(1.0)), Lanes::select(begun, density, zero))
    }

    /// (x/mean)^⅓ at a standard normal quantile; where it is negative, the law begins with a jump that holds the quantile.
    #[inline(always)]
    fn root(&self, z: Lanes) -> Lanes {
        self.center + z / self.steepness
    }

    #[inline(always)]
    fn at_root(&self, root: Lanes) -> Lanes {
        self.mean * root * root * root
    }

    /// The value with a standard normal quantile.
    #[inline(always)]
    fn quantile(&self, z: Lanes) -> Lanes {
        self.at_root(self.root(z).max(Lanes::ZERO))
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

impl Component {
    #[inline(always)]
    fn select(mask: LaneMask, a: &Self, b: &Self) -> Self {
        let pick = |of: fn(&Self) -> Lanes| Lanes::select(mask, of(a), of(b));
        let (mean, rate) = (pick(|c| c.gamma.mean), pick(|c| c.gamma.rate));
        let gamma = Gamma { mean, rate, center: pick(|c| c.gamma.center), steepness: pick(|c| c.gamma.steepness) };
        Self { weight: pick(|c| c.weight), shift: pick(|c| c.shift), gamma }
    }
}

/// A percentile, in eight lanes.
#[derive(Clone, Copy, Debug)]
pub struct Level {
    /// 1 − p/100, less a hair.
    pub tail: Lanes,
    /// Its logarithm.
    pub ln_tail: Lanes,
    /// The standard normal quantile.
    pub z: Lanes,
}

impl Level {
    /// Of no percentile, where none is asked for.
    pub const NONE: Self = Self { tail: Lanes::ZERO, ln_tail: Lanes::ZERO, z: Lanes::ZERO };

    /// Of percentiles above 0 and below 100.
    pub fn of(percentile: Lanes) -> Self {
        let tail = (Lanes::splat(1.0) - percentile / Lanes::splat(100.0)) * Lanes::splat(1.0 - HAIR);
        Self { tail, ln_tail: tail.ln(), z: upper_quantile(tail) }
    }
}

/// A mixture; components without weight do not count. Where laws are narrow and in rising order a percentile is quickly found.
#[derive(Clone, Debug, Default)]
pub struct Mixture {
    /// Its laws.
    pub components: Vec<Component>,
}

impl Mixture {
    /// ln P(X > t), and its slope [1/s].
    #[inline(always)]
    pub fn ln_survival(&self, t: Lanes) -> D {
        let (mut survival, mut density) = (Lanes::ZERO, Lanes::ZERO);
        for one in &self.components {
            let (above, here) = one.gamma.survival(t - one.shift);
            survival = survival + one.weight * above;
            density = density + one.weight * here;
        }
        D { value: survival.ln(), slope: -density / survival }
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
        let Guess { law, root, whole } = self.guess(level);
        let inside = low.less(high).and(finite(high)).and(finite(whole));
        let jump = self.jumps(level, &law, inside.and(root.less(Lanes::splat(LEAST_ROOT))));
        let begin = low - (high - low) * Lanes::splat(BEGINS);
        let guess = law.shift + law.gamma.at_root(root.max(Lanes::splat(LEAST_ROOT)));
        let guess = guess.max(low).min(high) - begin;
        let unknown = D::constant(Lanes::splat(f64::NAN));
        let bracket = Bracket { low: low - begin, high: high - begin, f_low: unknown, f_high: unknown };
        let mut excess = Exceeded { mixture: self, level: *level, begin };
        let Root { at, .. } = root::solve(bracket, guess, inside.and(!jump), &mut excess);
        let found = Lanes::select(inside, begin + at, (low + high) * Lanes::splat(0.5));
        Lanes::select(jump, law.shift, found)
    }

    /// Where the quantile would be if each law ended before the next began.
    #[inline(always)]
    fn guess(&self, level: &Level) -> Guess {
        let (zero, one) = (Lanes::ZERO, Lanes::splat(1.0));
        let below = one - level.tail;
        let (mut passed, mut found) = (zero, LaneMask::NONE);
        let (mut share, mut law) = (Lanes::splat(0.5), self.components[0]);
        for next in &self.components {
            let reached = passed + next.weight;
            let here = below.less(reached).and(!found);
            share = Lanes::select(here, (reached - below) / next.weight, share);
            law = Component::select(here, next, &law);
            found = found.or(here);
            passed = reached;
        }
        Guess { root: law.gamma.root(near_quantile(share)), law, whole: passed }
    }

    /// Lanes of those asked for in which the quantile is where the law begins, with a jump.
    #[inline(always)]
    fn jumps(&self, level: &Level, law: &Component, asked: LaneMask) -> LaneMask {
        if !Lanes::any(asked) {
            return asked;
        }
        let (before, after) = (law.shift, law.shift * Lanes::splat(JUST_AFTER));
        let kept = |t: Lanes| self.ln_survival(t).value;
        asked.and(level.ln_tail.less(kept(before))).and(kept(after).at_most(level.ln_tail))
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

/// A first guess at a quantile.
struct Guess {
    /// The law in which it is.
    law: Component,
    /// Its place there.
    root: Lanes,
    /// The sum of all weights.
    whole: Lanes,
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
        let t = self.begin + x;
        Sample { f: D::constant(self.level.ln_tail) - self.mixture.ln_survival(t), carried: D::variable(t) }
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
            let left = mixture.ln_survival(t).value.exp().0[0];
            assert!((left / (1.0 - percentile / 100.0) - 1.0).abs() < 1e-9);
        }
    }

    #[test]
    fn a_certain_time_is_its_own_quantile() {
        assert!((quantile(vec![law(1.0, 0.5, 0.0, 0.0)], 99.0) - 0.5).abs() < 1e-9);
    }
}
