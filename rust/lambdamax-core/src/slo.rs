//! The largest rate under an SLO on TTFT or end-to-end latency, mean or percentile, the wait for a seat included (docs/model.md
//! section 8).

use crate::approach::{Approach, Slo};
use crate::capacity::{LimitRate, Start};
use crate::real::{Dual, Lanes, Real};
use crate::root::{self, Function, Sample};

type D = Dual<Lanes>;

/// Relative step of a secant after which the next error is below 1e-12: the product of the last two.
const SECANT_STEP: f64 = 1e-10;

/// Along a curve. The slope of a mean is known but for a factor near one, which the last two looks tell; a first step does without it. That of
/// a percentile is the one between the last two looks.
struct Along<'a> {
    approach: &'a Approach<'a>,
    slo: &'a Slo,
    /// The last look; nowhere before the first.
    previous: (Lanes, Lanes),
    /// The slope there, nearly; that of the bracket for a percentile before the first look.
    slope: Lanes,
}

impl Function for Along<'_> {
    fn sample(&mut self, x: Lanes) -> Sample {
        let (rung, carried) = self.approach.look(x);
        let over = self.approach.over(&rung, self.slo).1;
        let secant = (over.value - self.previous.1) / (x - self.previous.0);
        // Across a jump a secant is steep, and its step so short that it would pass for settled.
        let alike = self.piece(x).same(self.piece(self.previous.0));
        let unknown = over.slope.is_nan();
        let near = Lanes::select(unknown, self.slope, over.slope);
        let scaled = secant * near / ((near + self.slope) * Lanes::splat(0.5));
        let slope = Lanes::select(alike, Lanes::select(unknown, secant, scaled), near);
        (self.previous, self.slope) = ((x, over.value), Lanes::select(unknown, slope, near));
        Sample { f: Dual { value: over.value, slope }, carried }
    }

    fn piece(&self, x: Lanes) -> Lanes {
        self.approach.chart.curve.chunks(x)
    }

    fn settled_step(&self) -> f64 {
        SECANT_STEP
    }
}

/// Where the latency crosses its SLO, among the looks that are known; with the widest vectors the machine has.
fn start(approach: &Approach, slo: &Slo) -> Start {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        // SAFETY: both features were detected on the line above.
        return unsafe { start_with_fma(approach, slo) };
    }
    start_in_lanes(approach, slo)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn start_with_fma(approach: &Approach, slo: &Slo) -> Start {
    start_in_lanes(approach, slo)
}

#[inline(always)]
fn start_in_lanes(approach: &Approach, slo: &Slo) -> Start {
    let (top, full) = (approach.top, D::splat(1.0));
    let mut start = Start::among(approach.probes.iter().map(|probe| probe.over(slo)), top, full);
    if !approach.spread {
        return start;
    }
    let finely = Start::among(approach.ladder.iter().map(|rung| approach.over(rung, slo)), top, full);
    start = start.unless(!approach.mean, &finely);
    let bracket = &mut start.bracket;
    let secant = (bracket.f_high.value - bracket.f_low.value) / (bracket.high - bracket.low);
    bracket.f_low.slope = Lanes::select(approach.mean, bracket.f_low.slope, secant);
    bracket.f_high.slope = Lanes::select(approach.mean, bracket.f_high.slope, secant);
    start
}

/// The rate at which the latency reaches its SLO: zero where even an idle replica exceeds it. A full replica exceeds any.
pub fn largest_rate(approach: &Approach, slo: &Slo) -> LimitRate {
    let (zero, nowhere) = (Lanes::ZERO, Lanes::splat(f64::NAN));
    let Start { bracket, inside, beyond } = start(approach, slo);
    // A lane that asks for nothing would hold up the others: nothing settles it.
    let sought = inside.and(!slo.bound.is_nan());
    let before = Lanes::select(approach.mean, nowhere, bracket.low);
    let previous = (before, bracket.f_low.value);
    let mut along = Along { approach, slo, previous, slope: bracket.f_low.slope };
    let root = root::solve(bracket, bracket.guess(), sought, &mut along);
    LimitRate {
        rate: Lanes::select(beyond, zero, root.carried),
        decoding: Lanes::select(beyond, zero, root.at),
        evaluations: root.evaluations,
        converged: root.converged.or(beyond),
    }
}
