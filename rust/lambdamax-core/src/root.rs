//! Safeguarded Newton on eight brackets at once: status, evaluations, no allocation.
//!
//! Each lane keeps a bracket with f(low) < 0 ≤ f(high). A Newton step that stays inside is taken; anything else, or a
//! lane that has not settled after a dozen steps, is halved. A lane stops when its step is so short that the
//! next error is its square and no jump of f lies in between, or when its bracket has closed on a jump; then it keeps the left side. A stopped lane
//! never moves again, so its bits do not depend on its neighbours.

use crate::real::{Dual, LaneMask, Lanes, Real};

const NEWTON_STEPS: usize = 12;
const MAX_EVALUATIONS: usize = 90;
const SETTLED_STEP: f64 = 1e-6;
const CLOSED_BRACKET: f64 = 1e-15;

/// Where f changes sign, lane by lane.
#[derive(Clone, Copy, Debug)]
pub struct Bracket {
    /// f(low) < 0.
    pub low: Lanes,
    /// f(high) ≥ 0.
    pub high: Lanes,
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
pub fn solve(bracket: Bracket, guess: Lanes, active: LaneMask, f: &mut impl Function) -> Root {
    let zero = Lanes::splat(0.0);
    let Bracket { mut low, mut high } = bracket;
    let mut x = guess;
    let mut open = active;
    let mut root = Root { at: guess, carried: zero, evaluations: zero, converged: !active };
    for step in 0..MAX_EVALUATIONS {
        if !Lanes::any(open) {
            break;
        }
        let sample = f.sample(x);
        root.evaluations = root.evaluations + Lanes::select(open, Lanes::splat(1.0), zero);
        let below = sample.f.value.less(zero);
        low = Lanes::select(below, x, low);
        high = Lanes::select(below, high, x);
        let newton = x - sample.f.value / sample.f.slope;
        let inside = low.at_most(newton).and(newton.at_most(high));
        let closed = (high - low).at_most(Lanes::splat(CLOSED_BRACKET) * high);
        let mut settled = open.and(inside).and((newton - x).abs().at_most(Lanes::splat(SETTLED_STEP) * x));
        if Lanes::any(settled) {
            settled = settled.and(equal(f.piece(newton), f.piece(x)));
        }
        let halved = (low + high) * Lanes::splat(0.5);
        let next = if step < NEWTON_STEPS { Lanes::select(inside, newton, halved) } else { halved };
        let end = Lanes::select(settled, newton, low);
        let done = open.and(closed.or(settled));
        root.at = Lanes::select(done, end, root.at);
        let carried = sample.carried.value + sample.carried.slope * (end - x);
        root.carried = Lanes::select(done, carried, root.carried);
        root.converged = root.converged.or(done);
        open = open.and(!done);
        x = Lanes::select(open, next, x);
    }
    root
}

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
        let bracket = Bracket { low: Lanes::splat(low), high: Lanes::splat(high) };
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
