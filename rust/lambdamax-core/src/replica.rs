//! A model on devices: shards, KV pool, what fits (docs/model.md section 2).

use crate::accelerator::Accelerator;
use crate::block::Block;
use crate::error::{CoreError, positive};
use crate::memory::{ActivationShape, MemoryModel, kv_group_layers, kv_groups, state_block_tokens};
use crate::model::Architecture;
use crate::parallelism::Parallelism;
use crate::precision::Precision;
use crate::profile::Profile;
use crate::step::{Parts, Spans, StepCosts};

/// Tokens of one KV block, the engine's allocation unit.
pub const BLOCK_TOKENS: f64 = 16.0;

/// Names of the facts that make up one replica, in no particular order; `model` is an index into a table of blocks.
pub const REPLICA_FIELDS: &[&str] = &[
    "model",
    "hidden_size",
    "vocab_size",
    "tied_embeddings",
    "final_norm_params",
    "other_params",
    "mixer_bits",
    "mlp_bits",
    "expert_bits",
    "head_bits",
    "mixer_flops",
    "mlp_flops",
    "expert_flops",
    "attention_flops",
    "weight_block",
    "kv_bytes_per_element",
    "accelerator_memory_bytes",
    "memory_bandwidth_bytes_per_s",
    "scaleup_bytes_per_s",
    "scaleup_domain_size",
    "scaleup_mesh",
    "pcie_bytes_per_s",
    "tp",
    "pp",
    "dp",
    "ep",
    "default_max_num_seqs",
    "default_max_num_batched_tokens",
    "default_memory_utilization",
    "kv_padding",
    "multimodal",
    "activation_workspace_bytes",
    "forward_hidden_copies",
    "multimodal_hidden_copies",
    "sampler_bytes_per_logit",
    "non_torch_bytes",
    "graph_bytes_per_layer",
    "driver_hidden_bytes",
    "graphs_in_budget",
    "memory_fraction_of",
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
    "latent_layer_floor_s",
    "prefill_layer_overhead_s",
    "allreduce_latency_s",
    "allreduce_latency_per_doubling_s",
    "allreduce_bandwidth_efficiency",
    "pcie_allreduce_latency_s",
    "pcie_allreduce_latency_per_doubling_s",
    "pcie_bandwidth_efficiency",
    "host_latency_s",
    "host_latency_per_token_s",
    "async_scheduling",
    "expert_load_imbalance",
    "measured_over_floor_ratio",
    "ttft_s",
    "supported",
];

/// Whether a replica can exist at all, whatever the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feasibility {
    /// An engine would start it, memory permitting.
    Possible,
    /// An engine would refuse to cut the model so.
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

/// One engine instance: a model on `gpus` devices, with everything the solvers need of it.
#[derive(Clone, Copy, Debug)]
pub struct Replica {
    /// Whether it can exist.
    pub feasibility: Feasibility,
    /// Devices.
    pub gpus: f64,
    /// Independent batches, S = pp·dp: what the solvers find for one holds for each.
    pub slots: f64,
    /// Stages, pp: slots that share one KV pool and its seats.
    pub stages: f64,
    /// Bytes of the whole checkpoint.
    pub weight_bytes: f64,
    /// Bytes of weights on the fullest rank.
    pub weight_shard_bytes: f64,
    /// Bytes of weights that a rank reads for one sequence alone.
    pub weight_read_bytes: f64,
    /// KV bytes of a token, whole model.
    pub kv_bytes_per_token: f64,
    /// KV bytes of a token on the fullest rank; of a byte where nothing is kept per token.
    pub kv_bytes_per_token_rank: f64,
    /// Recurrent state of one sequence, whole model, bytes.
    pub state_bytes: f64,
    /// The same on a rank, in tokens of KV.
    pub state_tokens: f64,
    /// Bytes that the allocator takes for a byte of KV.
    pub kv_padding: f64,
    /// What the engine reserves.
    pub memory: MemoryModel,
    /// Widths that its activation peak depends on.
    pub shape: ActivationShape,
    /// Parameters, each matrix once.
    pub total_params: f64,
    /// Parameters that a token passes: experts by those it is routed to, embedding and head included.
    pub active_params: f64,
    /// Parameters that a token multiplies in the layers, whole model.
    pub layer_matmul_params: f64,
    /// Parameters of the output head.
    pub head_params: f64,
    /// Single-stream floor: weights read over peak bandwidth [s].
    pub tpot_floor_s: f64,
    /// Memory of one device, bytes.
    pub memory_bytes: f64,
    /// Device peaks.
    pub accelerator: Accelerator,
    /// Dense peak of attention matrices, FLOP/s.
    pub gemm_flops: f64,
    /// Iteration time.
    pub costs: StepCosts<f64>,
    /// Attention and what it keeps.
    pub spans: Spans,
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
        slots: 1.0,
        stages: 1.0,
        weight_bytes: f64::NAN,
        weight_shard_bytes: f64::NAN,
        weight_read_bytes: f64::NAN,
        kv_bytes_per_token: f64::NAN,
        kv_bytes_per_token_rank: f64::NAN,
        state_bytes: f64::NAN,
        state_tokens: f64::NAN,
        kv_padding: f64::NAN,
        memory: MemoryModel::NONE,
        shape: ActivationShape::NONE,
        total_params: f64::NAN,
        active_params: f64::NAN,
        layer_matmul_params: f64::NAN,
        head_params: f64::NAN,
        tpot_floor_s: f64::NAN,
        memory_bytes: f64::NAN,
        accelerator: Accelerator::UNKNOWN,
        gemm_flops: f64::NAN,
        costs: StepCosts::NONE,
        spans: Spans::NONE,
        full: true,
        host: HostCosts::NONE,
        defaults: EngineDefaults::NONE,
    };

    /// Builds a replica from its facts by name (`REPLICA_FIELDS`) and its model's blocks; a bad fact is an error that names it.
    pub fn read(get: &impl Fn(&'static str) -> f64, blocks: &[Block]) -> Result<Self, CoreError> {
        if get("supported") == 0.0 {
            return Ok(*Self::UNKNOWN);
        }
        let architecture = Architecture::read(get, blocks)?;
        let precision = Precision::read(get)?;
        let accelerator = Accelerator::read(get)?;
        let parallelism = Parallelism::read(get)?;
        let parts = Parts {
            architecture: &architecture,
            precision: &precision,
            accelerator: &accelerator,
            parallelism: &parallelism,
        };
        let profile = Profile::read(get)?;
        let assembled = Self::assemble(&parts, &profile)?;
        let layout =
            KvLayout::new(&architecture, get("kv_padding"), assembled.state_bytes / parallelism.tp, &assembled);
        Ok(Self {
            kv_padding: positive("kv_padding", layout.padding)?,
            state_tokens: layout.state_tokens,
            memory: MemoryModel::read(get)?,
            shape: architecture.activation_shape(&parallelism, get("multimodal") == 1.0),
            defaults: EngineDefaults::read(get)?,
            ..assembled
        })
    }

    fn assemble(parts: &Parts, profile: &Profile) -> Result<Self, CoreError> {
        let Parts { architecture, precision, accelerator, parallelism } = *parts;
        let stepping = StepCosts::new(parts, profile)?;
        let accepted = architecture.accepts(parallelism, precision.weight_block);
        let feasibility = Self::judge(stepping.is_some(), accepted);
        let (costs, spans) = stepping.unwrap_or((StepCosts::NONE, Spans::NONE));
        let (passed, experts) = architecture.expert_choice()?;
        let read_bytes = parts.always_read_bytes(1.0) + parts.expert_bytes() * passed / experts;
        let state_bytes = architecture.state_bytes();
        Ok(Self {
            feasibility,
            gpus: parallelism.gpus(),
            slots: parallelism.slots(),
            stages: parallelism.pp,
            weight_bytes: architecture.weight_bytes(precision),
            weight_shard_bytes: architecture.weight_shard_bytes(parallelism, precision),
            weight_read_bytes: read_bytes,
            kv_bytes_per_token: architecture.kv_bytes_per_token(precision),
            kv_bytes_per_token_rank: parallelism.stage_share(architecture.layers()) * spans.token_bytes(),
            state_bytes,
            total_params: architecture.total_params(),
            active_params: architecture.active_params(),
            layer_matmul_params: architecture.layer_matmul_params(),
            head_params: architecture.embedding_params(),
            tpot_floor_s: read_bytes / accelerator.bandwidth,
            memory_bytes: accelerator.memory_bytes,
            accelerator: *accelerator,
            gemm_flops: precision.mixer_flops,
            costs,
            spans,
            full: matches!(profile, Profile::Full(_)),
            host: HostCosts::new(profile),
            ..*Self::UNKNOWN
        })
    }

    fn judge(linked: bool, parallelism_accepted: bool) -> Feasibility {
        match (linked, parallelism_accepted) {
            (false, _) => Feasibility::Unsupported,
            (true, false) => Feasibility::InvalidParallelism,
            (true, true) => Feasibility::Possible,
        }
    }

    /// KV pool of the whole replica in tokens that every layer keeps, whole blocks; negative or zero where the weights do not fit.
    ///
    /// `memory_bytes` per device, `memory_utilization` the share the engine plans with, `reserved_bytes` per rank.
    pub fn kv_pool_tokens(&self, memory_bytes: f64, memory_utilization: f64, reserved_bytes: f64) -> f64 {
        let left_bytes =
            self.memory.left_bytes(memory_bytes, memory_utilization, self.weight_shard_bytes, reserved_bytes);
        let block_bytes = BLOCK_TOKENS * self.kv_bytes_per_token_rank * self.kv_padding;
        self.pools() * BLOCK_TOKENS * (left_bytes / block_bytes).floor()
    }

    /// What the engine reserves on a rank at a memory fraction, a token budget and a number of seats [bytes].
    pub fn reserved_bytes(&self, memory_utilization: f64, budget: f64, seats: f64) -> f64 {
        self.memory.reserved_bytes(&self.shape, memory_utilization, budget, seats)
    }

    /// KV pools that do not share: one for each rank of data parallelism.
    pub fn pools(&self) -> f64 {
        self.slots / self.stages
    }
}

/// What an allocator makes of layers of several kinds that share one pool.
struct KvLayout {
    /// Bytes taken for a byte of KV.
    padding: f64,
    /// Recurrent state of a sequence on a rank, in tokens of KV.
    state_tokens: f64,
}

impl KvLayout {
    /// `padding` 0 stands for an engine that puts layers into groups of equal size (docs/kv_pool.md section 3); else it is given.
    fn new(architecture: &Architecture, padding: f64, state_bytes: f64, replica: &Replica) -> Self {
        let token_bytes = replica.spans.token_bytes();
        let state_tokens = state_bytes / token_bytes;
        if padding != 0.0 {
            return Self { padding, state_tokens };
        }
        let (attending, recurrent) = architecture.cache_kinds();
        let layers: f64 = attending.iter().sum();
        if layers == 0.0 {
            return Self { padding: 1.0, state_tokens };
        }
        let group = kv_group_layers(attending.iter().copied().chain([recurrent]));
        let padded = group * attending.iter().map(|&kind| kv_groups(kind, group)).sum::<f64>();
        let layer_bytes = token_bytes / layers;
        let pages = group * kv_groups(recurrent, group);
        let page_tokens = state_block_tokens(state_bytes / recurrent.max(1.0), layer_bytes, BLOCK_TOKENS);
        let kept = if recurrent > 0.0 { pages * page_tokens / padded } else { 0.0 };
        Self { padding: padded / layers, state_tokens: kept }
    }
}

impl EngineDefaults {
    const NONE: Self = Self { max_num_seqs: f64::NAN, max_num_batched_tokens: f64::NAN, memory_utilization: f64::NAN };

    fn read(get: &impl Fn(&'static str) -> f64) -> Result<Self, CoreError> {
        Ok(Self {
            max_num_seqs: positive("default_max_num_seqs", get("default_max_num_seqs"))?,
            max_num_batched_tokens: positive("default_max_num_batched_tokens", get("default_max_num_batched_tokens"))?,
            memory_utilization: positive("default_memory_utilization", get("default_memory_utilization"))?,
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
