//! An efficiency profile: how much of each peak an engine reaches, and what a step costs beside.

use crate::accelerator::Link;
use crate::error::{CoreError, not_negative, positive};

/// How step times follow from peaks.
#[derive(Clone, Copy, Debug)]
pub enum Profile {
    /// Every constant of docs/model.md section 3.
    Full(FullProfile),
    /// Worked example A: the plain bandwidth floor over all weights times a measured ratio; prefill is not modelled.
    Ratio {
        /// Measured TPOT over the bandwidth floor.
        measured_over_floor_ratio: f64,
        /// Time to first token, held constant, seconds.
        ttft_s: f64,
    },
}

/// Latency and efficiency of all-reduces over one kind of link.
#[derive(Clone, Copy, Debug)]
pub struct AllReduce {
    latency_s: f64,
    latency_per_doubling_s: f64,
    bandwidth_efficiency: f64,
}

/// The constants of a full profile; names as in docs/model.md.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct FullProfile {
    pub gemm_bandwidth_efficiency: f64,
    pub gemm_flops_efficiency: f64,
    pub roofline_exponent: f64,
    pub attention_bandwidth_efficiency: f64,
    pub prefill_attention_flops_efficiency: f64,
    pub prefill_attention_half_tokens: f64,
    pub step_overhead_s: f64,
    pub sequence_overhead_s: f64,
    pub layer_floor_s: f64,
    pub latent_layer_floor_s: f64,
    pub prefill_layer_overhead_s: f64,
    pub scaleup: AllReduce,
    pub pcie: AllReduce,
    pub host_latency_s: f64,
    pub host_latency_per_token_s: f64,
    pub async_scheduling: f64,
    pub expert_load_imbalance: f64,
}

impl AllReduce {
    /// Latency of one collective over `group` ranks, seconds: base + per doubling·log2(group).
    pub fn latency(&self, group: f64) -> f64 {
        self.latency_s + self.latency_per_doubling_s * crate::real::Real::ln(group) / std::f64::consts::LN_2
    }
}

impl FullProfile {
    fn read(get: &impl Fn(&'static str) -> f64) -> Result<Self, CoreError> {
        let above_zero = |name| positive(name, get(name));
        let zero_or_more = |name| not_negative(name, get(name));
        Ok(Self {
            gemm_bandwidth_efficiency: above_zero("gemm_bandwidth_efficiency")?,
            gemm_flops_efficiency: above_zero("gemm_flops_efficiency")?,
            roofline_exponent: above_zero("roofline_exponent")?,
            attention_bandwidth_efficiency: above_zero("attention_bandwidth_efficiency")?,
            prefill_attention_flops_efficiency: above_zero("prefill_attention_flops_efficiency")?,
            prefill_attention_half_tokens: zero_or_more("prefill_attention_half_tokens")?,
            step_overhead_s: zero_or_more("step_overhead_s")?,
            sequence_overhead_s: zero_or_more("sequence_overhead_s")?,
            layer_floor_s: zero_or_more("layer_floor_s")?,
            latent_layer_floor_s: zero_or_more("latent_layer_floor_s")?,
            prefill_layer_overhead_s: zero_or_more("prefill_layer_overhead_s")?,
            scaleup: AllReduce {
                latency_s: zero_or_more("allreduce_latency_s")?,
                latency_per_doubling_s: zero_or_more("allreduce_latency_per_doubling_s")?,
                bandwidth_efficiency: above_zero("allreduce_bandwidth_efficiency")?,
            },
            pcie: AllReduce {
                latency_s: zero_or_more("pcie_allreduce_latency_s")?,
                latency_per_doubling_s: zero_or_more("pcie_allreduce_latency_per_doubling_s")?,
                bandwidth_efficiency: above_zero("pcie_bandwidth_efficiency")?,
            },
            host_latency_s: zero_or_more("host_latency_s")?,
            host_latency_per_token_s: zero_or_more("host_latency_per_token_s")?,
            async_scheduling: zero_or_more("async_scheduling")?,
            expert_load_imbalance: above_zero("expert_load_imbalance")?,
        })
    }

    /// Latency [s] of one collective of `group` ranks over this link, and the bytes/s it moves at.
    pub fn all_reduce(&self, link: Link, group: f64) -> (f64, f64) {
        let (constants, peak) = match link {
            Link::ScaleUp(peak) => (&self.scaleup, peak),
            Link::Pcie(peak) => (&self.pcie, peak),
        };
        (constants.latency(group), constants.bandwidth_efficiency * peak)
    }
}

impl Profile {
    /// Reads the constants by name; `kind` 0 is full, 1 is ratio.
    pub fn read(get: &impl Fn(&'static str) -> f64) -> Result<Self, CoreError> {
        if get("kind") != 1.0 {
            return Ok(Self::Full(FullProfile::read(get)?));
        }
        Ok(Self::Ratio {
            measured_over_floor_ratio: positive("measured_over_floor_ratio", get("measured_over_floor_ratio"))?,
            ttft_s: not_negative("ttft_s", get("ttft_s"))?,
        })
    }
}
