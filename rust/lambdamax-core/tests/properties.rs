//! Properties that hold at any point: monotone, scaling, within physics, finite, and independent of neighbours.

use lambdamax_core::block::Block;
use lambdamax_core::points::{Answer, INPUTS, Input, Status};
use lambdamax_core::replica::Replica;
use lambdamax_core::sweep::{solve_loads, solve_rows};
use lambdamax_core::table::{Columns, Rows, check_lengths};
use proptest::prelude::*;

/// What the layers of a model are.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Dense,
    Experts,
    Latent,
    Windowed,
    Hybrid,
}

/// Facts of one replica; names as in `REPLICA_FIELDS` and `BLOCK_FIELDS`.
#[derive(Clone, Debug)]
struct Facts {
    kind: Kind,
    layers: f64,
    kv_heads: f64,
    width: f64,
    bandwidth: f64,
    intensity: f64,
    tp: f64,
    pp: f64,
    dp: f64,
    exponent: f64,
    overhead: f64,
}

const HEADS: f64 = 64.0;
const HEAD_DIM: f64 = 128.0;

impl Facts {
    fn get(&self, name: &str) -> f64 {
        match name {
            "hidden_size" => self.width,
            "vocab_size" => 128_000.0,
            "mixer_bits" | "mlp_bits" | "expert_bits" | "head_bits" => 16.0,
            "kv_bytes_per_element" => 2.0,
            "accelerator_memory_bytes" => 1e13,
            "memory_bandwidth_bytes_per_s" => self.bandwidth,
            "mixer_flops" | "mlp_flops" | "expert_flops" | "attention_flops" => self.bandwidth * self.intensity,
            "scaleup_bytes_per_s" => self.bandwidth / 7.0,
            "scaleup_domain_size" => 64.0,
            "tp" => self.tp,
            "pp" => self.pp,
            "dp" => self.dp,
            "ep" => 1.0,
            "default_max_num_seqs" => 1024.0,
            "default_max_num_batched_tokens" => 8192.0,
            "roofline_exponent" => self.exponent,
            "prefill_attention_half_tokens" => 2600.0,
            "step_overhead_s" | "host_latency_s" => self.overhead,
            "sequence_overhead_s" | "allreduce_latency_s" | "layer_floor_s" | "prefill_layer_overhead_s" => {
                self.overhead / 100.0
            }
            "host_latency_per_token_s" => self.overhead / 1000.0,
            name if name.ends_with("efficiency") => 0.8,
            "default_memory_utilization" => 0.9,
            "async_scheduling" | "supported" | "kv_padding" | "weight_block" | "expert_load_imbalance" => 1.0,
            _ => 0.0,
        }
    }

    /// One block of layers; `other` is the second of a model of two kinds.
    fn block(&self, other: bool) -> Block {
        let attention = self.width * HEADS * HEAD_DIM;
        let routed = self.kind == Kind::Experts;
        let latent = self.kind == Kind::Latent;
        let recurrent = self.kind == Kind::Hybrid && other;
        let get = |name: &'static str| match name {
            "count" => self.layers / 2.0,
            "mixer_split_params" => 2.0 * attention,
            "mixer_kv_params" if !latent && !recurrent => 2.0 * self.width * self.kv_heads * HEAD_DIM,
            "query_heads" => HEADS,
            "kv_heads" if latent => 1.0,
            "kv_heads" if !recurrent => self.kv_heads,
            "kv_elements_per_token" if latent => 576.0,
            "kv_elements_per_token" if !recurrent => 2.0 * self.kv_heads * HEAD_DIM,
            "span_kind" if self.kind == Kind::Windowed && other => 1.0,
            "span_tokens" => 1024.0,
            "score_width" if !recurrent => 2.0 * HEADS * HEAD_DIM,
            "decode_score_width" if latent => HEADS * 1088.0,
            "decode_score_width" if !recurrent => 2.0 * HEADS * HEAD_DIM,
            "state_bytes" if recurrent => 1e6,
            "mlp_params" if !routed => 3.0 * self.width * 3.5 * self.width,
            "mlp_width" if !routed => 3.5 * self.width,
            "experts" if routed => 64.0,
            "experts_per_token" if routed => 4.0,
            "expert_params" if routed => 3.0 * self.width * 0.5 * self.width,
            "expert_width" if routed => 0.5 * self.width,
            "expert_hidden" if routed => self.width,
            _ => 0.0,
        };
        Block::read(&get).expect("counts are in range")
    }

    fn replica(&self) -> Replica {
        Replica::read(&|name| self.get(name), &[self.block(false), self.block(true)]).expect("facts are in range")
    }
}

fn facts() -> impl Strategy<Value = Facts> {
    let kinds = vec![Kind::Dense, Kind::Experts, Kind::Latent, Kind::Windowed, Kind::Hybrid];
    let shape = (4.0..60.0f64, prop::sample::select(vec![1.0, 8.0, 64.0]), prop::sample::select(vec![2048.0, 8192.0]));
    let device = (1e12..8e12f64, 100.0..600.0f64);
    let degrees = |most: usize| prop::sample::select(vec![1.0, 2.0, 4.0, 8.0][..most].to_vec());
    let made = (prop::sample::select(kinds), shape, device, (degrees(4), degrees(2), degrees(2)));
    (made, 1.0..1.7f64, 1e-5..2e-3f64).prop_map(|((kind, shape, device, (tp, pp, dp)), exponent, overhead)| Facts {
        kind,
        layers: 2.0 * shape.0.round(),
        kv_heads: shape.1,
        width: shape.2,
        bandwidth: device.0,
        intensity: device.1,
        tp,
        pp,
        dp,
        exponent,
        overhead,
    })
}

/// Some inputs of a point; the rest take their defaults.
type Point = Vec<(Input, f64)>;

fn point() -> impl Strategy<Value = Point> {
    let lengths = (16.0..30_000.0f64, 2.0..4_000.0f64, prop::sample::select(vec![0.0, 0.7]));
    (lengths, 512.0..20_000.0f64, 4.0..2_000.0f64).prop_map(|((isl, osl, cv), budget, seats)| {
        vec![
            (Input::Isl, isl),
            (Input::Osl, osl),
            (Input::IslCv, cv),
            (Input::OslCv, cv),
            (Input::Budget, budget),
            (Input::Seats, seats),
            (Input::Price, 2.0),
        ]
    })
}

fn rows(replica: &Replica, points: &[Point]) -> Rows<'static> {
    let mut fields = vec![vec![f64::NAN; points.len()]; INPUTS];
    for (row, point) in points.iter().enumerate() {
        point.iter().for_each(|&(input, value)| fields[input as usize][row] = value);
    }
    Rows::new(std::slice::from_ref(replica), &[], vec![0; points.len()], fields).expect("columns are in shape")
}

fn solve(replica: &Replica, points: &[Point]) -> Columns {
    let mut columns = Columns::zeroed(points.len());
    solve_rows(std::slice::from_ref(replica), &rows(replica, points), columns.cells());
    columns
}

fn is_ok(columns: &Columns, row: usize) -> bool {
    columns.status[row] == Status::Ok as u8
}

fn with(point: &Point, input: Input, value: f64) -> Point {
    point.iter().copied().filter(|&(known, _)| known != input).chain([(input, value)]).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn a_looser_slo_never_costs_rate(facts in facts(), point in point(), first in 0.005..0.2f64, factor in 1.01..5.0f64) {
        let replica = facts.replica();
        for slo in [Input::SloTpot, Input::SloTtft, Input::SloE2e] {
            let points = [with(&point, slo, first), with(&point, slo, first * factor)];
            let columns = solve(&replica, &points);
            let rate = &columns.fields[Answer::MaxRate as usize];
            prop_assert!(rate[1] >= rate[0] * (1.0 - 1e-12), "{slo:?}: {} after {}", rate[1], rate[0]);
        }
    }

    #[test]
    fn latency_grows_with_the_rate(facts in facts(), point in point()) {
        let replica = facts.replica();
        let columns = solve(&replica, &[with(&point, Input::UtilizationCap, 1.0)]);
        prop_assume!(is_ok(&columns, 0));
        let most = columns.fields[Answer::MaxRate as usize][0];
        let loads: Vec<f64> = (1..20).map(|i| most * f64::from(i) / 20.0).collect();
        let table = rows(&replica, &vec![point; loads.len()]);
        let none = vec![f64::NAN; loads.len()];
        let at = solve_loads(std::slice::from_ref(&replica), &table, &[loads, none.clone(), none]);
        for name in ["tpot_mean_s", "e2e_mean_s", "in_flight", "decoding"] {
            let field = lambdamax_core::load::LOAD_FIELDS.iter().position(|&known| known == name).expect("a field");
            for pair in at.fields[field].windows(2) {
                prop_assert!(pair[0] <= pair[1] * (1.0 + 1e-9), "{name}: {pair:?}");
            }
        }
    }

    #[test]
    fn a_machine_twice_as_fast_serves_twice_the_rate(facts in facts(), point in point()) {
        let twice = Facts { bandwidth: 2.0 * facts.bandwidth, overhead: 0.5 * facts.overhead, ..facts.clone() };
        let (one, two) = (solve(&facts.replica(), std::slice::from_ref(&point)), solve(&twice.replica(), &[point]));
        prop_assume!(is_ok(&one, 0));
        let rate = |columns: &Columns| columns.fields[Answer::MaxRate as usize][0];
        prop_assert!((rate(&two) / rate(&one) / 2.0 - 1.0).abs() < 1e-9);
    }

    #[test]
    fn nothing_beats_peak_flops_or_bandwidth(facts in facts(), point in point()) {
        let replica = facts.replica();
        let columns = solve(&replica, &[with(&point, Input::UtilizationCap, 1.0)]);
        prop_assume!(is_ok(&columns, 0));
        let get = |answer: Answer| columns.fields[answer as usize][0];
        let given = |input: Input| point.iter().find(|&&(known, _)| known == input).map_or(0.0, |&(_, value)| value);
        let tokens = given(Input::Isl) + given(Input::Osl) - 1.0;
        let flops = get(Answer::MaxRate) * 2.0 * replica.layer_matmul_params * tokens;
        prop_assert!(flops <= replica.gemm_flops * replica.gpus);
        prop_assert!(get(Answer::TpotTokenMean) >= get(Answer::TpotFloor));
        let window = if facts.kind == Kind::Windowed { 0.5 } else { 1.0 };
        let context = window * (given(Input::Isl) + 0.5);
        let of_slot = get(Answer::Decoding) / replica.slots * context * replica.kv_bytes_per_token_rank * facts.pp;
        let read = replica.weight_read_bytes + of_slot;
        prop_assert!(read / get(Answer::TpotTokenMean) <= replica.accelerator.bandwidth);
    }

    #[test]
    fn a_row_does_not_depend_on_its_neighbours(facts in facts(), points in prop::collection::vec(point(), 2..24)) {
        let replica = facts.replica();
        let together = solve(&replica, &points);
        for (row, point) in points.iter().enumerate() {
            let alone = solve(&replica, std::slice::from_ref(point));
            for (all, one) in together.fields.iter().zip(&alone.fields) {
                prop_assert_eq!(all[row].to_bits(), one[0].to_bits());
            }
            prop_assert_eq!(together.binding[row], alone.binding[0]);
        }
    }

    // All but the first: that is a place in a table, and refused where there is none.
    #[test]
    fn any_number_has_a_status(facts in facts(), input in 1..INPUTS, value in prop::num::f64::ANY, point in point()) {
        let columns = solve(&facts.replica(), &[with(&point, Input::ALL[input], value)]);
        prop_assert!(columns.status[0] <= Status::NotConverged as u8);
        if is_ok(&columns, 0) {
            // At its ceiling a replica's waits have no end, and are null.
            for answer in [Answer::MaxRate, Answer::TpotMean, Answer::KvInFlight, Answer::RequestsPerUsd] {
                prop_assert!(!columns.fields[answer as usize][0].is_nan());
            }
        }
    }
}

#[test]
fn a_law_that_is_not_in_the_table_is_refused() {
    for place in [0.0, -1.0, 0.5, f64::INFINITY] {
        let refused = check_lengths(&[], &[f64::NAN, place]);
        assert!(refused.is_err_and(|error| error.to_string() == format!("lengths {place}: the table has 0")));
    }
    assert!(check_lengths(&[], &[f64::NAN]).is_ok());
}
