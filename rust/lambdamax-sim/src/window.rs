//! What is added up over one batch of requests.

use crate::histogram::Histogram;
use crate::stretch::Stretch;

/// Sums over a stretch of time in which a given number of requests finish.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct Window {
    /// Length [s].
    pub seconds: f64,
    /// Time in which the replica computes [s].
    pub busy_s: f64,
    /// ∫ requests in flight dt; and of those running, decoding; and blocks held.
    pub in_flight_s: f64,
    pub running_s: f64,
    pub decoding_s: f64,
    pub block_s: f64,
    pub arrivals: u64,
    pub completed: u64,
    pub steps: u64,
    /// Steps in which the head of the queue waited for a seat or for blocks.
    pub blocked_steps: u64,
    pub preemptions: u64,
    pub tokens_out: u64,
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    /// Sums over finished requests: TTFT, E2E, TPOT, decode time [s], decode tokens, and requests that decode at all.
    pub ttft_s: f64,
    pub e2e_s: f64,
    pub tpot_s: f64,
    pub decode_s: f64,
    pub decode_tokens: u64,
    pub with_decode: u64,
    /// Gaps between tokens, and their sum [s].
    pub gaps: Histogram,
    pub gap_s: f64,
    /// Requests in flight when it ends.
    pub in_flight_at_end: u64,
    /// Finished requests of the whole run when it ends.
    pub finished_at_end: usize,
}

impl Window {
    /// Time passes with so many running and decoding; `computing` tells a step from idling.
    pub fn pass(&mut self, seconds: f64, in_flight: u64, running: usize, decoding: u32, computing: bool) {
        self.seconds += seconds;
        self.in_flight_s += seconds * in_flight as f64;
        self.running_s += seconds * running as f64;
        self.decoding_s += seconds * f64::from(decoding);
        if computing {
            self.busy_s += seconds;
        }
    }

    /// Decode steps of a stretch have been taken.
    pub fn decode(&mut self, stretch: &Stretch, in_flight: u64) {
        let seconds = stretch.end_of(stretch.steps) - stretch.start;
        let each = u64::from(stretch.decodes);
        self.pass(seconds, in_flight, stretch.running, stretch.decodes, true);
        self.block_s += stretch.block_seconds();
        self.steps += stretch.steps;
        self.tokens_out += each * stretch.steps;
        self.gaps.add_series(stretch.first, stretch.growth, stretch.steps, each);
        self.gap_s += seconds * each as f64;
    }

    /// `count` gaps between tokens of one length.
    pub fn gap(&mut self, seconds: f64, count: u64) {
        if count > 0 {
            self.gaps.add(seconds, count);
            self.gap_s += seconds * count as f64;
        }
    }

    /// Adds what a later window holds.
    pub fn merge(&mut self, later: &Self) {
        let floats: [fn(&mut Self) -> &mut f64; 11] = [
            |w| &mut w.seconds,
            |w| &mut w.busy_s,
            |w| &mut w.in_flight_s,
            |w| &mut w.running_s,
            |w| &mut w.decoding_s,
            |w| &mut w.block_s,
            |w| &mut w.ttft_s,
            |w| &mut w.e2e_s,
            |w| &mut w.tpot_s,
            |w| &mut w.decode_s,
            |w| &mut w.gap_s,
        ];
        let counts: [fn(&mut Self) -> &mut u64; 10] = [
            |w| &mut w.arrivals,
            |w| &mut w.completed,
            |w| &mut w.steps,
            |w| &mut w.blocked_steps,
            |w| &mut w.preemptions,
            |w| &mut w.tokens_out,
            |w| &mut w.prompt_tokens,
            |w| &mut w.cached_tokens,
            |w| &mut w.decode_tokens,
            |w| &mut w.with_decode,
        ];
        let mut later = later.clone();
        floats.iter().for_each(|field| *field(self) += *field(&mut later));
        counts.iter().for_each(|field| *field(self) += *field(&mut later));
        self.gaps.merge(&later.gaps);
        (self.in_flight_at_end, self.finished_at_end) = (later.in_flight_at_end, later.finished_at_end);
    }
}
