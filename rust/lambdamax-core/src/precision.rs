//! Number formats of a replica's weights and KV cache, and the peaks they compute at.

use crate::error::{CoreError, positive};

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
