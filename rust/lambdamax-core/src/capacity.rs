//! The largest rate under each limit, which limit binds, and which is next (docs/model.md section 8).

use crate::chart::Chart;
use crate::equilibrium::{Curve, Operating};
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
/// Limits that are a quantity held against a bound, whatever waits.
pub const BOUNDED: [Limit; 3] = [Limit::KvPool, Limit::Seats, Limit::TpotSlo];
/// Limits on latencies that include the wait for a seat.
pub const WAITING: [Limit; 2] = [Limit::TtftSlo, Limit::E2eSlo];
/// What hardware and engine sustain, whatever the SLOs.
const PHYSICAL: [Limit; 3] = [Limit::Compute, Limit::KvPool, Limit::Seats];
const ALL: [Limit; LIMITS] =
    [Limit::Compute, Limit::KvPool, Limit::Seats, Limit::TpotSlo, Limit::TtftSlo, Limit::E2eSlo, Limit::Utilization];
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
}

/// λ(B) against a rate: B less the time in which B requests pass, times the rate.
pub struct OverRate(pub Lanes);

impl Excess for OverRate {
    #[inline(always)]
    fn excess(&self, at: &Operating) -> D {
        at.decoding - at.cycle.scale(self.0)
    }
}

/// An excess along a curve.
struct Along<'a, E> {
    curve: &'a Curve,
    excess: &'a E,
}

impl<E: Excess> Function for Along<'_, E> {
    fn sample(&mut self, x: Lanes) -> Sample {
        let at = self.curve.at(x);
        Sample { f: self.excess.excess(&at), carried: at.rate }
    }

    fn piece(&self, x: Lanes) -> Lanes {
        self.curve.chunks(x)
    }
}

/// Where f changes sign.
pub struct Start {
    /// Around the smallest root.
    pub bracket: Bracket,
    /// Lanes with a root inside.
    pub inside: LaneMask,
    /// Lanes whose f is not negative even at B = 0+.
    pub beyond: LaneMask,
}

impl Start {
    /// Brackets the smallest root of an f among the probes below `top`, and `top` itself, where f is `at_top`.
    #[inline(always)]
    pub fn new(chart: &Chart, top: Lanes, at_top: D, f: impl Fn(&Operating) -> D) -> Self {
        let probes = chart.probes.0.iter().map(|probe| (probe.decoding.value, f(probe)));
        Self::among(probes, top, at_top)
    }

    /// The same among (B, f) in rising B, the first of which is idle.
    #[inline(always)]
    pub fn among(mut probes: impl Iterator<Item = (Lanes, D)>, top: Lanes, at_top: D) -> Self {
        let zero = Lanes::splat(0.0);
        let at_idle = probes.next().map_or(at_top, |idle| idle.1);
        let mut found = LaneMask::NONE;
        let mut bracket = Bracket { low: zero, high: zero, f_low: at_idle, f_high: at_idle };
        let mut previous = (zero, at_idle);
        for (decoding, f) in probes {
            let before_top = decoding.less(top);
            let high = Lanes::select(before_top, decoding, top);
            let value = D::select(before_top, f, at_top);
            let here = zero.at_most(value.value).and(!found);
            bracket.low = Lanes::select(here, previous.0, bracket.low);
            bracket.high = Lanes::select(here, high, bracket.high);
            bracket.f_low = D::select(here, previous.1, bracket.f_low);
            bracket.f_high = D::select(here, value, bracket.f_high);
            found = found.or(here);
            previous = (high, value);
        }
        let beyond = zero.at_most(at_idle.value);
        Self { bracket, inside: found.and(!beyond), beyond }
    }

    /// Another start in some lanes.
    #[must_use]
    pub fn unless(self, lanes: LaneMask, other: &Self) -> Self {
        let pick = |a: Lanes, b: Lanes| Lanes::select(lanes, a, b);
        let both = |a: LaneMask, b: LaneMask| lanes.and(a).or((!lanes).and(b));
        Self {
            bracket: Bracket {
                low: pick(other.bracket.low, self.bracket.low),
                high: pick(other.bracket.high, self.bracket.high),
                f_low: D::select(lanes, other.bracket.f_low, self.bracket.f_low),
                f_high: D::select(lanes, other.bracket.f_high, self.bracket.f_high),
            },
            inside: both(other.inside, self.inside),
            beyond: both(other.beyond, self.beyond),
        }
    }
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

    /// The rate at which a quantity of `BOUNDED` reaches its bound; a bound out of reach leaves `compute`.
    pub fn bounded(chart: &Chart, limit: Limit, bound: Lanes) -> Self {
        let inverse = Lanes::splat(1.0) / bound;
        match limit {
            Limit::KvPool => Self::of(chart, &OverPool(inverse)),
            Limit::Seats => Self::of(chart, &OverSeats(inverse)),
            Limit::TpotSlo => Self::of(chart, &OverTpot(inverse)),
            Limit::Compute | Limit::TtftSlo | Limit::E2eSlo | Limit::Utilization => Self::compute(chart),
        }
    }

    fn of(chart: &Chart, excess: &impl Excess) -> Self {
        let zero = Lanes::splat(0.0);
        let (start, root) = solve(chart, chart.peak.decoding.value, excess.excess(&chart.peak), excess);
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

/// Where f changes sign and its root there, with the widest vectors the machine has; the bits are the same with any.
fn solve<E: Excess>(chart: &Chart, top: Lanes, at_top: D, excess: &E) -> (Start, Root) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        // SAFETY: both features were detected on the line above.
        return unsafe { solve_with_fma(chart, top, at_top, excess) };
    }
    solve_in_lanes(chart, top, at_top, excess)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn solve_with_fma<E: Excess>(chart: &Chart, top: Lanes, at_top: D, excess: &E) -> (Start, Root) {
    solve_in_lanes(chart, top, at_top, excess)
}

#[inline(always)]
fn solve_in_lanes<E: Excess>(chart: &Chart, top: Lanes, at_top: D, excess: &E) -> (Start, Root) {
    let start = Start::new(chart, top, at_top, |probe| excess.excess(probe));
    let root =
        root::solve(start.bracket, start.bracket.guess(), start.inside, &mut Along { curve: &chart.curve, excess });
    (start, root)
}

/// Smallest root of an excess below B = `top`, where it must not be negative.
pub fn smallest_root(chart: &Chart, top: Lanes, excess: &impl Excess) -> Root {
    let at_top = excess.excess(&chart.curve.at(top));
    solve(chart, top, at_top, excess).1
}

/// Smallest B with λ(B) = rate, for a rate below the one at `most_decoding`.
pub fn invert(chart: &Chart, most_decoding: Lanes, rate: Lanes) -> Root {
    smallest_root(chart, most_decoding, &OverRate(rate))
}

/// The largest rate of eight points, and what binds it; limits are codes.
pub struct Verdict {
    /// What binds.
    pub binding: Lanes,
    /// What would bind if that were lifted; NaN if nothing would.
    pub next: Lanes,
    /// The largest rate.
    pub rate: Lanes,
    /// B there; where only the utilization cap holds the rate down, B at the smallest of the physical limits.
    pub decoding: Lanes,
    /// Lanes that only the utilization cap holds down.
    pub capped: LaneMask,
    /// The smallest of the physical limits.
    pub sustained: Lanes,
}

impl Verdict {
    /// From each limit's rate (NaN where not asked for; utilization is filled in) and the B there.
    #[inline(always)]
    pub fn new(rates: &mut [Lanes; LIMITS], decoding: &[Lanes; LIMITS], utilization_cap: Lanes) -> Self {
        let sustained = Smallest::of(rates, &PHYSICAL);
        rates[Limit::Utilization as usize] = utilization_cap * sustained.rate;
        let smallest = Smallest::of(rates, &ALL);
        let capped = smallest.limit.same(code(Limit::Utilization));
        let at = Lanes::select(capped, sustained.limit, smallest.limit);
        let binding = smallest.name(rates);
        let mut lifted = *rates;
        for limit in ALL {
            let rate = &mut lifted[limit as usize];
            *rate = Lanes::select(binding.same(code(limit)), Lanes::splat(f64::NAN), *rate);
        }
        let left = utilization_cap * Smallest::of(&lifted, &PHYSICAL).rate;
        let physical = binding.at_most(code(Limit::Seats));
        let cap = &mut lifted[Limit::Utilization as usize];
        *cap = Lanes::select(physical, left, *cap);
        let next = Smallest::of(&lifted, &ALL);
        let some = next.rate.abs().less(Lanes::splat(f64::INFINITY));
        Self {
            binding,
            next: Lanes::select(some, next.name(&lifted), Lanes::splat(f64::NAN)),
            rate: smallest.rate,
            decoding: ALL.iter().fold(decoding[0], |found, &limit| {
                Lanes::select(at.same(code(limit)), decoding[limit as usize], found)
            }),
            capped,
            sustained: sustained.rate,
        }
    }
}

/// The code of a limit, in every lane.
#[inline(always)]
pub fn code(limit: Limit) -> Lanes {
    Lanes::splat(limit as u8 as f64)
}

/// The smallest of some rates and the limit it belongs to.
struct Smallest {
    limit: Lanes,
    rate: Lanes,
}

impl Smallest {
    /// Ties go to the earlier limit; NaN is no rate; compute where there is none.
    #[inline(always)]
    fn of(rates: &[Lanes; LIMITS], among: &[Limit]) -> Self {
        let infinity = Lanes::splat(f64::INFINITY);
        let mut best = Self { limit: code(Limit::Compute), rate: infinity };
        for &limit in among {
            let rate = rates[limit as usize];
            let less = rate.less(best.rate);
            best.limit = Lanes::select(less, code(limit), best.limit);
            best.rate = Lanes::select(less, rate, best.rate);
        }
        best.rate = Lanes::select(best.rate.less(infinity), best.rate, rates[Limit::Compute as usize]);
        best
    }

    /// The limit; compute in place of KV pool or seats where lifting them would gain almost nothing.
    #[inline(always)]
    fn name(&self, rates: &[Lanes; LIMITS]) -> Lanes {
        let near = Lanes::splat(NEAR_COMPUTE) * rates[Limit::Compute as usize];
        let hidden = self.limit.at_most(code(Limit::Seats)).and(near.at_most(self.rate));
        Lanes::select(hidden, code(Limit::Compute), self.limit)
    }
}
