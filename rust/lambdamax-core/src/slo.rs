//! The largest rate under an SLO on TTFT or end-to-end latency, mean or percentile, the wait for a seat included (docs/model.md
//! section 8).

use crate::capacity::{Limit, LimitRate, Start};
use crate::chart::Chart;
use crate::equilibrium::Operating;
use crate::latency::Latencies;
use crate::mixture::Level;
use crate::real::{Dual, Lanes, Real};
use crate::root::{self, Function, Sample};
use crate::ttft::Prompts;
use crate::waiting::{Ceiling, SeatWait, Spread};

type D = Dual<Lanes>;

/// A percentile that stands for the mean.
pub const MEAN: f64 = 0.0;
/// Relative step of a secant after which the next error is below 1e-12: the product of the last two.
const SECANT_STEP: f64 = 1e-10;
/// Looks for a percentile, each at twice the B of the one before: light loads can have humps.
const HALVINGS: i32 = 22;
/// Any percentile, where a lane asks for the mean.
const SOME_PERCENTILE: f64 = 50.0;

/// What an SLO is held against, in eight lanes.
#[derive(Clone, Copy, Debug)]
pub struct Standard {
    /// TTFT or end-to-end latency.
    pub limit: Limit,
    /// The SLO [s].
    pub bound: Lanes,
    /// Its percentile; `MEAN` for the mean.
    pub percentile: Lanes,
    /// Where the replica is full.
    pub ceiling: Ceiling,
    /// B there.
    pub top: Lanes,
}

/// Along a curve; the slope is taken from the last two looks.
struct Along<'a> {
    standard: &'a Standard,
    chart: &'a Chart,
    level: &'a Level,
    /// Whether some lane asks for a percentile.
    spread: bool,
    previous: (Lanes, Lanes),
    slope: Lanes,
}

impl Along<'_> {
    /// How far the latency is over its SLO, negative below it, and λ; with the widest vectors the machine has.
    fn look(&self, decoding: Lanes) -> (Lanes, D) {
        let curve = &self.chart.curve;
        let (at, prompts) = if self.spread { curve.detail(decoding) } else { (curve.at(decoding), Prompts::default()) };
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: both features were detected on the line above.
            return (unsafe { self.over_with_fma(&at, &prompts) }, at.rate);
        }
        (self.over(&at, &prompts), at.rate)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    fn over_with_fma(&self, at: &Operating, prompts: &Prompts) -> Lanes {
        self.over(at, prompts)
    }

    #[inline(always)]
    fn over(&self, at: &Operating, prompts: &Prompts) -> Lanes {
        let one = Lanes::splat(1.0);
        let Standard { limit, bound, percentile, ceiling, .. } = self.standard;
        let curve = &self.chart.curve;
        let spread = Spread::new(at);
        let wait = SeatWait::new(at, &spread, ceiling, &curve.workload);
        let mean = wait.mean() + if *limit == Limit::TtftSlo { at.ttft.value } else { at.e2e.value };
        let mut over = one - *bound / mean;
        if self.spread {
            let found = Latencies {
                at,
                prompts,
                workload: &curve.workload,
                host: curve.host(),
                spread: &spread,
                wait: &wait,
                everybody: Lanes::ZERO,
                others: curve.others(),
            };
            let high = if *limit == Limit::TtftSlo {
                found.ttft().ln_survival(*bound, |x| x) - self.level.ln_tail
            } else {
                one - *bound / found.e2e(self.level)
            };
            over = Lanes::select(Lanes::splat(MEAN).less(*percentile), high, over);
        }
        Lanes::select(wait.endless, one, over)
    }
}

impl Function for Along<'_> {
    fn sample(&mut self, x: Lanes) -> Sample {
        let (value, carried) = self.look(x);
        let new = (value - self.previous.1) / (x - self.previous.0);
        // Across a jump a secant is steep, and its step so short that it would pass for settled.
        let alike = self.piece(x).same(self.piece(self.previous.0));
        let slope = Lanes::select(alike, new, self.slope);
        (self.previous, self.slope) = ((x, value), slope);
        Sample { f: Dual { value, slope }, carried }
    }

    fn piece(&self, x: Lanes) -> Lanes {
        self.chart.curve.chunks(x)
    }

    fn settled_step(&self) -> f64 {
        SECANT_STEP
    }
}

/// The rate at which the latency reaches its SLO: zero where even an idle replica exceeds it. A full replica exceeds any.
pub fn largest_rate(chart: &Chart, standard: &Standard) -> LimitRate {
    let (zero, one) = (Lanes::ZERO, Lanes::splat(1.0));
    let mean = standard.percentile.at_most(Lanes::splat(MEAN));
    let (spread, previous) = (!mean.all(), (zero, zero));
    let asked = Lanes::select(mean, Lanes::splat(SOME_PERCENTILE), standard.percentile);
    let level = if spread { Level::of(asked) } else { Level::NONE };
    let mut along = Along { standard, chart, level: &level, spread, previous, slope: zero };
    let at = |decoding: Lanes| (decoding, D::constant(along.look(decoding).0));
    // Where some lane asks for a percentile, the others still look where they would look alone.
    let probed = chart.probes.0.iter().map(|probe| at(probe.decoding.value));
    let mut start = Start::among(probed, standard.top, D::constant(one));
    if spread {
        let share = |halvings: i32| Lanes::splat(f64::powi(0.5, halvings));
        let ladder = (1..=HALVINGS).rev().map(|halvings| at(standard.top * share(halvings)));
        let finely = Start::among(
            std::iter::once(at(zero)).chain(ladder).chain([at(standard.top)]),
            standard.top,
            D::constant(one),
        );
        start = start.unless(!mean, &finely);
    }
    let Start { mut bracket, inside, beyond } = start;
    let secant = (bracket.f_high.value - bracket.f_low.value) / (bracket.high - bracket.low);
    bracket.f_low.slope = secant;
    bracket.f_high.slope = secant;
    (along.previous, along.slope) = ((bracket.low, bracket.f_low.value), secant);
    let root = root::solve(bracket, bracket.guess(), inside, &mut along);
    LimitRate {
        rate: Lanes::select(beyond, zero, root.carried),
        decoding: Lanes::select(beyond, zero, root.at),
        evaluations: root.evaluations,
        converged: root.converged.or(beyond),
    }
}
