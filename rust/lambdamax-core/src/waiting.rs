//! How many are in flight, how often none of the seats is free, and how long one waits then (docs/model.md section 7).

use crate::equilibrium::Operating;
use crate::normal::upper_tail;
use crate::real::{Dual, LaneMask, Lanes, Real};
use crate::workload::Workload;

type D = Dual<Lanes>;

/// Share of the sustainable rate within which a wait has no meaning: it is as long as one likes to look.
const NEAR_FULL: f64 = 1e-7;
/// Least spread of the population of bursty or even arrivals, as a share of Poisson's.
const LEAST_PEAK: f64 = 0.05;

/// The largest rate that a slot sustains, in eight lanes.
#[derive(Clone, Copy, Debug)]
pub struct Ceiling {
    /// μ [requests/s].
    pub rate: Lanes,
    /// Requests that hold a seat there, N.
    pub running: Lanes,
    /// Lanes in which the KV pool sets it.
    pub by_pool: LaneMask,
}

/// Variance of the population of an idle replica.
const LEAST_VARIANCE: f64 = 1e-12;

/// Wait for a seat.
#[derive(Clone, Copy, Debug)]
pub struct SeatWait {
    /// Probability that there is one.
    pub chance: Lanes,
    /// Its mean if there is one [s].
    pub length: Lanes,
    /// Lanes where the replica is full, so that it has no end.
    pub endless: LaneMask,
    /// Slope of its mean over all requests [s], within a tenth: as if the spread of the population grew like the population.
    pub slope: Lanes,
}

/// Spread of the populations at an operating point.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    /// Variance of the number running, as if seats had no end.
    pub running: Lanes,
    /// Variance of the number decoding.
    pub decoding: Lanes,
}

impl Spread {
    /// A birth–death process around its mean: 1/(d ln λ/dn), by as much wider as arrivals are burstier.
    #[inline(always)]
    pub fn new(at: &Operating) -> Self {
        let one = Lanes::splat(1.0);
        let peak = (one + at.passage.crowd).max(Lanes::splat(LEAST_PEAK));
        let flatness = at.rate.value / at.rate.slope;
        let variance = |mean: Lanes, slope: Lanes| {
            let most = mean * (mean + one);
            let falling = (flatness * slope).at_most(Lanes::ZERO);
            let variance = peak * Lanes::select(falling, most, most.min(flatness * slope));
            variance.max(Lanes::splat(LEAST_VARIANCE))
        };
        Self { running: variance(at.running.value, at.running.slope), decoding: variance(at.decoding.value, one) }
    }
}

impl SeatWait {
    /// At an operating point below its ceiling.
    #[inline(always)]
    pub fn new(at: &Operating, spread: &Spread, ceiling: &Ceiling, workload: &Workload) -> Self {
        let (zero, one) = (D::ZERO, D::splat(1.0));
        let Operating { running, rate, .. } = *at;
        let load = rate.scale(Lanes::splat(1.0) / ceiling.rate);
        let endless = (one - load).value.at_most(Lanes::splat(NEAR_FULL));
        let idle = D::select(endless, one, one - load);
        let free = (D::constant(ceiling.running) - running).max(zero);
        let jobs = Jobs::new(workload);
        let growing = running.slope / running.value.max(Lanes::splat(f64::MIN_POSITIVE));
        let alone = D { value: spread.running, slope: spread.running * growing };
        let kept = D::select(ceiling.by_pool, running.scale(jobs.kept_variation), zero);
        let alike = rarity(free, load, alone, at);
        let square = free * free;
        let rarity = square * alike / (square + D::splat(2.0) * alike * kept).offset(Lanes::splat(f64::MIN_POSITIVE));
        let variance = alone + kept;
        let full = (-rarity).exp() / variance.scale(Lanes::splat(std::f64::consts::TAU)).sqrt();
        let beyond = full / idle;
        let deviations = free.offset(Lanes::splat(-0.5)).max(zero) / variance.sqrt();
        let (above, density) = upper_tail(deviations.value);
        let below = one - D { value: above, slope: -density * deviations.slope };
        let chance = (beyond / (below + beyond)).min(one - (-running).exp());
        let variation = Lanes::select(ceiling.by_pool, jobs.time_variation, workload.output_cv * workload.output_cv);
        let dispersion = workload.arrival_cv * workload.arrival_cv + variation;
        let length = D::constant(Lanes::splat(0.5) * dispersion) / idle.scale(ceiling.rate);
        Self { chance: chance.value, length: length.value, endless, slope: (chance * length).slope }
    }

    /// The same, without any wait in some lanes.
    #[inline(always)]
    #[must_use]
    pub fn unless(self, nobody: LaneMask) -> Self {
        let zero = Lanes::ZERO;
        Self {
            chance: Lanes::select(nobody, zero, self.chance),
            length: Lanes::select(nobody, zero, self.length),
            endless: self.endless.and(!nobody),
            slope: Lanes::select(nobody, zero, self.slope),
        }
    }

    /// Mean over all requests [s].
    #[inline(always)]
    pub fn mean(&self) -> Lanes {
        self.chance * self.length
    }
}

/// −ln of the probability of a full replica over that of the mean population: the integral of ln(λ/λ(n)) by the parabola that has
/// its slope at the mean and its value at the ceiling.
#[inline(always)]
fn rarity(free: D, load: D, variance: D, at: &Operating) -> D {
    let peak = (Lanes::splat(1.0) + at.passage.crowd).max(Lanes::splat(LEAST_PEAK));
    let from_ceiling = (free * -load.ln()).scale(Lanes::splat(1.0 / 3.0)) / D::constant(peak);
    let from_mean = free * free / variance.scale(Lanes::splat(6.0));
    (from_ceiling + from_mean).max(D::ZERO)
}

/// Squared coefficients of variation of what requests take of a pool, for full attention and lengths of lognormal moments.
struct Jobs {
    /// Of the KV that a running sequence keeps.
    kept_variation: Lanes,
    /// Of KV times the steps for which a request keeps it.
    time_variation: Lanes,
}

impl Jobs {
    #[inline(always)]
    fn new(w: &Workload) -> Self {
        let one = Lanes::splat(1.0);
        let part = |parts: f64| Lanes::splat(1.0 / parts);
        let (i, o) = (w.mean_prompt, w.mean_output);
        let prompt = i * i * w.prompt_cv * w.prompt_cv;
        let growth = one + w.output_cv * w.output_cv;
        let cubed = growth * growth * growth;
        let (o2, o3, o4) = (o * o * growth, o * o * o * cubed, o * o * o * o * cubed * cubed);
        let age = o2 / o * part(2.0);
        let kept = i + age;
        let time = o * i + o2 * part(2.0);
        let time_square = o2 * (i * i + prompt) + o3 * i + o4 * part(4.0);
        Self {
            kept_variation: (prompt + o3 / o * part(3.0) - age * age) / (kept * kept),
            time_variation: time_square / (time * time) - one,
        }
    }
}
