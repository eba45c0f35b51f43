//! Time of one iteration of whole sequences and tokens, for the simulator (docs/model.md section 3).
//!
//! Everything the simulator knows about `StepCosts` stands here.

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

impl StepCosts<f64> {
    /// fixed + sequence_overhead·B + GEMM(B + c, B) + κ·Σctx + r·(B + c) + A [s], and the head's row of each completed prompt at
    /// the FLOP limit, as the solvers charge it.
    pub fn iteration(&self, batch: &Batch) -> f64 {
        let prompts =
            self.per_token * batch.prefill_tokens + self.head_row * batch.completed_prompts + batch.prefill_attention_s;
        let gemms = self.gemms_of_one(batch.decodes + batch.prefill_tokens, batch.decodes);
        gemms + self.decode_rest(|x| x, batch.decodes, batch.context) + prompts
    }

    /// Seconds that each further token of context adds to an iteration, κ.
    pub fn seconds_per_context_token(&self) -> f64 {
        self.per_context_token
    }

    /// A of one chunk: a·c·(start + c/2)·(1 + c_½/i) [s], with the efficiency of the whole prompt of i tokens.
    pub fn prefill_attention_s(&self, start: f64, tokens: f64, prompt: f64) -> f64 {
        let pairs = tokens * (start + 0.5 * tokens);
        self.prefill_attention * pairs * (1.0 + self.prefill_half_tokens / prompt)
    }

    /// GEMMs of one step [s], with the machine's fused multiply-add where it has one; the bits are the same without.
    fn gemms_of_one(&self, tokens: f64, rows: f64) -> f64 {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("fma") {
            // SAFETY: the feature was detected on the line above.
            return unsafe { self.gemms_with_fma(tokens, rows) };
        }
        self.gemms(|x| x, [tokens], [rows])[0]
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "fma")]
    fn gemms_with_fma(&self, tokens: f64, rows: f64) -> f64 {
        self.gemms(|x| x, [tokens], [rows])[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: StepCosts<f64> = StepCosts {
        fixed: 1e-3,
        per_sequence: 1e-6,
        per_context_token: 1e-8,
        per_token: 1e-7,
        weights: 5e-3,
        layer_ratio: 3e-3,
        head_ratio: 1e-4,
        head_row: 5e-7,
        exponent: 1.43,
        inverse_exponent: 1.0 / 1.43,
        prefill_attention: 1e-12,
        prefill_half_tokens: 100.0,
    };

    #[test]
    fn a_pure_decode_iteration_is_the_solvers_decode_step() {
        for decodes in [1.0, 7.0, 300.0] {
            let batch = Batch { decodes, context: 900.0 * decodes, ..Batch::default() };
            assert_eq!(COSTS.iteration(&batch).to_bits(), COSTS.decode(decodes, 900.0 * decodes).to_bits());
        }
    }

    #[test]
    fn chunks_of_a_prompt_pay_its_attention_once() {
        let whole = COSTS.prefill_attention_s(0.0, 5000.0, 5000.0);
        let cut = COSTS.prefill_attention_s(0.0, 2048.0, 5000.0) + COSTS.prefill_attention_s(2048.0, 2952.0, 5000.0);
        assert!((whole - cut).abs() < 1e-12 * whole);
    }

    #[test]
    fn a_prompt_adds_what_the_solvers_charge_for_it() {
        let step = Batch { decodes: 8.0, context: 8000.0, ..Batch::default() };
        let attention = COSTS.prefill_attention_s(0.0, 600.0, 600.0);
        let ridden = Batch { prefill_tokens: 600.0, completed_prompts: 1.0, prefill_attention_s: attention, ..step };
        let [with, without] = COSTS.gemms(|x| x, [608.0, 8.0], [8.0, 8.0]);
        let added = with - without + 5e-7 + 1e-7 * 600.0 + attention;
        assert!((COSTS.iteration(&ridden) - COSTS.iteration(&step) - added).abs() < 1e-15);
    }
}
