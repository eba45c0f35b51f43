//! The fixed point of docs/model.md section 5, explicit in B, the mean number decoding.

use crate::real::{Dual, LANES, Lanes, Real};
use crate::replica::{BLOCK_TOKENS, Replica};
use crate::step::StepCosts;
use crate::ttft::{Gate, HostLanes, PrefillWork, taken, whole_chunks};
use crate::workload::{PromptNode, Workload};

type D = Dual<Lanes>;

/// Everything that shapes λ(B) of eight points: replicas, workloads and token budgets.
#[derive(Clone, Debug)]
pub struct Curve {
    costs: StepCosts<Lanes>,
    host: HostLanes,
    /// 1 where a request sees itself, 0 for ratio profiles.
    sees_itself: Lanes,
    /// Lengths and prompts.
    pub workload: Workload,
    budget: Lanes,
    /// Largest B that conserves tokens.
    pub most_decoding: Lanes,
}

/// One point of the curve: populations, latencies, and how each changes with B.
#[derive(Clone, Copy, Debug)]
pub struct Operating {
    /// B.
    pub decoding: D,
    /// D1·D(B) + B·E[s]: the time in which B requests pass [s].
    pub cycle: D,
    /// λ [requests/s].
    pub rate: D,
    /// 1 − ρ.
    pub left: Lanes,
    /// Prefilling and decoding.
    pub running: D,
    /// KV tokens held.
    pub kv: D,
    /// Mean TTFT [s].
    pub ttft: D,
    /// Mean TPOT over requests [s].
    pub tpot: D,
    /// Mean end-to-end latency [s].
    pub e2e: D,
    /// D1·(D − B·D′): what one more in flight gains by sharing the step's fixed part [s].
    pub sharing: Lanes,
}

/// What a question wants to know of an operating point.
pub trait View {
    /// The answer.
    type Seen;
    /// Reads it off.
    fn see(&self, at: &Operating) -> Self::Seen;
}

/// Everything.
struct Whole;

impl View for Whole {
    type Seen = Operating;
    #[inline(always)]
    fn see(&self, at: &Operating) -> Operating {
        *at
    }
}

impl Operating {
    /// cycle − B·cycle′: positive while the rate still rises with B. It is `sharing` less B²·E[s]′.
    #[inline(always)]
    pub fn rise(&self) -> Lanes {
        self.cycle.value - self.decoding.value * self.cycle.slope
    }
}

impl Curve {
    /// Joins replicas (one a lane), a workload and the token budgets.
    pub fn new(replicas: &[&Replica; LANES], workload: Workload, budget: Lanes) -> Self {
        let full = Lanes::splat(0.0).less(lanes_of(replicas, |r| f64::from(u8::from(r.full))));
        let latency = lanes_of(replicas, |r| r.host.latency_s)
            + lanes_of(replicas, |r| r.host.latency_per_token_s) * workload.mean_prompt;
        let host = HostLanes {
            latency,
            async_scheduling: lanes_of(replicas, |r| r.host.async_scheduling),
            full,
            held_ttft: lanes_of(replicas, |r| r.host.held_ttft_s),
        };
        let per_request = workload.mean_uncached + workload.decode_tokens;
        Self {
            costs: StepCosts::gather(replicas),
            host,
            sees_itself: Lanes::select(full, Lanes::splat(1.0), Lanes::splat(0.0)),
            most_decoding: budget * workload.decode_tokens / per_request,
            workload,
            budget,
        }
    }

    /// Chunks of all prompt classes together at B: it changes where populations and TTFT jump.
    pub fn chunks(&self, decoding: Lanes) -> Lanes {
        let room = self.budget - taken(decoding);
        let add = |sum: Lanes, node: &PromptNode| sum + whole_chunks(node.uncached, room);
        self.workload.nodes().iter().fold(Lanes::splat(0.0), add)
    }

    /// What `view` makes of the curve at B, with the widest vectors the machine has; the bits are the same with any.
    ///
    /// The view is compiled into the formula, so that what it does not look at is not computed.
    #[inline(always)]
    pub fn see<V: View>(&self, decoding: Lanes, view: &V) -> V::Seen {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: both features were detected on the line above.
            return unsafe { self.see_with_fma(decoding, view) };
        }
        view.see(&self.formula(decoding))
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    fn see_with_fma<V: View>(&self, decoding: Lanes, view: &V) -> V::Seen {
        view.see(&self.formula(decoding))
    }

    /// The curve at B.
    #[inline(always)]
    pub fn at(&self, decoding: Lanes) -> Operating {
        self.see(decoding, &Whole)
    }

    #[inline(always)]
    fn formula(&self, decoding: Lanes) -> Operating {
        let w = &self.workload;
        let decoding = D::variable(decoding);
        let seen = decoding.offset(self.sees_itself);
        let (work, gemms) = PrefillWork::new(&self.costs, w, self.budget, decoding, seen);
        let step = gemms.step + self.costs.decode_rest(D::constant, decoding, decoding.scale(w.mean_context));
        let own_step = gemms.own_step + self.costs.decode_rest(D::constant, seen, seen.scale(w.mean_context));
        let decode = own_step.scale(w.decode_tokens);
        let cycle = decode + decoding * work.mean;
        let (rate, left) = (decoding / cycle, decode / cycle);
        let tpot_token = cycle / D::constant(w.decode_tokens);
        let own_extra = self.costs.per_context_token * (w.request_context - w.mean_context) * self.sees_itself;
        let gate = Gate::new(decoding, rate, step, left, &work, &self.host);
        let held = w.held_context + Lanes::splat(0.5 * BLOCK_TOKENS);
        Operating {
            decoding,
            cycle,
            rate,
            left: left.value,
            running: gate.running,
            kv: decoding.scale(held) + gate.prefilling_kv.offset(w.shared_prefix),
            ttft: gate.ttft,
            tpot: tpot_token + D::constant(own_extra) / left,
            e2e: gate.ttft + cycle,
            sharing: decode.value - decoding.value * decode.slope,
        }
    }
}

/// One fact of each replica.
pub fn lanes_of(replicas: &[&Replica; LANES], fact: impl Fn(&Replica) -> f64) -> Lanes {
    Lanes::from_fn(|i| fact(replicas[i]))
}

impl StepCosts<Lanes> {
    /// One replica a lane.
    fn gather(replicas: &[&Replica; LANES]) -> Self {
        Self {
            fixed: lanes_of(replicas, |r| r.costs.fixed),
            per_sequence: lanes_of(replicas, |r| r.costs.per_sequence),
            per_context_token: lanes_of(replicas, |r| r.costs.per_context_token),
            per_token: lanes_of(replicas, |r| r.costs.per_token),
            weights: lanes_of(replicas, |r| r.costs.weights),
            layer_ratio: lanes_of(replicas, |r| r.costs.layer_ratio),
            head_ratio: lanes_of(replicas, |r| r.costs.head_ratio),
            head_row: lanes_of(replicas, |r| r.costs.head_row),
            exponent: lanes_of(replicas, |r| r.costs.exponent),
            inverse_exponent: lanes_of(replicas, |r| r.costs.inverse_exponent),
            prefill_attention: lanes_of(replicas, |r| r.costs.prefill_attention),
            prefill_half_tokens: lanes_of(replicas, |r| r.costs.prefill_half_tokens),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Lengths;

    fn facts(name: &'static str) -> f64 {
        match name {
            "supported" | "tied_embeddings" => 1.0,
            "roofline_exponent" => 1.43,
            "memory_bandwidth_bytes_per_s" => 3e12,
            "accelerator_memory_bytes" => 1e11,
            "gemm_flops" | "attention_flops" => 1e15,
            "kind" | "scaleup_domain_size" => 0.0,
            name if name.ends_with("_s") => 1e-5,
            name if name.ends_with("efficiency") || name.ends_with("utilization") => 0.8,
            "hidden_size" | "intermediate_size" | "vocab_size" => 8192.0,
            "tp" | "kv_heads" => 1.0,
            _ => 64.0,
        }
    }

    #[test]
    fn wide_vectors_give_the_bits_of_narrow_ones() {
        let replica = Replica::read(&facts).expect("facts are in range");
        let lanes = |value: f64| Lanes::from_fn(|i| value * (1.0 + i as f64 / 7.0));
        let lengths = Lengths {
            isl: lanes(1000.0),
            osl: lanes(200.0),
            isl_cv: Lanes::splat(0.7),
            osl_cv: Lanes::splat(0.5),
            prefix_tokens: Lanes::splat(128.0),
            prefix_hit_share: Lanes::splat(0.3),
        };
        let curve = Curve::new(&[&replica; LANES], Workload::new(&lengths), Lanes::splat(2048.0));
        let at = lanes(30.0);
        let (wide, narrow) = (curve.at(at), curve.formula(at));
        for (a, b) in [(wide.ttft, narrow.ttft), (wide.kv, narrow.kv), (wide.rate, narrow.rate)] {
            assert_eq!(a.value.0.map(f64::to_bits), b.value.0.map(f64::to_bits));
            assert_eq!(a.slope.0.map(f64::to_bits), b.slope.0.map(f64::to_bits));
        }
        assert!(wide.ttft.value.0.iter().all(|ttft| *ttft > 0.0 && ttft.is_finite()));
    }
}
