//! The engine's settings, by the names and defaults of vLLM V1.

use crate::blocks::BLOCK;
use crate::error::{SimError, within};

/// What the scheduler obeys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Tokens that one step may compute.
    pub max_num_batched_tokens: u32,
    /// Seats.
    pub max_num_seqs: u32,
    /// Blocks of the KV pool.
    pub num_gpu_blocks: u32,
    /// Most tokens of one prompt in one step; 0 for no such limit.
    pub long_prefill_token_threshold: u32,
    /// Whether a request is admitted only if its whole current sequence fits, not only its first chunk.
    pub scheduler_reserve_full_isl: bool,
    /// Share of the pool that admission leaves free.
    pub watermark: f64,
    /// Whether freed blocks can be found again.
    pub enable_prefix_caching: bool,
    /// Whether steps are scheduled one ahead.
    pub async_scheduling: bool,
}

impl Settings {
    /// The defaults, for a pool of so many blocks.
    pub fn with_pool(num_gpu_blocks: u32) -> Self {
        Self {
            max_num_batched_tokens: 8192,
            max_num_seqs: 1024,
            num_gpu_blocks,
            long_prefill_token_threshold: 0,
            scheduler_reserve_full_isl: true,
            watermark: 0.0,
            enable_prefix_caching: true,
            async_scheduling: true,
        }
    }

    /// Settings that can be, or why not.
    pub fn checked(self) -> Result<Self, SimError> {
        let at_least_one = [
            ("max_num_batched_tokens", self.max_num_batched_tokens),
            ("max_num_seqs", self.max_num_seqs),
            ("num_gpu_blocks", self.num_gpu_blocks),
        ];
        for (name, value) in at_least_one {
            within(name, f64::from(value), value > 0, "1 or more")?;
        }
        within("watermark", self.watermark, (0.0..1.0).contains(&self.watermark), "0 to below 1")?;
        Ok(self)
    }

    /// Blocks that admission leaves free.
    pub fn watermark_blocks(&self) -> u32 {
        (self.watermark * f64::from(self.num_gpu_blocks)) as u32
    }

    /// Longest sequence that can always run alone, beside `prefix` blocks in use by nobody else [tokens].
    pub fn max_model_len(&self, prefix: u32) -> u32 {
        self.num_gpu_blocks.saturating_sub(self.watermark_blocks() + prefix).saturating_mul(BLOCK)
    }

    /// `tokens` cut down to what one prompt may compute in one step.
    pub fn below_threshold(&self, tokens: u32) -> u32 {
        if self.long_prefill_token_threshold == 0 { tokens } else { tokens.min(self.long_prefill_token_threshold) }
    }
}
