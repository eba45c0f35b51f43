//! Lengths, their moments, and prefix sharing, eight points side by side (docs/model.md section 4).

use std::sync::Arc;

use crate::lengths::{EmpiricalLengths, ShortDecodes};
use crate::real::{LANES, LaneMask, Lanes, Real};
use crate::replica::BLOCK_TOKENS;

/// Nodes and weights/√π of the 16-point Gauss–Hermite rule (weight e^{−x²}); the rule is symmetric.
const HERMITE: [(f64, f64); 8] = [
    (0.27348104613815244, 0.28656852123801213),
    (0.8229514491446559, 0.1583383727509496),
    (1.3802585391988809, 0.047284752354014026),
    (1.9517879909162539, 0.007266937601184733),
    (2.5462021578474814, 0.0005259849265739092),
    (3.176999161979956, 1.5300032162487272e-05),
    (3.869447904860123, 1.3094732162868227e-07),
    (4.688738939305819, 1.4978147231618397e-10),
];
/// Prompt nodes of a varying length.
const VARYING: usize = 16;
/// Nodes of a finely divided length, equally spaced in the normal quantile.
const FINE_NODES: usize = 129;
/// Standard deviations that they reach to either side.
const FINE_REACH: f64 = 8.0;

/// Lengths and prefix sharing as a point gives them, one value a lane.
#[derive(Clone, Debug)]
pub struct Lengths {
    /// Empirical laws, in the lanes that have one; the means and CVs there are theirs.
    pub laws: [Option<Arc<EmpiricalLengths>>; LANES],
    /// Mean prompt length E[i] [tokens].
    pub isl: Lanes,
    /// Mean output length E[o] [tokens], above 1.
    pub osl: Lanes,
    /// Coefficient of variation of the prompt length; 0 is fixed, else lognormal.
    pub isl_cv: Lanes,
    /// Coefficient of variation of the output length.
    pub osl_cv: Lanes,
    /// Length of a common prefix; 0 for none [tokens].
    pub prefix_tokens: Lanes,
    /// Share of prompts with that prefix; without one, share of each prompt found in the cache.
    pub prefix_hit_share: Lanes,
    /// Coefficient of variation of the gaps between arrivals; 1 is Poisson.
    pub arrival_cv: Lanes,
}

/// One class of prompts.
#[derive(Clone, Copy, Debug)]
pub struct PromptNode {
    /// Share of requests.
    pub weight: Lanes,
    /// Tokens, i.
    pub prompt: Lanes,
    /// Tokens found in the cache, x.
    pub cached: Lanes,
    /// Tokens to prefill, u = i − x.
    pub uncached: Lanes,
    /// Tokens of the cached that others hold too, y.
    pub shared: Lanes,
}

/// Everything the solvers need of a workload.
#[derive(Clone, Debug)]
pub struct Workload {
    nodes: Vec<PromptNode>,
    /// The longest prompt to prefill [tokens].
    pub longest: Lanes,
    /// E[i].
    pub mean_prompt: Lanes,
    /// E[o].
    pub mean_output: Lanes,
    /// E[u].
    pub mean_uncached: Lanes,
    /// D1 = E[o] − 1.
    pub decode_tokens: Lanes,
    /// By how much 1/E[1/(o − 1)] is below it, over requests that decode.
    pub short_decodes: Lanes,
    /// τ at which half of that is left: of wakes as many iterations long.
    pub short_decodes_fade: Lanes,
    /// Mean context of a decoding sequence, weighted by its life [tokens].
    pub mean_context: Lanes,
    /// Mean context of a request over its own decode [tokens].
    pub request_context: Lanes,
    /// ȳ: mean tokens of a prompt that others hold too.
    pub mean_shared: Lanes,
    /// Shared prefix blocks, counted once [tokens].
    pub shared_prefix: Lanes,
    /// Coefficient of variation of the prompt length.
    pub prompt_cv: Lanes,
    /// Coefficient of variation of the output length.
    pub output_cv: Lanes,
    /// Coefficient of variation of the gaps between arrivals.
    pub arrival_cv: Lanes,
    laws: [Option<Arc<EmpiricalLengths>>; LANES],
}

fn whole_blocks(tokens: Lanes) -> Lanes {
    (tokens / Lanes::splat(BLOCK_TOKENS)).floor() * Lanes::splat(BLOCK_TOKENS)
}

impl PromptNode {
    fn new(weight: Lanes, prompt: Lanes, cached: Lanes, shared: Lanes) -> Self {
        Self { weight, prompt, cached, uncached: prompt - cached, shared }
    }
}

/// Nodes of one length: one if fixed, else those of a lognormal, or an empirical law's.
struct LengthLaw<'a> {
    empirical: [&'a [(f64, f64)]; LANES],
    fixed: LaneMask,
    mean: Lanes,
    log_mean: Lanes,
    log_scale: Lanes,
}

impl<'a> LengthLaw<'a> {
    #[inline(always)]
    fn new(mean: Lanes, cv: Lanes, empirical: [&'a [(f64, f64)]; LANES]) -> Self {
        let variance = (Lanes::splat(1.0) + cv * cv).ln();
        Self {
            empirical,
            fixed: cv.at_most(Lanes::splat(0.0)),
            mean,
            log_mean: mean.ln() - variance * Lanes::splat(0.5),
            log_scale: (variance + variance).sqrt(),
        }
    }

    #[inline(always)]
    fn count(&self) -> usize {
        let most = self.empirical.iter().map(|nodes| nodes.len()).max().unwrap_or(0);
        if self.fixed.all() { most.max(1) } else { most.max(VARYING) }
    }

    /// A node that a lane does not have is its first, without weight.
    #[inline(always)]
    fn node(&self, j: usize) -> (Lanes, Lanes) {
        let (mut weight, mut length) = self.parametric_node(if j < VARYING { j } else { 0 });
        if j >= VARYING {
            weight = Lanes::splat(0.0);
        }
        for (lane, nodes) in self.empirical.iter().enumerate() {
            if let Some(first) = nodes.first() {
                let node = nodes.get(j).copied().unwrap_or((0.0, first.1));
                (weight.0[lane], length.0[lane]) = node;
            }
        }
        (weight, length)
    }

    #[inline(always)]
    fn parametric_node(&self, j: usize) -> (Lanes, Lanes) {
        let (x, weight) = HERMITE[j / 2];
        let x = if j.is_multiple_of(2) { x } else { -x };
        let length = (self.log_mean + self.log_scale * Lanes::splat(x)).exp();
        let alone = if j == 0 { 1.0 } else { 0.0 };
        (
            Lanes::select(self.fixed, Lanes::splat(alone), Lanes::splat(weight)),
            Lanes::select(self.fixed, self.mean, length),
        )
    }
}

impl Workload {
    /// Moments and prompt nodes of eight points, with the widest vectors the machine has.
    pub fn new(lengths: Lengths) -> Self {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: both features were detected on the line above.
            return unsafe { Self::with_fma(lengths) };
        }
        Self::formula(lengths)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    fn with_fma(lengths: Lengths) -> Self {
        Self::formula(lengths)
    }

    #[inline(always)]
    fn formula(lengths: Lengths) -> Self {
        let one = Lanes::splat(1.0);
        let half = Lanes::splat(0.5);
        let decode_tokens = lengths.osl - one;
        let second = lengths.osl * lengths.osl * (one + lengths.osl_cv * lengths.osl_cv) - lengths.osl;
        let mut mean_context = lengths.isl + half * second / decode_tokens;
        for (lane, law) in lengths.laws.iter().enumerate() {
            mean_context.0[lane] = law.as_ref().map_or(mean_context.0[lane], |law| law.mean_context);
        }
        let mut workload = Self {
            nodes: Vec::new(),
            longest: Lanes::splat(0.0),
            mean_prompt: lengths.isl,
            mean_output: lengths.osl,
            mean_uncached: Lanes::splat(0.0),
            decode_tokens,
            short_decodes: Lanes::ZERO,
            short_decodes_fade: Lanes::splat(1.0),
            mean_context,
            request_context: lengths.isl + half * lengths.osl,
            mean_shared: Lanes::splat(0.0),
            prompt_cv: lengths.isl_cv,
            output_cv: lengths.osl_cv,
            arrival_cv: lengths.arrival_cv,
            shared_prefix: Lanes::splat(0.0),
            laws: [const { None }; LANES],
        };
        workload.add_prompts(&lengths);
        workload.add_short_decodes(&lengths);
        workload.laws = lengths.laws;
        workload
    }

    /// (weight, length) of finely divided prompts in one lane, for what depends on where a prompt ends.
    pub fn fine_prompts(&self, lane: usize) -> Vec<(f64, f64)> {
        let (mean, cv) = (self.mean_prompt.0[lane], self.prompt_cv.0[lane]);
        if cv <= 0.0 {
            return vec![(1.0, mean)];
        }
        let variance = Real::ln(1.0 + cv * cv);
        let (center, scale) = (Real::ln(mean) - 0.5 * variance, variance.sqrt());
        let at = |k: usize| FINE_REACH * (2.0 * k as f64 / (FINE_NODES - 1) as f64 - 1.0);
        let mut nodes: Vec<(f64, f64)> =
            (0..FINE_NODES).map(|k| (Real::exp(-0.5 * at(k) * at(k)), Real::exp(center + scale * at(k)))).collect();
        let total: f64 = nodes.iter().map(|node| node.0).sum();
        nodes.iter_mut().for_each(|node| node.0 /= total);
        nodes
    }

    /// (weight, length) of each class of outputs in one lane.
    pub fn outputs(&self, lane: usize) -> Vec<(f64, f64)> {
        let law = LengthLaw::new(self.mean_output, self.output_cv, [&[]; LANES]);
        let of_lane = |j| {
            let (weight, length): (Lanes, Lanes) = law.node(j);
            (weight.0[lane], length.0[lane])
        };
        (0..law.count()).map(of_lane).filter(|node| node.0 > 0.0).collect()
    }

    /// The empirical law of one lane, if it has one.
    pub fn law(&self, lane: usize) -> Option<&EmpiricalLengths> {
        self.laws[lane].as_deref()
    }

    /// The prompt classes in use.
    pub fn nodes(&self) -> &[PromptNode] {
        &self.nodes
    }

    #[inline(always)]
    fn add_prompts(&mut self, lengths: &Lengths) {
        let zero = Lanes::splat(0.0);
        let nodes = |lane: usize| lengths.laws[lane].as_ref().map_or(&[][..], |law| law.nodes());
        let law = LengthLaw::new(lengths.isl, lengths.isl_cv, std::array::from_fn(nodes));
        let common = zero.less(lengths.prefix_tokens);
        let split = Lanes::any(common);
        let prefix = whole_blocks(lengths.prefix_tokens);
        let share = lengths.prefix_hit_share;
        self.shared_prefix = Lanes::select(zero.less(share), prefix, zero);
        self.nodes.reserve_exact(law.count() * if split { 2 } else { 1 });
        for j in 0..law.count() {
            let (weight, prompt) = law.node(j);
            let most = whole_blocks((prompt - Lanes::splat(1.0)).max(zero));
            let own = whole_blocks(share * prompt);
            let cached = Lanes::select(common, prefix, own).min(most);
            let shared = Lanes::select(common, cached, zero);
            let hits = Lanes::select(common, weight * share, weight);
            self.push(PromptNode::new(hits, prompt, cached, shared));
            if split {
                self.push(PromptNode::new(weight - hits, prompt, zero, zero));
            }
        }
    }

    #[inline(always)]
    fn add_short_decodes(&mut self, lengths: &Lengths) {
        let law = LengthLaw::new(lengths.osl, lengths.osl_cv, [&[]; LANES]);
        let nodes: Vec<(Lanes, Lanes)> = (0..law.count()).map(|j| law.node(j)).collect();
        for (lane, empirical) in lengths.laws.iter().enumerate() {
            let parametric = || ShortDecodes::new(nodes.iter().map(|node| (node.0.0[lane], node.1.0[lane])));
            let decode = empirical.as_ref().map_or_else(parametric, |law| law.decode);
            let missing = (self.decode_tokens.0[lane] - decode.mean).max(0.0);
            if missing > 0.0 && decode.variation > 0.0 {
                self.short_decodes.0[lane] = missing;
                self.short_decodes_fade.0[lane] = missing / decode.variation;
            }
        }
    }

    fn push(&mut self, node: PromptNode) {
        self.nodes.push(node);
        self.longest = self.longest.max(node.uncached);
        self.mean_uncached = self.mean_uncached + node.weight * node.uncached;
        self.mean_shared = self.mean_shared + node.weight * node.shared;
    }
}
