//! A model's layers → parameters, weight bytes and KV bytes, whole and per rank (docs/model.md section 1).

use crate::block::{Block, Cache, Layers, SIXTEEN_BIT_BYTES};
use crate::error::{CoreError, not_negative, positive};
use crate::memory::ActivationShape;
use crate::parallelism::Parallelism;
use crate::precision::Precision;
use crate::span::Span;

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
