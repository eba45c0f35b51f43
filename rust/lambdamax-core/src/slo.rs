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

/// Along a curve. The slope of a mean is nearly known, so a first step is taken by it; later ones by the last two looks.
struct Along<'a> {
    standard: &'a Standard,
    chart: &'a Chart,
    level: &'a Level,
    /// Whether some lane asks for a percentile.
    spread: bool,
    /// The last look; nowhere before the first.
    previous: (Lanes, Lanes),
    slope: Lanes,
}

impl Along<'_> {
    /// How far the latency is over its SLO, negative below it, and λ; with the widest vectors the machine has.
    fn look(&self, decoding: Lanes) -> (D, D) {
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
    fn over_with_fma(&self, at: &Operating, prompts: &Prompts) -> D {
        self.over(at, prompts)
    }

    #[inline(always)]
    fn over(&self, at: &Operating, prompts: &Prompts) -> D {
        let Standard { limit, bound, percentile, ceiling, .. } = self.standard;
        let curve = &self.chart.curve;
        let spread = Spread::new(at);
        let wait = SeatWait::new(at, &spread, ceiling, &curve.workload);
        let mean = self.mean_over(at, &wait);
        if !self.spread {
            return mean;
        }
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
            found.ttft().ln_survival(*bound).value - self.level.ln_tail
        } else {
            Lanes::splat(1.0) - *bound / found.e2e(self.level)
        };
        let high = Lanes::select(wait.endless, Lanes::splat(1.0), high);
        D::select(Lanes::splat(MEAN).less(*percentile), D { value: high, slope: Lanes::splat(f64::NAN) }, mean)
    }

    /// The same of the mean.
    #[inline(always)]
    fn mean_over(&self, at: &Operating, wait: &SeatWait) -> D {
        let one = D::splat(1.0);
        let admitted = if self.standard.limit == Limit::TtftSlo { at.ttft } else { at.e2e };
        let mean = admitted + D { value: wait.mean(), slope: wait.slope };
        D::select(wait.endless, one, one - D::constant(self.standard.bound) / mean)
    }

    /// Brackets the root of a mean among the probes of the chart.
    fn start(&self) -> Start {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: both features were detected on the line above.
            return unsafe { self.start_with_fma() };
        }
        self.start_in_lanes()
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    fn start_with_fma(&self) -> Start {
        self.start_in_lanes()
    }

    #[inline(always)]
    fn start_in_lanes(&self) -> Start {
        let Standard { ceiling, top, .. } = self.standard;
        Start::new(self.chart, *top, D::splat(1.0), |at| {
            let wait = SeatWait::new(at, &Spread::new(at), ceiling, &self.chart.curve.workload);
            self.mean_over(at, &wait)
        })
    }

    /// The same of a percentile, on a finer ladder.
    fn start_finely(&self) -> Start {
        let top = self.standard.top;
        let at = |decoding: Lanes| (decoding, D::constant(self.look(decoding).0.value));
        let rung = |halvings: i32| at(top * Lanes::splat(f64::powi(0.5, halvings)));
        let ladder = std::iter::once(at(Lanes::ZERO)).chain((1..=HALVINGS).rev().map(rung)).chain([at(top)]);
        Start::among(ladder, top, D::splat(1.0))
    }
}

impl Function for Along<'_> {
    fn sample(&mut self, x: Lanes) -> Sample {
        let (over, carried) = self.look(x);
        let secant = (over.value - self.previous.1) / (x - self.previous.0);
        // Across a jump a secant is steep, and its step so short that it would pass for settled.
        let alike = self.piece(x).same(self.piece(self.previous.0));
        let near = Lanes::select(over.slope.is_nan(), self.slope, over.slope);
        let slope = Lanes::select(alike, secant, near);
        (self.previous, self.slope) = ((x, over.value), slope);
        Sample { f: Dual { value: over.value, slope }, carried }
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
    let (zero, nowhere) = (Lanes::ZERO, Lanes::splat(f64::NAN));
    let mean = standard.percentile.at_most(Lanes::splat(MEAN));
    let spread = !mean.all();
    let asked = Lanes::select(mean, Lanes::splat(SOME_PERCENTILE), standard.percentile);
    let level = if spread { Level::of(asked) } else { Level::NONE };
    let mut along = Along { standard, chart, level: &level, spread, previous: (nowhere, nowhere), slope: nowhere };
    let mut start = along.start();
    if spread {
        start = start.unless(!mean, &along.start_finely());
    }
    let Start { mut bracket, inside, beyond } = start;
    if spread {
        let secant = (bracket.f_high.value - bracket.f_low.value) / (bracket.high - bracket.low);
        bracket.f_low.slope = Lanes::select(mean, bracket.f_low.slope, secant);
        bracket.f_high.slope = Lanes::select(mean, bracket.f_high.slope, secant);
        along.previous = (Lanes::select(mean, nowhere, bracket.low), bracket.f_low.value);
        along.slope = secant;
    }
    let root = root::solve(bracket, bracket.guess(), inside, &mut along);
    LimitRate {
        rate: Lanes::select(beyond, zero, root.carried),
        decoding: Lanes::select(beyond, zero, root.at),
        evaluations: root.evaluations,
        converged: root.converged.or(beyond),
    }
}
