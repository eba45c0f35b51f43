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

    /// GEMM time of a step of `decodes` alone [s].
    #[inline(always)]
    pub fn decode_gemms(&self, decodes: D) -> D {
        let [step] = self.gemms([decodes], [decodes]);
        step
    }
}

/// What looks at each class of prompts as it is added up.
pub trait Watch {
    /// Its weight, its chunks, and the seconds it adds to the iterations it rides on.
    #[inline(always)]
    fn prompt(&mut self, _weight: Lanes, _chunks: Lanes, _added: Lanes) {}
}

/// A class of prompts at an operating point.
#[derive(Clone, Copy, Debug)]
pub struct PromptSeen {
    /// Share of requests.
    pub weight: Lanes,
    /// k.
    pub chunks: Lanes,
    /// s [s].
    pub added: Lanes,
}

/// Every class of prompts.
#[derive(Clone, Debug, Default)]
pub struct Prompts(pub Vec<PromptSeen>);

impl Prompts {
    /// Mean over requests.
    #[inline(always)]
    pub fn mean(&self, of: impl Fn(&PromptSeen) -> Lanes) -> Lanes {
        self.0.iter().fold(Lanes::ZERO, |sum, one| sum + one.weight * of(one))
    }
}

/// The sequences that a prompt meets, and the room they leave it.
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    /// B.
    pub decoding: D,
    /// Decodes in the step that a request sees, itself among them.
    pub seen: D,
    /// Prompt tokens of others in the step that a chunk joins, h.
    pub company: D,
    /// Longest chunk, C.
    pub room: D,
    /// Longest prompt to prefill [tokens].
    pub longest: Lanes,
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
    /// Adds up the prompt law, and shows each class to `watch`.
    #[inline(always)]
    pub fn new(steps: &Steps, nodes: &[Prompt], batch: &Batch, watch: &mut impl Watch) -> (Self, DecodeGemms) {
        let Batch { decoding, seen, company, room, longest } = *batch;
        let first = Cut::new(&nodes[0], room);
        let base = decoding + company;
        let [step, own_step, without, with_first] =
            steps.gemms([decoding, seen, base, base + first.last], [decoding, seen, decoding, decoding]);
        let mut chunking = Chunking { steps, decoding, base, without, full_chunk: D::constant(Lanes::splat(0.0)) };
        if Lanes::any(room.value.less(longest)) {
            let [full] = steps.gemms([base + room], [decoding]);
            chunking.full_chunk = full - without;
        }
        let mut work = Self::NONE;
        work.add(&nodes[0], first.chunks, chunking.added(&nodes[0], &first, with_first), watch);
        let (triples, rest) = nodes[1..].as_chunks::<3>();
        for triple in triples {
            work.add_cut(&chunking, triple, room, watch);
        }
        for node in rest {
            work.add_cut(&chunking, &[*node], room, watch);
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
    fn add_cut<const N: usize>(&mut self, chunking: &Chunking, nodes: &[Prompt; N], room: D, watch: &mut impl Watch) {
        let mut cuts = [Cut::new(&nodes[0], room); N];
        let mut tokens = [chunking.base; N];
        for i in 0..N {
            cuts[i] = Cut::new(&nodes[i], room);
            tokens[i] = chunking.base + cuts[i].last;
        }
        let gemms = chunking.steps.gemms(tokens, [chunking.decoding; N]);
        for i in 0..N {
            self.add(&nodes[i], cuts[i].chunks, chunking.added(&nodes[i], &cuts[i], gemms[i]), watch);
        }
    }

    #[inline(always)]
    fn add(&mut self, node: &Prompt, chunks: Lanes, added: D, watch: &mut impl Watch) {
        watch.prompt(node.weight, chunks, added.value);
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
    /// Tokens of a step before the prompt joins it.
    base: D,
    /// GEMM time of that step.
    without: D,
    /// GEMM time that a full chunk adds to the step it rides on; zero where no prompt has one.
    full_chunk: D,
}

impl Chunking<'_> {
    /// s(u, B), given the GEMM time of the step that carries the last chunk.
    #[inline(always)]
    fn added(&self, node: &Prompt, cut: &Cut, with_last: D) -> D {
        let full = self.full_chunk.scale(cut.chunks - Lanes::splat(1.0));
        let overhead = self.steps.iterations(cut).scale(self.steps.costs.prefill_overhead);
        full.offset(node.added) + (with_last - self.without) + overhead
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
    /// Mean TTFT of a request that has a seat [s].
    pub ttft: D,
    /// E[T], mean iteration [s].
    pub iteration: D,
    /// E[X], mean iteration that an arrival falls in [s].
    pub seen: D,
    /// Mean prefill of others in the iterations that a prompt rides on [s].
    pub riders: D,
    /// Whether an arrival finds an iteration running, as a probability.
    pub busy: D,
}

/// Flow through the gate.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    /// B.
    pub decoding: D,
    /// λ.
    pub rate: D,
    /// T(B, 0).
    pub step: D,
    /// 1 − ρ.
    pub left: D,
    /// Prefill of the peers that bursty arrivals bring along [s]; negative where arrivals are more even than Poisson's.
    pub peers: D,
    /// Share of the population that an arrival meets.
    pub others: Lanes,
}

impl Gate {
    /// The gated queue's means.
    #[inline(always)]
    pub fn new(flow: &Flow, work: &PrefillWork, host: &HostLanes) -> Self {
        let Flow { decoding, rate, step, left, peers, others } = *flow;
        let one = D::splat(1.0);
        let share = one - left;
        let iteration = step / left;
        let seen = iteration + (rate * work.square).scale(others) / (left * (one + share));
        let riders = (share * seen + peers).max(D::splat(0.0));
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
            iteration,
            seen,
            riders,
            busy,
        }
    }
}
