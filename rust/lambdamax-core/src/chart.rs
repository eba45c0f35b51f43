//! Eight curves λ(B) charted: looked at in a few places, their peak found, so that every root is bracketed.

use crate::equilibrium::{Curve, Operating};
use crate::real::{Dual, LaneMask, Lanes, Real};
use crate::root::{self, Bracket, Function, Root, Sample};

type D = Dual<Lanes>;

/// Where the curve is looked at before any root is sought, as shares of the largest B; they bracket every root.
const PROBED_SHARES: [f64; 6] = [0.0, 1.0 / 64.0, 1.0 / 16.0, 1.0 / 4.0, 1.0 / 2.0, 1.0];
/// The same where latencies or the rate can have humps, and the share of `PROBED_SHARES` that another lane looks at in its place, so
/// that it does not depend on its neighbours. With experts a prompt that is alone reads the experts for itself; where prompts outweigh
/// answers, a request's wake comes early and ends near the end of the range.
const MANY_SHARES: [(f64, f64); 23] = [
    (0.0, 0.0),
    (1.0 / 4_294_967_296.0, 1.0 / 64.0),
    (1.0 / 16_777_216.0, 1.0 / 64.0),
    (1.0 / 262_144.0, 1.0 / 64.0),
    (1.0 / 65_536.0, 1.0 / 64.0),
    (1.0 / 16_384.0, 1.0 / 64.0),
    (1.0 / 8192.0, 1.0 / 64.0),
    (1.0 / 4096.0, 1.0 / 64.0),
    (1.0 / 2048.0, 1.0 / 64.0),
    (1.0 / 1024.0, 1.0 / 64.0),
    (1.0 / 512.0, 1.0 / 64.0),
    (1.0 / 256.0, 1.0 / 64.0),
    (1.0 / 128.0, 1.0 / 64.0),
    (1.0 / 64.0, 1.0 / 64.0),
    (1.0 / 32.0, 1.0 / 16.0),
    (1.0 / 16.0, 1.0 / 16.0),
    (1.0 / 8.0, 1.0 / 4.0),
    (1.0 / 4.0, 1.0 / 4.0),
    (1.0 / 2.0, 1.0 / 2.0),
    (0.7, 1.0),
    (0.85, 1.0),
    (0.95, 1.0),
    (1.0, 1.0),
];
/// Prefill of a prompt over the decode of an idle replica's request, above which prompts outweigh answers.
const PROMPTS_OUTWEIGH: f64 = 0.1;
/// Share of what sharing gains that prefill takes back, above which a curve that still rises at its end may have dipped
/// between two probes. In 20,000 random curves every dip showed 0.92 or more at a probe.
const NEARLY_FLAT: f64 = 0.75;
/// Looks between two probes between which it may fall.
const LOOKS_BETWEEN: usize = 7;
/// Points of the closer look at such a curve.
const CLOSE_LOOKS: usize = 48;

/// Curves with what is known of them: everything a limit's root needs.
#[derive(Clone, Debug)]
pub struct Chart {
    /// The curves.
    pub curve: Curve,
    /// The curves at the probed shares, in rising B.
    pub probes: Probes,
    /// The largest rate, and the B* at which it is reached.
    pub peak: Operating,
    /// Evaluations spent.
    pub evaluations: Lanes,
    /// Lanes whose peak settled.
    pub converged: LaneMask,
}

/// The curve at each probed share.
#[derive(Clone, Debug)]
pub struct Probes(pub Vec<Operating>);

impl Probes {
    /// Looks, and how many of them each lane needed.
    fn new(curve: &Curve) -> (Self, Lanes) {
        let at = |shares: Lanes| curve.at(curve.most_decoding * shares);
        let few = Lanes::splat(PROBED_SHARES.len() as f64);
        let idle = at(Lanes::ZERO);
        let outweighed = idle.sharing * Lanes::splat(PROMPTS_OUTWEIGH);
        let humps = curve.routed_lanes().or(outweighed.less(idle.passage.work)).or(curve.uneven_lanes());
        if !Lanes::any(humps) {
            let others = PROBED_SHARES[1..].iter().map(|&share| at(Lanes::splat(share)));
            return (Self(std::iter::once(idle).chain(others).collect()), few);
        }
        let share = |&(many, plain): &(f64, f64)| at(Lanes::select(humps, Lanes::splat(many), Lanes::splat(plain)));
        let many = Lanes::splat(MANY_SHARES.len() as f64);
        let others = MANY_SHARES[1..].iter().map(share);
        (Self(std::iter::once(idle).chain(others).collect()), Lanes::select(humps, many, few))
    }
}

impl Chart {
    /// Looks at the curves and finds their peaks.
    pub fn new(curve: Curve) -> Self {
        let (probes, evaluations) = Probes::new(&curve);
        let last = probes.0[probes.0.len() - 1];
        let mut chart = Self { curve, probes, peak: last, evaluations, converged: !LaneMask::NONE };
        chart.find_peak();
        chart
    }

    /// First pair of neighbouring probes between which λ stops rising.
    #[inline(always)]
    fn first_fall(&self) -> (Bracket, LaneMask) {
        let fall = |at: &Operating| Dual::constant(fall(at));
        let (first, last) = (&self.probes.0[0], &self.peak);
        let (low, high) = (first.decoding.value, last.decoding.value);
        let mut bracket = Bracket { low, high, f_low: fall(first), f_high: fall(last) };
        let mut found = LaneMask::NONE;
        for pair in self.probes.0.windows(2) {
            let here = pair[1].rise().at_most(Lanes::splat(0.0)).and(!found);
            bracket.low = Lanes::select(here, pair[0].decoding.value, bracket.low);
            bracket.high = Lanes::select(here, pair[1].decoding.value, bracket.high);
            bracket.f_low = D::select(here, fall(&pair[0]), bracket.f_low);
            bracket.f_high = D::select(here, fall(&pair[1]), bracket.f_high);
            found = found.or(here);
        }
        (bracket, found)
    }

    /// Lanes whose curve rises at its end but nearly fell before: it may dip unseen.
    #[inline(always)]
    fn suspicious(&self) -> LaneMask {
        let end = self.peak.decoding.value;
        let flat = |probe: &Operating| {
            let inside = probe.decoding.value.less(end);
            inside.and(probe.rise().less(probe.sharing * Lanes::splat(1.0 - NEARLY_FLAT)))
        };
        let inner =
            self.probes.0[1..self.probes.0.len() - 1].iter().fold(LaneMask::NONE, |any, probe| any.or(flat(probe)));
        inner.and(Lanes::splat(0.0).less(self.peak.rise()))
    }

    /// Looks between probes at whose ends λ rises, but not as a cubic that rises all the way (Fritsch and Carlson's condition).
    #[inline(always)]
    fn look_between(&self, bracket: &mut Bracket, found: &mut LaneMask) {
        for pair in self.probes.0.windows(2) {
            let doubtful = dips(&pair[0], &pair[1]).and(!*found);
            if !Lanes::any(doubtful) {
                continue;
            }
            let (low, high) = (pair[0].decoding.value, pair[1].decoding.value);
            let mut below = (low, fall(&pair[0]));
            for look in 1..=LOOKS_BETWEEN {
                let at = low + (high - low) * Lanes::splat(look as f64 / (LOOKS_BETWEEN + 1) as f64);
                let here = (at, fall(&self.curve.at(at)));
                bracket.close_on(below, here, doubtful, found);
                below = here;
            }
        }
    }

    /// Moves `peak` from the end of the range to the arg max of λ; with the widest vectors the machine has.
    fn find_peak(&mut self) {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: both features were detected on the line above.
            return unsafe { self.find_peak_with_fma() };
        }
        self.find_peak_in_lanes();
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    fn find_peak_with_fma(&mut self) {
        self.find_peak_in_lanes();
    }

    #[inline(always)]
    fn find_peak_in_lanes(&mut self) {
        let (mut bracket, mut found) = self.first_fall();
        self.look_between(&mut bracket, &mut found);
        let doubtful = self.suspicious().and(!found);
        if Lanes::any(doubtful) {
            look_closer(&self.curve, doubtful, &mut bracket, &mut found);
        }
        if !Lanes::any(found) {
            return;
        }
        let root = top(&self.curve, bracket, found);
        let end = self.peak.decoding.value;
        let better = found.and(self.peak.rate.value.at_most(root.carried));
        self.peak = self.curve.at(Lanes::select(better, root.at, end));
        self.evaluations = self.evaluations + root.evaluations;
        self.converged = root.converged;
    }
}

/// Whether a cubic through two looks, both of which rise, falls between them: ln λ over ln B, on which curves that only saturate are
/// nearly straight; λ over B from B = 0. Two looks at one B, which a lane with few probes has beside one with many, have nothing between them.
#[inline(always)]
fn dips(low: &Operating, high: &Operating) -> LaneMask {
    let (zero, three) = (Lanes::ZERO, Lanes::splat(3.0));
    let idle = low.decoding.value.at_most(zero);
    let steepness = |at: &Operating| Lanes::select(idle, at.rate.slope, at.rise() / at.cycle.value);
    let ratio = |of: fn(&Operating) -> Lanes| of(high) / Lanes::select(idle, of(high), of(low));
    let logs = ratio(|at| at.rate.value).ln() / ratio(|at| at.decoding.value).ln();
    let straight = high.rate.value / high.decoding.value;
    let secant = Lanes::select(idle, straight, logs);
    let (a, b) = (steepness(low) / secant, steepness(high) / secant);
    let both = a + b;
    let inside = (a * a + a * b + b * b + Lanes::splat(9.0)).at_most(Lanes::splat(6.0) * both);
    let rises = both.at_most(three).or(inside).and(zero.less(secant));
    let apart = low.decoding.value.less(high.decoding.value);
    apart.and(zero.less(low.rise())).and(zero.less(high.rise())).and(!rises)
}

/// Walks up the range on a geometric ladder and brackets the first fall.
fn look_closer(curve: &Curve, doubtful: LaneMask, bracket: &mut Bracket, found: &mut LaneMask) {
    let log_ratio = Real::ln(PROBED_SHARES[1]) / CLOSE_LOOKS as f64;
    let first = curve.most_decoding * Lanes::splat(PROBED_SHARES[1]);
    let mut below = (first, fall(&curve.at(first)));
    for look in (0..CLOSE_LOOKS).rev() {
        let at = curve.most_decoding * Lanes::splat(Real::exp(log_ratio * look as f64));
        let here = (at, fall(&curve.at(at)));
        bracket.close_on(below, here, doubtful, found);
        below = here;
    }
}

/// −dlnλ/dlnB: negative while the rate rises.
#[inline(always)]
fn fall(at: &Operating) -> Lanes {
    -at.rise() / at.cycle.value
}

/// −dlnλ/dlnB along a curve, whose slope is taken from the last two looks.
struct Fall<'a> {
    curve: &'a Curve,
    previous: (Lanes, Lanes),
}

impl Function for Fall<'_> {
    fn sample(&mut self, x: Lanes) -> Sample {
        let at = self.curve.at(x);
        let value = fall(&at);
        let slope = (value - self.previous.1) / (x - self.previous.0);
        self.previous = (x, value);
        Sample { f: Dual { value, slope }, carried: at.rate }
    }

    fn piece(&self, x: Lanes) -> Lanes {
        self.curve.chunks(x)
    }
}

/// The B at which λ stops rising, by secants.
fn top(curve: &Curve, bracket: Bracket, active: LaneMask) -> Root {
    let mut fall = Fall { curve, previous: (bracket.low, bracket.f_low.value) };
    let guess = bracket.guess();
    root::solve(bracket, guess, active, &mut fall)
}
