//! The operating point of a row: populations, latencies and their percentiles, the wait for a seat included.

use std::sync::LazyLock;

use crate::chart::Chart;
use crate::equilibrium::Operating;
use crate::latency::{Latencies, Links};
use crate::mixture::{Level, finite};
use crate::real::{LaneMask, Lanes, Real};
use crate::ttft::Prompts;
use crate::waiting::{Ceiling, SeatWait, Spread};

/// Percentiles that every row says.
#[derive(Clone, Copy, Debug)]
struct Levels {
    p50: Level,
    p90: Level,
    p99: Level,
}

/// Their constants, computed once.
static LEVELS: LazyLock<Levels> = LazyLock::new(|| {
    let level = |percentile: f64| Level::of(Lanes::splat(percentile));
    Levels { p50: level(50.0), p90: level(90.0), p99: level(99.0) }
});

/// What the operating point of a row says; NaN for what has no end.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Spot {
    pub decoding: f64,
    pub running: f64,
    pub prefill_share: f64,
    pub seat_wait: f64,
    pub ttft: f64,
    pub ttft_p50: f64,
    pub ttft_p90: f64,
    pub ttft_p99: f64,
    pub tpot: f64,
    pub tpot_token: f64,
    pub itl_p99: f64,
    pub e2e: f64,
    pub e2e_p99: f64,
    pub kv: f64,
    pub cycle: f64,
    /// Whether it is one: every mean finite, with somebody decoding.
    pub sound: bool,
}

impl Spot {
    /// Of a row that is not solved.
    pub const NOWHERE: Self = Self {
        decoding: f64::NAN,
        running: f64::NAN,
        prefill_share: f64::NAN,
        seat_wait: f64::NAN,
        ttft: f64::NAN,
        ttft_p50: f64::NAN,
        ttft_p90: f64::NAN,
        ttft_p99: f64::NAN,
        tpot: f64::NAN,
        tpot_token: f64::NAN,
        itl_p99: f64::NAN,
        e2e: f64::NAN,
        e2e_p99: f64::NAN,
        kv: f64::NAN,
        cycle: f64::NAN,
        sound: false,
    };
}

/// What requests of eight points wait for before they are admitted.
#[derive(Clone, Copy, Debug)]
pub struct Queue {
    /// Where the replica is full.
    pub ceiling: Ceiling,
    /// Lanes with a fixed number of clients, in which nobody waits for a seat but as `everybody` says.
    pub closed: LaneMask,
    /// A wait that all have [s].
    pub everybody: Lanes,
}

impl Queue {
    /// Arrivals from outside.
    pub fn open(ceiling: Ceiling) -> Self {
        Self { ceiling, closed: LaneMask::NONE, everybody: Lanes::ZERO }
    }
}

/// Eight of them; the names of `Spot`.
#[allow(missing_docs)]
pub struct Spots {
    pub decoding: Lanes,
    pub running: Lanes,
    pub left: Lanes,
    pub seat_wait: Lanes,
    pub ttft: Lanes,
    pub ttft_p50: Lanes,
    pub ttft_p90: Lanes,
    pub ttft_p99: Lanes,
    pub tpot: Lanes,
    pub tpot_token: Lanes,
    pub itl_p99: Lanes,
    pub e2e: Lanes,
    pub e2e_p99: Lanes,
    pub kv: Lanes,
    pub cycle: Lanes,
    pub links: Links,
    pub sound: LaneMask,
}

impl Spots {
    /// At so many decoding, with the widest vectors the machine has; the bits are the same with any.
    pub fn look(chart: &Chart, decoding: Lanes, queue: &Queue) -> Self {
        let (at, prompts) = chart.curve.detail(decoding);
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: both features were detected on the line above.
            return unsafe { Self::with_fma(chart, &at, &prompts, queue) };
        }
        Self::new(chart, &at, &prompts, queue)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    fn with_fma(chart: &Chart, at: &Operating, prompts: &Prompts, queue: &Queue) -> Self {
        Self::new(chart, at, prompts, queue)
    }

    /// One lane of it.
    pub fn lane(&self, lane: usize) -> Spot {
        Spot {
            decoding: self.decoding.0[lane],
            running: self.running.0[lane],
            prefill_share: 1.0 - self.left.0[lane],
            seat_wait: self.seat_wait.0[lane],
            ttft: self.ttft.0[lane],
            ttft_p50: self.ttft_p50.0[lane],
            ttft_p90: self.ttft_p90.0[lane],
            ttft_p99: self.ttft_p99.0[lane],
            tpot: self.tpot.0[lane],
            tpot_token: self.tpot_token.0[lane],
            itl_p99: self.itl_p99.0[lane],
            e2e: self.e2e.0[lane],
            e2e_p99: self.e2e_p99.0[lane],
            kv: self.kv.0[lane],
            cycle: self.cycle.0[lane],
            sound: self.sound.0[lane] != 0,
        }
    }

    #[inline(always)]
    fn new(chart: &Chart, at: &Operating, prompts: &Prompts, queue: &Queue) -> Self {
        let levels = &*LEVELS;
        let curve = &chart.curve;
        let spread = Spread::new(at);
        let Queue { ceiling, closed, everybody } = queue;
        let wait = SeatWait::new(at, &spread, ceiling, &curve.workload).unless(*closed);
        let found = Latencies::new(curve, at, prompts, &spread, &wait, *everybody);
        let ends = |value: Lanes| Lanes::select(wait.endless, Lanes::splat(f64::NAN), value);
        let ttft = found.ttft();
        let ttft_p99 = ttft.quantile(&levels.p99);
        let means = [at.ttft.value, at.cycle.value, at.kv.value, at.tpot.value];
        let some = Lanes::ZERO.less(at.decoding.value);
        Self {
            decoding: at.decoding.value,
            running: at.running.value,
            left: at.left,
            seat_wait: ends(wait.mean() + *everybody),
            ttft: ends(found.ttft_mean()),
            ttft_p50: ends(ttft.quantile(&levels.p50)),
            ttft_p90: ends(ttft.quantile(&levels.p90)),
            ttft_p99: ends(ttft_p99),
            tpot: at.tpot.value,
            tpot_token: at.cycle.value / curve.workload.decode_tokens,
            itl_p99: found.itl(&levels.p99),
            e2e: ends(at.e2e.value + wait.mean() + *everybody),
            e2e_p99: ends(found.e2e(&levels.p99)),
            kv: at.kv.value,
            cycle: at.cycle.value,
            links: found.links(ttft_p99),
            sound: means.iter().fold(some, |sound, &mean| sound.and(finite(mean))),
        }
    }
}
