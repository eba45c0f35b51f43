//! The fixed point of docs/model.md section 5, explicit in B, the mean number decoding.

use crate::attention::{Attention, Prompt};
use crate::real::{Dual, LANES, LaneMask, Lanes, Real};
use crate::replica::Replica;
use crate::step::StepCosts;
use crate::ttft::{Gate, HostLanes, PrefillWork, Steps, taken, whole_chunks};
use crate::workload::Workload;

type D = Dual<Lanes>;

/// Everything that shapes λ(B) of eight points: replicas, workloads and token budgets.
#[derive(Clone, Debug)]
pub struct Curve {
    costs: StepCosts<Lanes>,
    host: HostLanes,
    /// 1 where a request sees itself, 0 for ratio profiles.
    sees_itself: Lanes,
    /// Share of the mean population that a request meets beside itself: 1 for arrivals from outside, (N − 1)/N among N clients.
    others: Lanes,
    /// Lengths.
    pub workload: Workload,
    attention: Attention,
    /// Whether some lane has experts.
    routed: bool,
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
            attention: Attention::new(replicas, &workload, budget),
            routed: replicas.iter().any(|replica| replica.costs.is_routed()),
            host,
            sees_itself: Lanes::select(full, Lanes::splat(1.0), Lanes::splat(0.0)),
            others: Lanes::splat(1.0),
            most_decoding: budget * workload.decode_tokens / per_request,
            workload,
            budget,
        }
    }

    /// The same among so many clients in each slot, of which a request meets the others only; NaN for arrivals from outside.
    #[must_use]
    pub fn among(mut self, clients: Lanes) -> Self {
        let one = Lanes::splat(1.0);
        let met = (one - one / clients).max(Lanes::splat(0.0));
        let many = clients.is_nan().or(self.sees_itself.at_most(Lanes::splat(0.0)));
        self.others = Lanes::select(many, one, met);
        self
    }

    /// Lanes with experts.
    pub fn routed_lanes(&self) -> LaneMask {
        Lanes::splat(0.0).less(self.costs.expert_weights)
    }

    /// Chunks of all prompt classes together at B: it changes where populations and TTFT jump.
    pub fn chunks(&self, decoding: Lanes) -> Lanes {
        let room = self.budget - taken(decoding);
        let add = |sum: Lanes, node: &Prompt| sum + whole_chunks(node.uncached, room);
        self.attention.prompts.iter().fold(Lanes::splat(0.0), add)
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
        let (w, attention) = (&self.workload, &self.attention);
        let decoding = D::variable(decoding);
        let seen = decoding.scale(self.others).offset(self.sees_itself);
        let room = D::constant(self.budget) - taken(decoding);
        let riders = decoding.scale(self.others) / D::constant(w.decode_tokens);
        let apart = D::splat(1.0) / riders.offset(Lanes::splat(1.0));
        let steps = Steps { costs: &self.costs, routed: self.routed, apart };
        let (work, gemms) = PrefillWork::new(&steps, &attention.prompts, w.longest, room, decoding, seen);
        let step = gemms.step + self.costs.decode_rest(D::constant, decoding, attention.decode);
        let own_step = gemms.own_step + self.costs.decode_rest(D::constant, seen, attention.decode);
        let decode = own_step.scale(w.decode_tokens);
        let cycle = decode + decoding * work.mean.scale(self.others);
        let (rate, left) = (decoding / cycle, decode / cycle);
        let tpot_token = cycle / D::constant(w.decode_tokens);
        let own_extra = attention.own_extra * self.sees_itself;
        let gate = Gate::new(decoding, rate, step, left, &work, &self.host, self.others);
        Operating {
            decoding,
            cycle,
            rate,
            left: left.value,
            running: gate.running,
            kv: decoding.scale(attention.held) + gate.prefilling_kv.offset(attention.shared_prefix),
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
            per_token: lanes_of(replicas, |r| r.costs.per_token),
            weights: lanes_of(replicas, |r| r.costs.weights),
            expert_weights: lanes_of(replicas, |r| r.costs.expert_weights),
            log_untouched: lanes_of(replicas, |r| r.costs.log_untouched),
            layer_ratio: lanes_of(replicas, |r| r.costs.layer_ratio),
            head_ratio: lanes_of(replicas, |r| r.costs.head_ratio),
            head_row: lanes_of(replicas, |r| r.costs.head_row),
            exponent: lanes_of(replicas, |r| r.costs.exponent),
            inverse_exponent: lanes_of(replicas, |r| r.costs.inverse_exponent),
            prefill_half_tokens: lanes_of(replicas, |r| r.costs.prefill_half_tokens),
            prefill_overhead: lanes_of(replicas, |r| r.costs.prefill_overhead),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::Block;
    use crate::workload::Lengths;

    fn facts(name: &'static str) -> f64 {
        match name {
            "roofline_exponent" => 1.43,
            "memory_bandwidth_bytes_per_s" => 3e12,
            "accelerator_memory_bytes" => 1e11,
            name if name.ends_with("_flops") => 1e15,
            "kind" | "scaleup_domain_size" => 0.0,
            name if name.ends_with("_s") => 1e-5,
            name if name.ends_with("efficiency") || name.ends_with("utilization") => 0.8,
            "hidden_size" | "vocab_size" => 8192.0,
            name if name.ends_with("_bits") || name.starts_with("default") => 64.0,
            _ => 1.0,
        }
    }

    fn layers(name: &'static str) -> f64 {
        match name {
            "count" => 64.0,
            "experts" => 32.0,
            "experts_per_token" => 2.0,
            "span_tokens" => 900.0,
            "kv_elements_per_token" | "score_width" | "decode_score_width" => 4096.0,
            name if name.ends_with("params") => 1e7,
            _ => 1.0,
        }
    }

    #[test]
    fn wide_vectors_give_the_bits_of_narrow_ones() {
        let block = Block::read(&layers).expect("counts are in range");
        let replica = Replica::read(&facts, &[block]).expect("facts are in range");
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
