//! The fixed point of docs/model.md section 5, explicit in B, the mean number decoding.

use crate::attention::{Attention, Prompt};
use crate::bursts::Bursts;
use crate::real::{Dual, LANES, LaneMask, Lanes, Real};
use crate::replica::Replica;
use crate::step::StepCosts;
use crate::ttft::{Batch, Flow, Gate, HostLanes, PrefillWork, PromptSeen, Prompts, Steps, Watch, taken, whole_chunks};
use crate::workload::Workload;

type D = Dual<Lanes>;

/// Share of a peer's prefill, stretched by what comes meanwhile, that a request waits for: some peers come after it.
const PEER_WORK: f64 = 0.75;
/// Rounds of "more peers, a longer window, more peers".
const PEER_ROUNDS: usize = 3;

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
    /// Half of the prompt tokens of an iteration, which a chunk finds before it in the mean; 0 with experts.
    half_before: Lanes,
    bursts: Bursts,
    /// Whether arrivals are bursty, or more even than Poisson's, in some lane.
    uneven: bool,
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
    /// What the spread of latencies rests on.
    pub passage: Passage,
}

/// How requests pass through iterations at an operating point.
#[derive(Clone, Copy, Debug)]
pub struct Passage {
    /// T(B, 0) [s].
    pub step: Lanes,
    /// D(B) [s].
    pub own_step: Lanes,
    /// dD/dB with as many peers in the crowd [s].
    pub own_slope: Lanes,
    /// S1 = E[s] [s].
    pub work: Lanes,
    /// S2 = E[s²] [s²].
    pub square: Lanes,
    /// Longest chunk, C [tokens].
    pub room: Lanes,
    /// E[T] [s].
    pub iteration: Lanes,
    /// E[X] [s].
    pub seen: Lanes,
    /// Mean prefill of others in the iterations that a prompt rides on [s].
    pub riders: Lanes,
    /// K, the part of it that bursts bring [s].
    pub peers: Lanes,
    /// Whether an arrival finds an iteration running.
    pub busy: Lanes,
    /// κ: how many more decodes a request meets than there are in the mean.
    pub crowd: Lanes,
}

/// Of the classes of prompts on the way, nothing.
struct Unseen;

impl Watch for Unseen {}

/// All of them.
struct Detail(Prompts);

impl Watch for Detail {
    #[inline(always)]
    fn prompt(&mut self, weight: Lanes, chunks: Lanes, added: Lanes) {
        self.0.0.push(PromptSeen { weight, chunks, added });
    }
}

/// A request's decode with prefill spread evenly over it.
struct Smooth {
    /// T(B, 0) [s].
    step: D,
    /// D(B) [s].
    own_step: D,
    /// M [s].
    residence: D,
}

/// What bursts add at one B.
struct Crowding {
    /// κ.
    crowd: D,
    /// Prefill of the peers that come with a request [s].
    peers: D,
    /// Prefill of those that come while it decodes, before the iterations that it shares with its first peers are over [s].
    later: D,
}

impl Crowding {
    const NONE: Self = Self { crowd: D::ZERO, peers: D::ZERO, later: D::ZERO };
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
            half_before: lanes_of(replicas, |r| if r.costs.is_routed() { 0.0 } else { 0.5 }),
            bursts: Bursts::new(Lanes::select(full, workload.arrival_cv, Lanes::splat(1.0))),
            uneven: !workload.arrival_cv.same(Lanes::splat(1.0)).all(),
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
        self.bursts = Bursts::new(Lanes::select(clients.is_nan().and(self.host.full), self.workload.arrival_cv, one));
        self
    }

    /// Share of the mean population that a request meets beside itself.
    pub fn others(&self) -> Lanes {
        self.others
    }

    /// Each replica's TTFT constants.
    pub fn host(&self) -> &HostLanes {
        &self.host
    }

    /// Lanes with experts.
    pub fn routed_lanes(&self) -> LaneMask {
        Lanes::splat(0.0).less(self.costs.expert_weights)
    }

    /// Lanes whose arrivals are not Poisson.
    pub fn uneven_lanes(&self) -> LaneMask {
        if self.uneven { !self.workload.arrival_cv.same(Lanes::splat(1.0)) } else { LaneMask::NONE }
    }

    /// Chunks of all prompt classes together at B: it changes where populations and TTFT jump.
    pub fn chunks(&self, decoding: Lanes) -> Lanes {
        let room = self.budget - taken(decoding);
        let add = |sum: Lanes, node: &Prompt| sum + whole_chunks(node.uncached, room);
        self.attention.prompts.iter().fold(Lanes::splat(0.0), add)
    }

    /// The curve at B, and the classes of prompts there.
    pub fn detail(&self, decoding: Lanes) -> (Operating, Prompts) {
        let mut seen = Detail(Prompts(Vec::with_capacity(self.attention.prompts.len())));
        let at = self.watched(decoding, &mut seen);
        (at, seen.0)
    }

    /// The curve at B.
    pub fn at(&self, decoding: Lanes) -> Operating {
        self.watched(decoding, &mut Unseen)
    }

    /// The curve at B, with the widest vectors the machine has; the bits are the same with any.
    fn watched(&self, decoding: Lanes, watch: &mut impl Watch) -> Operating {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: both features were detected on the line above.
            return unsafe { self.watched_with_fma(decoding, watch) };
        }
        self.formula(decoding, watch)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    fn watched_with_fma(&self, decoding: Lanes, watch: &mut impl Watch) -> Operating {
        self.formula(decoding, watch)
    }

    #[inline(always)]
    fn formula(&self, decoding: Lanes, watch: &mut impl Watch) -> Operating {
        let (w, attention) = (&self.workload, &self.attention);
        let decoding = D::variable(decoding);
        let met = decoding.scale(self.others);
        let seen = met.offset(self.sees_itself);
        let room = D::constant(self.budget) - taken(decoding);
        let riders = met / D::constant(w.decode_tokens);
        let apart = D::splat(1.0) / riders.offset(Lanes::splat(1.0));
        let steps = Steps { costs: &self.costs, routed: self.routed, apart };
        let batch = Batch { decoding, seen, company: self.company(met, room), room, longest: w.longest };
        let (work, gemms) = PrefillWork::new(&steps, &attention.prompts, &batch, watch);
        let step = gemms.step + self.costs.decode_rest(D::constant, decoding, attention.decode);
        let mut own_step = gemms.own_step + self.costs.decode_rest(D::constant, seen, attention.decode);
        let mut own_slope = own_step.slope;
        let prefill = met * work.mean;
        let mut crowding = Crowding::NONE;
        if self.uneven {
            crowding.crowd = self.crowd(decoding, step, &work);
            let crowded = seen + crowding.crowd;
            let alone = D::variable(crowded.value);
            let slowing = steps.decode_gemms(alone) + self.costs.decode_rest(D::constant, alone, attention.decode);
            own_step = D { value: slowing.value, slope: slowing.slope * crowded.slope };
            own_slope = slowing.slope * self.others;
            self.add_peers(&mut crowding, decoding, step, own_step, &work);
        }
        let decode = own_step.scale(w.decode_tokens);
        let smooth = Smooth { step, own_step, residence: decode + prefill };
        let wake = self.wake(met, &work, &smooth, room, crowding.peers);
        let cycle = smooth.residence + wake + crowding.later;
        let (rate, left) = (decoding / cycle, (cycle - prefill) / cycle);
        let flow = Flow { decoding, rate, step, left, peers: crowding.peers, others: self.others };
        let gate = Gate::new(&flow, &work, &self.host);
        Operating {
            decoding,
            cycle,
            rate,
            left: left.value,
            running: gate.running,
            kv: decoding.scale(attention.held) + gate.prefilling_kv.offset(attention.shared_prefix),
            ttft: gate.ttft,
            tpot: self.over_requests(wake, cycle, left) + D::constant(attention.own_extra * self.sees_itself) / left,
            e2e: gate.ttft + cycle,
            sharing: decode.value - decoding.value * decode.slope,
            passage: Passage {
                step: step.value,
                own_step: own_step.value,
                own_slope,
                work: work.mean.value,
                square: work.square.value,
                room: room.value,
                iteration: gate.iteration.value,
                seen: gate.seen.value,
                riders: gate.riders.value,
                peers: crowding.peers.value,
                busy: gate.busy.value,
                crowd: crowding.crowd.value,
            },
        }
    }

    /// h: prompt tokens that a chunk finds in the step before it, half of those that come in an iteration, unless these fill it.
    #[inline(always)]
    fn company(&self, met: D, room: D) -> D {
        let coming = met.scale(self.workload.mean_uncached / self.workload.decode_tokens);
        let free = (D::splat(1.0) - coming / room).max(D::ZERO);
        (coming * free).scale(self.half_before)
    }

    /// X: what the prompts that queued behind a request's own, and those that came meanwhile, add to its decode [s]. Nothing among clients
    /// of a closed loop, who fall into step.
    #[inline(always)]
    fn wake(&self, met: D, work: &PrefillWork, smooth: &Smooth, room: D, peers: D) -> D {
        let one = D::splat(1.0);
        let share = met * work.mean / smooth.residence;
        let left = one - share * share;
        let own = (share * (work.mean + peers)).max(D::ZERO);
        let queued = share * share * (met / smooth.residence) * work.square / left;
        let falling = own + queued * (share * share).scale(Lanes::splat(-1.0)).offset(Lanes::splat(3.0)) / left;
        let settled = (own + queued) * smooth.residence / (smooth.residence + falling);
        let d1 = self.workload.decode_tokens;
        let full = (smooth.own_step * room).scale(d1 / self.workload.mean_uncached) - met * smooth.step;
        let most = (work.mean / smooth.residence * full).scale(d1).max(D::ZERO);
        let wake = settled * most / (settled + most).offset(Lanes::splat(f64::MIN_POSITIVE));
        D::select(self.others.same(Lanes::splat(1.0)), wake, D::ZERO)
    }

    /// Time per token, mean over requests: a wake is shared by the tokens of each, of which a wake of τ = ρ/(1 − ρ) iterations has n/(n + τ) [s].
    #[inline(always)]
    fn over_requests(&self, wake: D, cycle: D, left: D) -> D {
        let w = &self.workload;
        let fade = D::constant(w.short_decodes_fade);
        let lasting = (D::splat(1.0) - left) / left;
        let sharing = D::constant(w.decode_tokens) - fade.scale(w.short_decodes) / (fade + lasting);
        (cycle - wake) / D::constant(w.decode_tokens) + wake / sharing
    }

    /// κ, held down by the prompts that can be prefilled while a request decodes.
    #[inline(always)]
    fn crowd(&self, decoding: D, step: D, work: &PrefillWork) -> D {
        let excess = self.bursts.excess(decoding);
        let prefills = excess.max(D::ZERO) * work.mean / step.scale(self.workload.decode_tokens);
        excess / prefills.offset(Lanes::splat(1.0))
    }

    /// Prefill that peers bring, from a window that their own prefill makes longer.
    #[inline(always)]
    fn add_peers(&self, crowding: &mut Crowding, decoding: D, step: D, own_step: D, work: &PrefillWork) {
        let one = D::splat(1.0);
        let smooth = own_step.scale(self.workload.decode_tokens) + decoding * work.mean;
        let (rate, share) = (decoding / smooth, decoding * work.mean / smooth);
        let iteration = step / (one - share);
        let seen = iteration + rate * work.square / (one - share * share);
        let each = (work.mean / (one - share)).scale(Lanes::splat(PEER_WORK));
        let mut window = seen.scale(Lanes::splat(0.5));
        let shortest = window;
        let mut peers = D::ZERO;
        for _ in 0..PEER_ROUNDS {
            peers = self.bursts.excess(rate * window) * each;
            window = shortest + peers.max(D::ZERO);
        }
        crowding.peers = peers;
        let later = crowding.crowd * work.mean - peers.max(D::ZERO);
        crowding.later = later.max(D::ZERO).scale(Lanes::splat(0.5)) * (one - share);
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
            laws: Default::default(),
            isl: lanes(1000.0),
            osl: lanes(200.0),
            isl_cv: Lanes::splat(0.7),
            osl_cv: Lanes::splat(0.5),
            prefix_tokens: Lanes::splat(128.0),
            prefix_hit_share: Lanes::splat(0.3),
            arrival_cv: Lanes::splat(1.0),
        };
        let curve = Curve::new(&[&replica; LANES], Workload::new(lengths), Lanes::splat(2048.0));
        let at = lanes(30.0);
        let (wide, narrow) = (curve.at(at), curve.formula(at, &mut Unseen));
        for (a, b) in [(wide.ttft, narrow.ttft), (wide.kv, narrow.kv), (wide.rate, narrow.rate)] {
            assert_eq!(a.value.0.map(f64::to_bits), b.value.0.map(f64::to_bits));
            assert_eq!(a.slope.0.map(f64::to_bits), b.slope.0.map(f64::to_bits));
        }
        assert!(wide.ttft.value.0.iter().all(|ttft| *ttft > 0.0 && ttft.is_finite()));
    }
}
