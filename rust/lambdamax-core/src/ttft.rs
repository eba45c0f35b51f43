//! Prefill work and the gated queue: TTFT of a request that has a seat (docs/model.md sections 3 and 6).

use crate::attention::Prompt;
use crate::real::{Dual, LaneMask, Lanes, Real};
use crate::step::StepCosts;

type D = Dual<Lanes>;

/// The GEMMs of eight replicas.
pub struct Steps<'a> {
    /// Their coefficients.
    pub costs: &'a StepCosts<Lanes>,
    /// Whether some of them have experts.
    pub routed: bool,
    /// A prompt's share of an iteration that all that come while another runs ride on, 1/(1 + m).
    pub apart: D,
}

impl Steps<'_> {
    /// GEMM times of steps of `tokens` each, of which `rows` need logits [s].
    #[inline(always)]
    fn gemms<const N: usize>(&self, tokens: [D; N], rows: [D; N]) -> [D; N] {
        self.costs.gemms(D::constant, self.routed, tokens, rows)
    }

    /// Iterations that a prompt pays for: f of those it fills, and its share a of one that it does not, f + a²/(a + f).
    #[inline(always)]
    fn iterations(&self, cut: &Cut) -> D {
        cut.filled + self.apart * self.apart / (self.apart + cut.filled)
    }
}

/// Sums over the prompt law of what prefill adds at one B.
#[derive(Clone, Copy, Debug)]
pub struct PrefillWork {
    /// E[s], seconds added to iterations by one prompt.
    pub mean: D,
    /// E[s²].
    pub square: D,
    /// E[k], chunks of a prompt.
    pub chunks: Lanes,
    /// E[h], h = KV tokens that a prefilling request holds.
    pub held: Lanes,
    /// E[k·h].
    pub held_chunks: Lanes,
    /// E[s·h].
    pub held_work: D,
}

/// GEMM times of the decode steps at one B, found beside the first prompt's.
#[derive(Clone, Copy, Debug)]
pub struct DecodeGemms {
    /// Of B decodes [s].
    pub step: D,
    /// Of the decodes that a request sees, itself among them [s].
    pub own_step: D,
}

impl PrefillWork {
    /// Adds up the prompt law where `decoding` sequences decode and a request sees `seen`.
    #[inline(always)]
    pub fn new(steps: &Steps, nodes: &[Prompt], longest: Lanes, room: D, decoding: D, seen: D) -> (Self, DecodeGemms) {
        let first = Cut::new(&nodes[0], room);
        let [step, own_step, with_first] =
            steps.gemms([decoding, seen, decoding + first.last], [decoding, seen, decoding]);
        let mut chunking = Chunking { steps, decoding, decode_gemms: step, full_chunk: D::constant(Lanes::splat(0.0)) };
        if Lanes::any(room.value.less(longest)) {
            let [full] = steps.gemms([decoding + room], [decoding]);
            chunking.full_chunk = full - step;
        }
        let mut work = Self::NONE;
        work.add(&nodes[0], first.chunks, chunking.added(&nodes[0], &first, with_first));
        let (triples, rest) = nodes[1..].as_chunks::<3>();
        for triple in triples {
            work.add_cut(&chunking, triple, room);
        }
        for node in rest {
            work.add_cut(&chunking, &[*node], room);
        }
        (work, DecodeGemms { step, own_step })
    }

    const NONE: Self = Self {
        mean: D { value: Lanes::ZERO, slope: Lanes::ZERO },
        square: D { value: Lanes::ZERO, slope: Lanes::ZERO },
        chunks: Lanes::ZERO,
        held: Lanes::ZERO,
        held_chunks: Lanes::ZERO,
        held_work: D { value: Lanes::ZERO, slope: Lanes::ZERO },
    };

    /// Adds some prompts, their GEMMs side by side.
    #[inline(always)]
    fn add_cut<const N: usize>(&mut self, chunking: &Chunking, nodes: &[Prompt; N], room: D) {
        let mut cuts = [Cut::new(&nodes[0], room); N];
        let mut tokens = [chunking.decoding; N];
        for i in 0..N {
            cuts[i] = Cut::new(&nodes[i], room);
            tokens[i] = chunking.decoding + cuts[i].last;
        }
        let gemms = chunking.steps.gemms(tokens, [chunking.decoding; N]);
        for i in 0..N {
            self.add(&nodes[i], cuts[i].chunks, chunking.added(&nodes[i], &cuts[i], gemms[i]));
        }
    }

    #[inline(always)]
    fn add(&mut self, node: &Prompt, chunks: Lanes, added: D) {
        let held = node.held;
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

/// How one prompt is cut: chunks of at most what the decodes leave of the budget.
#[derive(Clone, Copy)]
struct Cut {
    /// k.
    chunks: Lanes,
    /// Tokens of the last chunk.
    last: D,
    /// Budgets that it fills, u/C.
    filled: D,
}

impl Cut {
    #[inline(always)]
    fn new(node: &Prompt, room: D) -> Self {
        let chunks = whole_chunks(node.uncached, room.value);
        let last = D::constant(node.uncached) - room.scale(chunks - Lanes::splat(1.0));
        Self { chunks, last, filled: D::constant(node.uncached) / room }
    }
}

/// What the chunks of one B have in common.
struct Chunking<'a> {
    steps: &'a Steps<'a>,
    decoding: D,
    decode_gemms: D,
    /// GEMM time that a full chunk adds to the step it rides on; zero where no prompt has one.
    full_chunk: D,
}

impl Chunking<'_> {
    /// s(u, B), given the GEMM time of the step that carries the last chunk.
    #[inline(always)]
    fn added(&self, node: &Prompt, cut: &Cut, with_last: D) -> D {
        let full = self.full_chunk.scale(cut.chunks - Lanes::splat(1.0));
        let overhead = self.steps.iterations(cut).scale(self.steps.costs.prefill_overhead);
        full.offset(node.added) + (with_last - self.decode_gemms) + overhead
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
    /// `step` is T(B, 0), `left` is 1 − ρ, `others` the share of the population that an arrival meets.
    #[inline(always)]
    pub fn new(decoding: D, rate: D, step: D, left: D, work: &PrefillWork, host: &HostLanes, others: Lanes) -> Self {
        let one = D::splat(1.0);
        let share = one - left;
        let iteration = step / left;
        let seen = iteration + (rate * work.square).scale(others) / (left * (one + share));
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
        let busy = one - (-running.scale(others)).exp();
        let wait = busy * (seen.scale(Lanes::splat(0.5)) + iteration.scale(host.async_scheduling));
        Self {
            prefilling,
            running,
            prefilling_kv: rate * held_time,
            ttft: hold(wait + residence + D::constant(host.latency)),
        }
    }
}
