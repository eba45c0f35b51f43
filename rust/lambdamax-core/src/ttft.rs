//! Prefill work and the gated queue: TTFT of a request that has a seat (docs/model.md sections 3 and 6).

use crate::real::{Dual, LaneMask, Lanes, Real};
use crate::replica::BLOCK_TOKENS;
use crate::step::StepCosts;
use crate::workload::{PromptNode, Workload};

type D = Dual<Lanes>;

/// Sums over the prompt law of what prefill adds at one B.
#[derive(Clone, Copy, Debug)]
pub struct PrefillWork {
    /// E[s], seconds added to iterations by one prompt.
    pub mean: D,
    /// E[s²].
    pub square: D,
    /// E[k], chunks of a prompt.
    pub chunks: Lanes,
    /// E[h], h = KV tokens that a prefilling request holds, half a block included.
    pub held: Lanes,
    /// E[k·h].
    pub held_chunks: Lanes,
    /// E[s·h].
    pub held_work: D,
}

impl PrefillWork {
    /// Adds up the prompt law where `decoding` sequences decode, whose GEMMs alone take `decode_gemms`.
    #[inline(always)]
    pub fn new(costs: &StepCosts<Lanes>, workload: &Workload, budget: Lanes, decoding: D, decode_gemms: D) -> Self {
        let zero = Lanes::splat(0.0);
        let mut work = Self {
            mean: D::constant(zero),
            square: D::constant(zero),
            chunks: zero,
            held: zero,
            held_chunks: zero,
            held_work: D::constant(zero),
        };
        let room = D::constant(budget) - taken(decoding);
        let chunk = Chunking { costs, decoding, decode_gemms, room };
        for node in workload.nodes() {
            let (chunks, added) = chunk.prompt(node);
            work.add(node, chunks, added);
        }
        work
    }

    #[inline(always)]
    fn add(&mut self, node: &PromptNode, chunks: Lanes, added: D) {
        let held = node.held + Lanes::splat(0.5 * BLOCK_TOKENS);
        let weighted = added.scale(node.weight);
        self.mean = self.mean + weighted;
        self.square = self.square + weighted * added;
        self.chunks = self.chunks + node.weight * chunks;
        self.held = self.held + node.weight * held;
        self.held_chunks = self.held_chunks + node.weight * chunks * held;
        self.held_work = self.held_work + weighted.scale(held);
    }
}

/// Tokens of the budget that `decoding` sequences take from a prompt: with fewer than one in the mean, a prompt finds none.
#[inline(always)]
pub fn taken<R: Real>(decoding: R) -> R {
    (decoding - R::splat(1.0)).max(R::splat(0.0))
}

/// How prompts are cut at one B: chunks of at most what the decodes leave of the budget.
struct Chunking<'a> {
    costs: &'a StepCosts<Lanes>,
    decoding: D,
    decode_gemms: D,
    room: D,
}

impl Chunking<'_> {
    /// Chunks of a prompt, and s(u, B).
    #[inline(always)]
    fn prompt(&self, node: &PromptNode) -> (Lanes, D) {
        let one = Lanes::splat(1.0);
        let chunks = whole_chunks(node.uncached, self.room.value);
        let full_chunks = chunks - one;
        let several = Lanes::any(Lanes::splat(0.0).less(full_chunks));
        let constant = self.costs.head_row + self.costs.per_token * node.uncached + self.attention(node);
        let mut last = D::constant(node.uncached);
        let mut added = D::constant(constant);
        if several {
            last = last - self.room.scale(full_chunks);
            added = added + self.added_gemms(self.room).scale(full_chunks);
        }
        (chunks, added + self.added_gemms(last))
    }

    /// GEMM time that a chunk adds to the decode step it rides on.
    #[inline(always)]
    fn added_gemms(&self, chunk: D) -> D {
        self.costs.gemms(D::constant, self.decoding + chunk, self.decoding) - self.decode_gemms
    }

    /// Prefill attention over all chunks: Σ c·(start + c/2) = x·u + u²/2, slower for short prompts.
    #[inline(always)]
    fn attention(&self, node: &PromptNode) -> Lanes {
        let pairs = node.cached * node.uncached + Lanes::splat(0.5) * node.uncached * node.uncached;
        let shortness = Lanes::splat(1.0) + self.costs.prefill_half_tokens / (node.cached + node.uncached);
        self.costs.prefill_attention * pairs * shortness
    }
}

/// Chunks of a prompt of `uncached` tokens where `room` tokens fit beside the decodes.
#[inline(always)]
pub fn whole_chunks(uncached: Lanes, room: Lanes) -> Lanes {
    (uncached / room).ceil().max(Lanes::splat(1.0))
}

/// TTFT constants of eight replicas.
#[derive(Clone, Copy, Debug)]
pub struct HostLanes {
    /// Host and network, the prompt's share included [s].
    pub latency: Lanes,
    /// 1 where the engine schedules one step ahead.
    pub async_scheduling: Lanes,
    /// Lanes whose profile models prefill.
    pub full: LaneMask,
    /// TTFT held constant in the other lanes [s].
    pub held_ttft: Lanes,
}

/// What the gated queue says at one operating point.
#[derive(Clone, Copy, Debug)]
pub struct Gate {
    /// Requests being prefilled.
    pub prefilling: D,
    /// Prefilling and decoding.
    pub running: D,
    /// KV tokens of the prefilling.
    pub prefilling_kv: D,
    /// Mean TTFT [s].
    pub ttft: D,
}

impl Gate {
    /// `step` is T(B, 0), `left` is 1 − ρ.
    #[inline(always)]
    pub fn new(decoding: D, rate: D, step: D, left: D, work: &PrefillWork, host: &HostLanes) -> Self {
        let one = D::splat(1.0);
        let share = one - left;
        let iteration = step / left;
        let seen = iteration + rate * work.square / (left * (one + share));
        let riders = share * seen;
        let hold = |value: D| D::select(host.full, value, D::constant(host.held_ttft));
        let residence = hold(step.scale(work.chunks) + work.mean + riders);
        let held_time = D::select(
            host.full,
            step.scale(work.held_chunks) + work.held_work + riders.scale(work.held),
            D::constant(host.held_ttft * work.held),
        );
        let prefilling = rate * residence;
        let running = decoding + prefilling;
        let busy = one - (-running).exp();
        let wait = busy * (seen.scale(Lanes::splat(0.5)) + iteration.scale(host.async_scheduling));
        Self {
            prefilling,
            running,
            prefilling_kv: rate * held_time,
            ttft: hold(wait + residence + D::constant(host.latency)),
        }
    }
}
