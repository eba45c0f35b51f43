//! A model's architecture → parameters, weight bytes and KV bytes (dense attention; docs/model.md section 1).

use crate::error::{CoreError, positive};

/// Bytes per parameter of what stays at 16 bits: embedding, head, norms, biases.
const SIXTEEN_BIT_BYTES: f64 = 2.0;

/// Facts of a dense decoder-only transformer, as its `config.json` states them.
#[derive(Clone, Copy, Debug)]
pub struct Architecture {
    layers: f64,
    hidden_size: f64,
    attention_heads: f64,
    kv_heads: f64,
    head_dim: f64,
    intermediate_size: f64,
    mlp_matrices: f64,
    vocab_size: f64,
    tied_embeddings: bool,
    layer_vector_params: f64,
    final_norm_params: f64,
}

/// Bytes per value of the weights of projections and MLP, and of the KV cache.
#[derive(Clone, Copy, Debug)]
pub struct Precision {
    /// Bits per parameter, block scales included.
    pub weight_bits: f64,
    /// Bytes per cached element.
    pub kv_bytes_per_element: f64,
}

/// What one rank of a tensor-parallel group holds and computes with.
#[derive(Clone, Copy, Debug)]
pub struct Shard {
    /// Bytes resident.
    pub weight_bytes: f64,
    /// Bytes read by every step: all but the input embedding.
    pub weight_read_bytes: f64,
    /// KV bytes that one token takes on this rank; KV heads replicate once tp exceeds them.
    pub kv_bytes_per_token: f64,
    /// Parameters multiplied for every token: projections and MLP.
    pub layer_matmul_params: f64,
    /// Parameters multiplied for every row that needs logits.
    pub head_params: f64,
    /// Multiply-accumulate width of attention: layers·heads·head_dim on this rank.
    pub attention_width: f64,
}

impl Architecture {
    /// Reads the facts by name (the names of `REPLICA_FIELDS`); every count must be positive and finite.
    pub fn read(get: &impl Fn(&'static str) -> f64) -> Result<Self, CoreError> {
        let count = |name| positive(name, get(name));
        let zero_or_more = |name| crate::error::not_negative(name, get(name));
        Ok(Self {
            layers: count("layers")?,
            hidden_size: count("hidden_size")?,
            attention_heads: count("attention_heads")?,
            kv_heads: count("kv_heads")?,
            head_dim: count("head_dim")?,
            intermediate_size: count("intermediate_size")?,
            mlp_matrices: count("mlp_matrices")?,
            vocab_size: count("vocab_size")?,
            tied_embeddings: get("tied_embeddings") != 0.0,
            layer_vector_params: zero_or_more("layer_vector_params")?,
            final_norm_params: zero_or_more("final_norm_params")?,
        })
    }

    /// Number of layers, L.
    pub fn layers(&self) -> f64 {
        self.layers
    }

    /// Width of the residual stream, d.
    pub fn hidden_size(&self) -> f64 {
        self.hidden_size
    }

    /// Whether an engine accepts this tensor parallelism: heads divide evenly, KV heads divide or replicate evenly.
    pub fn accepts_tp(&self, tp: f64) -> bool {
        let divides = |a: f64, b: f64| b % a == 0.0;
        divides(tp, self.attention_heads) && (divides(tp, self.kv_heads) || divides(self.kv_heads, tp))
    }

    /// Parameters of one input embedding or output head, V·d.
    pub fn embedding_params(&self) -> f64 {
        self.vocab_size * self.hidden_size
    }

    fn untied_heads(&self) -> f64 {
        if self.tied_embeddings { 0.0 } else { 1.0 }
    }

    fn query_output_params(&self) -> f64 {
        2.0 * self.layers * self.hidden_size * self.attention_heads * self.head_dim
    }

    fn key_value_params(&self) -> f64 {
        2.0 * self.layers * self.hidden_size * self.kv_heads * self.head_dim
    }

    fn mlp_params(&self) -> f64 {
        self.layers * self.mlp_matrices * self.hidden_size * self.intermediate_size
    }

    fn vector_params(&self) -> f64 {
        self.layers * self.layer_vector_params + self.final_norm_params
    }

    /// All parameters, each matrix once.
    pub fn total_params(&self) -> f64 {
        let matrices = self.query_output_params() + self.key_value_params() + self.mlp_params();
        matrices + self.vector_params() + self.embedding_params() * (1.0 + self.untied_heads())
    }

    /// Bytes of the whole checkpoint at this precision.
    pub fn weight_bytes(&self, precision: Precision) -> f64 {
        let matrices = self.query_output_params() + self.key_value_params() + self.mlp_params();
        let sixteen = self.vector_params() + self.embedding_params() * (1.0 + self.untied_heads());
        matrices * precision.weight_bits / 8.0 + sixteen * SIXTEEN_BIT_BYTES
    }

    /// KV bytes of one token over the whole model: 2·L·n_kv·d_h·s.
    pub fn kv_bytes_per_token(&self, precision: Precision) -> f64 {
        2.0 * self.layers * self.kv_heads * self.head_dim * precision.kv_bytes_per_element
    }

    /// One rank's share under tensor parallelism `tp` (which `accepts_tp` must allow).
    pub fn shard(&self, tp: f64, precision: Precision) -> Shard {
        let kv_shards = tp.min(self.kv_heads);
        let layer_matmul_params =
            (self.query_output_params() + self.mlp_params()) / tp + self.key_value_params() / kv_shards;
        let head_params = self.embedding_params() / tp;
        let always_read = layer_matmul_params * precision.weight_bits / 8.0
            + (self.vector_params() + head_params) * SIXTEEN_BIT_BYTES;
        Shard {
            weight_bytes: always_read + self.untied_heads() * head_params * SIXTEEN_BIT_BYTES,
            weight_read_bytes: always_read,
            kv_bytes_per_token: self.kv_bytes_per_token(precision) / kv_shards,
            layer_matmul_params,
            head_params,
            attention_width: self.layers * self.attention_heads * self.head_dim / tp,
        }
    }
}
