//! A model on devices: shards, KV pool, what fits (docs/model.md section 2).

use crate::accelerator::Accelerator;
use crate::error::{CoreError, positive};
use crate::model::{Architecture, Precision};
use crate::profile::Profile;
use crate::step::StepCosts;

/// Tokens of one KV block, the engine's allocation unit.
pub const BLOCK_TOKENS: f64 = 16.0;

/// Names of the facts that make up one replica, in no particular order.
pub const REPLICA_FIELDS: &[&str] = &[
    "layers",
    "hidden_size",
    "attention_heads",
    "kv_heads",
    "head_dim",
    "intermediate_size",
    "mlp_matrices",
    "vocab_size",
    "tied_embeddings",
    "layer_vector_params",
    "final_norm_params",
    "weight_bits",
    "kv_bytes_per_element",
    "accelerator_memory_bytes",
    "memory_bandwidth_bytes_per_s",
    "gemm_flops",
    "attention_flops",
    "scaleup_bytes_per_s",
    "scaleup_domain_size",
    "pcie_bytes_per_s",
    "tp",
    "default_max_num_seqs",
    "default_max_num_batched_tokens",
    "default_memory_utilization",
    "default_reserved_bytes",
    "kind",
    "gemm_bandwidth_efficiency",
    "gemm_flops_efficiency",
    "roofline_exponent",
    "attention_bandwidth_efficiency",
    "prefill_attention_flops_efficiency",
    "prefill_attention_half_tokens",
    "step_overhead_s",
    "sequence_overhead_s",
    "layer_floor_s",
    "allreduce_latency_s",
    "allreduce_latency_per_doubling_s",
    "allreduce_bandwidth_efficiency",
    "pcie_allreduce_latency_s",
    "pcie_allreduce_latency_per_doubling_s",
    "pcie_bandwidth_efficiency",
    "host_latency_s",
    "host_latency_per_token_s",
    "async_scheduling",
    "measured_over_floor_ratio",
    "ttft_s",
    "supported",
];

/// Whether a replica can exist at all, whatever the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feasibility {
    /// An engine would start it, memory permitting.
    Possible,
    /// Heads do not divide by the tensor parallelism.
    InvalidParallelism,
    /// The catalogue knows no way to run it.
    Unsupported,
}

/// Engine settings that hold where a point gives none.
#[derive(Clone, Copy, Debug)]
pub struct EngineDefaults {
    /// Seats.
    pub max_num_seqs: f64,
    /// Token budget of one iteration.
    pub max_num_batched_tokens: f64,
    /// Share of the memory that the engine plans with.
    pub memory_utilization: f64,
    /// Bytes per rank for all beside weights and KV.
    pub reserved_bytes: f64,
}

/// TTFT constants that do not depend on the step.
#[derive(Clone, Copy, Debug)]
pub struct HostCosts {
    /// Fixed part [s].
    pub latency_s: f64,
    /// Per prompt token [s].
    pub latency_per_token_s: f64,
    /// 1 if the engine schedules one step ahead.
    pub async_scheduling: f64,
    /// The constant TTFT of a ratio profile [s].
    pub held_ttft_s: f64,
}

/// One engine instance: a model on `tp` devices, with everything the solvers need of it.
#[derive(Clone, Copy, Debug)]
pub struct Replica {
    /// Whether it can exist.
    pub feasibility: Feasibility,
    /// Devices.
    pub gpus: f64,
    /// Bytes of the whole checkpoint.
    pub weight_bytes: f64,
    /// Bytes of weights on one rank.
    pub weight_shard_bytes: f64,
    /// Bytes of weights that a rank reads in a step.
    pub weight_read_bytes: f64,
    /// KV bytes of a token, whole model.
    pub kv_bytes_per_token: f64,
    /// KV bytes of a token on one rank.
    pub kv_bytes_per_token_rank: f64,
    /// Parameters, each matrix once.
    pub total_params: f64,
    /// Parameters of projections and MLP, whole model.
    pub layer_matmul_params: f64,
    /// Parameters of the output head.
    pub head_params: f64,
    /// Single-stream floor: weights read over peak bandwidth [s].
    pub tpot_floor_s: f64,
    /// Memory of one device, bytes.
    pub memory_bytes: f64,
    /// Device peaks.
    pub accelerator: Accelerator,
    /// Iteration time.
    pub costs: StepCosts<f64>,
    /// Whether the profile models prefill and the light-load step (false: worked example A's kind).
    pub full: bool,
    /// TTFT constants.
    pub host: HostCosts,
    /// Engine settings.
    pub defaults: EngineDefaults,
}

impl Replica {
    /// Stands in for a row that the catalogue cannot describe; its facts are not read.
    pub const UNKNOWN: &'static Self = &Self {
        feasibility: Feasibility::Unsupported,
        gpus: f64::NAN,
        weight_bytes: f64::NAN,
        weight_shard_bytes: f64::NAN,
        weight_read_bytes: f64::NAN,
        kv_bytes_per_token: f64::NAN,
        kv_bytes_per_token_rank: f64::NAN,
        total_params: f64::NAN,
        layer_matmul_params: f64::NAN,
        head_params: f64::NAN,
        tpot_floor_s: f64::NAN,
        memory_bytes: f64::NAN,
        accelerator: Accelerator::UNKNOWN,
        costs: StepCosts::NONE,
        full: true,
        host: HostCosts::NONE,
        defaults: EngineDefaults::NONE,
    };

    /// Builds a replica from its facts by name (`REPLICA_FIELDS`); a bad fact is an error that names it.
    pub fn read(get: &impl Fn(&'static str) -> f64) -> Result<Self, CoreError> {
        if get("supported") == 0.0 {
            return Ok(*Self::UNKNOWN);
        }
        let architecture = Architecture::read(get)?;
        let precision = Precision {
            weight_bits: positive("weight_bits", get("weight_bits"))?,
            kv_bytes_per_element: positive("kv_bytes_per_element", get("kv_bytes_per_element"))?,
        };
        let accelerator = Accelerator::read(get)?;
        let profile = Profile::read(get)?;
        let tp = positive("tp", get("tp"))?;
        let defaults = EngineDefaults::read(get)?;
        Ok(Self::assemble(&architecture, precision, accelerator, &profile, tp, defaults))
    }

    fn assemble(
        architecture: &Architecture,
        precision: Precision,
        accelerator: Accelerator,
        profile: &Profile,
        tp: f64,
        defaults: EngineDefaults,
    ) -> Self {
        let shard = architecture.shard(tp, precision);
        let whole = architecture.shard(1.0, precision);
        let costs = StepCosts::new(architecture, &shard, &accelerator, profile, tp);
        Self {
            feasibility: Self::judge(costs.is_some(), architecture.accepts_tp(tp)),
            gpus: tp,
            weight_bytes: architecture.weight_bytes(precision),
            weight_shard_bytes: shard.weight_bytes,
            weight_read_bytes: shard.weight_read_bytes,
            kv_bytes_per_token: architecture.kv_bytes_per_token(precision),
            kv_bytes_per_token_rank: shard.kv_bytes_per_token,
            total_params: architecture.total_params(),
            layer_matmul_params: whole.layer_matmul_params,
            head_params: whole.head_params,
            tpot_floor_s: shard.weight_read_bytes / accelerator.bandwidth,
            memory_bytes: accelerator.memory_bytes,
            accelerator,
            costs: costs.unwrap_or(StepCosts::NONE),
            full: matches!(profile, Profile::Full(_)),
            host: HostCosts::new(profile),
            defaults,
        }
    }

    fn judge(linked: bool, parallelism_accepted: bool) -> Feasibility {
        match (linked, parallelism_accepted) {
            (false, _) => Feasibility::Unsupported,
            (true, false) => Feasibility::InvalidParallelism,
            (true, true) => Feasibility::Possible,
        }
    }

    /// KV pool in tokens, whole blocks; negative or zero where the weights do not fit.
    ///
    /// `memory_bytes` per device, `memory_utilization` the share the engine plans with, `reserved_bytes` per rank.
    pub fn kv_pool_tokens(&self, memory_bytes: f64, memory_utilization: f64, reserved_bytes: f64) -> f64 {
        let left_bytes = memory_bytes * memory_utilization - reserved_bytes - self.weight_shard_bytes;
        BLOCK_TOKENS * (left_bytes / (BLOCK_TOKENS * self.kv_bytes_per_token_rank)).floor()
    }
}

impl EngineDefaults {
    const NONE: Self = Self {
        max_num_seqs: f64::NAN,
        max_num_batched_tokens: f64::NAN,
        memory_utilization: f64::NAN,
        reserved_bytes: f64::NAN,
    };

    fn read(get: &impl Fn(&'static str) -> f64) -> Result<Self, CoreError> {
        Ok(Self {
            max_num_seqs: positive("default_max_num_seqs", get("default_max_num_seqs"))?,
            max_num_batched_tokens: positive("default_max_num_batched_tokens", get("default_max_num_batched_tokens"))?,
            memory_utilization: positive("default_memory_utilization", get("default_memory_utilization"))?,
            reserved_bytes: crate::error::not_negative("default_reserved_bytes", get("default_reserved_bytes"))?,
        })
    }
}

impl HostCosts {
    const NONE: Self = Self { latency_s: 0.0, latency_per_token_s: 0.0, async_scheduling: 0.0, held_ttft_s: 0.0 };

    fn new(profile: &Profile) -> Self {
        match profile {
            Profile::Full(full) => Self {
                latency_s: full.host_latency_s,
                latency_per_token_s: full.host_latency_per_token_s,
                async_scheduling: full.async_scheduling,
                held_ttft_s: 0.0,
            },
            Profile::Ratio { ttft_s, .. } => Self { held_ttft_s: *ttft_s, ..Self::NONE },
        }
    }
}
