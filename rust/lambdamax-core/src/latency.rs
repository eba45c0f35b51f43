//! The spread of TTFT, of gaps between tokens and of whole requests at an operating point (docs/model.md section 7).

use crate::equilibrium::{Curve, Operating, Passage};
use crate::mixture::{Component, Gamma, Level, Mixture};
use crate::real::{Lanes, Real};
use crate::ttft::{HostLanes, PromptSeen, Prompts};
use crate::waiting::{SeatWait, Spread};
use crate::workload::Workload;

/// How much of the fluctuation of the number decoding is left after its mean over a residence.
const LASTING: f64 = 2.0 / 3.0;
/// Least variance of what peers bring, as a share of the riders'.
const LEAST_RIDERS: f64 = 0.9;
/// Standard deviations below its mean at which the gap without prefill begins: far enough to be normal.
const NORMAL_REACH: f64 = 100.0;
/// Least standard deviation of a gap, as a share of it.
const LEAST_GAP_SPREAD: f64 = 1e-9;

/// Mean and variance of a time [s, s²].
#[derive(Clone, Copy, Debug)]
struct Moments {
    mean: Lanes,
    variance: Lanes,
}

/// Mean TTFT in the parts in which a request meets them, and what each adds to a percentile of the whole [s].
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// Mean.
    pub mean: Lanes,
    /// Share of the percentile.
    pub high: Lanes,
}

/// The links of TTFT inside a replica; they sum to the whole, and so do their shares of a percentile.
#[derive(Clone, Copy, Debug)]
pub struct Links {
    /// Wait for a seat.
    pub seat: Link,
    /// Wait for the running iteration.
    pub iteration: Link,
    /// The decode steps of the iterations that carry the prompt; the constant of a profile of kind `ratio`.
    pub first: Link,
    /// What the prompt adds to them.
    pub own: Link,
    /// What others' prompts add to them.
    pub riders: Link,
    /// Host and network of the replica, the same for all.
    pub host: Lanes,
}

/// How latencies spread at an operating point.
pub struct Latencies<'a> {
    /// The point.
    at: &'a Operating,
    /// The classes of prompts there.
    prompts: &'a Prompts,
    /// Lengths.
    workload: &'a Workload,
    /// TTFT constants.
    host: &'a HostLanes,
    /// Of the populations.
    spread: &'a Spread,
    /// For a seat.
    wait: &'a SeatWait,
    /// A wait that everybody has [s]: that of a closed loop with more clients than seats.
    everybody: Lanes,
    /// Share of the population that an arrival meets.
    others: Lanes,
}

impl<'a> Latencies<'a> {
    /// Of a point of `curve`, where everybody waits `everybody` [s] beside what `wait` says.
    #[inline(always)]
    pub fn new(
        curve: &'a Curve,
        at: &'a Operating,
        prompts: &'a Prompts,
        spread: &'a Spread,
        wait: &'a SeatWait,
        everybody: Lanes,
    ) -> Self {
        let (workload, host, others) = (&curve.workload, curve.host(), curve.others());
        Self { at, prompts, workload, host, spread, wait, everybody, others }
    }

    fn passage(&self) -> &Passage {
        &self.at.passage
    }

    /// ρ.
    #[inline(always)]
    fn share(&self) -> Lanes {
        Lanes::splat(1.0) - self.at.left
    }

    /// λ of the others.
    #[inline(always)]
    fn rate(&self) -> Lanes {
        self.at.rate.value * self.others
    }

    /// Seconds of a class from admission to its first token, less what it waits for others.
    #[inline(always)]
    fn alone(&self, prompt: &PromptSeen) -> Lanes {
        let own = prompt.chunks * self.passage().step + prompt.added;
        Lanes::select(self.host.full, own, self.host.held_ttft) + self.host_latency() + self.everybody
    }

    #[inline(always)]
    fn host_latency(&self) -> Lanes {
        Lanes::select(self.host.full, self.host.latency, Lanes::ZERO)
    }

    /// Law of TTFT.
    #[inline(always)]
    pub fn ttft(&self) -> Mixture {
        let one = Lanes::splat(1.0);
        let gate = self.gate();
        let calm = Gamma::new(gate.mean, gate.variance);
        let length = self.wait.length;
        let waited = Gamma::new(gate.mean + length, gate.variance + length * length);
        let laws = [(one - self.wait.chance, calm), (self.wait.chance, waited)];
        let of_all = |&(share, gamma): &(Lanes, Gamma)| {
            self.prompts.0.iter().map(move |one| Component::new(one.weight * share, self.alone(one), gamma))
        };
        Mixture { components: laws.iter().flat_map(of_all).collect() }
    }

    /// The random part of TTFT.
    #[inline(always)]
    fn gate(&self) -> Moments {
        let GateParts { wait, riders, covariance } = self.gate_parts();
        let kept = |value: Lanes| Lanes::select(self.host.full, value, Lanes::ZERO);
        let variance = wait.variance + riders.variance + covariance + covariance;
        Moments { mean: kept(wait.mean + riders.mean), variance: kept(variance) }
    }

    /// The rest of the iteration that an arrival falls in, and others' prefill.
    #[inline(always)]
    fn gate_parts(&self) -> GateParts {
        let (rho, rate, p) = (self.share(), self.rate(), self.passage());
        let times = self.iteration();
        let ahead = self.host.async_scheduling;
        let half = Lanes::splat(0.5);
        let third = Lanes::splat(1.0 / 3.0);
        let mean = p.busy * (p.seen * half + ahead * p.iteration);
        let square = p.busy * (times.seen_square * third + ahead * (p.seen * p.iteration + times.square));
        let seen_variance = (times.seen_square - p.seen * p.seen).max(Lanes::ZERO);
        let poisson = rate * p.seen * p.square;
        GateParts {
            wait: Moments { mean, variance: square - mean * mean },
            riders: Moments {
                mean: p.riders,
                variance: rho * rho * seen_variance + poisson + self.peers_variance(poisson),
            },
            covariance: half * p.busy * rho * seen_variance,
        }
    }

    /// The links of TTFT; a percentile above the mean is shared out by the links' covariances with the whole.
    #[inline(always)]
    pub fn links(&self, percentile: Lanes) -> Links {
        let p = self.passage();
        let full = |value: Lanes| Lanes::select(self.host.full, value, Lanes::ZERO);
        let parts = self.gate_parts();
        let first = |one: &PromptSeen| Lanes::select(self.host.full, one.chunks * p.step, self.host.held_ttft);
        let (mean_first, mean_own) = (self.prompts.mean(first), full(p.work));
        let with = |a: Lanes, b: Lanes| a * b;
        let off = |one: &PromptSeen| (first(one) - mean_first, full(one.added) - mean_own);
        let first_variance = self.prompts.mean(|one| with(off(one).0, off(one).0));
        let own_variance = self.prompts.mean(|one| with(off(one).1, off(one).1));
        let together = self.prompts.mean(|one| with(off(one).0, off(one).1));
        let mean_wait = self.wait.mean();
        let waited = self.wait.chance * self.wait.length * self.wait.length;
        let both = full(parts.covariance);
        let links = [
            (mean_wait + self.everybody, waited + waited - mean_wait * mean_wait),
            (full(parts.wait.mean), full(parts.wait.variance) + both),
            (mean_first, first_variance + together),
            (mean_own, own_variance + together),
            (full(p.riders), full(parts.riders.variance) + both),
        ];
        let tiny = Lanes::splat(f64::MIN_POSITIVE);
        let variance = links.iter().fold(tiny, |sum, link| sum + link.1);
        let above = percentile - self.ttft_mean();
        let link = |(mean, variance_of): (Lanes, Lanes)| Link { mean, high: mean + above * variance_of / variance };
        let [seat, iteration, first, own, riders] = links.map(link);
        Links { seat, iteration, first, own, riders, host: self.host_latency() }
    }

    /// Of the number of peers that bursts bring, geometric in a burst, and of their prefill.
    #[inline(always)]
    fn peers_variance(&self, riders: Lanes) -> Lanes {
        let p = self.passage();
        let alike = p.peers * p.square / p.work.max(Lanes::splat(f64::MIN_POSITIVE));
        let bursty = alike + p.peers * p.peers;
        let even = alike.max(-Lanes::splat(LEAST_RIDERS) * riders);
        Lanes::select(p.peers.less(Lanes::ZERO), even, bursty)
    }

    /// E[T²] and E[X²] from the first three cumulants of an iteration.
    #[inline(always)]
    fn iteration(&self) -> Iterations {
        let one = Lanes::splat(1.0);
        let three = Lanes::splat(3.0);
        let (rho, rate, p) = (self.share(), self.rate(), self.passage());
        let mean = p.iteration;
        let cube = self.prompts.mean(|one| one.added * one.added * one.added);
        let variance = rate * mean * p.square / (one - rho * rho);
        let third = rate * (mean * cube + three * rho * p.square * variance) / (one - rho * rho * rho);
        Iterations {
            square: mean * mean + variance,
            seen_square: (third + three * mean * variance) / mean + mean * mean,
        }
    }

    /// TTFT's mean over all requests [s].
    #[inline(always)]
    pub fn ttft_mean(&self) -> Lanes {
        self.at.ttft.value + self.wait.mean() + self.everybody
    }

    #[inline(always)]
    fn ttft_variance(&self) -> Lanes {
        let mean = self.prompts.mean(|one| self.alone(one));
        let off = |one: &PromptSeen| {
            let off = self.alone(one) - mean;
            off * off
        };
        let waited = self.wait.chance * self.wait.length * self.wait.length;
        let twice = waited + waited;
        self.gate().variance + self.prompts.mean(off) + twice - self.wait.mean() * self.wait.mean()
    }

    /// A percentile of whole requests [s]: a lognormal with the output law's spread, and that of TTFT and of the steps.
    #[inline(always)]
    pub fn e2e(&self, level: &Level) -> Lanes {
        let one = Lanes::splat(1.0);
        let (p, w) = (self.passage(), self.workload);
        let each = self.at.cycle.value / w.decode_tokens;
        let slope = w.decode_tokens * p.own_slope / self.at.left;
        let steps = w.decode_tokens * self.rate() * p.iteration * p.square / (self.at.left * self.at.left);
        let lasting = slope * slope * self.spread.decoding * Lanes::splat(LASTING);
        let decode = each * w.mean_output;
        let by_length = decode * w.output_cv;
        let variance = by_length * by_length + self.ttft_variance() + lasting + steps;
        let squared_scale = (one + variance / (decode * decode)).ln();
        let median = decode * (-Lanes::splat(0.5) * squared_scale).exp();
        self.ttft_mean() - each + median * (squared_scale.sqrt() * level.z).exp()
    }

    /// A percentile of the gaps between tokens [s]: with and without prefill in the step, and at most a full step.
    #[inline(always)]
    pub fn itl(&self, level: &Level) -> Lanes {
        let one = Lanes::splat(1.0);
        let tiny = Lanes::splat(f64::MIN_POSITIVE);
        let (rho, p) = (self.share(), self.passage());
        let plain = p.own_step;
        let chunks = self.rate() * p.iteration * self.prompts.mean(|one| one.chunks);
        let joined = one - (-chunks).exp();
        let deviation = (self.spread.decoding.sqrt() * p.own_slope.abs()).max(plain * Lanes::splat(LEAST_GAP_SPREAD));
        let mean = rho * p.iteration / joined.max(tiny);
        let each = self.prompts.mean(|one| one.added * one.added / one.chunks);
        let square = self.rate() * p.iteration * each / (one - rho * rho) + rho * p.iteration * rho * p.iteration;
        let variance = (square / joined.max(tiny) - mean * mean).max(Lanes::ZERO) + deviation * deviation;
        let reach = deviation * Lanes::splat(NORMAL_REACH);
        let without = Gamma::new(reach, deviation * deviation);
        let with = Gamma::new(mean, variance);
        let components =
            vec![Component::new(one - joined, plain - reach, without), Component::new(joined, plain, with)];
        let most = plain + p.room * p.work / self.workload.mean_uncached + level.z * deviation;
        Mixture { components }.quantile(level).min(most)
    }
}

/// Mean and spread of the two random parts of TTFT [s, s²].
struct GateParts {
    wait: Moments,
    riders: Moments,
    covariance: Lanes,
}

/// Moments of an iteration [s²].
struct Iterations {
    square: Lanes,
    seen_square: Lanes,
}
