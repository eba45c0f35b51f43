"""The replica of the worked examples: a 70B model on four accelerators, as a row the solvers take."""

from __future__ import annotations

Fields = dict[str, float | None]

LLAMA_70B: Fields = {
    "layers": 80,
    "hidden_size": 8192,
    "attention_heads": 64,
    "kv_heads": 8,
    "head_dim": 128,
    "intermediate_size": 28672,
    "mlp_matrices": 3,
    "vocab_size": 128256,
    "tied_embeddings": 0,
    "layer_vector_params": 2 * 8192,
    "final_norm_params": 8192,
}
H100_SXM: Fields = {
    "accelerator_memory_bytes": 80e9,
    "memory_bandwidth_bytes_per_s": 3.35e12,
    "gemm_flops": 989.4e12,
    "attention_flops": 989.4e12,
    "scaleup_bytes_per_s": 450e9,
    "scaleup_domain_size": 8,
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
    "allreduce_latency_s": 5e-6,
    "allreduce_latency_per_doubling_s": 2e-6,
    "allreduce_bandwidth_efficiency": 0.7,
    "pcie_allreduce_latency_s": 2e-5,
    "pcie_allreduce_latency_per_doubling_s": 1e-5,
    "pcie_bandwidth_efficiency": 0.6,
    "host_latency_s": 0.01,
    "host_latency_per_token_s": 1e-6,
    "async_scheduling": 1,
    "measured_over_floor_ratio": None,
    "ttft_s": None,
}
REPLICA: Fields = {
    **LLAMA_70B,
    **H100_SXM,
    **PROFILE,
    "tp": 4,
    "weight_bits": 16,
    "kv_bytes_per_element": 2,
    "default_max_num_seqs": 256,
    "default_max_num_batched_tokens": 8192,
    "default_memory_utilization": 0.92,
    "default_reserved_bytes": 3e9,
    "supported": 1,
}
POINT: Fields = {"isl_tokens": 1500, "osl_tokens": 300, "usd_per_accelerator_hour": 2.0}
