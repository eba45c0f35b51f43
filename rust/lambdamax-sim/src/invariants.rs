//! What holds at every step of every run, whatever the settings.

use lambdamax_core::iteration::Iteration;
use lambdamax_core::replica::HostCosts;
use lambdamax_core::step::StepCosts;
use proptest::prelude::*;

use crate::arrivals::Pattern;
use crate::blocks::{BLOCK, blocks_for};
use crate::engine::Engine;
use crate::lengths::{LengthLaw, Lengths, Prefix};
use crate::point::Point;
use crate::requests::Slot;
use crate::settings::Settings;

/// T = 10 ms + 0.1 ms a token + 1 µs a token of context.
fn costs() -> Iteration {
    let costs = StepCosts { fixed: 0.01, per_token: 1e-4, weights: 0.0, ..StepCosts::NONE };
    Iteration::new(costs, 1e-6, 0.0)
}

fn settings() -> impl Strategy<Value = Settings> {
    (
        4u32..300,
        1u32..40,
        30u32..200,
        prop_oneof![Just(0u32), 10u32..100],
        any::<[bool; 3]>(),
        prop_oneof![Just(0.0), 0.0..0.2],
    )
        .prop_map(|(budget, seats, pool, threshold, [whole, caching, one_ahead], watermark)| Settings {
            max_num_batched_tokens: budget,
            max_num_seqs: seats,
            num_gpu_blocks: pool,
            long_prefill_token_threshold: threshold,
            scheduler_reserve_full_isl: whole,
            watermark,
            enable_prefix_caching: caching,
            async_scheduling: one_ahead,
        })
}

fn arrivals() -> impl Strategy<Value = Pattern> {
    prop_oneof![
        (0.2f64..20.0, prop_oneof![Just(0.0), Just(1.0), Just(2.5)]).prop_map(|(rate, cv)| Pattern::Open { rate, cv }),
        (1u32..50, prop_oneof![Just(0.0), Just(0.7)])
            .prop_map(|(clients, think_s)| Pattern::Closed { clients, think_s }),
    ]
}

fn prefix() -> impl Strategy<Value = Prefix> {
    prop_oneof![
        Just(Prefix::None),
        Just(Prefix::Own { share: 0.6 }),
        (1u32..200, 0.1f64..=1.0).prop_map(|(tokens, share)| Prefix::Common { tokens, share }),
    ]
}

fn points() -> impl Strategy<Value = Point> {
    (settings(), arrivals(), prefix(), 5.0f64..150.0, 2.0f64..60.0).prop_map(
        |(settings, arrivals, prefix, isl, osl)| Point {
            ranks: 1,
            costs: costs(),
            host: HostCosts { latency_s: 0.003, latency_per_token_s: 1e-5, async_scheduling: 0.0, held_ttft_s: 0.0 },
            settings,
            arrivals,
            lengths: Lengths::Independent {
                prompt: LengthLaw::from_moments("isl", isl, 0.7).expect("in range"),
                output: LengthLaw::from_moments("osl", osl, 0.5).expect("in range"),
            },
            prefix,
        },
    )
}

fn own_tokens(engine: &Engine, slot: Slot) -> u32 {
    let scheduler = &engine.scheduler;
    if scheduler.requests.decoding[slot as usize] {
        scheduler.decoding.computed(&scheduler.requests, slot)
    } else {
        scheduler.requests.computed[slot as usize]
    }
}

/// Blocks in use are those of the running requests, and the common prefix once.
fn held_blocks(engine: &Engine) -> u32 {
    let scheduler = &engine.scheduler;
    let own = |&slot: &Slot| scheduler.requests.own_blocks(slot, own_tokens(engine, slot));
    let shared = scheduler.running.iter().any(|&slot| scheduler.requests.shared[slot as usize] > 0);
    scheduler.running.iter().map(own).sum::<u32>() + if shared { scheduler.blocks.prefix() } else { 0 }
}

fn check(engine: &Engine) -> Result<(), TestCaseError> {
    let (scheduler, plan) = (&engine.scheduler, &engine.plan);
    let prompts: u32 = plan.chunks.iter().map(|chunk| chunk.tokens).sum();
    prop_assert!(prompts <= scheduler.settings.max_num_batched_tokens);
    prop_assert!(scheduler.running.len() <= scheduler.settings.max_num_seqs as usize);
    prop_assert!(plan.preempted == 0 || !plan.blocked);
    let order: Vec<u64> = scheduler.running.iter().map(|&slot| scheduler.requests.order[slot as usize]).collect();
    prop_assert!(order.is_sorted(), "running is in the order of admission");
    let decoding = scheduler.running.len() - scheduler.prefilling.len();
    prop_assert_eq!(scheduler.decoding.count() as usize, decoding);
    let tokens: u64 = scheduler
        .running
        .iter()
        .filter(|&&slot| scheduler.requests.decoding[slot as usize])
        .map(|&slot| u64::from(own_tokens(engine, slot)))
        .sum();
    prop_assert_eq!(scheduler.decoding.tokens(), tokens);
    if !scheduler.settings.async_scheduling {
        prop_assert_eq!(scheduler.blocks.held(), held_blocks(engine));
        prop_assert_eq!(engine.record.in_flight as usize, scheduler.running.len() + scheduler.waiting.len());
    }
    Ok(())
}

/// Everything that a run leaves behind, as bits.
fn bits(engine: &Engine) -> Vec<u64> {
    let finished = engine
        .record
        .finished
        .iter()
        .flat_map(|f| [f.request, f.ttft_s.to_bits(), f.e2e_s.to_bits(), f.decode_s.to_bits()]);
    let windows = engine.record.windows.iter().flat_map(|w| {
        let floats =
            [w.seconds, w.busy_s, w.in_flight_s, w.running_s, w.decoding_s, w.block_s, w.ttft_s, w.tpot_s, w.gap_s];
        let counts =
            [w.arrivals, w.steps, w.blocked_steps, w.preemptions, w.tokens_out, w.cached_tokens, w.gaps.count()];
        floats.map(f64::to_bits).into_iter().chain(counts).chain([w.gaps.quantile(0.9).to_bits()])
    });
    finished.chain(windows).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn nothing_is_lost_at_any_step(point in points(), seed in 0u64..1000) {
        let mut engine = Engine::new(&point, seed, 0, 20);
        while engine.record.windows.len() < 4 && engine.advance() {
            check(&engine)?;
        }
        prop_assert_eq!(engine.record.windows.len(), 4);
    }

    #[test]
    fn jumping_gives_the_bits_of_stepping(point in points(), seed in 0u64..1000) {
        let mut jumping = Engine::new(&point, seed, 0, 20);
        let mut stepping = Engine::new(&point, seed, 0, 20).step_by_step();
        jumping.run(6);
        stepping.run(6);
        prop_assert!(bits(&jumping) == bits(&stepping));
    }

    #[test]
    fn a_queue_never_overtakes_its_head(point in points(), seed in 0u64..1000) {
        let mut engine = Engine::new(&point, seed, 0, 20);
        let mut first_admission = Vec::new();
        while engine.record.windows.len() < 4 && engine.advance() {
            let requests = &engine.scheduler.requests;
            let admitted = engine.plan.chunks.iter().filter(|chunk| requests.generated[chunk.slot as usize] <= 1);
            first_admission.extend(admitted.map(|chunk| (chunk.slot, requests.arrival_s[chunk.slot as usize].to_bits())));
        }
        first_admission.dedup();
        let mut seen = std::collections::HashSet::new();
        let order: Vec<u64> = first_admission.iter().filter(|entry| seen.insert(**entry)).map(|entry| entry.1).collect();
        prop_assert!(order.is_sorted());
    }
}

#[test]
fn a_block_is_sixteen_tokens_of_a_running_request() {
    assert_eq!((BLOCK, blocks_for(0), blocks_for(16), blocks_for(17)), (16, 0, 1, 2));
}
