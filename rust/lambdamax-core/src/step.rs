//! Time of one engine iteration (docs/model.md section 3).
//!
//! Everything is per rank: its shard, its bandwidth, its FLOP/s. Reference: the roofline with a rounded ridge, plus
//! what does not shrink with tensor parallelism (launches, small kernels, all-reduce latency).

use crate::accelerator::Accelerator;
use crate::block::{Cache, SIXTEEN_BIT_BYTES};
use crate::error::CoreError;
use crate::model::Architecture;
use crate::parallelism::Parallelism;
use crate::precision::Precision;
use crate::profile::{FullProfile, Profile};
use crate::real::Real;
use crate::span::Span;

/// Bytes per activation that communication moves.
const ACTIVATION_BYTES: f64 = 2.0;
/// Below this share of the memory time, compute is nothing; keeps the logarithm in its domain.
const NO_COMPUTE: f64 = 1e-300;
/// Different spans that one model may have.
pub const MOST_SPANS: usize = 4;

/// Coefficients of the iteration time of one slot, attention aside.
#[derive(Clone, Copy, Debug)]
pub struct StepCosts<R> {
    /// Overhead, layer floors and communication latencies of any iteration [s].
    pub fixed: R,
    /// Per decoding sequence: the host's work, and recurrent state read and written [s].
    pub per_sequence: R,
    /// Communication per token in the step, r [s].
    pub per_token: R,
    /// Reading all weights but the experts [s].
    pub weights: R,
    /// Reading all experts, w_x [s].
    pub expert_weights: R,
    /// ln of the share of experts that one more token of the slot leaves untouched, dp·ln(1 − k/E).
    pub log_untouched: R,
    /// Layers per token at the FLOP limit, over `weights` [1/token].
    pub layer_ratio: R,
    /// Output head per row at the FLOP limit, over `weights` [1/row].
    pub head_ratio: R,
    /// The head's row of a completed prompt, at the FLOP limit [s].
    pub head_row: R,
    /// q of the rounded ridge.
    pub exponent: R,
    /// 1/q.
    pub inverse_exponent: R,
    /// Prompt length at which prefill attention reaches half of its efficiency, c_½ [tokens].
    pub prefill_half_tokens: R,
    /// What an iteration with prompt tokens in it takes beyond their work, ψ [s].
    pub prefill_overhead: R,
}

/// Attention through one span, all layers that have it.
#[derive(Clone, Copy, Debug)]
pub struct SpanCosts {
    /// What is seen.
    pub span: Span,
    /// Decode time per token attended to, φ·κ_j [s].
    pub decode_s: f64,
    /// Prefill time per query–key pair, φ·a_j [s].
    pub prefill_s: f64,
    /// Bytes kept per token inside the span, b_j, on a rank as if pp were 1.
    pub kept_bytes: f64,
}

/// The spans of a model, those of kind full first.
#[derive(Clone, Copy, Debug)]
pub struct Spans {
    costs: [SpanCosts; MOST_SPANS],
    count: usize,
}

/// What the costs follow from.
pub struct Parts<'a> {
    /// Layers and sizes.
    pub architecture: &'a Architecture,
    /// Formats.
    pub precision: &'a Precision,
    /// The device.
    pub accelerator: &'a Accelerator,
    /// The cut.
    pub parallelism: &'a Parallelism,
}

impl<R: Real> StepCosts<R> {
    /// GEMMs of steps of `tokens` each, of which `rows` need logits [s]: (w^q + y^q)^(1/q). `routed`: some lane has experts.
    #[inline(always)]
    pub fn gemms<D: Real, const N: usize>(
        &self,
        lift: impl Fn(R) -> D,
        routed: bool,
        tokens: [D; N],
        rows: [D; N],
    ) -> [D; N] {
        let mut read = [lift(self.weights); N];
        let mut steps = tokens;
        let mut i = 0;
        while i < N {
            let compute = lift(self.layer_ratio) * tokens[i] + lift(self.head_ratio) * rows[i];
            steps[i] = compute.max(D::splat(NO_COMPUTE));
            if routed {
                let touched = D::splat(1.0) - (lift(self.log_untouched) * tokens[i]).exp();
                read[i] = read[i] + lift(self.expert_weights) * touched;
                steps[i] = steps[i] * (lift(self.weights) / read[i]);
            }
            i += 1;
        }
        steps = D::rounded_ridges(steps, lift(self.exponent), lift(self.inverse_exponent));
        i = 0;
        while i < N {
            steps[i] = read[i] * steps[i];
            i += 1;
        }
        steps
    }

    /// A pure decode step beside its GEMMs, where each sequence attends for `attended` seconds [s].
    #[inline(always)]
    pub fn decode_rest<D: Real>(&self, lift: impl Fn(R) -> D, decoding: D, attended: R) -> D {
        lift(self.fixed) + lift(self.per_sequence + self.per_token + attended) * decoding
    }
}

impl Spans {
    /// No attention at all.
    pub const NONE: Self = Self {
        costs: [SpanCosts { span: Span::FULL, decode_s: 0.0, prefill_s: 0.0, kept_bytes: 0.0 }; MOST_SPANS],
        count: 0,
    };

    /// All of them.
    pub fn as_slice(&self) -> &[SpanCosts] {
        &self.costs[..self.count]
    }

    /// Whether there is one span, of kind full.
    pub fn is_one_full(&self) -> bool {
        self.count == 1 && self.costs[0].span.is_full()
    }

    /// Σ b_j: bytes that every layer together keeps of a token, on a rank as if pp were 1; 1 where nothing is kept per token.
    pub fn token_bytes(&self) -> f64 {
        let bytes: f64 = self.as_slice().iter().map(|span| span.kept_bytes).sum();
        if bytes > 0.0 { bytes } else { 1.0 }
    }

    fn add(&mut self, new: SpanCosts) -> Result<(), CoreError> {
        let known = self.costs[..self.count].iter_mut().find(|old| old.span == new.span);
        if let Some(old) = known {
            old.decode_s += new.decode_s;
            old.prefill_s += new.prefill_s;
            old.kept_bytes += new.kept_bytes;
            return Ok(());
        }
        if self.count == MOST_SPANS {
            let allowed = "at most four different spans in one model";
            return Err(CoreError::Fact { name: "span_tokens", value: new.span.held(f64::MAX), allowed });
        }
        self.costs[self.count] = new;
        self.count += 1;
        Ok(())
    }
}

impl Parts<'_> {
    fn imbalance(&self) -> f64 {
        self.parallelism.stage_imbalance(self.architecture.layers())
    }

    /// Attention of a rank, span by span; `read_s` and `mac_s` are the times of a byte and of a multiply-add.
    fn spans(&self, scale: f64, read_s: f64, mac_s: f64) -> Result<Spans, CoreError> {
        let costs = |cache: Cache| SpanCosts {
            span: cache.span,
            decode_s: scale * (cache.read_bytes * read_s).max(cache.decode_macs * mac_s),
            prefill_s: scale * cache.prefill_macs * mac_s,
            kept_bytes: cache.kept_bytes,
        };
        let mut spans = Spans::NONE;
        for cache in self.architecture.caches(self.parallelism.tp, self.precision.kv_bytes_per_element) {
            spans.add(costs(cache))?;
        }
        Ok(spans)
    }

    /// Output head on a rank: bytes read in a step.
    fn head_bytes(&self) -> f64 {
        let bytes = if self.architecture.is_tied() { SIXTEEN_BIT_BYTES } else { self.precision.head_bits / 8.0 };
        self.head_params() * bytes
    }

    fn head_params(&self) -> f64 {
        self.architecture.embedding_params() / self.parallelism.tp
    }

    /// Bytes that any step reads on one rank's way through all layers, experts aside; the layers' share times `scale`.
    pub fn always_read_bytes(&self, scale: f64) -> f64 {
        let layers = self.architecture.pass(self.parallelism, self.precision);
        scale * layers.bytes + self.architecture.final_norm_params() * SIXTEEN_BIT_BYTES + self.head_bytes()
    }

    /// Bytes of all experts on one rank's way.
    pub fn expert_bytes(&self) -> f64 {
        self.architecture.pass(self.parallelism, self.precision).expert_bytes
    }

    /// Latencies [s] and time per token [s] of all communication in a pass; `None` where no link joins the ranks.
    fn communication(&self, profile: &FullProfile) -> Option<(f64, f64)> {
        let at = self.parallelism;
        let scale = self.imbalance();
        let (parts, experts) = self.architecture.parts();
        let exchanged = if at.dp > 1.0 { experts } else { 0.0 };
        let (k, _) = self.architecture.expert_choice().ok()?;
        let group = at.tp * at.dp;
        let gathered = 2.0 * (group - 1.0) / group * at.dp;
        let sent = 2.0 * k.min(group - 1.0);
        let (reduce_s, reduce_token_s) = self.collective(profile, at.tp, 2.0 * (at.tp - 1.0) / at.tp)?;
        let (exchange_s, exchange_token_s) =
            if exchanged > 0.0 { self.collective(profile, group, gathered.min(sent))? } else { (0.0, 0.0) };
        let (hand_s, hand_token_s) = if at.pp > 1.0 { self.hand_over(profile)? } else { (0.0, 0.0) };
        let latency = scale * ((parts - exchanged) * reduce_s + exchanged * exchange_s) + (at.pp - 1.0) * hand_s;
        let per_token = scale * ((parts - exchanged) * reduce_token_s + exchanged * exchange_token_s)
            + (at.pp - 1.0) * hand_token_s;
        Some((latency, per_token))
    }

    /// One collective over `group` ranks that moves `share` of a token's activations: latency [s], time per token [s].
    fn collective(&self, profile: &FullProfile, group: f64, share: f64) -> Option<(f64, f64)> {
        if group == 1.0 {
            return Some((0.0, 0.0));
        }
        let link = self.accelerator.link(group, group)?;
        let (latency, bus_bytes_per_s) = profile.all_reduce(link, group);
        Some((latency, share * self.architecture.hidden_size() * ACTIVATION_BYTES / bus_bytes_per_s))
    }

    /// One hand-over between stages, over the link that joins them all.
    fn hand_over(&self, profile: &FullProfile) -> Option<(f64, f64)> {
        let link = self.accelerator.link(self.parallelism.tp * self.parallelism.pp, 2.0)?;
        let (latency, bus_bytes_per_s) = profile.all_reduce(link, 2.0);
        Some((latency, self.architecture.hidden_size() * ACTIVATION_BYTES / bus_bytes_per_s))
    }
}

impl StepCosts<f64> {
    /// Stands in where no iteration is possible; such a replica is never solved.
    pub const NONE: Self = Self {
        fixed: 0.0,
        per_sequence: 0.0,
        per_token: 0.0,
        weights: 1.0,
        expert_weights: 0.0,
        log_untouched: 0.0,
        layer_ratio: 0.0,
        head_ratio: 0.0,
        head_row: 0.0,
        exponent: 1.0,
        inverse_exponent: 1.0,
        prefill_half_tokens: 0.0,
        prefill_overhead: 0.0,
    };

    /// Whether some weights are read only for the tokens that are routed to them.
    pub fn is_routed(&self) -> bool {
        self.expert_weights > 0.0
    }

    /// The coefficients of a model on devices under a profile, and its attention; `None` where no link joins the ranks.
    pub fn new(parts: &Parts, profile: &Profile) -> Result<Option<(Self, Spans)>, CoreError> {
        match profile {
            Profile::Full(full) => {
                let spans = Self::attention(parts, full)?;
                Ok(Self::full(parts, full)?.map(|costs| (costs, spans)))
            }
            Profile::Ratio { measured_over_floor_ratio, .. } => {
                Self::ratio(parts, *measured_over_floor_ratio).map(Some)
            }
        }
    }

    fn attention(parts: &Parts, profile: &FullProfile) -> Result<Spans, CoreError> {
        let device = parts.accelerator;
        let read_s = 1.0 / (profile.attention_bandwidth_efficiency * device.bandwidth);
        let mac_s = 2.0 / (profile.prefill_attention_flops_efficiency * device.attention_flops);
        parts.spans(parts.imbalance(), read_s, mac_s)
    }

    fn full(parts: &Parts, profile: &FullProfile) -> Result<Option<Self>, CoreError> {
        let Some((latency, per_token)) = parts.communication(profile) else { return Ok(None) };
        let (device, at) = (parts.accelerator, parts.parallelism);
        let scale = parts.imbalance();
        let layers = parts.architecture.pass(at, parts.precision);
        let (k, experts) = parts.architecture.expert_choice()?;
        let reached_bandwidth = profile.gemm_bandwidth_efficiency * device.bandwidth;
        let uneven = if at.ep > 1.0 { profile.expert_load_imbalance } else { 1.0 };
        let expert_bytes = scale * uneven * layers.expert_bytes;
        let every_token_passes_all = k == experts;
        let (always, routed) = if every_token_passes_all { (expert_bytes, 0.0) } else { (0.0, expert_bytes) };
        let weights = (parts.always_read_bytes(scale) + always) / reached_bandwidth;
        let mac_s = layers.seconds_per_mac + uneven * layers.expert_seconds_per_mac;
        let token_s = 2.0 * scale * mac_s / profile.gemm_flops_efficiency;
        let head_row = 2.0 * parts.head_params() / (profile.gemm_flops_efficiency * device.attention_flops);
        let state_s = 2.0 * layers.state_bytes / (profile.attention_bandwidth_efficiency * device.bandwidth);
        let floors = parts.architecture.layers() * profile.layer_floor_s
            + parts.architecture.latent_layers() * profile.latent_layer_floor_s;
        Ok(Some(Self {
            fixed: profile.step_overhead_s + scale * floors + latency,
            per_sequence: profile.sequence_overhead_s + scale * state_s,
            per_token,
            weights,
            expert_weights: routed / reached_bandwidth,
            log_untouched: if every_token_passes_all { 0.0 } else { at.dp * Real::ln(1.0 - k / experts) },
            layer_ratio: token_s / weights,
            head_ratio: head_row / weights,
            head_row,
            exponent: profile.roofline_exponent,
            inverse_exponent: 1.0 / profile.roofline_exponent,
            prefill_half_tokens: profile.prefill_attention_half_tokens,
            prefill_overhead: scale * parts.architecture.layers() * profile.prefill_layer_overhead_s,
        }))
    }

    fn ratio(parts: &Parts, ratio: f64) -> Result<(Self, Spans), CoreError> {
        let (device, at) = (parts.accelerator, parts.parallelism);
        let read_s = ratio * at.pp / device.bandwidth;
        let stage = at.stage_share(parts.architecture.layers());
        let shard = parts.architecture.weight_shard_bytes(at, parts.precision);
        let spans = parts.spans(stage, read_s, 0.0)?;
        Ok((Self { weights: shard * read_s, ..Self::NONE }, spans))
    }
}
