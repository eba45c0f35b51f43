//! Time of one iteration of whole sequences and tokens, for the simulator (docs/model.md section 3).
//!
//! Everything the simulator knows about `StepCosts` stands here.

use crate::replica::Replica;
use crate::step::StepCosts;

/// What one iteration computes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Batch {
    /// Sequences that decode one token each, B.
    pub decodes: f64,
    /// Tokens of context that they read, Σctx, the tokens they compute included.
    pub context: f64,
    /// Prompt tokens computed beside them, c.
    pub prefill_tokens: f64,
    /// Prompts whose last token is among those.
    pub completed_prompts: f64,
    /// Attention of the prompt tokens, A of each chunk added up [s].
    pub prefill_attention_s: f64,
}

/// Iteration times of a replica whose time for attention is the same for every token of context.
#[derive(Clone, Copy, Debug)]
pub struct Iteration {
    costs: StepCosts<f64>,
    context_token_s: f64,
    prefill_pair_s: f64,
}

impl Iteration {
    /// Step costs, and attention per token of context and per query–key pair of a prompt [s].
    pub fn new(costs: StepCosts<f64>, context_token_s: f64, prefill_pair_s: f64) -> Self {
        Self { costs, context_token_s, prefill_pair_s }
    }

    /// Of a rank of a replica; `None` where a step's time is not linear in the context (windows), where sequences hold more than their
    /// tokens' KV (recurrent states), or where several batches are under way that do not wait for each other (pp, dp without experts).
    pub fn of(replica: &Replica) -> Option<Self> {
        let in_step = replica.slots == 1.0 || (replica.stages == 1.0 && replica.costs.is_routed());
        let linear = replica.spans.is_one_full() && replica.state_tokens == 0.0 && in_step;
        let attention = &replica.spans.as_slice().first()?;
        linear.then(|| Self::new(replica.costs, attention.decode_s, attention.prefill_s))
    }

    /// fixed + sequence_overhead·B + GEMM(B + c, B) + κ·Σctx + r·(B + c) + A [s], ψ where c > 0, and the head's row of each
    /// completed prompt at the FLOP limit, as the solvers charge it.
    pub fn time(&self, batch: &Batch) -> f64 {
        let costs = &self.costs;
        let overhead = if batch.prefill_tokens > 0.0 { costs.prefill_overhead } else { 0.0 };
        let prompts = overhead
            + costs.per_token * batch.prefill_tokens
            + costs.head_row * batch.completed_prompts
            + batch.prefill_attention_s;
        let gemms = self.gemms_of_one(batch.decodes + batch.prefill_tokens, batch.decodes);
        let rest = costs.decode_rest(|x| x, batch.decodes, 0.0);
        gemms + rest + self.context_token_s * batch.context + prompts
    }

    /// Seconds that each further token of context adds to an iteration, κ.
    pub fn seconds_per_context_token(&self) -> f64 {
        self.context_token_s
    }

    /// A of one chunk: a·c·(start + c/2)·(1 + c_½/i) [s], with the efficiency of the whole prompt of i tokens.
    pub fn prefill_attention_s(&self, start: f64, tokens: f64, prompt: f64) -> f64 {
        let pairs = tokens * (start + 0.5 * tokens);
        self.prefill_pair_s * pairs * (1.0 + self.costs.prefill_half_tokens / prompt)
    }

    /// GEMMs of one step [s], with the machine's fused multiply-add where it has one; the bits are the same without.
    fn gemms_of_one(&self, tokens: f64, rows: f64) -> f64 {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("fma") {
            // SAFETY: the feature was detected on the line above.
            return unsafe { self.gemms_with_fma(tokens, rows) };
        }
        self.costs.gemms(|x| x, self.costs.is_routed(), [tokens], [rows])[0]
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "fma")]
    fn gemms_with_fma(&self, tokens: f64, rows: f64) -> f64 {
        self.costs.gemms(|x| x, self.costs.is_routed(), [tokens], [rows])[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn iteration() -> Iteration {
        let costs = StepCosts {
            fixed: 1e-3,
            per_sequence: 1e-6,
            per_token: 1e-7,
            weights: 5e-3,
            expert_weights: 2e-2,
            log_untouched: -0.05,
            layer_ratio: 3e-3,
            head_ratio: 1e-4,
            head_row: 5e-7,
            exponent: 1.43,
            inverse_exponent: 1.0 / 1.43,
            prefill_half_tokens: 100.0,
            prefill_overhead: 3e-3,
        };
        Iteration::new(costs, 1e-8, 1e-12)
    }

    #[test]
    fn chunks_of_a_prompt_pay_its_attention_once() {
        let one = iteration();
        let whole = one.prefill_attention_s(0.0, 5000.0, 5000.0);
        let cut = one.prefill_attention_s(0.0, 2048.0, 5000.0) + one.prefill_attention_s(2048.0, 2952.0, 5000.0);
        assert!((whole - cut).abs() < 1e-12 * whole);
    }

    #[test]
    fn a_prompt_adds_what_the_solvers_charge_for_it() {
        let one = iteration();
        let step = Batch { decodes: 8.0, context: 8000.0, ..Batch::default() };
        let attention = one.prefill_attention_s(0.0, 600.0, 600.0);
        let ridden = Batch { prefill_tokens: 600.0, completed_prompts: 1.0, prefill_attention_s: attention, ..step };
        let [with, without] = one.costs.gemms(|x| x, true, [608.0, 8.0], [8.0, 8.0]);
        let added = with - without + 5e-7 + 1e-7 * 600.0 + attention + 3e-3;
        assert!((one.time(&ridden) - one.time(&step) - added).abs() < 1e-15);
    }

    #[test]
    fn a_decode_step_reads_the_experts_its_tokens_touch() {
        let one = iteration();
        let touched = 1.0 - (-0.05f64 * 8.0).exp();
        let read = 5e-3 + 2e-2 * touched;
        let compute: f64 = 5e-3 * (3e-3 + 1e-4) * 8.0;
        let gemms = (read.powf(1.43) + compute.powf(1.43)).powf(1.0 / 1.43);
        let expected = 1e-3 + (1e-6 + 1e-7) * 8.0 + gemms + 1e-8 * 8000.0;
        let step = Batch { decodes: 8.0, context: 8000.0, ..Batch::default() };
        assert!((one.time(&step) / expected - 1.0).abs() < 1e-13);
    }
}
