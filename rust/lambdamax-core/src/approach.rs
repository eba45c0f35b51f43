//! Latencies on the way to a full replica: the looks that all SLOs of a curve and a ceiling share (docs/model.md section 8).

use crate::chart::Chart;
use crate::equilibrium::Operating;
use crate::latency::Latencies;
use crate::mixture::{Level, Mixture};
use crate::real::{Dual, LaneMask, Lanes, Real};
use crate::ttft::Prompts;
use crate::waiting::{Ceiling, SeatWait, Spread};

type D = Dual<Lanes>;

/// A percentile that stands for the mean.
pub const MEAN: f64 = 0.0;
/// Any percentile, where a lane asks for the mean.
const SOME_PERCENTILE: f64 = 50.0;
/// Looks for a percentile, each at twice the B of the one before: light loads can have humps.
const HALVINGS: i32 = 22;

/// Where eight replicas are full, and the percentile in which their latencies are asked for.
#[derive(Clone, Copy, Debug)]
pub struct Goal {
    /// Where the replica is full.
    pub ceiling: Ceiling,
    /// B there.
    pub top: Lanes,
    /// The percentile; `MEAN` for the mean.
    pub percentile: Lanes,
}

/// Looks at eight curves up to their ceilings.
pub struct Approach<'a> {
    /// The curves.
    pub chart: &'a Chart,
    /// B where they are full.
    pub top: Lanes,
    /// Lanes that ask for the mean.
    pub mean: LaneMask,
    /// Whether some lane asks for a percentile.
    pub spread: bool,
    ceiling: Ceiling,
    level: Level,
    /// Mean latencies at the chart's probes.
    pub probes: Vec<Means>,
    /// Where some lane asks for a percentile: from idle to full, for the lanes that do.
    pub ladder: Vec<Rung>,
}

/// Mean latencies at one B, the wait for a seat included [s]; infinite where the replica is full.
#[derive(Clone, Copy, Debug)]
pub struct Means {
    decoding: Lanes,
    ttft: D,
    e2e: D,
}

/// Latencies at one B.
pub struct Rung {
    means: Means,
    /// Lanes in which the replica is full.
    endless: LaneMask,
    /// Law of TTFT, where some lane asks for a percentile.
    ttft: Option<Mixture>,
    /// The percentile of end-to-end latency [s].
    e2e: Lanes,
}

/// An SLO on TTFT or on end-to-end latency, in eight lanes.
#[derive(Clone, Copy, Debug)]
pub struct Slo {
    /// Lanes in which it is on TTFT.
    pub first_token: LaneMask,
    /// The SLO [s].
    pub bound: Lanes,
}

impl Means {
    #[inline(always)]
    fn new(at: &Operating, wait: &SeatWait) -> Self {
        let waited = D { value: wait.mean(), slope: wait.slope };
        let all = |admitted: D| D::select(wait.endless, D::splat(f64::INFINITY), admitted + waited);
        Self { decoding: at.decoding.value, ttft: all(at.ttft), e2e: all(at.e2e) }
    }

    /// B, and how far the mean is over the SLO, negative below it; its slope is nearly known.
    #[inline(always)]
    pub fn over(&self, slo: &Slo) -> (Lanes, D) {
        let mean = D::select(slo.first_token, self.ttft, self.e2e);
        (self.decoding, D::splat(1.0) - D::constant(slo.bound) / mean)
    }
}

impl<'a> Approach<'a> {
    /// Looks.
    pub fn new(chart: &'a Chart, goal: &Goal) -> Self {
        let Goal { ceiling, top, percentile } = *goal;
        let mean = percentile.at_most(Lanes::splat(MEAN));
        let spread = !mean.all();
        let asked = Lanes::select(mean, Lanes::splat(SOME_PERCENTILE), percentile);
        let level = if spread { Level::of(asked) } else { Level::NONE };
        let (probes, ladder) = (Vec::new(), Vec::new());
        let mut approach = Self { chart, top, mean, spread, ceiling, level, probes, ladder };
        approach.probes = approach.means();
        if spread {
            let rung = |halvings: i32| top * Lanes::splat(f64::powi(0.5, halvings));
            let places = std::iter::once(Lanes::ZERO).chain((0..=HALVINGS).rev().map(rung));
            approach.ladder = places.map(|decoding| approach.look(decoding).0).collect();
        }
        approach
    }

    /// Latencies at any B, and λ; with the widest vectors the machine has.
    pub fn look(&self, decoding: Lanes) -> (Rung, D) {
        let curve = &self.chart.curve;
        let (at, prompts) = if self.spread { curve.detail(decoding) } else { (curve.at(decoding), Prompts::default()) };
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: both features were detected on the line above.
            return (unsafe { self.rung_with_fma(&at, &prompts) }, at.rate);
        }
        (self.rung(&at, &prompts), at.rate)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    fn rung_with_fma(&self, at: &Operating, prompts: &Prompts) -> Rung {
        self.rung(at, prompts)
    }

    #[inline(always)]
    fn rung(&self, at: &Operating, prompts: &Prompts) -> Rung {
        let curve = &self.chart.curve;
        let spread = Spread::new(at);
        let wait = SeatWait::new(at, &spread, &self.ceiling, &curve.workload);
        let (means, endless) = (Means::new(at, &wait), wait.endless);
        if !self.spread {
            return Rung { means, endless, ttft: None, e2e: Lanes::splat(f64::NAN) };
        }
        let found = Latencies::new(curve, at, prompts, &spread, &wait, Lanes::ZERO);
        Rung { means, endless, ttft: Some(found.ttft()), e2e: found.e2e(&self.level) }
    }

    /// Mean latencies at every probe, likewise.
    fn means(&self) -> Vec<Means> {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: both features were detected on the line above.
            return unsafe { self.means_with_fma() };
        }
        self.means_in_lanes()
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    fn means_with_fma(&self) -> Vec<Means> {
        self.means_in_lanes()
    }

    #[inline(always)]
    fn means_in_lanes(&self) -> Vec<Means> {
        let mut means = Vec::with_capacity(self.chart.probes.0.len());
        for at in &self.chart.probes.0 {
            means.push(Means::new(at, &SeatWait::new(at, &Spread::new(at), &self.ceiling, &self.chart.curve.workload)));
        }
        means
    }

    /// B at a rung, and how far the latency is over its SLO, negative below it; the slope is not known where that is a percentile.
    #[inline(always)]
    pub fn over(&self, rung: &Rung, slo: &Slo) -> (Lanes, D) {
        let (decoding, mean) = rung.means.over(slo);
        let Some(law) = &rung.ttft else { return (decoding, mean) };
        let one = Lanes::splat(1.0);
        let mut value = one - slo.bound / rung.e2e;
        if Lanes::any(slo.first_token) {
            let thin = law.ln_tail(slo.bound) - self.level.ln_tail;
            value = Lanes::select(slo.first_token, thin, value);
        }
        value = Lanes::select(rung.endless, one, value);
        (decoding, D::select(self.mean, mean, D { value, slope: Lanes::splat(f64::NAN) }))
    }
}
