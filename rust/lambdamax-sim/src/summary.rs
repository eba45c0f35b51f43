//! What a run comes to: means, percentiles, populations, and how sure they are.

use crate::arrivals::Pattern;
use crate::blocks::BLOCK;
use crate::confidence::{half_width, quantile, warm_up};
use crate::engine::Engine;
use crate::point::Point;
use crate::recorder::Finished;
use crate::verdict::{Evidence, Verdict};
use crate::window::Window;

macro_rules! fields {
    ($($(#[$doc:meta])* $name:ident,)+) => {
        /// Numbers of a run in SI units; NaN where there is none.
        #[derive(Clone, Copy, Debug)]
        #[allow(missing_docs)]
        pub struct Numbers {
            $($(#[$doc])* pub $name: f64,)+
        }
        /// Their names, in order.
        pub const SIM_FIELDS: &[&str] = &[$(stringify!($name),)+];
        impl Numbers {
    /// From the mean rank to the replica.
    fn scale_to(&mut self, ranks: f64) {
        let of_a_rank = [
            &mut self.rate_rps,
            &mut self.offered_rps,
            &mut self.in_flight,
            &mut self.running,
            &mut self.decoding,
            &mut self.waiting,
            &mut self.kv_in_flight_tokens,
            &mut self.kv_pool_tokens,
            &mut self.output_tok_s,
            &mut self.in_flight_half_width,
        ];
        of_a_rank.into_iter().for_each(|number| *number *= ranks);
    }

            /// No number at all.
            pub const NONE: Self = Self { $($name: f64::NAN,)+ };
            /// All, in order.
            pub fn values(&self) -> Vec<f64> {
                vec![$(self.$name,)+]
            }
        }
    };
}

fields! {
    /// Requests served per second.
    rate_rps,
    /// Requests that arrive per second.
    offered_rps,
    /// Time averages: in flight, holding a seat, decoding, and in flight without a seat.
    in_flight,
    running,
    decoding,
    waiting,
    /// KV tokens of the blocks held, time average; those of the pool; their ratio.
    kv_in_flight_tokens,
    kv_pool_tokens,
    kv_use,
    /// From arrival to the first token.
    ttft_mean_s,
    ttft_p50_s,
    ttft_p90_s,
    ttft_p99_s,
    /// Time per output token after the first, over requests.
    tpot_mean_s,
    tpot_p50_s,
    tpot_p90_s,
    tpot_p99_s,
    /// The same over tokens.
    tpot_token_mean_s,
    /// Gaps between neighbouring tokens.
    itl_mean_s,
    itl_p50_s,
    itl_p90_s,
    itl_p99_s,
    /// From arrival to the last token.
    e2e_mean_s,
    e2e_p50_s,
    e2e_p90_s,
    e2e_p99_s,
    /// Output tokens per second.
    output_tok_s,
    /// Share of the time in which the replica computes.
    busy_share,
    /// Share of the steps in which the head of the queue waits for a seat or for blocks.
    blocked_share,
    /// Preemptions per finished request.
    preemptions_per_request,
    /// Prompt tokens found in the cache, recomputed ones among them, over those that arrived.
    cached_share,
    /// Half of the 95 % confidence interval.
    ttft_half_width_s,
    tpot_half_width_s,
    e2e_half_width_s,
    in_flight_half_width,
    /// Requests measured, those left out as warm-up, and those cut to what the pool holds.
    requests,
    warm_up_requests,
    clipped_requests,
    /// Steps measured, and the time that they and idling took, over all replications.
    iterations,
    simulated_s,
}

/// A run's numbers and what to think of them.
#[derive(Clone, Copy, Debug)]
pub struct Summary {
    /// The numbers.
    pub numbers: Numbers,
    /// What they mean.
    pub verdict: Verdict,
    /// Whether they are as sure as was asked for.
    pub precise: bool,
}

/// The windows that count, of every replication.
struct Measured<'a> {
    engines: &'a [&'a Engine],
    /// Windows left out of each replication.
    skipped: usize,
}

impl Summary {
    /// Adds replications and their ranks up; `precision` is the relative half-width asked for, 0 for whatever comes.
    pub fn of(point: &Point, engines: &[&Engine], precision: f64) -> Self {
        let measured = Measured { engines, skipped: skipped(point, engines) };
        let total = measured.total();
        let mut numbers = Numbers::NONE;
        measured.populations(&total, point, &mut numbers);
        measured.latencies(&total, &mut numbers);
        measured.half_widths(&mut numbers);
        numbers.scale_to(f64::from(point.ranks));
        let precise = precision == 0.0 || numbers.within(precision);
        let verdict = Verdict::of(&point.arrivals, &measured.evidence(&numbers, &total, precise));
        Self { numbers, verdict, precise }
    }
}

impl Numbers {
    /// Whether every half-width is within a share of its mean; a NaN has nothing to be unsure of.
    fn within(&self, share: f64) -> bool {
        let pairs = [
            (self.ttft_half_width_s, self.ttft_mean_s),
            (self.tpot_half_width_s, self.tpot_mean_s),
            (self.e2e_half_width_s, self.e2e_mean_s),
        ];
        pairs.iter().all(|(width, mean)| mean.is_nan() || *width <= share * mean)
    }
}

/// A trace is measured whole. Else the warm-up rule sees each batch's mean E2E, over replications.
fn skipped(point: &Point, engines: &[&Engine]) -> usize {
    if matches!(point.arrivals, Pattern::Trace(_)) {
        return 0;
    }
    let windows = engines.iter().map(|engine| engine.record.windows.len()).min().unwrap_or(0);
    let mean = |i: usize| engines.iter().map(|engine| mean_e2e(&engine.record.windows[i])).sum::<f64>();
    warm_up(&(0..windows).map(mean).collect::<Vec<f64>>())
}

fn mean_e2e(window: &Window) -> f64 {
    window.e2e_s / window.completed as f64
}

impl Measured<'_> {
    fn windows(&self) -> impl Iterator<Item = &Window> {
        self.engines.iter().flat_map(|engine| &engine.record.windows[self.skipped..])
    }

    fn finished(&self) -> impl Iterator<Item = &Finished> {
        self.engines.iter().flat_map(|engine| {
            let end = engine.record.windows.last().map_or(0, |window| window.finished_at_end);
            &engine.record.finished[self.finished_before(engine)..end]
        })
    }

    fn finished_before(&self, engine: &Engine) -> usize {
        self.skipped.checked_sub(1).map_or(0, |last| engine.record.windows[last].finished_at_end)
    }

    fn total(&self) -> Window {
        let mut total = Window::default();
        self.windows().for_each(|window| total.merge(window));
        total
    }

    fn populations(&self, total: &Window, point: &Point, numbers: &mut Numbers) {
        let per_second = |sum: f64| sum / total.seconds;
        let pool = f64::from(point.settings.num_gpu_blocks);
        numbers.rate_rps = per_second(total.completed as f64);
        numbers.offered_rps = per_second(total.arrivals as f64);
        numbers.in_flight = per_second(total.in_flight_s);
        numbers.running = per_second(total.running_s);
        numbers.decoding = per_second(total.decoding_s);
        numbers.waiting = numbers.in_flight - numbers.running;
        numbers.kv_in_flight_tokens = f64::from(BLOCK) * per_second(total.block_s);
        numbers.kv_pool_tokens = f64::from(BLOCK) * pool;
        numbers.kv_use = per_second(total.block_s) / pool;
        numbers.output_tok_s = per_second(total.tokens_out as f64);
        numbers.busy_share = per_second(total.busy_s);
        numbers.blocked_share = total.blocked_steps as f64 / total.steps as f64;
        numbers.preemptions_per_request = total.preemptions as f64 / total.completed as f64;
        numbers.cached_share = total.cached_tokens as f64 / total.prompt_tokens as f64;
        numbers.requests = total.completed as f64;
        numbers.warm_up_requests = self.engines.iter().map(|engine| self.finished_before(engine) as f64).sum();
        numbers.clipped_requests = self.engines.iter().map(|engine| engine.clipped as f64).sum();
        numbers.iterations = total.steps as f64;
        numbers.simulated_s = total.seconds;
    }

    fn latencies(&self, total: &Window, numbers: &mut Numbers) {
        let mut ttft: Vec<f64> = self.finished().map(|request| request.ttft_s).collect();
        let mut e2e: Vec<f64> = self.finished().map(|request| request.e2e_s).collect();
        let mut tpot: Vec<f64> = self.finished().map(Finished::tpot_s).filter(|tpot| !tpot.is_nan()).collect();
        let of = |values: &mut [f64]| [0.5, 0.9, 0.99].map(|share| quantile(values, share));
        [numbers.ttft_p50_s, numbers.ttft_p90_s, numbers.ttft_p99_s] = of(&mut ttft);
        [numbers.e2e_p50_s, numbers.e2e_p90_s, numbers.e2e_p99_s] = of(&mut e2e);
        [numbers.tpot_p50_s, numbers.tpot_p90_s, numbers.tpot_p99_s] = of(&mut tpot);
        [numbers.itl_p50_s, numbers.itl_p90_s, numbers.itl_p99_s] =
            [0.5, 0.9, 0.99].map(|share| total.gaps.quantile(share));
        numbers.ttft_mean_s = total.ttft_s / total.completed as f64;
        numbers.e2e_mean_s = mean_e2e(total);
        numbers.tpot_mean_s = total.tpot_s / total.with_decode as f64;
        numbers.tpot_token_mean_s = total.decode_s / total.decode_tokens as f64;
        numbers.itl_mean_s = total.gap_s / total.gaps.count() as f64;
    }

    fn half_widths(&self, numbers: &mut Numbers) {
        let of = |mean: fn(&Window) -> f64| {
            let means: Vec<f64> = self.windows().map(mean).filter(|mean| !mean.is_nan()).collect();
            half_width(&means)
        };
        numbers.ttft_half_width_s = of(|w| w.ttft_s / w.completed as f64);
        numbers.tpot_half_width_s = of(|w| w.tpot_s / w.with_decode as f64);
        numbers.e2e_half_width_s = of(mean_e2e);
        numbers.in_flight_half_width = of(|w| w.in_flight_s / w.seconds);
    }

    fn evidence(&self, numbers: &Numbers, total: &Window, precise: bool) -> Evidence {
        let replications = self.engines.len() as f64;
        let grown = |engine: &&Engine| {
            let windows = &engine.record.windows;
            let before = self.skipped.checked_sub(1).map_or(0, |last| windows[last].in_flight_at_end);
            windows.last().map_or(0.0, |last| last.in_flight_at_end as f64) - before as f64
        };
        let batches = |engine: &&Engine| {
            let kept = &engine.record.windows[self.skipped..];
            kept.iter().map(|window| window.in_flight_s / window.seconds).collect()
        };
        Evidence {
            replications,
            seconds: total.seconds / replications,
            arrivals: total.arrivals as f64 / replications,
            growth: self.engines.iter().map(grown).sum::<f64>() / replications,
            running: numbers.running,
            rate: numbers.rate_rps,
            blocked_share: numbers.blocked_share,
            in_flight: self.engines.iter().map(batches).collect(),
            precise,
        }
    }
}
