//! Time of one engine iteration (docs/model.md section 3).
//!
//! Everything is per rank: its shard, its bandwidth, its FLOP/s. Reference: the roofline with a rounded ridge, plus
//! what does not shrink with tensor parallelism (launches, small kernels, all-reduce latency).

use crate::accelerator::{Accelerator, Link};
use crate::model::{Architecture, Shard};
use crate::profile::{FullProfile, Profile};
use crate::real::Real;

/// Bytes per activation that an all-reduce moves.
const ACTIVATION_BYTES: f64 = 2.0;
/// Below this share of the memory time, compute is nothing; keeps the logarithm in its domain.
const NO_COMPUTE: f64 = 1e-300;

/// Coefficients of the iteration time of one replica.
#[derive(Clone, Copy, Debug)]
pub struct StepCosts<R> {
    /// Overhead, layer floors and all-reduce latencies of any iteration [s].
    pub fixed: R,
    /// Per decoding sequence [s].
    pub per_sequence: R,
    /// Per token of context that decode attention reads, κ [s].
    pub per_context_token: R,
    /// All-reduce time per token in the step, r [s].
    pub per_token: R,
    /// Reading the weights, w [s].
    pub weights: R,
    /// Projections and MLP per token at the FLOP limit, over w [1/token].
    pub layer_ratio: R,
    /// Output head per row at the FLOP limit, over w [1/row].
    pub head_ratio: R,
    /// The head's row of a completed prompt, at the FLOP limit [s].
    pub head_row: R,
    /// q of the rounded ridge.
    pub exponent: R,
    /// 1/q.
    pub inverse_exponent: R,
    /// Prefill attention per squared token, a [s].
    pub prefill_attention: R,
    /// Prompt length at which prefill attention reaches half of its efficiency, c_½ [tokens].
    pub prefill_half_tokens: R,
}

impl<R: Real> StepCosts<R> {
    /// GEMMs of steps of `tokens` each, of which `rows` need logits [s]: (w^q + y^q)^(1/q).
    #[inline(always)]
    pub fn gemms<D: Real, const N: usize>(&self, lift: impl Fn(R) -> D, tokens: [D; N], rows: [D; N]) -> [D; N] {
        let mut steps = tokens;
        let mut i = 0;
        while i < N {
            let compute = lift(self.layer_ratio) * tokens[i] + lift(self.head_ratio) * rows[i];
            steps[i] = compute.max(D::splat(NO_COMPUTE));
            i += 1;
        }
        steps = D::rounded_ridges(steps, lift(self.exponent), lift(self.inverse_exponent));
        i = 0;
        while i < N {
            steps[i] = lift(self.weights) * steps[i];
            i += 1;
        }
        steps
    }

    /// A pure decode step of `decoding` sequences that read `context` tokens, beside its GEMMs [s].
    #[inline(always)]
    pub fn decode_rest<D: Real>(&self, lift: impl Fn(R) -> D, decoding: D, context: D) -> D {
        lift(self.fixed) + lift(self.per_sequence + self.per_token) * decoding + lift(self.per_context_token) * context
    }
}

impl StepCosts<f64> {
    /// Stands in where no iteration is possible; such a replica is never solved.
    pub const NONE: Self = Self {
        fixed: 0.0,
        per_sequence: 0.0,
        per_context_token: 0.0,
        per_token: 0.0,
        weights: 1.0,
        layer_ratio: 0.0,
        head_ratio: 0.0,
        head_row: 0.0,
        exponent: 1.0,
        inverse_exponent: 1.0,
        prefill_attention: 0.0,
        prefill_half_tokens: 0.0,
    };

    /// T(B, 0): a pure decode step of `decoding` sequences that read `context` tokens in all [s].
    pub fn decode(&self, decoding: f64, context: f64) -> f64 {
        let [gemms] = self.gemms(|x| x, [decoding], [decoding]);
        gemms + self.decode_rest(|x| x, decoding, context)
    }

    /// The coefficients of a model's shard on a device under a profile; `None` where no link joins the ranks.
    pub fn new(
        architecture: &Architecture,
        shard: &Shard,
        accelerator: &Accelerator,
        profile: &Profile,
        tp: f64,
    ) -> Option<Self> {
        match profile {
            Profile::Full(full) => Self::full(architecture, shard, accelerator, full, tp),
            Profile::Ratio { measured_over_floor_ratio, .. } => {
                Some(Self::ratio(shard, accelerator, *measured_over_floor_ratio))
            }
        }
    }

    fn full(
        architecture: &Architecture,
        shard: &Shard,
        accelerator: &Accelerator,
        profile: &FullProfile,
        tp: f64,
    ) -> Option<Self> {
        let (latency, per_token) = Self::all_reduces(architecture, accelerator, profile, tp)?;
        let weights = shard.weight_read_bytes / (profile.gemm_bandwidth_efficiency * accelerator.bandwidth);
        let reached_flops = profile.gemm_flops_efficiency * accelerator.gemm_flops;
        Some(Self {
            fixed: profile.step_overhead_s + architecture.layers() * profile.layer_floor_s + latency,
            per_sequence: profile.sequence_overhead_s,
            per_context_token: shard.kv_bytes_per_token
                / (profile.attention_bandwidth_efficiency * accelerator.bandwidth),
            per_token,
            weights,
            layer_ratio: 2.0 * shard.layer_matmul_params / reached_flops / weights,
            head_ratio: 2.0 * shard.head_params / reached_flops / weights,
            head_row: 2.0 * shard.head_params / reached_flops,
            exponent: profile.roofline_exponent,
            inverse_exponent: 1.0 / profile.roofline_exponent,
            prefill_attention: 4.0 * shard.attention_width
                / (profile.prefill_attention_flops_efficiency * accelerator.attention_flops),
            prefill_half_tokens: profile.prefill_attention_half_tokens,
        })
    }

    /// Two all-reduces a layer: their latencies [s], and their time per token [s].
    fn all_reduces(
        architecture: &Architecture,
        accelerator: &Accelerator,
        profile: &FullProfile,
        tp: f64,
    ) -> Option<(f64, f64)> {
        if tp == 1.0 {
            return Some((0.0, 0.0));
        }
        let link: Link = accelerator.link(tp)?;
        let (latency, bus_bytes_per_s) = profile.all_reduce(link, tp);
        let count = 2.0 * architecture.layers();
        let moved_bytes = 2.0 * (tp - 1.0) / tp * architecture.hidden_size() * ACTIVATION_BYTES;
        Some((count * latency, count * moved_bytes / bus_bytes_per_s))
    }

    fn ratio(shard: &Shard, accelerator: &Accelerator, ratio: f64) -> Self {
        Self {
            per_context_token: ratio * shard.kv_bytes_per_token / accelerator.bandwidth,
            weights: ratio * shard.weight_bytes / accelerator.bandwidth,
            ..Self::NONE
        }
    }
}
