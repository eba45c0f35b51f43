//! Limits in which the scheduler is a queue that has been solved on paper.

mod support;

use lambdamax_sim::arrivals::Pattern;
use lambdamax_sim::lengths::{LengthLaw, Lengths};
use lambdamax_sim::point::Point;
use lambdamax_sim::replications::{Control, simulate};
use lambdamax_sim::settings::Settings;
use lambdamax_sim::summary::Numbers;
use lambdamax_sim::verdict::Verdict;
use support::{affine_step, constant_step, control, exponential_outputs, fixed, outputs, poisson, run, unlimited};

const STEP: f64 = 0.01;

fn assert_close(found: f64, expected: f64, tolerance: f64, what: &str) {
    assert!((found / expected - 1.0).abs() < tolerance, "{what}: {found} in place of {expected}");
}

/// Mean wait of M/G/1: λE[S²]/(2(1 − ρ)).
fn pollaczek_khinchine(rate: f64, mean: f64, square: f64) -> f64 {
    rate * square / (2.0 * (1.0 - rate * mean))
}

#[test]
fn one_seat_is_a_queue_of_pollaczek_and_khinchine() {
    let seat = Settings { max_num_seqs: 1, ..unlimited() };
    for (lengths, mean, square) in
        [(fixed(1, 20), 20.0, 400.0), (outputs(vec![5, 5, 5, 65]), 20.0, (3.0 * 25.0 + 4225.0) / 4.0)]
    {
        for load in [0.3, 0.7] {
            let rate = load / (mean * STEP);
            let found = run(&poisson(constant_step(STEP), rate, lengths.clone(), seat), 200_000).summary;
            let wait = pollaczek_khinchine(rate, mean * STEP, square * STEP * STEP);
            assert_close(found.numbers.ttft_mean_s - STEP, wait, 0.05, "wait");
            assert_close(found.numbers.busy_share, load, 0.02, "busy");
            assert_close(found.numbers.running, load, 0.02, "running");
            assert_eq!(found.verdict, Verdict::Steady);
        }
    }
}

/// Probability of waiting in M/M/c with `offered` Erlang.
fn erlang_c(servers: u32, offered: f64) -> f64 {
    let blocking = (1..=servers).fold(1.0, |b, k| offered * b / (f64::from(k) + offered * b));
    blocking / (1.0 - offered / f64::from(servers) * (1.0 - blocking))
}

#[test]
fn some_seats_with_constant_steps_are_the_queue_of_erlang() {
    let (seats, mean) = (8, 400.0);
    let settings = Settings { max_num_seqs: seats, ..unlimited() };
    let offered = 0.8 * f64::from(seats);
    let rate = offered / (mean * STEP);
    let found = run(&poisson(constant_step(STEP), rate, exponential_outputs(mean), settings), 200_000).summary.numbers;
    let wait = erlang_c(seats, offered) * mean * STEP / (f64::from(seats) - offered);
    // A step in two waits half a step for the boundary; services end on boundaries.
    assert_close(found.ttft_mean_s - 1.5 * STEP, wait, 0.06, "wait");
    assert_close(found.running, offered, 0.02, "running");
}

#[test]
fn affine_steps_without_limits_make_a_negative_binomial_number() {
    let (fixed_s, per_sequence) = (0.01, 0.0001);
    for (lengths, decode_tokens) in [(fixed(1, 101), 100.0), (exponential_outputs(101.0), 100.0)] {
        let rate = 60.0;
        let found = run(&poisson(affine_step(fixed_s, per_sequence, 0.0, 0.0), rate, lengths, unlimited()), 60_000);
        let p = rate * decode_tokens * per_sequence;
        let expected = (fixed_s / per_sequence + 1.0) * p / (1.0 - p);
        assert_close(found.summary.numbers.decoding, expected, 0.03, "decoding");
    }
}

#[test]
fn prefill_and_context_slow_tokens_as_the_affine_oracle_says() {
    let (fixed_s, per_token, per_context) = (0.008, 2e-5, 5e-9);
    let (prompt, output, rate) = (400.0, 150.0, 30.0);
    let costs = affine_step(fixed_s, 0.0, per_token, per_context);
    let found = run(&poisson(costs, rate, fixed(400, 150), unlimited()), 60_000).summary.numbers;
    let tokens = per_token * (prompt + output - 1.0);
    let context = per_context * (prompt * (output - 1.0) + output * (output - 1.0) / 2.0);
    let tpot = fixed_s / (1.0 - rate * (tokens + context));
    assert_close(found.tpot_token_mean_s, tpot, 0.02, "TPOT");
}

fn loaded() -> Numbers {
    let lengths = Lengths::Independent {
        prompt: LengthLaw::from_moments("isl", 300.0, 0.8).expect("in range"),
        output: LengthLaw::from_moments("osl", 100.0, 0.6).expect("in range"),
    };
    let point = poisson(affine_step(0.01, 1e-5, 1e-5, 1e-8), 20.0, lengths, Settings::with_pool(100_000));
    run(&point, 100_000).summary.numbers
}

#[test]
fn littles_law_ties_populations_to_times() {
    let found = loaded();
    assert_close(found.in_flight, found.rate_rps * found.e2e_mean_s, 2e-3, "L = λW");
    let decode_rate = found.output_tok_s - found.rate_rps;
    assert_close(found.decoding, decode_rate * found.tpot_token_mean_s, 2e-3, "L_d = decode rate · TPOT");
    assert_close(found.itl_mean_s, found.tpot_token_mean_s, 2e-3, "gaps");
    assert!((found.waiting + found.running - found.in_flight).abs() < 1e-9);
}

#[test]
fn littles_law_is_exact_from_empty_to_empty() {
    let rows: Vec<(f64, u32, u32)> = (0..500u32)
        .map(|i| (f64::from(i * i % 97) * 0.01 + f64::from(i) * 0.11, 1 + i * 7 % 300, 1 + i * 13 % 90))
        .collect();
    let mut rows = rows;
    rows.sort_by(|a, b| a.0.total_cmp(&b.0));
    for settings in [Settings::with_pool(60), Settings { async_scheduling: false, ..Settings::with_pool(4000) }] {
        let outcome = support::replay(&support::trace_point(affine_step(0.01, 1e-4, 1e-5, 1e-7), &rows, settings));
        let (n, found) = (outcome.summary.numbers, &outcome.requests);
        let in_flight_s: f64 = found.iter().map(|request| request.e2e_s).sum();
        assert_close(n.in_flight * n.simulated_s, in_flight_s, 1e-9, "∫L dt = ΣW");
        let tokens: u32 = rows.iter().map(|row| row.2).sum();
        assert_close(n.output_tok_s * n.simulated_s, f64::from(tokens), 1e-12, "tokens");
        assert_eq!(n.requests, 500.0);
        if n.preemptions_per_request == 0.0 {
            let decode_s: f64 = found.iter().map(|request| request.decode_s).sum();
            assert_close(n.decoding * n.simulated_s, decode_s, 1e-9, "∫L_d dt = ΣD");
            assert_close(n.itl_mean_s, n.tpot_token_mean_s, 1e-9, "gaps");
        }
    }
}

#[test]
fn a_closed_loop_keeps_its_clients_and_their_pauses() {
    let arrivals = Pattern::Closed { clients: 20, think_s: 0.5 };
    let base = poisson(affine_step(0.01, 1e-4, 1e-5, 0.0), 1.0, exponential_outputs(50.0), unlimited());
    let found = run(&Point { arrivals, ..base }, 40_000).summary;
    let n = found.numbers;
    assert_close(n.in_flight + n.rate_rps * 0.5, 20.0, 0.005, "clients");
    assert_eq!(found.verdict, Verdict::Steady);
}

#[test]
fn a_closed_loop_with_more_clients_than_seats_is_saturated() {
    let arrivals = Pattern::Closed { clients: 20, think_s: 0.0 };
    let base =
        poisson(constant_step(STEP), 1.0, exponential_outputs(50.0), Settings { max_num_seqs: 8, ..unlimited() });
    let found = run(&Point { arrivals, ..base }, 20_000).summary;
    assert_eq!(found.verdict, Verdict::Saturated);
    assert_close(found.numbers.rate_rps, 8.0 / (50.0 * STEP), 0.03, "rate");
    assert_close(found.numbers.in_flight, 20.0, 0.01, "clients");
}

#[test]
fn a_load_beyond_the_seats_is_called_saturated() {
    let seats = Settings { max_num_seqs: 8, ..unlimited() };
    let largest = 8.0 / (50.0 * STEP);
    let verdict = |load: f64| {
        run(&poisson(constant_step(STEP), load * largest, exponential_outputs(50.0), seats), 50_000).summary.verdict
    };
    assert_eq!(
        [verdict(0.6), verdict(0.9), verdict(1.2), verdict(3.0)],
        [Verdict::Steady, Verdict::Steady, Verdict::Saturated, Verdict::Saturated]
    );
}

#[test]
fn preemption_costs_capacity_and_a_cache_saves_some_of_it() {
    let lengths = Lengths::Independent {
        prompt: LengthLaw::Fixed(200),
        output: LengthLaw::from_moments("osl", 300.0, 0.5).expect("in range"),
    };
    let costs = affine_step(0.01, 0.0, 2e-5, 0.0);
    let closed = |settings| Point {
        arrivals: Pattern::Closed { clients: 60, think_s: 0.0 },
        ..poisson(costs, 1.0, lengths.clone(), settings)
    };
    let tight = Settings::with_pool(700);
    let cached = run(&closed(tight), 8_000).summary.numbers;
    let recomputed = run(&closed(Settings { enable_prefix_caching: false, ..tight }), 8_000).summary.numbers;
    let roomy = run(&closed(Settings::with_pool(100_000)), 8_000).summary.numbers;
    assert!(cached.preemptions_per_request > 0.05 && roomy.preemptions_per_request == 0.0);
    assert!(recomputed.rate_rps < cached.rate_rps && cached.rate_rps < roomy.rate_rps);
    assert!(cached.cached_share > 0.0 && recomputed.cached_share == 0.0 && cached.kv_use > 0.9);
}

#[test]
fn a_precision_is_reached_and_the_truth_lies_within_it() {
    let seat = Settings { max_num_seqs: 1, ..unlimited() };
    let point = poisson(constant_step(STEP), 0.6 / (20.0 * STEP), fixed(1, 20), seat);
    let asked = Control { requests: 4_000_000, precision: 0.02, replications: 2, seed: 11 };
    let found = simulate(&point, &asked).expect("possible").summary;
    let expected = pollaczek_khinchine(3.0, 0.2, 0.04) + STEP;
    assert!(found.precise && found.numbers.requests < 2_000_000.0);
    assert!(found.numbers.ttft_half_width_s <= 0.02 * found.numbers.ttft_mean_s);
    assert!((found.numbers.ttft_mean_s - expected).abs() < 2.0 * found.numbers.ttft_half_width_s);
}

#[test]
fn more_threads_give_the_same_bits() {
    let lengths = exponential_outputs(80.0);
    let point = poisson(affine_step(0.01, 1e-4, 1e-5, 1e-8), 20.0, lengths, Settings::with_pool(3000));
    let asked = Control { requests: 40_000, precision: 0.05, replications: 5, seed: 3 };
    let bits = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads can be had");
        let found = pool.install(|| simulate(&point, &asked)).expect("possible");
        found.summary.numbers.values().into_iter().map(f64::to_bits).collect::<Vec<u64>>()
    };
    assert_eq!(bits(1), bits(4));
    let other = simulate(&point, &Control { seed: 4, ..asked }).expect("possible").summary.numbers;
    assert_ne!(bits(1)[0], other.values()[0].to_bits());
}

#[test]
fn impossible_calls_are_refused_by_name() {
    let point = poisson(constant_step(STEP), 1.0, fixed(1, 1), unlimited());
    let seats = Point { settings: Settings { max_num_seqs: 0, ..unlimited() }, ..point.clone() };
    let message = |point: &Point, asked| simulate(point, &asked).expect_err("refused").to_string();
    assert!(message(&seats, control(1)).starts_with("max_num_seqs = 0"));
    assert!(message(&point, control(0)).starts_with("requests = 0"));
    assert!(message(&point, Control { precision: 1.0, ..control(1) }).starts_with("precision = 1"));
}
