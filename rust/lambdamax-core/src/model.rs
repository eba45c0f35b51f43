//! A model's layers → parameters, weight bytes and KV bytes, whole and per rank (docs/model.md section 1).

use crate::error::{CoreError, not_negative, positive};
use crate::memory::{ActivationShape, expert_elements};
use crate::parallelism::Parallelism;
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
    count: f64,
    vector_params: f64,
    mlp_params: f64,
    mlp_width: f64,
    mixer: Mixer,
    experts: Experts,
}

/// The part of a layer that mixes tokens: attention of some kind, or a recurrence.
#[derive(Clone, Copy, Debug)]
struct Mixer {
    split_params: f64,
    kv_params: f64,
    whole_params: f64,
    query_heads: f64,
    kv_heads: f64,
    kv_elements_per_token: f64,
    span: Span,
    attended_tokens: f64,
    score_width: f64,
    decode_score_width: f64,
    index_bytes_per_token: f64,
    index_score_width: f64,
    latent_elements: f64,
    state_bytes: f64,
}

/// Routed experts; `count` 0 where there are none.
#[derive(Clone, Copy, Debug)]
struct Experts {
    count: f64,
    per_token: f64,
    params: f64,
    width: f64,
    hidden: f64,
    outer_params: f64,
    router_params: f64,
}

/// Facts of a decoder, as its `config.json` states them.
#[derive(Clone, Debug)]
pub struct Architecture {
    hidden_size: f64,
    vocab_size: f64,
    tied_embeddings: bool,
    final_norm_params: f64,
    other_params: f64,
    blocks: Vec<Block>,
}

/// Formats: bits per parameter by kind of matrix (block scales included), the peaks they compute at, and the KV cache's.
#[derive(Clone, Copy, Debug)]
pub struct Precision {
    /// Bits of attention and recurrence.
    pub mixer_bits: f64,
    /// Bits of dense MLPs and shared experts.
    pub mlp_bits: f64,
    /// Bits of routed experts.
    pub expert_bits: f64,
    /// Bits of the output head.
    pub head_bits: f64,
    /// Dense peak of attention and recurrence matrices, FLOP/s.
    pub mixer_flops: f64,
    /// Dense peak of MLP matrices, FLOP/s.
    pub mlp_flops: f64,
    /// Dense peak of expert matrices, FLOP/s.
    pub expert_flops: f64,
    /// Columns that share a scale, which a shard may not cut; 1 if none do.
    pub weight_block: f64,
    /// Bytes per cached element.
    pub kv_bytes_per_element: f64,
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

impl Precision {
    /// Reads the formats by name.
    pub fn read(get: &impl Fn(&'static str) -> f64) -> Result<Self, CoreError> {
        let above_zero = |name| positive(name, get(name));
        Ok(Self {
            mixer_bits: above_zero("mixer_bits")?,
            mlp_bits: above_zero("mlp_bits")?,
            expert_bits: above_zero("expert_bits")?,
            head_bits: above_zero("head_bits")?,
            mixer_flops: above_zero("mixer_flops")?,
            mlp_flops: above_zero("mlp_flops")?,
            expert_flops: above_zero("expert_flops")?,
            weight_block: above_zero("weight_block")?,
            kv_bytes_per_element: above_zero("kv_bytes_per_element")?,
        })
    }
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

    fn accepts(&self, at: &Parallelism, weight_block: f64) -> bool {
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
    fn dense_params(&self, tp: f64) -> (f64, f64) {
        let mixer = &self.mixer;
        let kv_shards = tp.min(mixer.kv_heads.max(1.0));
        let of_mixer = mixer.split_params / tp + mixer.kv_params / kv_shards + mixer.whole_params;
        (of_mixer, (self.mlp_params + self.experts.outer_params) / tp)
    }

    fn sixteen_bit_params(&self) -> f64 {
        self.vector_params + self.experts.router_params
    }

    /// Mixers and MLPs of one layer: each ends in an all-reduce under tensor parallelism.
    fn parts(&self) -> f64 {
        let is = |present: bool| f64::from(u8::from(present));
        is(self.mixer.is_present()) + is(self.mlp_params > 0.0 || self.experts.count > 0.0)
    }

    fn add_to(&self, layers: &mut Layers, at: &Parallelism, precision: &Precision) {
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
    fn caches(&self, tp: f64, kv_bytes_per_element: f64) -> impl Iterator<Item = Cache> {
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
    fn elements(&self, tp: f64) -> f64 {
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

impl Architecture {
    /// Reads the facts of a whole model by name, and joins its blocks.
    pub fn read(get: &impl Fn(&'static str) -> f64, blocks: &[Block]) -> Result<Self, CoreError> {
        let architecture = Self {
            hidden_size: positive("hidden_size", get("hidden_size"))?,
            vocab_size: positive("vocab_size", get("vocab_size"))?,
            tied_embeddings: get("tied_embeddings") != 0.0,
            final_norm_params: not_negative("final_norm_params", get("final_norm_params"))?,
            other_params: not_negative("other_params", get("other_params"))?,
            blocks: blocks.to_vec(),
        };
        positive("layers", architecture.layers())?;
        architecture.expert_choice()?;
        Ok(architecture)
    }

    /// Number of layers, L.
    pub fn layers(&self) -> f64 {
        self.blocks.iter().map(|block| block.count).sum()
    }

    /// Layers of latent attention, which run more kernels than others.
    pub fn latent_layers(&self) -> f64 {
        self.blocks.iter().filter(|block| block.mixer.latent_elements > 0.0).map(|block| block.count).sum()
    }

    /// Width of the residual stream, d.
    pub fn hidden_size(&self) -> f64 {
        self.hidden_size
    }

    /// Whether an engine accepts this split: heads and widths divide evenly, KV heads divide or replicate evenly.
    pub fn accepts(&self, at: &Parallelism, weight_block: f64) -> bool {
        let expert_parallel = at.ep == 1.0 || (at.ep == at.tp * at.dp && self.has_experts());
        expert_parallel && at.pp <= self.layers() && self.blocks.iter().all(|block| block.accepts(at, weight_block))
    }

    fn has_experts(&self) -> bool {
        self.blocks.iter().any(|block| block.experts.count > 0.0)
    }

    /// (k, E) of the blocks with experts, (0, 1) without; one choice for all of them, since a step has one token count.
    pub fn expert_choice(&self) -> Result<(f64, f64), CoreError> {
        let mut found = None;
        for experts in self.blocks.iter().map(|block| &block.experts).filter(|experts| experts.count > 0.0) {
            let choice = (experts.per_token, experts.count);
            if *found.get_or_insert(choice) != choice {
                return Err(CoreError::Fact {
                    name: "experts",
                    value: experts.count,
                    allowed: "the same number, and the same number per token, in every layer that has some",
                });
            }
        }
        Ok(found.unwrap_or((0.0, 1.0)))
    }

    /// Parameters of one input embedding or output head, V·d.
    pub fn embedding_params(&self) -> f64 {
        self.vocab_size * self.hidden_size
    }

    /// Norm weights after the last layer, which every step reads.
    pub fn final_norm_params(&self) -> f64 {
        self.final_norm_params
    }

    /// Whether the output head is the input embedding.
    pub fn is_tied(&self) -> bool {
        self.tied_embeddings
    }

    fn heads_of_its_own(&self) -> f64 {
        if self.tied_embeddings { 0.0 } else { 1.0 }
    }

    /// All parameters, each matrix once.
    pub fn total_params(&self) -> f64 {
        let of_blocks: f64 = self.blocks.iter().map(|block| block.count * self.layer_params(block)).sum();
        let outside = self.embedding_params() * (1.0 + self.heads_of_its_own());
        of_blocks + outside + self.final_norm_params + self.other_params
    }

    fn layer_params(&self, block: &Block) -> f64 {
        let (mixer, mlp) = block.dense_params(1.0);
        mixer + mlp + block.sixteen_bit_params() + block.experts.count * block.experts.params
    }

    /// Parameters that one token passes: all but the experts it is not routed to and what no decode step uses.
    pub fn active_params(&self) -> f64 {
        let idle = |block: &Block| block.count * (block.experts.count - block.experts.per_token) * block.experts.params;
        self.total_params() - self.other_params - self.blocks.iter().map(idle).sum::<f64>()
    }

    /// Parameters that a token multiplies in the layers: experts by those it passes.
    pub fn layer_matmul_params(&self) -> f64 {
        let of_layer = |block: &Block| {
            let (mixer, mlp) = block.dense_params(1.0);
            mixer + mlp + block.experts.per_token * block.experts.params
        };
        self.blocks.iter().map(|block| block.count * of_layer(block)).sum()
    }

    /// Bytes of the whole checkpoint at this precision.
    pub fn weight_bytes(&self, precision: &Precision) -> f64 {
        let layers = self.pass(&Parallelism::NONE, precision);
        let head = self.heads_of_its_own() * precision.head_bits / 8.0;
        let sixteen = self.final_norm_params + self.other_params + self.embedding_params();
        layers.bytes + layers.expert_bytes + self.embedding_params() * head + sixteen * SIXTEEN_BIT_BYTES
    }

    /// KV bytes of one token over the whole model, index keys included.
    pub fn kv_bytes_per_token(&self, precision: &Precision) -> f64 {
        self.caches(1.0, precision.kv_bytes_per_element).map(|cache| cache.kept_bytes).sum()
    }

    /// State bytes of one sequence over the whole model.
    pub fn state_bytes(&self) -> f64 {
        self.blocks.iter().map(|block| block.count * block.mixer.state_bytes).sum()
    }

    /// All layers of one rank's way, as if pp were 1.
    pub fn pass(&self, at: &Parallelism, precision: &Precision) -> Layers {
        let mut layers = Layers::default();
        for block in &self.blocks {
            block.add_to(&mut layers, at, precision);
        }
        layers
    }

    /// Caches of one rank, block by block, as if pp were 1.
    pub fn caches(&self, tp: f64, kv_bytes_per_element: f64) -> impl Iterator<Item = Cache> {
        self.blocks.iter().flat_map(move |block| block.caches(tp, kv_bytes_per_element))
    }

    /// Bytes resident on the fullest rank.
    pub fn weight_shard_bytes(&self, at: &Parallelism, precision: &Precision) -> f64 {
        let layers = self.pass(at, precision);
        let rank_embedding = self.embedding_params() / at.tp;
        let embedding = rank_embedding * SIXTEEN_BIT_BYTES;
        let head = rank_embedding * precision.head_bits / 8.0;
        let outside = match (at.pp > 1.0, self.tied_embeddings) {
            (true, _) => embedding.max(head),
            (false, true) => embedding,
            (false, false) => embedding + head,
        };
        let sixteen = (self.final_norm_params + self.other_params) * SIXTEEN_BIT_BYTES;
        at.stage_share(self.layers()) * (layers.bytes + layers.expert_bytes) + outside + sixteen
    }

    /// What the peak of the engine's profiling run depends on, of one rank.
    pub fn activation_shape(&self, at: &Parallelism, multimodal: bool) -> ActivationShape {
        let widest = |of_block: &dyn Fn(&Block) -> f64| self.blocks.iter().map(of_block).fold(0.0, f64::max);
        ActivationShape {
            layers: at.stage_share(self.layers()) * self.layers(),
            hidden_size: self.hidden_size,
            vocab_size: self.vocab_size,
            mlp_elements: widest(&|block| block.mlp_params / self.hidden_size / at.tp),
            expert_elements: widest(&|block| block.experts.elements(at.tp)),
            latent_elements: widest(&|block| block.mixer.latent_elements / at.tp),
            multimodal,
        }
    }

    /// Layers that keep KV by what they see, and after them those with a recurrent state.
    pub fn cache_kinds(&self) -> (Vec<f64>, f64) {
        let mut attending: Vec<(Span, f64)> = Vec::new();
        let mut recurrent = 0.0;
        for block in &self.blocks {
            let span = block.mixer.span;
            if block.mixer.state_bytes > 0.0 {
                recurrent += block.count;
            } else if block.mixer.kv_elements_per_token > 0.0 {
                match attending.iter_mut().find(|kind| kind.0 == span) {
                    Some(kind) => kind.1 += block.count,
                    None => attending.push((span, block.count)),
                }
            }
        }
        (attending.into_iter().map(|kind| kind.1).collect(), recurrent)
    }

    /// Parts of all layers that end in communication: mixers and MLPs, and those of them that are experts.
    pub fn parts(&self) -> (f64, f64) {
        let with_experts = |block: &&Block| block.experts.count > 0.0;
        (
            self.blocks.iter().map(|block| block.count * block.parts()).sum(),
            self.blocks.iter().filter(with_experts).map(|block| block.count).sum(),
        )
    }
}
