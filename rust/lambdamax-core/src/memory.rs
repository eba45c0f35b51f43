//! What an engine reserves on a rank beside weights and KV, and how it cuts the rest into KV blocks (docs/kv_pool.md).
//!
//! The engine runs its largest step once at start and measures the peak. That run is a forward pass over
//! `max_num_batched_tokens` tokens, then the sampler over `max_num_seqs` rows of logits; the pool is what is left.

use crate::error::{CoreError, not_negative};

/// Bytes of one activation element: engines compute in 16 bits whatever the weights are stored in.
const ACTIVATION_BYTES: f64 = 2.0;
/// Tokens of the buffer in which a latent cache is expanded to keys and values during the profiling run.
const LATENT_EXPANSION_TOKENS: f64 = 65_536.0;
/// Largest batch that is captured as a CUDA graph.
const LARGEST_CAPTURE: f64 = 512.0;
/// Kinds of layers whose numbers differ by less than this factor share one group size, the larger number.
const CLOSE_LAYER_NUMBERS: f64 = 1.5;

/// Names of the engine's memory constants, in no particular order.
pub const MEMORY_FIELDS: &[&str] = &[
    "activation_workspace_bytes",
    "forward_hidden_copies",
    "multimodal_hidden_copies",
    "sampler_bytes_per_logit",
    "non_torch_bytes",
    "graph_bytes_per_layer",
    "driver_hidden_bytes",
    "graphs_in_budget",
    "memory_fraction_of",
];

/// What the engine's memory fraction is a fraction of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FractionOf {
    /// The whole device; everything but the CUDA graphs of older versions is inside (vLLM).
    Total,
    /// The memory free at start; only weights and pool are inside (SGLang).
    Static,
    /// What is free once weights and activations are taken; all of it is pool (TensorRT-LLM).
    FreeAfterLoad,
}

/// One engine's memory constants on one device and tensor parallelism.
#[derive(Clone, Copy, Debug)]
pub struct MemoryModel {
    activation_workspace_bytes: f64,
    forward_hidden_copies: f64,
    multimodal_hidden_copies: f64,
    sampler_bytes_per_logit: f64,
    non_torch_bytes: f64,
    graph_bytes_per_layer: f64,
    driver_hidden_bytes: f64,
    graphs_in_budget: f64,
    fraction_of: FractionOf,
}

/// The widths that the profiling run's peak depends on, of one rank.
#[derive(Clone, Copy, Debug)]
pub struct ActivationShape {
    /// Layers on this rank.
    pub layers: f64,
    /// Width of the residual stream, d; not sharded.
    pub hidden_size: f64,
    /// Rows of the output head, V; logits are gathered, so not sharded.
    pub vocab_size: f64,
    /// Widest dense MLP: matrices·width/tp elements a token (gate, up and their product, or up and its activation).
    pub mlp_elements: f64,
    /// Widest routed layer: `expert_elements` elements a token; 0 without experts.
    pub expert_elements: f64,
    /// Latent attention: heads/tp·(key + value) elements that one cached token expands to; 0 without it.
    pub latent_elements: f64,
    /// Whether images or audio are encoded on the device.
    pub multimodal: bool,
}

impl ActivationShape {
    /// Stands in where nothing is known.
    pub const NONE: Self = Self {
        layers: f64::NAN,
        hidden_size: f64::NAN,
        vocab_size: f64::NAN,
        mlp_elements: f64::NAN,
        expert_elements: f64::NAN,
        latent_elements: f64::NAN,
        multimodal: false,
    };
}

impl MemoryModel {
    /// Stands in where nothing is known.
    pub const NONE: Self = Self {
        activation_workspace_bytes: f64::NAN,
        forward_hidden_copies: f64::NAN,
        multimodal_hidden_copies: f64::NAN,
        sampler_bytes_per_logit: f64::NAN,
        non_torch_bytes: f64::NAN,
        graph_bytes_per_layer: f64::NAN,
        driver_hidden_bytes: f64::NAN,
        graphs_in_budget: f64::NAN,
        fraction_of: FractionOf::Total,
    };

    /// Reads the constants by name (`MEMORY_FIELDS`); a bad one is an error that names it.
    ///
    /// `memory_fraction_of`: 0 total, 1 static, 2 free after load. `graphs_in_budget`: 1 if the fraction covers CUDA graphs.
    pub fn read(get: &impl Fn(&'static str) -> f64) -> Result<Self, CoreError> {
        let zero_or_more = |name| not_negative(name, get(name));
        Ok(Self {
            activation_workspace_bytes: zero_or_more("activation_workspace_bytes")?,
            forward_hidden_copies: zero_or_more("forward_hidden_copies")?,
            multimodal_hidden_copies: zero_or_more("multimodal_hidden_copies")?,
            sampler_bytes_per_logit: zero_or_more("sampler_bytes_per_logit")?,
            non_torch_bytes: zero_or_more("non_torch_bytes")?,
            graph_bytes_per_layer: zero_or_more("graph_bytes_per_layer")?,
            driver_hidden_bytes: zero_or_more("driver_hidden_bytes")?,
            graphs_in_budget: zero_or_more("graphs_in_budget")?,
            fraction_of: FractionOf::read(zero_or_more("memory_fraction_of")?),
        })
    }

    /// Peak bytes of activations in the profiling run of `tokens` (`max_num_batched_tokens`) and `seqs` (`max_num_seqs`).
    ///
    /// `w + tokens·2·(m·d + e) + max(tokens·2·(h·d + f) + 65536·2·l, b·min(seqs, tokens)·V + tokens·2·d)`: workspaces `w`,
    /// encoder outputs `m·d` (multimodal only), expert buffers `e` (kept for the next layer, so also under the sampler),
    /// then the larger of the forward pass and of the sampler beside the last hidden states.
    pub fn activation_bytes(&self, shape: &ActivationShape, tokens: f64, seqs: f64) -> f64 {
        let token_bytes = ACTIVATION_BYTES * tokens;
        let encoded = if shape.multimodal { self.multimodal_hidden_copies * shape.hidden_size } else { 0.0 };
        let kept = self.activation_workspace_bytes + token_bytes * (encoded + shape.expert_elements);
        let forward = token_bytes * (self.forward_hidden_copies * shape.hidden_size + shape.mlp_elements)
            + LATENT_EXPANSION_TOKENS * ACTIVATION_BYTES * shape.latent_elements;
        let sampler =
            self.sampler_bytes_per_logit * seqs.min(tokens) * shape.vocab_size + token_bytes * shape.hidden_size;
        kept + forward.max(sampler)
    }

    /// Bytes of CUDA graphs: a constant for each layer of each graph; mixed batches are captured up to twice `seqs`
    /// (at most 512), pure decode up to `seqs`.
    pub fn graph_bytes(&self, layers: f64, seqs: f64) -> f64 {
        let mixed = captured_sizes((2.0 * seqs).min(LARGEST_CAPTURE));
        let decode = captured_sizes(seqs.min(LARGEST_CAPTURE));
        self.graph_bytes_per_layer * layers * (mixed + decode)
    }

    /// Bytes per rank for all beside weights and KV, at `fraction` of the memory that the driver reports.
    ///
    /// Total: `f·hidden + activations + non-torch (+ graphs)`. Static: `f·(hidden + non-torch)`, activations and graphs
    /// being outside of the fraction. Free after load: `hidden + activations + non-torch`.
    pub fn reserved_bytes(&self, shape: &ActivationShape, fraction: f64, tokens: f64, seqs: f64) -> f64 {
        let activations = || self.activation_bytes(shape, tokens, seqs);
        match self.fraction_of {
            FractionOf::Total => {
                let graphs = self.graphs_in_budget * self.graph_bytes(shape.layers, seqs);
                fraction * self.driver_hidden_bytes + activations() + self.non_torch_bytes + graphs
            }
            FractionOf::Static => fraction * (self.driver_hidden_bytes + self.non_torch_bytes),
            FractionOf::FreeAfterLoad => self.driver_hidden_bytes + activations() + self.non_torch_bytes,
        }
    }

    /// Bytes left for KV on a rank with `weight_bytes` of weights, negative if they do not fit.
    ///
    /// Total and static: `f·memory − weights − reserved`. Free after load: `f·(memory − weights − reserved)`.
    pub fn left_bytes(&self, memory_bytes: f64, fraction: f64, weight_bytes: f64, reserved_bytes: f64) -> f64 {
        match self.fraction_of {
            FractionOf::Total | FractionOf::Static => fraction * memory_bytes - weight_bytes - reserved_bytes,
            FractionOf::FreeAfterLoad => fraction * (memory_bytes - weight_bytes - reserved_bytes),
        }
    }
}

impl FractionOf {
    fn read(code: f64) -> Self {
        if code == 1.0 {
            Self::Static
        } else if code == 2.0 {
            Self::FreeAfterLoad
        } else {
            Self::Total
        }
    }
}

/// Elements a token of the buffers between the two multiplications of routed experts on one rank:
/// `k·(max(w/tp, h) + max(p·w/tp, h))`, `per_token` experts k of `width` w on `hidden` h, p = 2 if gated, else 1.
pub fn expert_elements(per_token: f64, width: f64, hidden: f64, gated: bool, tp: f64) -> f64 {
    let shard = width / tp;
    let first = if gated { 2.0 * shard } else { shard };
    per_token * (shard.max(hidden) + first.max(hidden))
}

/// Batch sizes up to `largest` that are captured: 1, 2, 4, then every 8th to 256, then every 16th.
pub fn captured_sizes(largest: f64) -> f64 {
    let small = [1.0, 2.0, 4.0].iter().map(|&size| if size <= largest { 1.0 } else { 0.0 }).sum::<f64>();
    let eighths = (largest.min(256.0) / 8.0).floor();
    let sixteenths = ((largest - 256.0).max(0.0) / 16.0).floor();
    small + eighths + sixteenths
}

/// Layers of one KV group, given the number of layers of each kind (full, sliding, recurrent …): every group has the
/// same number, the smallest of the kinds', or the largest if all are close.
pub fn kv_group_layers(kinds: impl Iterator<Item = f64> + Clone) -> f64 {
    let present = kinds.filter(|&layers| layers > 0.0);
    let largest = present.clone().fold(0.0, f64::max);
    let smallest = present.fold(largest, f64::min);
    if largest < CLOSE_LAYER_NUMBERS * smallest { largest } else { smallest }
}

/// Groups that `layers` layers of one kind take; the last one is padded.
pub fn kv_groups(layers: f64, group_layers: f64) -> f64 {
    if layers > 0.0 { (layers / group_layers).ceil() } else { 0.0 }
}

/// Layers that the pool pays for: all groups times their layers. The pool loses `1 − layers/padded`.
pub fn padded_layers(kinds: impl Iterator<Item = f64> + Clone) -> f64 {
    let group_layers = kv_group_layers(kinds.clone());
    kinds.map(|layers| kv_groups(layers, group_layers)).sum::<f64>() * group_layers
}

/// Tokens of an attention block beside recurrent layers: as many whole `block_tokens` as make its page hold one state.
///
/// `state_bytes` of one recurrent layer and sequence, `kv_bytes_per_token_layer` of one attention layer, both per rank.
pub fn state_block_tokens(state_bytes: f64, kv_bytes_per_token_layer: f64, block_tokens: f64) -> f64 {
    let blocks = (state_bytes / (block_tokens * kv_bytes_per_token_layer)).ceil();
    block_tokens * blocks.max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: f64 = 1_073_741_824.0;

    fn constants(name: &str) -> f64 {
        match name {
            "activation_workspace_bytes" => 67_108_864.0,
            "forward_hidden_copies" => 3.25,
            "multimodal_hidden_copies" => 2.0,
            "sampler_bytes_per_logit" => 14.5,
            "non_torch_bytes" => 0.25 * GIB,
            "graph_bytes_per_layer" => 225_000.0,
            "driver_hidden_bytes" => 492e6,
            _ => 0.0,
        }
    }

    fn model(changed: &'static str, value: f64) -> MemoryModel {
        MemoryModel::read(&|name| if name == changed { value } else { constants(name) }).unwrap()
    }

    fn vllm() -> MemoryModel {
        model("", 0.0)
    }

    fn dense(hidden_size: f64, width: f64, vocab_size: f64) -> ActivationShape {
        ActivationShape {
            layers: 32.0,
            hidden_size,
            vocab_size,
            mlp_elements: 3.0 * width,
            expert_elements: 0.0,
            latent_elements: 0.0,
            multimodal: false,
        }
    }

    fn peak_gib(shape: &ActivationShape) -> f64 {
        vllm().activation_bytes(shape, 8192.0, 1024.0) / GIB
    }

    #[test]
    fn peaks_of_measured_start_ups_on_h100() {
        assert!((peak_gib(&dense(4096.0, 11008.0, 32016.0)) - 0.77).abs() < 0.01, "CodeLlama-7b: forward pass");
        assert!((peak_gib(&dense(4096.0, 14336.0, 128_256.0)) - 1.89).abs() < 0.02, "Llama-3.1-8B: sampler");
        let experts = expert_elements(8.0, 768.0, 2048.0, true, 1.0);
        let routed = ActivationShape { expert_elements: experts, ..dense(2048.0, 0.0, 151_936.0) };
        assert!((peak_gib(&routed) - 2.68).abs() < 0.03, "Qwen3-30B-A3B: expert buffers under the sampler");
    }

    #[test]
    fn the_peak_never_falls_with_budget_or_seats() {
        let shape = dense(4096.0, 14336.0, 128_256.0);
        let peak = |tokens, seqs| vllm().activation_bytes(&shape, tokens, seqs);
        for tokens in [512.0, 2048.0, 8192.0, 32768.0] {
            assert!(peak(2.0 * tokens, 256.0) >= peak(tokens, 256.0));
            assert!(peak(tokens, 512.0) >= peak(tokens, 256.0));
        }
    }

    #[test]
    fn captured_sizes_are_the_engines() {
        let sizes = [0.0, 1.0, 2.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0].map(captured_sizes);
        assert_eq!(sizes, [0.0, 1.0, 2.0, 4.0, 5.0, 7.0, 11.0, 19.0, 35.0, 51.0]);
    }

    #[test]
    fn groups_of_published_models() {
        let padded = |kinds: &[f64]| padded_layers(kinds.iter().copied());
        assert_eq!(padded(&[10.0, 52.0]), 70.0, "gemma-3-27b");
        assert_eq!(padded(&[8.0, 40.0]), 48.0, "gemma-3-12b");
        assert_eq!(padded(&[21.0, 21.0]), 42.0, "gemma-2-9b");
        assert_eq!(padded(&[13.0, 12.0]), 26.0, "close numbers take the larger");
        assert_eq!(padded(&[32.0, 0.0]), 32.0, "one kind");
        assert_eq!(padded(&[]), 0.0);
    }

    #[test]
    fn a_state_raises_the_attention_block() {
        assert_eq!(state_block_tokens(2_146_304.0, 4096.0, 16.0), 528.0, "Qwen3.5-4B");
        assert_eq!(state_block_tokens(0.0, 4096.0, 16.0), 16.0);
    }

    #[test]
    fn left_bytes_by_meaning_of_the_fraction() {
        let shape = dense(4096.0, 14336.0, 128_256.0);
        let left = |memory: MemoryModel| {
            let reserved = memory.reserved_bytes(&shape, 0.9, 8192.0, 1024.0);
            memory.left_bytes(80e9, 0.9, 16e9, reserved)
        };
        let activations = vllm().activation_bytes(&shape, 8192.0, 1024.0);
        let graphs = vllm().graph_bytes(32.0, 1024.0);
        let other = 0.25 * GIB;
        let close = |a: f64, b: f64| (a - b).abs() < 1.0;
        assert!(close(left(vllm()), 0.9 * (80e9 - 492e6) - 16e9 - activations - other));
        assert!(close(left(vllm()) - left(model("graphs_in_budget", 1.0)), graphs));
        assert!(close(left(model("memory_fraction_of", 1.0)), 0.9 * (80e9 - 492e6 - other) - 16e9));
        let free = 80e9 - 492e6 - other - activations - 16e9;
        assert!(close(left(model("memory_fraction_of", 2.0)), 0.9 * free));
    }

    #[test]
    fn a_bad_constant_is_named() {
        let error = MemoryModel::read(&|_| f64::NAN).unwrap_err();
        assert!(error.to_string().contains("activation_workspace_bytes"));
    }
}
