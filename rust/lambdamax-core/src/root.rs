//! Safeguarded Newton on eight brackets at once: status, evaluations, no allocation.
//!
//! Each lane keeps a bracket with f(low) < 0 ≤ f(high). A Newton step, sharpened by the cubic through the bracket's ends,
//! is taken if it stays inside; anything else is halved, and so is a lane that has not settled after a dozen steps and whose steps do not
//! grow short at least as fast as halvings would. A lane stops
//! when its step is so short that the next error is its square and no jump of f lies in between, or when its bracket has
//! closed on a jump; then it keeps the left side. A stopped lane never moves again, so its bits do not depend on its
//! neighbours.

use crate::real::{Dual, LaneMask, Lanes, Real};

/// Steps before a lane's steps are held against halvings.
const NEWTON_STEPS: usize = 12;
/// Enough to halve any bracket down to one float, even where every other step is Newton's and gains nothing.
const MAX_EVALUATIONS: usize = 120;
/// Relative step after which the next error is below 1e-12.
const SETTLED_STEP: f64 = 2e-7;
/// Share of the Newton step within which the cubic must agree with it to be believed.
const AGREEMENT: f64 = 0.1;
/// Relative width of a bracket that has closed on a jump.
const CLOSED_BRACKET: f64 = 1e-15;

/// Where f changes sign, lane by lane, with f and its slope at both ends.
#[derive(Clone, Copy, Debug)]
pub struct Bracket {
    /// f(low) < 0.
    pub low: Lanes,
    /// f(high) ≥ 0.
    pub high: Lanes,
    /// f at `low`.
    pub f_low: Dual<Lanes>,
    /// f at `high`.
    pub f_high: Dual<Lanes>,
}

impl Bracket {
    /// Moves to the two looks (x, f) in the lanes asked for that are not found yet and have f ≥ 0 at the second; slopes are not known.
    #[inline(always)]
    pub fn close_on(&mut self, low: (Lanes, Lanes), high: (Lanes, Lanes), asked: LaneMask, found: &mut LaneMask) {
        let here = Lanes::splat(0.0).at_most(high.1).and(asked).and(!*found);
        self.low = Lanes::select(here, low.0, self.low);
        self.high = Lanes::select(here, high.0, self.high);
        self.f_low = Dual::select(here, Dual::constant(low.1), self.f_low);
        self.f_high = Dual::select(here, Dual::constant(high.1), self.f_high);
        *found = found.or(here);
    }

    /// Moves one end of each lane to x, by the sign of f there.
    #[inline(always)]
    fn narrow(&mut self, x: Lanes, f: Dual<Lanes>) {
        let below = f.value.less(Lanes::splat(0.0));
        self.low = Lanes::select(below, x, self.low);
        self.high = Lanes::select(below, self.high, x);
        self.f_low = Dual::select(below, f, self.f_low);
        self.f_high = Dual::select(below, self.f_high, f);
    }

    #[inline(always)]
    fn holds(&self, x: Lanes) -> LaneMask {
        self.low.at_most(x).and(x.at_most(self.high))
    }

    /// The root of the cubic that has both ends' values and slopes, x as a function of f.
    #[inline(always)]
    fn cubic(&self) -> Lanes {
        let one = Lanes::splat(1.0);
        let two = Lanes::splat(2.0);
        let span = self.f_high.value - self.f_low.value;
        let t = -self.f_low.value / span;
        let u = one - t;
        let from_low = self.low * (one + two * t) + span * t / self.f_low.slope;
        let from_high = self.high * (one + two * u) - span * u / self.f_high.slope;
        from_low * u * u + from_high * t * t
    }

    /// A first guess at the root: the cubic's, or the secant's where that leaves the bracket.
    #[inline(always)]
    pub fn guess(&self) -> Lanes {
        let cubic = self.cubic();
        let t = -self.f_low.value / (self.f_high.value - self.f_low.value);
        Lanes::select(self.holds(cubic), cubic, self.low + (self.high - self.low) * t)
    }
}

/// f and a quantity to carry along to the root, at one x.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// f(x) and its slope.
    pub f: Dual<Lanes>,
    /// The carried quantity and its slope.
    pub carried: Dual<Lanes>,
}

/// A function to find a root of, in eight lanes.
pub trait Function {
    /// f and what is carried along, at x.
    fn sample(&mut self, x: Lanes) -> Sample;

    /// A number that differs on the two sides of any jump of f.
    fn piece(&self, x: Lanes) -> Lanes;

    /// Relative step after which the next error is negligible; shorter where slopes are not exact.
    fn settled_step(&self) -> f64 {
        SETTLED_STEP
    }
}

/// The outcome.
#[derive(Clone, Copy, Debug)]
pub struct Root {
    /// The root.
    pub at: Lanes,
    /// The carried quantity there.
    pub carried: Lanes,
    /// Evaluations of f that the lane took.
    pub evaluations: Lanes,
    /// Lanes that settled.
    pub converged: LaneMask,
}

/// Finds the root of an f that rises through zero inside each active lane's bracket, starting at `guess`.
#[inline(always)]
pub fn solve(mut bracket: Bracket, guess: Lanes, active: LaneMask, f: &mut impl Function) -> Root {
    let zero = Lanes::splat(0.0);
    let half = Lanes::splat(0.5);
    let mut x = guess;
    let mut open = active;
    let mut steps = (bracket.high - bracket.low, bracket.high - bracket.low);
    let mut root = Root { at: guess, carried: zero, evaluations: zero, converged: !active };
    for step in 0..MAX_EVALUATIONS {
        if !Lanes::any(open) {
            break;
        }
        let Sample { f: value, carried } = f.sample(x);
        root.evaluations = root.evaluations + Lanes::select(open, Lanes::splat(1.0), zero);
        bracket.narrow(x, value);
        let (next, inside) = next_point(&bracket, x, value);
        let closed = (bracket.high - bracket.low).at_most(Lanes::splat(CLOSED_BRACKET) * bracket.high);
        let mut settled = open.and(inside).and((next - x).abs().at_most(Lanes::splat(f.settled_step()) * x));
        if Lanes::any(settled) {
            settled = settled.and(equal(f.piece(next), f.piece(x)));
        }
        let end = Lanes::select(settled, next, bracket.low);
        let done = open.and(closed.or(settled));
        root.at = Lanes::select(done, end, root.at);
        root.carried = Lanes::select(done, carried.value + carried.slope * (end - x), root.carried);
        root.converged = root.converged.or(done);
        open = open.and(!done);
        let halved = (bracket.low + bracket.high) * half;
        let short = (next - x).abs().at_most(half * steps.0);
        let taken = if step < NEWTON_STEPS { inside } else { inside.and(short) };
        let next = Lanes::select(taken, next, halved);
        steps = (steps.1, (next - x).abs());
        x = Lanes::select(open, next, x);
    }
    root
}

/// Newton's next point, sharpened by the cubic through the bracket where the two agree; and whether it is inside.
#[inline(always)]
fn next_point(bracket: &Bracket, x: Lanes, f: Dual<Lanes>) -> (Lanes, LaneMask) {
    let newton = x - f.value / f.slope;
    let cubic = bracket.cubic();
    let agree = (cubic - newton).abs().at_most(Lanes::splat(AGREEMENT) * (newton - x).abs());
    let next = Lanes::select(agree.and(bracket.holds(cubic)), cubic, newton);
    (next, bracket.holds(next))
}

#[inline(always)]
fn equal(a: Lanes, b: Lanes) -> LaneMask {
    a.at_most(b).and(b.at_most(a))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Plain<F>(F);

    impl<F: Fn(Dual<Lanes>) -> Dual<Lanes>> Function for Plain<F> {
        fn sample(&mut self, x: Lanes) -> Sample {
            let x = Dual::variable(x);
            Sample { f: (self.0)(x), carried: x * x }
        }

        fn piece(&self, x: Lanes) -> Lanes {
            x.ceil()
        }
    }

    fn run(f: impl Fn(Dual<Lanes>) -> Dual<Lanes>, low: f64, high: f64) -> Root {
        let at = |x: f64| f(Dual::variable(Lanes::splat(x)));
        let (f_low, f_high) = (at(low), at(high));
        let bracket = Bracket { low: Lanes::splat(low), high: Lanes::splat(high), f_low, f_high };
        solve(bracket, Lanes::splat(0.5 * (low + high)), !LaneMask::NONE, &mut Plain(f))
    }

    #[test]
    fn a_smooth_root_settles_in_few_evaluations() {
        let root = run(|x| x * x * x - Dual::constant(Lanes::splat(2.0)), 0.0, 4.0);
        let error = SETTLED_STEP * SETTLED_STEP; // Newton's next error is the square of its last step
        assert!((root.at.0[0] - 2f64.cbrt()).abs() < error && root.evaluations.0[0] < 9.0);
        assert!((root.carried.0[0] - 2f64.cbrt().powi(2)).abs() < 4.0 * error);
    }

    #[test]
    fn a_jump_is_taken_from_the_left() {
        let root = run(|x| x.ceil() - Dual::constant(Lanes::splat(3.5)), 0.5, 9.0);
        assert!(root.converged.all() && root.at.0[0] <= 3.0 && root.at.0[0] > 3.0 - 1e-14);
    }

    #[test]
    fn a_slope_that_misleads_is_halved_away() {
        let root = run(|x| Dual { value: x.value - Lanes::splat(1.0), slope: Lanes::splat(-1.0) }, 0.0, 1e6);
        assert!(root.converged.all() && (root.at.0[0] - 1.0).abs() < 1e-14);
    }
}
