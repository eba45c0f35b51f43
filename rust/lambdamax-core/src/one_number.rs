//! One measured point and the one-number fixed point that follows from it (worked example A).
//!
//! A step reads all weights and every resident context; its time is that floor times the ratio measured at one
//! load; prefill takes no time and TTFT stays as measured. Then T(B) = c + d·B and everything is in closed form:
//! TPOT(λ) = c/(1 − λ·d). It is what a careful person computes by hand, and it is shown beside the full model.

use crate::replica::Replica;

/// One measured operating point.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// Prompt length [tokens].
    pub isl_tokens: f64,
    /// Output length [tokens].
    pub osl_tokens: f64,
    /// Request rate [requests/s].
    pub rate_rps: f64,
    /// Measured mean TTFT [s].
    pub ttft_s: f64,
    /// Measured mean TPOT [s].
    pub tpot_s: f64,
}

/// The chain, by name; every value in SI units.
pub fn one_number(replica: &Replica, at: &Measured, kv_pool_tokens: f64, slo_tpot_s: f64) -> Vec<(&'static str, f64)> {
    let decode_tokens = at.osl_tokens - 1.0;
    let residence = at.ttft_s + decode_tokens * at.tpot_s;
    let in_flight = at.rate_rps * residence;
    let decoding = at.rate_rps * decode_tokens * at.tpot_s;
    let context = at.isl_tokens + 0.5 * at.osl_tokens;
    let bandwidth = replica.accelerator.bandwidth;
    let context_read_s = context * replica.kv_bytes_per_token_rank / bandwidth / replica.pools();
    let weights_read_s = replica.stages * replica.weight_shard_bytes / bandwidth;
    let floor = weights_read_s + decoding * context_read_s;
    let ratio = at.tpot_s / floor;
    let idle_tpot = ratio * weights_read_s;
    let per_rate = ratio * decode_tokens * context_read_s;
    let tpot = |rate: f64| if rate * per_rate < 1.0 { idle_tpot / (1.0 - rate * per_rate) } else { f64::NAN };
    let most_in_flight = kv_pool_tokens / context;
    let rate_at_kv = fill_rate(at.ttft_s, decode_tokens * idle_tpot, per_rate, most_in_flight);
    let peak_flops = replica.gemm_flops * replica.gpus;
    let prefill_flops = 2.0 * replica.active_params * at.isl_tokens;
    let request_flops = prefill_flops + 2.0 * replica.active_params * decode_tokens;
    vec![
        ("residence_s", residence),
        ("in_flight", in_flight),
        ("decoding", decoding),
        ("decode_tok_s", decoding / at.tpot_s),
        ("demand_tok_s", at.rate_rps * decode_tokens),
        ("mean_context_tokens", context),
        ("kv_in_flight_bytes", in_flight * context * replica.kv_bytes_per_token),
        ("naive_rate_rps", kv_pool_tokens / (context * residence)),
        ("bandwidth_floor_s", floor),
        ("measured_over_floor_ratio", ratio),
        ("tpot_at_rate_s", tpot(at.rate_rps)),
        ("rate_at_kv_rps", rate_at_kv),
        ("tpot_at_kv_s", tpot(rate_at_kv)),
        ("in_flight_at_kv", most_in_flight),
        ("rate_at_tpot_rps", ((1.0 - idle_tpot / slo_tpot_s) / per_rate).max(0.0)),
        ("asymptote_rps", 1.0 / per_rate),
        ("prefill_flops", prefill_flops),
        ("prefill_share_of_peak", at.rate_rps * prefill_flops / peak_flops),
        ("implied_flop_utilization", at.rate_rps * request_flops / peak_flops),
    ]
}

/// Root of λ·(ttft + decode/(1 − λ·d)) = most, the smaller of the quadratic's two.
fn fill_rate(ttft: f64, decode: f64, d: f64, most: f64) -> f64 {
    let b = ttft + decode + most * d;
    2.0 * most / (b + (b * b - 4.0 * ttft * d * most).sqrt())
}
