"""The replica of the worked examples: a 70B model on four accelerators, as the row and blocks the solvers take."""

from __future__ import annotations

Fields = dict[str, float | None]

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, WIDTH = 8192, 64, 8, 128, 28672
LLAMA_70B: Fields = {
    "hidden_size": HIDDEN,
    "vocab_size": 128256,
    "tied_embeddings": 0,
    "final_norm_params": HIDDEN,
    "other_params": 0,
}
NO_EXPERTS: Fields = {
    "experts": 0,
    "experts_per_token": 0,
    "expert_params": 0,
    "expert_width": 0,
    "expert_hidden": 0,
    "expert_outer_params": 0,
    "router_params": 0,
}
BLOCKS: list[Fields] = [
    {
        "count": 80,
        "vector_params": 2 * HIDDEN,
        "mlp_params": 3 * HIDDEN * WIDTH,
        "mlp_width": WIDTH,
        "mixer_split_params": 2 * HIDDEN * HEADS * HEAD_DIM,
        "mixer_kv_params": 2 * HIDDEN * KV_HEADS * HEAD_DIM,
        "mixer_whole_params": 0,
        "query_heads": HEADS,
        "kv_heads": KV_HEADS,
        "kv_elements_per_token": 2 * KV_HEADS * HEAD_DIM,
        "span_kind": 0,
        "span_tokens": 0,
        "attended_tokens": 0,
        "score_width": 2 * HEADS * HEAD_DIM,
        "decode_score_width": 2 * HEADS * HEAD_DIM,
        "index_bytes_per_token": 0,
        "index_score_width": 0,
        "latent_elements": 0,
        "state_bytes": 0,
        **NO_EXPERTS,
    }
]
FORMATS: Fields = {
    "mixer_bits": 16,
    "mlp_bits": 16,
    "expert_bits": 16,
    "head_bits": 16,
    "mixer_flops": 989.4e12,
    "mlp_flops": 989.4e12,
    "expert_flops": 989.4e12,
    "attention_flops": 989.4e12,
    "weight_block": 1,
    "kv_bytes_per_element": 2,
}
H100_SXM: Fields = {
    "accelerator_memory_bytes": 80e9,
    "memory_bandwidth_bytes_per_s": 3.35e12,
    "scaleup_bytes_per_s": 450e9,
    "scaleup_domain_size": 8,
    "scaleup_mesh": 0,
    "pcie_bytes_per_s": 64e9,
}
PROFILE: Fields = {
    "kind": 0,
    "gemm_bandwidth_efficiency": 0.85,
    "gemm_flops_efficiency": 0.7,
    "roofline_exponent": 1.3,
    "attention_bandwidth_efficiency": 0.7,
    "prefill_attention_flops_efficiency": 0.5,
    "prefill_attention_half_tokens": 300,
    "step_overhead_s": 1e-3,
    "sequence_overhead_s": 1e-5,
    "layer_floor_s": 5e-6,
    "latent_layer_floor_s": 2e-6,
    "prefill_layer_overhead_s": 0,
    "allreduce_latency_s": 5e-6,
    "allreduce_latency_per_doubling_s": 2e-6,
    "allreduce_bandwidth_efficiency": 0.7,
    "pcie_allreduce_latency_s": 2e-5,
    "pcie_allreduce_latency_per_doubling_s": 1e-5,
    "pcie_bandwidth_efficiency": 0.6,
    "host_latency_s": 0.01,
    "host_latency_per_token_s": 1e-6,
    "async_scheduling": 1,
    "expert_load_imbalance": 1.2,
    "measured_over_floor_ratio": None,
    "ttft_s": None,
}
# What stands beside weights and KV is given by every point, so these have no say.
NO_MEMORY_MODEL: Fields = {
    "multimodal": 0,
    "activation_workspace_bytes": 0,
    "forward_hidden_copies": 0,
    "multimodal_hidden_copies": 0,
    "sampler_bytes_per_logit": 0,
    "non_torch_bytes": 0,
    "graph_bytes_per_layer": 0,
    "driver_hidden_bytes": 0,
    "graphs_in_budget": 0,
    "memory_fraction_of": 0,
}
REPLICA: Fields = {
    **LLAMA_70B,
    **FORMATS,
    **H100_SXM,
    **PROFILE,
    "tp": 4,
    "pp": 1,
    "dp": 1,
    "ep": 1,
    "default_max_num_seqs": 256,
    "default_max_num_batched_tokens": 8192,
    "default_memory_utilization": 0.92,
    **NO_MEMORY_MODEL,
    "kv_padding": 1,
    "supported": 1,
}
POINT: Fields = {"isl_tokens": 1500, "osl_tokens": 300, "reserved_bytes": 3e9, "usd_per_accelerator_hour": 2.0}
