//! Small traces worked out by hand, one for each scheduling rule.

mod support;

use lambdamax_sim::lengths::Prefix;
use lambdamax_sim::point::Point;
use lambdamax_sim::recorder::Finished;
use lambdamax_sim::settings::Settings;
use support::{constant_step, replay, trace_point};

/// Steps of one second, so that times are step counts.
fn point(rows: &[(f64, u32, u32)], settings: Settings) -> Point {
    trace_point(constant_step(1.0), rows, settings)
}

fn synchronous(blocks: u32) -> Settings {
    Settings { async_scheduling: false, ..Settings::with_pool(blocks) }
}

/// (time of the first token, time of the last token) of each request.
fn token_times(rows: &[(f64, u32, u32)], settings: Settings) -> Vec<(f64, f64)> {
    let finished: Vec<Finished> = replay(&point(rows, settings)).requests;
    finished.iter().zip(rows).map(|(done, row)| (row.0 + done.ttft_s, row.0 + done.e2e_s)).collect()
}

#[test]
fn a_prompt_rides_on_the_step_after_its_arrival() {
    let times = token_times(&[(0.0, 3, 3), (0.5, 2, 2), (10.25, 1, 1)], synchronous(100));
    assert_eq!(times, [(1.0, 3.0), (2.0, 3.0), (11.25, 11.25)]);
}

#[test]
fn a_prompt_longer_than_the_budget_is_cut() {
    let settings = Settings { max_num_batched_tokens: 4, ..synchronous(100) };
    assert_eq!(token_times(&[(0.0, 10, 2)], settings), [(3.0, 4.0)]);
    // The first one's decode takes one of the four tokens of steps 1 and 2, so the second prompt's seven take 3 + 3 + 1.
    assert_eq!(token_times(&[(0.0, 4, 3), (0.0, 7, 1)], settings), [(1.0, 3.0), (4.0, 4.0)]);
}

#[test]
fn a_threshold_leaves_room_for_the_next_prompt() {
    let capped = Settings { max_num_batched_tokens: 8, long_prefill_token_threshold: 4, ..synchronous(100) };
    assert_eq!(token_times(&[(0.0, 12, 1), (0.0, 4, 1)], capped), [(3.0, 3.0), (1.0, 1.0)]);
    let free = Settings { long_prefill_token_threshold: 0, ..capped };
    assert_eq!(token_times(&[(0.0, 12, 1), (0.0, 4, 1)], free), [(2.0, 2.0), (2.0, 2.0)]);
}

#[test]
fn decodes_that_find_no_budget_sit_the_step_out() {
    let settings = Settings { max_num_batched_tokens: 2, ..synchronous(100) };
    // Steps: AB's prompts; then A and B take both tokens until they finish; C comes after.
    assert_eq!(token_times(&[(0.0, 1, 3), (0.0, 1, 3), (0.0, 1, 1)], settings), [(1.0, 3.0), (1.0, 3.0), (4.0, 4.0)]);
    // A's prompt of 6 in chunks of 1 beside B, who was admitted later and decodes with what is left: steps 2 to 6 give A and B one each.
    let narrow = Settings { long_prefill_token_threshold: 1, ..settings };
    assert_eq!(token_times(&[(0.0, 6, 1), (0.0, 1, 3)], narrow), [(6.0, 6.0), (1.0, 3.0)]);
    let starving = Settings { max_num_batched_tokens: 1, ..settings };
    assert_eq!(token_times(&[(0.0, 1, 2), (0.0, 1, 2)], starving), [(1.0, 2.0), (3.0, 4.0)]);
}

#[test]
fn the_first_that_has_no_seat_stops_the_rest() {
    let settings = Settings { max_num_seqs: 1, ..synchronous(100) };
    assert_eq!(token_times(&[(0.0, 1, 5), (0.0, 1, 1)], settings), [(1.0, 5.0), (6.0, 6.0)]);
}

#[test]
fn the_first_whose_prompt_has_no_blocks_stops_the_rest() {
    // Four blocks: A holds two until step 3; B needs three and blocks C, which needs one.
    let rows = [(0.0, 20, 3), (0.5, 40, 1), (0.5, 5, 1)];
    assert_eq!(token_times(&rows, synchronous(4)), [(1.0, 3.0), (4.0, 4.0), (4.0, 4.0)]);
}

#[test]
fn without_the_gate_a_first_chunk_is_enough() {
    // A ends at step 2. Until then two of four blocks are free: enough for 19 of B's 39 tokens, not for all.
    let rows = [(0.0, 20, 2), (0.5, 39, 1)];
    let gate = Settings { max_num_batched_tokens: 20, ..synchronous(4) };
    assert_eq!(token_times(&rows, gate)[1], (4.0, 4.0));
    assert_eq!(token_times(&rows, Settings { scheduler_reserve_full_isl: false, ..gate })[1], (3.0, 3.0));
}

#[test]
fn a_watermark_keeps_blocks_from_admission() {
    let rows = [(0.0, 20, 4), (0.5, 20, 1)];
    assert_eq!(token_times(&rows, synchronous(4))[1], (2.0, 2.0));
    let watermark = Settings { watermark: 0.25, ..synchronous(4) };
    assert_eq!(token_times(&rows, watermark)[1], (5.0, 5.0));
}

#[test]
fn the_last_one_is_thrown_out_and_computes_its_tokens_again() {
    // Four blocks of sixteen tokens. A and B hold 31 tokens after step 1; in step 3 each needs a third block, A takes B's two.
    // A ends at step 5 with 35 tokens held; B comes back at step 6 with 31 + 2 tokens, emits its third, and ends at step 8.
    let rows = [(0.0, 31, 5), (0.0, 31, 5)];
    let settings = Settings { enable_prefix_caching: false, ..synchronous(4) };
    assert_eq!(token_times(&rows, settings), [(1.0, 5.0), (1.0, 8.0)]);
    let outcome = replay(&point(&rows, settings));
    assert_eq!(outcome.summary.numbers.preemptions_per_request, 0.5);
    assert_eq!(outcome.summary.numbers.itl_mean_s, (4.0 + 1.0 + 4.0 + 2.0) / 8.0);
    // With the free list as cache, what A has not taken of B's blocks is found again: A needed one of the two.
    let cached = replay(&point(&rows, Settings { enable_prefix_caching: true, ..settings }));
    assert_eq!(cached.summary.numbers.cached_share, 16.0 / 62.0);
}

#[test]
fn nobody_is_admitted_in_a_step_that_throws_one_out() {
    // B is thrown out in step 3 and stands before C, who came in the middle of step 2 and would have fitted.
    let rows = [(0.0, 31, 5), (0.0, 31, 5), (1.5, 1, 1)];
    let settings = Settings { enable_prefix_caching: false, ..synchronous(4) };
    let times = token_times(&rows, settings);
    assert_eq!(times[1], (1.0, 8.0));
    assert_eq!(times[2], (6.0, 6.0));
}

#[test]
fn scheduling_one_step_ahead_costs_an_arrival_one_step_more() {
    let rows = [(0.0, 1, 9), (2.5, 1, 1)];
    assert_eq!(token_times(&rows, synchronous(100))[1], (4.0, 4.0));
    assert_eq!(token_times(&rows, Settings::with_pool(100))[1], (5.0, 5.0));
}

#[test]
fn scheduling_one_step_ahead_frees_a_seat_one_step_later() {
    let rows = [(0.0, 1, 3), (0.0, 1, 1), (0.0, 1, 3)];
    let two_seats = Settings { max_num_seqs: 2, ..synchronous(100) };
    assert_eq!(token_times(&rows, two_seats)[2], (2.0, 4.0));
    assert_eq!(token_times(&rows, Settings { async_scheduling: true, ..two_seats })[2], (3.0, 5.0));
}

#[test]
fn a_common_prefix_is_computed_once() {
    let rows = [(0.0, 100, 1), (5.0, 100, 1), (6.0, 40, 1)];
    let settings = Settings { max_num_batched_tokens: 10, ..synchronous(100) };
    let shared = Point { prefix: Prefix::Common { tokens: 90, share: 1.0 }, ..point(&rows, settings) };
    let done = replay(&shared);
    // 100 tokens in ten steps. The second prompt finds what the first one's first chunk made: nothing whole, so it waits and computes all.
    assert_eq!(done.requests[0].ttft_s, 10.0);
    let wide = Settings { max_num_batched_tokens: 1000, ..settings };
    let shared = Point { settings: wide, ..shared };
    let done = replay(&shared);
    // ⌊90⌋₁₆ = 80 tokens of the second, ⌊39⌋₁₆ = 32 of the third.
    assert_eq!(done.summary.numbers.cached_share, (80.0 + 32.0) / 240.0);
}

#[test]
fn earlier_turns_save_a_share_of_every_prompt() {
    let settings = Settings { max_num_batched_tokens: 50, ..synchronous(100) };
    let turns = Point { prefix: Prefix::Own { share: 0.5 }, ..point(&[(0.0, 100, 1)], settings) };
    // ⌊50⌋₁₆ = 48 tokens are cached, 52 are left: two steps.
    assert_eq!(replay(&turns).requests[0].ttft_s, 2.0);
}

#[test]
fn lengths_beyond_the_pool_are_cut_and_counted() {
    let outcome = replay(&point(&[(0.0, 40, 100)], synchronous(4)));
    assert_eq!(outcome.summary.numbers.clipped_requests, 1.0);
    assert_eq!(outcome.requests[0].e2e_s, 24.0);
}
