//! Equal layers of a model: what one holds, multiplies and caches on a rank (docs/model.md section 1).

use crate::error::{CoreError, not_negative, positive};
use crate::memory::expert_elements;
use crate::parallelism::Parallelism;
use crate::precision::Precision;
use crate::span::{Span, SpanKind};

/// Bytes per parameter of what stays at 16 bits: embedding, norms, biases, routers.
pub const SIXTEEN_BIT_BYTES: f64 = 2.0;

/// Names of the facts of one block of equal layers; `model` says which model it belongs to, the rest are counts of one layer.
pub const BLOCK_FIELDS: &[&str] = &[
    "model",
    "count",
    "vector_params",
    "mlp_params",
    "mlp_width",
    "mixer_split_params",
    "mixer_kv_params",
    "mixer_whole_params",
    "query_heads",
    "kv_heads",
    "kv_elements_per_token",
    "span_kind",
    "span_tokens",
    "attended_tokens",
    "score_width",
    "decode_score_width",
    "index_bytes_per_token",
    "index_score_width",
    "latent_elements",
    "state_bytes",
    "experts",
    "experts_per_token",
    "expert_params",
    "expert_width",
    "expert_hidden",
    "expert_outer_params",
    "router_params",
];

/// Equal layers: counts of one of them.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    pub(crate) count: f64,
    pub(crate) vector_params: f64,
    pub(crate) mlp_params: f64,
    pub(crate) mlp_width: f64,
    pub(crate) mixer: Mixer,
    pub(crate) experts: Experts,
}

/// The part of a layer that mixes tokens: attention of some kind, or a recurrence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mixer {
    pub(crate) split_params: f64,
    pub(crate) kv_params: f64,
    pub(crate) whole_params: f64,
    pub(crate) query_heads: f64,
    pub(crate) kv_heads: f64,
    pub(crate) kv_elements_per_token: f64,
    pub(crate) span: Span,
    pub(crate) attended_tokens: f64,
    pub(crate) score_width: f64,
    pub(crate) decode_score_width: f64,
    pub(crate) index_bytes_per_token: f64,
    pub(crate) index_score_width: f64,
    pub(crate) latent_elements: f64,
    pub(crate) state_bytes: f64,
}

/// Routed experts; `count` 0 where there are none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Experts {
    pub(crate) count: f64,
    pub(crate) per_token: f64,
    pub(crate) params: f64,
    pub(crate) width: f64,
    pub(crate) hidden: f64,
    pub(crate) outer_params: f64,
    pub(crate) router_params: f64,
}

/// Matrices that a token multiplies in one pass through the layers of a rank.
#[derive(Clone, Copy, Debug, Default)]
pub struct Layers {
    /// Bytes of all but the experts.
    pub bytes: f64,
    /// Bytes of the experts.
    pub expert_bytes: f64,
    /// Σ parameters/peak over what every token multiplies, experts by those a token passes [s per multiply-add].
    pub seconds_per_mac: f64,
    /// The same of experts alone.
    pub expert_seconds_per_mac: f64,
    /// State of one sequence in recurrent layers.
    pub state_bytes: f64,
}

/// What the attention of one block costs and keeps on a rank, all its layers together.
#[derive(Clone, Copy, Debug)]
pub struct Cache {
    /// What it sees.
    pub span: Span,
    /// Bytes read for a token attended to.
    pub read_bytes: f64,
    /// Multiply-adds of a token attended to while decoding.
    pub decode_macs: f64,
    /// Multiply-adds of a query–key pair of a prompt.
    pub prefill_macs: f64,
    /// Bytes kept per token inside the span.
    pub kept_bytes: f64,
}

impl Block {
    /// Reads one block by the names of `BLOCK_FIELDS`.
    pub fn read(get: &impl Fn(&'static str) -> f64) -> Result<Self, CoreError> {
        let zero_or_more = |name| not_negative(name, get(name));
        Ok(Self {
            count: positive("count", get("count"))?,
            vector_params: zero_or_more("vector_params")?,
            mlp_params: zero_or_more("mlp_params")?,
            mlp_width: zero_or_more("mlp_width")?,
            mixer: Mixer::read(get)?,
            experts: Experts::read(get)?,
        })
    }

    pub(crate) fn accepts(&self, at: &Parallelism, weight_block: f64) -> bool {
        let divides = |a: f64, b: f64| a == 0.0 || b % a == 0.0;
        let (mixer, experts) = (&self.mixer, &self.experts);
        let heads = divides(at.tp, mixer.query_heads);
        let kv = mixer.kv_heads <= 1.0 || divides(at.tp, mixer.kv_heads) || divides(mixer.kv_heads, at.tp);
        let mlp = divides(at.tp * weight_block, self.mlp_width) || at.tp == 1.0;
        let whole_experts = at.ep > 1.0 || at.tp * at.dp == 1.0;
        let cut = whole_experts || divides(at.tp * at.dp * weight_block, experts.width);
        heads && kv && mlp && cut && (experts.count == 0.0 || at.ep <= experts.count)
    }

    /// Parameters of one layer that are not expert matrices and not 16-bit by nature: (mixer, MLP), on a rank.
    pub(crate) fn dense_params(&self, tp: f64) -> (f64, f64) {
        let mixer = &self.mixer;
        let kv_shards = tp.min(mixer.kv_heads.max(1.0));
        let of_mixer = mixer.split_params / tp + mixer.kv_params / kv_shards + mixer.whole_params;
        (of_mixer, (self.mlp_params + self.experts.outer_params) / tp)
    }

    pub(crate) fn sixteen_bit_params(&self) -> f64 {
        self.vector_params + self.experts.router_params
    }

    /// Mixers and MLPs of one layer: each ends in an all-reduce under tensor parallelism.
    pub(crate) fn parts(&self) -> f64 {
        let is = |present: bool| f64::from(u8::from(present));
        is(self.mixer.is_present()) + is(self.mlp_params > 0.0 || self.experts.count > 0.0)
    }

    pub(crate) fn add_to(&self, layers: &mut Layers, at: &Parallelism, precision: &Precision) {
        let (mixer, mlp) = self.dense_params(at.tp);
        let experts = self.experts.count * self.experts.params / (at.tp * at.dp);
        let passed = self.experts.per_token * self.experts.params / at.tp;
        layers.bytes += self.count
            * (mixer * precision.mixer_bits / 8.0
                + mlp * precision.mlp_bits / 8.0
                + self.sixteen_bit_params() * SIXTEEN_BIT_BYTES);
        layers.expert_bytes += self.count * experts * precision.expert_bits / 8.0;
        let of_experts = if passed == 0.0 { 0.0 } else { self.count * passed / precision.expert_flops };
        layers.seconds_per_mac += self.count * (mixer / precision.mixer_flops + mlp / precision.mlp_flops);
        layers.expert_seconds_per_mac += of_experts;
        layers.state_bytes += self.count * self.mixer.state_bytes / at.tp;
    }

    /// What its attention costs and keeps; sparse attention is two caches, one read in part and one that is searched.
    pub(crate) fn caches(&self, tp: f64, kv_bytes_per_element: f64) -> impl Iterator<Item = Cache> {
        let mixer = &self.mixer;
        let kv_bytes = mixer.kv_elements_per_token * kv_bytes_per_element / tp.min(mixer.kv_heads.max(1.0));
        let sparse = mixer.attended_tokens > 0.0;
        let count = self.count;
        let attention = Cache {
            span: if sparse { Span::new(SpanKind::Sliding, mixer.attended_tokens) } else { mixer.span },
            read_bytes: count * kv_bytes,
            decode_macs: count * mixer.decode_score_width / tp,
            prefill_macs: count * mixer.score_width / tp,
            kept_bytes: if sparse { 0.0 } else { count * kv_bytes },
        };
        let index = Cache {
            span: Span::FULL,
            read_bytes: count * mixer.index_bytes_per_token,
            decode_macs: count * mixer.index_score_width,
            prefill_macs: count * mixer.index_score_width,
            kept_bytes: count * (kv_bytes + mixer.index_bytes_per_token),
        };
        let attends = mixer.kv_elements_per_token > 0.0;
        attends.then_some(attention).into_iter().chain((attends && sparse).then_some(index))
    }
}

impl Mixer {
    fn read(get: &impl Fn(&'static str) -> f64) -> Result<Self, CoreError> {
        let zero_or_more = |name| not_negative(name, get(name));
        Ok(Self {
            split_params: zero_or_more("mixer_split_params")?,
            kv_params: zero_or_more("mixer_kv_params")?,
            whole_params: zero_or_more("mixer_whole_params")?,
            query_heads: zero_or_more("query_heads")?,
            kv_heads: zero_or_more("kv_heads")?,
            kv_elements_per_token: zero_or_more("kv_elements_per_token")?,
            span: Span::read(get("span_kind"), get("span_tokens"))?,
            attended_tokens: zero_or_more("attended_tokens")?,
            score_width: zero_or_more("score_width")?,
            decode_score_width: zero_or_more("decode_score_width")?,
            index_bytes_per_token: zero_or_more("index_bytes_per_token")?,
            index_score_width: zero_or_more("index_score_width")?,
            latent_elements: zero_or_more("latent_elements")?,
            state_bytes: zero_or_more("state_bytes")?,
        })
    }

    fn is_present(&self) -> bool {
        self.query_heads > 0.0 || self.split_params > 0.0
    }
}

impl Experts {
    /// Elements a token of the buffers between an expert's two multiplications.
    pub(crate) fn elements(&self, tp: f64) -> f64 {
        const GATED_MATRICES: f64 = 3.0;
        let gated = self.params >= GATED_MATRICES * self.width * self.hidden;
        if self.count > 0.0 { expert_elements(self.per_token, self.width, self.hidden, gated, tp) } else { 0.0 }
    }

    fn read(get: &impl Fn(&'static str) -> f64) -> Result<Self, CoreError> {
        let zero_or_more = |name| not_negative(name, get(name));
        let count = zero_or_more("experts")?;
        let per_token = zero_or_more("experts_per_token")?;
        if per_token > count || (count > 0.0 && per_token == 0.0) {
            return Err(CoreError::Fact {
                name: "experts_per_token",
                value: per_token,
                allowed: "above 0 and at most experts",
            });
        }
        Ok(Self {
            count,
            per_token,
            params: zero_or_more("expert_params")?,
            width: zero_or_more("expert_width")?,
            hidden: zero_or_more("expert_hidden")?,
            outer_params: zero_or_more("expert_outer_params")?,
            router_params: zero_or_more("router_params")?,
        })
    }
}
