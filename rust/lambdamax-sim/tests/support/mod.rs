//! Step times and points that have closed forms.
#![allow(dead_code)]

use std::sync::Arc;

use lambdamax_core::iteration::Iteration;
use lambdamax_core::replica::HostCosts;
use lambdamax_core::step::StepCosts;
use lambdamax_sim::arrivals::{Pattern, TraceRow};
use lambdamax_sim::lengths::{LengthLaw, Lengths, Prefix};
use lambdamax_sim::point::Point;
use lambdamax_sim::replications::{Control, Outcome, simulate};
use lambdamax_sim::settings::Settings;

pub const NO_HOST: HostCosts =
    HostCosts { latency_s: 0.0, latency_per_token_s: 0.0, async_scheduling: 0.0, held_ttft_s: 0.0 };

/// Every step takes as long.
pub fn constant_step(seconds: f64) -> Iteration {
    affine_step(seconds, 0.0, 0.0, 0.0)
}

/// T = fixed + per_sequence·B + per_token·(B + c) + per_context·Σctx.
pub fn affine_step(fixed: f64, per_sequence: f64, per_token: f64, per_context: f64) -> Iteration {
    let costs = StepCosts { fixed, per_sequence, per_token, weights: 0.0, ..StepCosts::NONE };
    Iteration::new(costs, per_context, 0.0)
}

pub fn trace_point(costs: Iteration, rows: &[(f64, u32, u32)], settings: Settings) -> Point {
    let row = |&(arrival_s, prompt, output): &(f64, u32, u32)| TraceRow { arrival_s, prompt, output };
    let arrivals = Pattern::Trace(rows.iter().map(row).collect());
    Point { ranks: 1, costs, host: NO_HOST, settings, arrivals, lengths: fixed(1, 1), prefix: Prefix::None }
}

pub fn fixed(prompt: u32, output: u32) -> Lengths {
    Lengths::Independent { prompt: LengthLaw::Fixed(prompt), output: LengthLaw::Fixed(output) }
}

/// Prompts of one token, outputs with these values alike.
pub fn outputs(values: Vec<u32>) -> Lengths {
    Lengths::Independent { prompt: LengthLaw::Fixed(1), output: LengthLaw::Empirical(Arc::from(values)) }
}

/// A thousand quantiles of an exponential law with this mean, as outputs.
pub fn exponential_outputs(mean: f64) -> Lengths {
    let value = |i: u32| (-mean * (1.0 - (f64::from(i) + 0.5) / 1000.0).ln()).round().max(1.0) as u32;
    outputs((0..1000).map(value).collect())
}

/// A pool and seats that nothing can fill, and no step ahead.
pub fn unlimited() -> Settings {
    Settings {
        max_num_batched_tokens: 1 << 30,
        max_num_seqs: 1 << 30,
        num_gpu_blocks: 1 << 30,
        async_scheduling: false,
        ..Settings::with_pool(1)
    }
}

pub fn poisson(costs: Iteration, rate: f64, lengths: Lengths, settings: Settings) -> Point {
    let arrivals = Pattern::Open { rate, cv: 1.0 };
    Point { ranks: 1, costs, host: NO_HOST, settings, arrivals, lengths, prefix: Prefix::None }
}

pub fn replay(point: &Point) -> Outcome {
    simulate(point, &control(1)).expect("the point can be simulated")
}

pub fn control(requests: u64) -> Control {
    Control { requests, precision: 0.0, replications: 1, seed: 7 }
}

pub fn run(point: &Point, requests: u64) -> Outcome {
    simulate(point, &Control { replications: 4, ..control(requests) }).expect("the point can be simulated")
}
