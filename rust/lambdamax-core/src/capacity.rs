//! The largest rate under each limit, which limit binds, and which is next (docs/model.md section 7).

use crate::chart::Chart;
use crate::equilibrium::{Curve, Operating, View};
use crate::real::{Dual, LaneMask, Lanes, Real};
use crate::root::{self, Bracket, Function, Root, Sample};

type D = Dual<Lanes>;

/// What can hold the rate down, in the order that breaks ties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Limit {
    /// λ(B*): FLOP/s, bandwidth and token budget together.
    Compute,
    /// KV tokens.
    KvPool,
    /// max_num_seqs.
    Seats,
    /// Mean TPOT.
    TpotSlo,
    /// Mean TTFT.
    TtftSlo,
    /// Mean end-to-end latency.
    E2eSlo,
    /// Share of the physical capacity that a plan may use.
    Utilization,
}

/// Number of limits.
pub const LIMITS: usize = 7;
/// Their names, in the order of their codes.
pub const LIMIT_NAMES: [&str; LIMITS] =
    ["compute", "kv_pool", "seats", "tpot_slo", "ttft_slo", "e2e_slo", "utilization"];
/// Limits that are a quantity held against a bound.
pub const BOUNDED: [Limit; 5] = [Limit::KvPool, Limit::Seats, Limit::TpotSlo, Limit::TtftSlo, Limit::E2eSlo];
/// What hardware and engine sustain, whatever the SLOs.
pub const PHYSICAL: [Limit; 3] = [Limit::Compute, Limit::KvPool, Limit::Seats];
/// KV or seats within this share of compute hide that compute is what binds.
const NEAR_COMPUTE: f64 = 0.9;

/// A quantity of an operating point that rises through zero where a limit or a load is met.
pub trait Excess {
    /// Negative below the root.
    fn excess(&self, at: &Operating) -> D;
}

macro_rules! over_bound {
    ($($(#[$doc:meta])* $name:ident: $quantity:ident,)+) => {
        $(
            $(#[$doc])*
            struct $name(Lanes);

            impl Excess for $name {
                #[inline(always)]
                fn excess(&self, at: &Operating) -> D {
                    at.$quantity.scale(self.0).offset(Lanes::splat(-1.0))
                }
            }
        )+
    };
}
over_bound! {
    /// KV tokens over the pool, less one; holds 1/bound, as all of these do.
    OverPool: kv,
    /// Running over seats.
    OverSeats: running,
    /// TPOT over its SLO.
    OverTpot: tpot,
    /// TTFT over its SLO.
    OverTtft: ttft,
    /// E2E over its SLO.
    OverE2e: e2e,
}

/// λ(B) against a rate: B less the time in which B requests pass, times the rate.
pub struct OverRate(pub Lanes);

impl Excess for OverRate {
    #[inline(always)]
    fn excess(&self, at: &Operating) -> D {
        at.decoding - at.cycle.scale(self.0)
    }
}

/// An excess, and the rate that is carried along to its root.
struct ExcessAndRate<'a, E>(&'a E);

impl<E: Excess> View for ExcessAndRate<'_, E> {
    type Seen = Sample;
    #[inline(always)]
    fn see(&self, at: &Operating) -> Sample {
        Sample { f: self.0.excess(at), carried: at.rate }
    }
}

/// An excess along a curve.
struct Along<'a, E> {
    curve: &'a Curve,
    excess: &'a E,
}

impl<E: Excess> Function for Along<'_, E> {
    fn sample(&mut self, x: Lanes) -> Sample {
        self.curve.see(x, &ExcessAndRate(self.excess))
    }

    fn piece(&self, x: Lanes) -> Lanes {
        self.curve.chunks(x)
    }
}

/// Where f changes sign.
struct Start {
    bracket: Bracket,
    /// Lanes with a root inside.
    inside: LaneMask,
    /// Lanes whose f is not negative even at B = 0+.
    beyond: LaneMask,
}

/// Brackets the smallest root of f among the probes below `top`, and `top` itself, where f is `at_top`.
fn start(chart: &Chart, top: Lanes, at_top: D, excess: &impl Excess) -> Start {
    let zero = Lanes::splat(0.0);
    let probes = &chart.probes.0;
    let at_idle = excess.excess(&probes[0]);
    let mut found = LaneMask::NONE;
    let mut bracket = Bracket { low: zero, high: zero, f_low: at_idle, f_high: at_idle };
    let mut previous = (zero, at_idle);
    for probe in &probes[1..] {
        let before_top = probe.decoding.value.less(top);
        let high = Lanes::select(before_top, probe.decoding.value, top);
        let value = D::select(before_top, excess.excess(probe), at_top);
        let here = zero.at_most(value.value).and(!found);
        bracket.low = Lanes::select(here, previous.0, bracket.low);
        bracket.high = Lanes::select(here, high, bracket.high);
        bracket.f_low = D::select(here, previous.1, bracket.f_low);
        bracket.f_high = D::select(here, value, bracket.f_high);
        found = found.or(here);
        previous = (high, value);
    }
    let beyond = zero.at_most(at_idle.value);
    Start { bracket, inside: found.and(!beyond), beyond }
}

/// The largest rate under one limit, in eight lanes.
#[derive(Clone, Copy, Debug)]
pub struct LimitRate {
    /// The rate; zero where even an idle replica exceeds the limit.
    pub rate: Lanes,
    /// B there.
    pub decoding: Lanes,
    /// Curve evaluations.
    pub evaluations: Lanes,
    /// Lanes that settled.
    pub converged: LaneMask,
}

impl LimitRate {
    /// λ(B*).
    pub fn compute(chart: &Chart) -> Self {
        Self {
            rate: chart.peak.rate.value,
            decoding: chart.peak.decoding.value,
            evaluations: chart.evaluations,
            converged: chart.converged,
        }
    }

    /// The rate at which a bounded quantity reaches its bound; a bound out of reach leaves `compute`.
    pub fn bounded(chart: &Chart, limit: Limit, bound: Lanes) -> Self {
        let inverse = Lanes::splat(1.0) / bound;
        match limit {
            Limit::KvPool => Self::of(chart, &OverPool(inverse)),
            Limit::Seats => Self::of(chart, &OverSeats(inverse)),
            Limit::TpotSlo => Self::of(chart, &OverTpot(inverse)),
            Limit::TtftSlo => Self::of(chart, &OverTtft(inverse)),
            Limit::E2eSlo => Self::of(chart, &OverE2e(inverse)),
            Limit::Compute | Limit::Utilization => Self::compute(chart),
        }
    }

    fn of(chart: &Chart, excess: &impl Excess) -> Self {
        let zero = Lanes::splat(0.0);
        let start = start(chart, chart.peak.decoding.value, excess.excess(&chart.peak), excess);
        let root = solve(chart, &start, excess);
        let free_rate = Lanes::select(start.beyond, zero, chart.peak.rate.value);
        let free_decoding = Lanes::select(start.beyond, zero, chart.peak.decoding.value);
        Self {
            rate: Lanes::select(start.inside, root.carried, free_rate),
            decoding: Lanes::select(start.inside, root.at, free_decoding),
            evaluations: root.evaluations,
            converged: root.converged,
        }
    }
}

fn solve<E: Excess>(chart: &Chart, start: &Start, excess: &E) -> Root {
    root::solve(start.bracket, start.bracket.guess(), start.inside, &mut Along { curve: &chart.curve, excess })
}

/// Smallest root of an excess below B = `top`, where it must not be negative.
pub fn smallest_root(chart: &Chart, top: Lanes, excess: &impl Excess) -> Root {
    let at_top = chart.curve.see(top, &ExcessAndRate(excess)).f;
    solve(chart, &start(chart, top, at_top, excess), excess)
}

/// Smallest B with λ(B) = rate, for a rate below the one at `most_decoding`.
pub fn invert(chart: &Chart, most_decoding: Lanes, rate: Lanes) -> Root {
    smallest_root(chart, most_decoding, &OverRate(rate))
}

/// The verdict on one point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verdict {
    /// What binds.
    pub binding: Limit,
    /// What would bind if that were lifted.
    pub next: Option<Limit>,
    /// The limit whose rate is the smallest, before compute is named in its place.
    pub smallest: Limit,
    /// The rate there.
    pub rate: f64,
    /// The smallest of the physical limits.
    pub sustained: Limit,
}

impl Verdict {
    /// Names what binds and what is next, from each limit's rate (NaN where not asked for; utilization is filled in).
    pub fn new(rates: &mut [f64; LIMITS], utilization_cap: f64) -> Self {
        let sustained = sustained(rates);
        rates[Limit::Utilization as usize] = utilization_cap * rates[sustained as usize];
        let smallest = smallest(rates);
        let binding = name(smallest, rates);
        let mut lifted = *rates;
        lifted[binding as usize] = f64::NAN;
        if PHYSICAL.contains(&binding) {
            lifted[Limit::Utilization as usize] = utilization_cap * lifted[self::sustained(&lifted) as usize];
        }
        let next = self::smallest(&lifted);
        let next = lifted[next as usize].is_finite().then(|| name(next, &lifted));
        Self { binding, next, smallest, rate: rates[smallest as usize], sustained }
    }
}

/// The smallest physical limit; compute where none is known.
pub fn sustained(rates: &[f64; LIMITS]) -> Limit {
    first_smallest(rates, &PHYSICAL)
}

fn smallest(rates: &[f64; LIMITS]) -> Limit {
    const ALL: [Limit; LIMITS] = [
        Limit::Compute,
        Limit::KvPool,
        Limit::Seats,
        Limit::TpotSlo,
        Limit::TtftSlo,
        Limit::E2eSlo,
        Limit::Utilization,
    ];
    first_smallest(rates, &ALL)
}

/// Ties go to the earlier limit; NaN is no rate.
fn first_smallest(rates: &[f64; LIMITS], among: &[Limit]) -> Limit {
    let mut best = (Limit::Compute, f64::INFINITY);
    for &limit in among {
        let rate = rates[limit as usize];
        if rate < best.1 {
            best = (limit, rate);
        }
    }
    best.0
}

/// Compute in place of KV pool or seats where lifting them would gain almost nothing.
fn name(limit: Limit, rates: &[f64; LIMITS]) -> Limit {
    let memory = matches!(limit, Limit::KvPool | Limit::Seats);
    let hidden = memory && rates[limit as usize] >= NEAR_COMPUTE * rates[Limit::Compute as usize];
    if hidden { Limit::Compute } else { limit }
}
