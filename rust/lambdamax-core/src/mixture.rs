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
/// Largest share of a bracket by which its coordinate begins above zero, so that steps are short beside the bracket, not beside t.
const BEGINS: f64 = 1e-3;
/// The same as a share of t: shorter steps are rounding.
const LEAST_BEGINS: f64 = 1e-8;
/// Relative width of a bracket within which every law in it has the same quantile.
const SAME: f64 = 1e-13;

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
        if !Lanes::any(begun) {
            return (Lanes::splat(1.0), zero);
        }
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
    /// Its share; zero where it cannot be seen.
    weight: Lanes,
    /// Where it begins [s].
    shift: Lanes,
    /// The law.
    gamma: Gamma,
}

impl Component {
    /// With this share, beginning at `shift` [s].
    #[inline(always)]
    pub fn new(weight: Lanes, shift: Lanes, gamma: Gamma) -> Self {
        let seen = Lanes::splat(LEAST_WEIGHT).less(weight);
        Self { weight: Lanes::select(seen, weight, Lanes::ZERO), shift, gamma }
    }

    /// Lanes in which it can be seen: neighbours may have classes of prompts that a lane has not.
    #[inline(always)]
    fn counts(&self) -> LaneMask {
        Lanes::ZERO.less(self.weight)
    }

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

/// A mixture of one law or more; those without weight do not count. Where they are narrow and in rising order a percentile is quickly found.
#[derive(Clone, Debug)]
pub struct Mixture {
    /// Its laws.
    pub components: Vec<Component>,
}

impl Mixture {
    /// ln P(X > t), and its slope [1/s].
    #[inline(always)]
    pub fn ln_survival(&self, t: Lanes) -> D {
        let (mut survival, mut density) = (Lanes::ZERO, Lanes::ZERO);
        for one in self.components.iter().filter(|one| Lanes::any(one.counts())) {
            let (above, here) = one.gamma.survival(t - one.shift);
            survival = survival + one.weight * above;
            density = density + one.weight * here;
        }
        D { value: survival.ln(), slope: -density / survival }
    }

    /// ln P(X > t), with the widest vectors the machine has.
    pub fn ln_tail(&self, t: Lanes) -> Lanes {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: both features were detected on the line above.
            return unsafe { self.ln_tail_with_fma(t) };
        }
        self.ln_survival(t).value
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    fn ln_tail_with_fma(&self, t: Lanes) -> Lanes {
        self.ln_survival(t).value
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
        let (guess, whole) = self.guess(level);
        let apart = low.less(high - Lanes::splat(SAME) * high);
        let solvable = apart.and(finite(high)).and(finite(whole));
        let unknown = Lanes::splat(f64::NAN);
        let mut within =
            Within { low: (low - wide).max(Lanes::ZERO), high: high + wide, f_low: unknown, f_high: unknown };
        self.close_in(level, guess, solvable, &mut within);
        let after = self.over(level, within.low * Lanes::splat(JUST_AFTER));
        let jump = solvable.and(Lanes::ZERO.at_most(after.value));
        let first = within.first_look(guess, after);
        let before = (first - within.low).min((within.high - within.low) * Lanes::splat(BEGINS));
        let begin = within.low - before.max(Lanes::splat(LEAST_BEGINS) * within.low);
        let bracket = Bracket {
            low: within.low - begin,
            high: within.high - begin,
            f_low: D::constant(unknown),
            f_high: D::constant(unknown),
        };
        let mut excess = Exceeded { mixture: self, level: *level, begin };
        let Root { at, .. } = root::solve(bracket, first - begin, solvable.and(!jump), &mut excess);
        let found = Lanes::select(solvable, begin + at, (low + high) * Lanes::splat(0.5));
        Lanes::select(jump, within.low, found)
    }

    /// ln q − ln P(X > t), and its slope.
    #[inline(always)]
    fn over(&self, level: &Level, t: Lanes) -> D {
        D::constant(level.ln_tail) - self.ln_survival(t)
    }

    /// Narrows to a stretch in which no law begins: first beside the guess, then by halves of what is left, in logarithms.
    #[inline(always)]
    fn close_in(&self, level: &Level, guess: Lanes, solvable: LaneMask, within: &mut Within) {
        for look in 0..self.components.len() {
            let aim = if look < 2 { guess } else { (within.low * within.high).sqrt() };
            let (at, some) = self.beginning(aim, look == 1, within);
            let some = some.and(solvable);
            if !Lanes::any(some) {
                if look > 1 {
                    return;
                }
                continue;
            }
            within.narrow(at, self.over(level, at).value, some);
        }
    }

    /// Where the law begins that begins closest to `aim`, or closest above it, of those that begin inside.
    #[inline(always)]
    fn beginning(&self, aim: Lanes, above: bool, within: &Within) -> (Lanes, LaneMask) {
        let (mut at, mut closest, mut some) = (aim, Lanes::splat(f64::MAX), LaneMask::NONE);
        for one in &self.components {
            let off = one.shift - aim;
            let off = if above { Lanes::select(off.less(Lanes::ZERO), Lanes::splat(f64::MAX), off) } else { off.abs() };
            let inside = within.low.less(one.shift).and(one.shift.less(within.high));
            let here = inside.and(one.counts()).and(off.less(closest));
            at = Lanes::select(here, one.shift, at);
            closest = Lanes::select(here, off, closest);
            some = some.or(here);
        }
        (at, some)
    }

    /// Where the quantile would be if each law ended before the next began, and the sum of all weights.
    #[inline(always)]
    fn guess(&self, level: &Level) -> (Lanes, Lanes) {
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
        let root = law.gamma.root(near_quantile(share)).max(Lanes::splat(LEAST_ROOT));
        (law.shift + law.gamma.at_root(root), passed)
    }

    /// The least and the largest quantile of the components: the mixture's lies between them.
    #[inline(always)]
    fn between(&self, level: &Level) -> (Lanes, Lanes) {
        let zero = Lanes::splat(0.0);
        let (mut low, mut high) = (Lanes::splat(f64::MAX), zero);
        for one in &self.components {
            let quantile = one.shift + one.gamma.quantile(level.z);
            low = Lanes::select(one.counts(), low.min(quantile), low);
            high = Lanes::select(one.counts(), high.max(quantile), high);
        }
        (low.min(high), high)
    }
}

/// A stretch that holds a quantile, with how far the tail is below the level at its ends; NaN where that is not known.
struct Within {
    low: Lanes,
    high: Lanes,
    f_low: Lanes,
    f_high: Lanes,
}

impl Within {
    /// Moves one end of some lanes to t.
    #[inline(always)]
    fn narrow(&mut self, t: Lanes, f: Lanes, some: LaneMask) {
        let below = f.less(Lanes::ZERO);
        let (up, down) = (some.and(below), some.and(!below));
        self.low = Lanes::select(up, t, self.low);
        self.f_low = Lanes::select(up, f, self.f_low);
        self.high = Lanes::select(down, t, self.high);
        self.f_high = Lanes::select(down, f, self.f_high);
    }

    /// The guess if it is inside, else the secant's root, given f just after the low end, else Newton's from there, unless a law begins
    /// there, which may be endlessly steep; else the middle.
    #[inline(always)]
    fn first_look(&self, guess: Lanes, after: D) -> Lanes {
        let width = self.high - self.low;
        let secant = self.low - width * after.value / (self.f_high - after.value);
        let smooth = self.f_low.is_nan();
        let newton = Lanes::select(smooth, self.low - after.value / after.slope, self.low);
        let middle = self.low + width * Lanes::splat(0.5);
        let inside = |t: Lanes| self.low.less(t).and(t.less(self.high));
        let first = |t: Lanes, other: Lanes| Lanes::select(inside(t), t, other);
        first(guess, first(secant, first(newton, middle)))
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
        let t = self.begin + x;
        Sample { f: self.mixture.over(&self.level, t), carried: D::variable(t) }
    }

    /// Laws that have begun: each may begin with a jump.
    #[inline(always)]
    fn piece(&self, x: Lanes) -> Lanes {
        let (one, t) = (Lanes::splat(1.0), self.begin + x);
        let begun =
            |sum: Lanes, law: &Component| sum + Lanes::select(law.shift.less(t).and(law.counts()), one, Lanes::ZERO);
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
        Component::new(Lanes::splat(weight), Lanes::splat(shift), gamma)
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
