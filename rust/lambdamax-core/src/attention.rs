//! Where lengths meet spans: what attention costs and what KV a request keeps on a replica (docs/model.md sections 3 and 4).

use crate::lengths::{EmpiricalLengths, LifeMeans};
use crate::real::{LANES, Lanes, Real};
use crate::replica::{BLOCK_TOKENS, Replica};
use crate::step::SpanCosts;
use crate::workload::{PromptNode, Workload};

/// One class of prompts on eight replicas.
#[derive(Clone, Copy, Debug)]
pub struct Prompt {
    /// Share of requests.
    pub weight: Lanes,
    /// Tokens to prefill, u.
    pub uncached: Lanes,
    /// What it adds to the iterations it rides on beside GEMMs: its row of logits, communication, prefill attention [s].
    pub added: Lanes,
    /// KV tokens that it keeps while being prefilled, H_i.
    pub held: Lanes,
}

/// A workload's attention on eight replicas.
#[derive(Clone, Debug)]
pub struct Attention {
    /// Prompt classes.
    pub prompts: Vec<Prompt>,
    /// Attention of one decoding sequence in a step, Σ κ_j·c̄_j [s].
    pub decode: Lanes,
    /// How much more the mean over requests is, Σ κ_j·(c_rj − c̄_j) [s].
    pub own_extra: Lanes,
    /// KV tokens that a decoding sequence keeps, H.
    pub held: Lanes,
    /// Shared prefix blocks of a slot, counted once, P_s [tokens].
    pub shared_prefix: Lanes,
}

impl Attention {
    /// Joins eight replicas with a workload under the token budgets.
    pub fn new(replicas: &[&Replica; LANES], workload: &Workload, budget: Lanes) -> Self {
        let simple = replicas.iter().all(|replica| replica.spans.is_one_full());
        let seen = if simple { Seen::full(replicas, workload) } else { Seen::by_lane(replicas, workload, budget) };
        let lanes = |fact: fn(&Replica) -> f64| Lanes::from_fn(|lane| fact(replicas[lane]));
        let always = lanes(|r| r.state_tokens) + Lanes::splat(0.5 * BLOCK_TOKENS);
        let head_row = lanes(|r| r.costs.head_row);
        let (per_token, half) = (lanes(|r| r.costs.per_token), lanes(|r| r.costs.prefill_half_tokens));
        let join = |(node, seen): (&PromptNode, &SeenPrompt)| Prompt {
            weight: node.weight,
            uncached: node.uncached,
            added: head_row + per_token * node.uncached + seen.pairs_s * (Lanes::splat(1.0) + half / node.prompt),
            held: seen.held + always,
        };
        Self {
            prompts: workload.nodes().iter().zip(&seen.prompts).map(join).collect(),
            decode: seen.decode,
            own_extra: seen.request - seen.decode,
            held: seen.held + always,
            shared_prefix: seen.shared_prefix / lanes(|r| r.stages),
        }
    }
}

/// A prompt class through all spans.
struct SeenPrompt {
    /// Σ a_j·(Q_j(i) − Q_j(x)) [s].
    pairs_s: Lanes,
    /// Σ h_j·kept tokens.
    held: Lanes,
}

/// Sums over spans.
struct Seen {
    prompts: Vec<SeenPrompt>,
    /// Σ κ_j·c̄_j.
    decode: Lanes,
    /// Σ κ_j·c_rj.
    request: Lanes,
    held: Lanes,
    shared_prefix: Lanes,
}

impl Seen {
    /// One span of kind full in every lane: closed forms, side by side.
    fn full(replicas: &[&Replica; LANES], workload: &Workload) -> Self {
        let cost = |fact: fn(&SpanCosts) -> f64| Lanes::from_fn(|lane| fact(&replicas[lane].spans.as_slice()[0]));
        let (decode_s, prefill_s) = (cost(|span| span.decode_s), cost(|span| span.prefill_s));
        let see = |node: &PromptNode| SeenPrompt {
            pairs_s: prefill_s * (node.cached + Lanes::splat(0.5) * node.uncached) * node.uncached,
            held: node.prompt - node.shared,
        };
        Self {
            prompts: workload.nodes().iter().map(see).collect(),
            decode: decode_s * workload.mean_context,
            request: decode_s * workload.request_context,
            held: workload.mean_context - workload.mean_shared,
            shared_prefix: workload.shared_prefix,
        }
    }

    /// Any spans, lane by lane.
    fn by_lane(replicas: &[&Replica; LANES], workload: &Workload, budget: Lanes) -> Self {
        let zero = Lanes::splat(0.0);
        let none = |_: &PromptNode| SeenPrompt { pairs_s: zero, held: zero };
        let mut seen = Self {
            prompts: workload.nodes().iter().map(none).collect(),
            decode: zero,
            request: zero,
            held: zero,
            shared_prefix: zero,
        };
        for (lane, replica) in replicas.iter().enumerate() {
            let lives = Lives::of(workload, lane);
            let token_bytes = replica.spans.token_bytes();
            for costs in replica.spans.as_slice() {
                let life = Life::new(costs, workload, lane, &lives);
                seen.add(lane, costs, costs.kept_bytes / token_bytes, &life, workload, budget.0[lane]);
            }
        }
        seen
    }

    fn add(&mut self, lane: usize, costs: &SpanCosts, share: f64, life: &Life, workload: &Workload, budget: f64) {
        let span = &costs.span;
        self.decode.0[lane] += costs.decode_s * life.decoding;
        self.request.0[lane] += costs.decode_s * life.request;
        self.held.0[lane] += share * life.held;
        self.shared_prefix.0[lane] += share * span.held(workload.shared_prefix.0[lane]);
        for (node, seen) in workload.nodes().iter().zip(&mut self.prompts) {
            let (prompt, cached, uncached) = (node.prompt.0[lane], node.cached.0[lane], node.uncached.0[lane]);
            // For spans of kind full the very formula of `full`, so that a lane does not depend on its neighbours.
            let (pairs_s, kept) = if span.is_full() {
                (costs.prefill_s * (cached + 0.5 * uncached) * uncached, prompt - node.shared.0[lane])
            } else {
                let pairs = span.pairs(prompt) - span.pairs(cached);
                (costs.prefill_s * pairs, prompt.min(span.held(f64::MAX) + budget))
            };
            seen.pairs_s.0[lane] += pairs_s;
            seen.held.0[lane] += share * kept;
        }
    }
}

/// Means over the life of a request, one span.
struct Life {
    /// c̄_j, weighted by the steps of a life.
    decoding: f64,
    /// c_rj, each request once.
    request: f64,
    /// Tokens kept while decoding.
    held: f64,
}

/// Prompts and outputs of one lane, each as (weight, length), or their joint law.
enum Lives<'a> {
    Apart { prompts: Vec<(f64, f64)>, outputs: Vec<(f64, f64)> },
    Joint(&'a EmpiricalLengths),
}

impl<'a> Lives<'a> {
    fn of(workload: &'a Workload, lane: usize) -> Self {
        let apart = || Self::Apart { prompts: workload.fine_prompts(lane), outputs: workload.outputs(lane) };
        workload.law(lane).map_or_else(apart, Self::Joint)
    }
}

impl Life {
    fn new(costs: &SpanCosts, workload: &Workload, lane: usize, lives: &Lives) -> Self {
        if costs.span.is_full() {
            let context = workload.mean_context.0[lane];
            let held = context - workload.mean_shared.0[lane];
            return Self { decoding: context, request: workload.request_context.0[lane], held };
        }
        let (prompts, outputs) = match lives {
            Lives::Apart { prompts, outputs } => (prompts, outputs),
            Lives::Joint(law) => {
                let LifeMeans { decoding, request } = law.lives(&costs.span);
                return Self { decoding, request, held: decoding };
            }
        };
        let (mut decoding, mut request) = (0.0, 0.0);
        for &(of_prompts, prompt) in prompts {
            for &(of_outputs, output) in outputs {
                let steps = output - 1.0;
                let mean = of_prompts * of_outputs * costs.span.mean_attended(prompt, steps);
                decoding += steps * mean;
                request += mean;
            }
        }
        decoding /= workload.decode_tokens.0[lane];
        Self { decoding, request, held: decoding }
    }
}
