//! Ranks that take every step together, worked out by hand and against Little's law.

mod support;

use lambdamax_core::iteration::Iteration;
use lambdamax_sim::arrivals::Pattern;
use lambdamax_sim::point::Point;
use lambdamax_sim::replications::{Control, simulate};
use lambdamax_sim::settings::Settings;
use support::{affine_step, constant_step, control, fixed, poisson, replay, run, trace_point, unlimited};

fn two_ranks(costs: Iteration, rows: &[(f64, u32, u32)]) -> Point {
    let settings = Settings { async_scheduling: false, ..Settings::with_pool(100) };
    Point { ranks: 2, ..trace_point(costs, rows, settings) }
}

fn times(point: &Point, rows: &[(f64, u32, u32)]) -> Vec<(f64, f64)> {
    let finished = replay(point).requests;
    finished.iter().zip(rows).map(|(done, row)| (row.0 + done.ttft_s, row.0 + done.e2e_s)).collect()
}

#[test]
fn each_rank_has_seats_and_a_budget_of_its_own() {
    let rows = [(0.0, 8, 2), (0.0, 8, 2), (0.0, 8, 1)];
    let mut point = two_ranks(constant_step(1.0), &rows);
    point.settings = Settings { max_num_seqs: 1, max_num_batched_tokens: 8, ..point.settings };
    assert_eq!(times(&point, &rows), [(1.0, 2.0), (1.0, 2.0), (3.0, 3.0)]);
}

#[test]
fn a_prompt_on_one_rank_holds_the_other_up() {
    let rows = [(0.0, 1, 4), (0.5, 9, 1)];
    // A step takes a second for each token of the rank with most of them: 1, 9 (the prompt, beside a decode), 1, 1.
    let point = two_ranks(affine_step(0.0, 0.0, 1.0, 0.0), &rows);
    assert_eq!(times(&point, &rows), [(1.0, 12.0), (10.0, 10.0)]);
}

#[test]
fn a_request_goes_where_fewest_are() {
    let rows = [(0.0, 1, 9), (0.0, 1, 1), (2.5, 3, 1)];
    let mut point = two_ranks(constant_step(1.0), &rows);
    point.settings.max_num_seqs = 1;
    assert_eq!(times(&point, &rows)[2], (4.0, 4.0));
}

#[test]
fn littles_law_holds_over_all_ranks() {
    let base = poisson(affine_step(0.01, 1e-4, 1e-4, 1e-7), 20.0, fixed(50, 40), unlimited());
    for arrivals in [base.arrivals.clone(), Pattern::Closed { clients: 30, think_s: 0.1 }] {
        let found = run(&Point { ranks: 3, arrivals, ..base.clone() }, 30_000).summary.numbers;
        assert!((found.in_flight / (found.rate_rps * found.e2e_mean_s) - 1.0).abs() < 0.01, "{found:?}");
        assert!((found.running + found.waiting - found.in_flight).abs() < 1e-9 * found.in_flight);
    }
}

#[test]
fn ranks_of_their_own_load_are_as_fast_as_one_where_nothing_is_shared() {
    let one = poisson(constant_step(0.01), 20.0, fixed(50, 40), unlimited());
    let three = Point { ranks: 3, arrivals: Pattern::Open { rate: 60.0, cv: 1.0 }, ..one.clone() };
    let (one, three) = (run(&one, 30_000).summary.numbers, run(&three, 90_000).summary.numbers);
    assert!((three.running / one.running / 3.0 - 1.0).abs() < 0.02);
    assert!((three.tpot_mean_s / one.tpot_mean_s - 1.0).abs() < 1e-9);
}

#[test]
fn a_seed_gives_the_same_bits() {
    let point = Point { ranks: 2, ..poisson(affine_step(0.01, 1e-4, 1e-4, 1e-7), 20.0, fixed(50, 40), unlimited()) };
    let asked = Control { replications: 3, ..control(9_000) };
    let bits = || {
        simulate(&point, &asked)
            .expect("possible")
            .summary
            .numbers
            .values()
            .into_iter()
            .map(f64::to_bits)
            .collect::<Vec<u64>>()
    };
    assert_eq!(bits(), bits());
}
