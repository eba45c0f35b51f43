//! One block of rows, from inputs to answers, eight curves or roots at a time.
//!
//! Rows of a grid share most of their work. A curve λ(B) depends on the replica, the lengths and the token budget; the rate under
//! a limit on the curve and the bound; the operating point on the curve and B. Each is solved once per block, in the lane
//! of its curve.

use crate::capacity::{BOUNDED, LIMITS, Limit, LimitRate, Verdict, invert};
use crate::chart::Chart;
use crate::equilibrium::{Curve, Operating, View};
use crate::intern::{Interner, mix};
use crate::points::{Answer, Input, NO_LIMIT, RATE_ANSWERS, Status};
use crate::real::{LANES, Lanes};
use crate::replica::Replica;
use crate::root::Root;
use crate::table::{Cells, Rows};
use crate::tasks::{Found, NONE, Tasks};
use crate::workload::{Lengths, Workload};

/// Seconds in an hour.
const HOUR_S: f64 = 3600.0;
/// Tokens in the unit of token prices.
const MILLION_TOKENS: f64 = 1e6;
/// Inputs that shape a curve, beside the replica.
const CURVE_INPUTS: [Input; 7] =
    [Input::Isl, Input::Osl, Input::IslCv, Input::OslCv, Input::PrefixTokens, Input::PrefixHitShare, Input::Budget];
/// Inputs that decide whether a row can be solved at all, beside the replica and its goals.
const FEASIBILITY_INPUTS: [Input; 11] = [
    Input::Isl,
    Input::Osl,
    Input::IslCv,
    Input::OslCv,
    Input::PrefixTokens,
    Input::PrefixHitShare,
    Input::Seats,
    Input::Budget,
    Input::MemoryUtilization,
    Input::MemoryBytes,
    Input::ReservedBytes,
];

/// What the operating point of a row says.
#[derive(Clone, Copy, Debug)]
struct Spot {
    decoding: f64,
    running: f64,
    prefill_share: f64,
    ttft: f64,
    tpot: f64,
    tpot_token: f64,
    e2e: f64,
    kv: f64,
    cycle: f64,
}

impl Spot {
    const NOWHERE: Self = Self {
        decoding: f64::NAN,
        running: f64::NAN,
        prefill_share: f64::NAN,
        ttft: f64::NAN,
        tpot: f64::NAN,
        tpot_token: f64::NAN,
        e2e: f64::NAN,
        kv: f64::NAN,
        cycle: f64::NAN,
    };

    fn lane(at: &SpotLanes, decode_tokens: Lanes, lane: usize) -> Self {
        Self {
            decoding: at.decoding.0[lane],
            running: at.running.0[lane],
            prefill_share: 1.0 - at.left.0[lane],
            ttft: at.ttft.0[lane],
            tpot: at.tpot.0[lane],
            tpot_token: at.cycle.0[lane] / decode_tokens.0[lane],
            e2e: at.e2e.0[lane],
            kv: at.kv.0[lane],
            cycle: at.cycle.0[lane],
        }
    }
}

/// An operating point without its slopes.
struct SpotLanes {
    decoding: Lanes,
    running: Lanes,
    left: Lanes,
    ttft: Lanes,
    tpot: Lanes,
    e2e: Lanes,
    kv: Lanes,
    cycle: Lanes,
}

/// Looks at an operating point without its slopes.
struct SpotView;

impl View for SpotView {
    type Seen = SpotLanes;
    #[inline(always)]
    fn see(&self, at: &Operating) -> SpotLanes {
        SpotLanes {
            decoding: at.decoding.value,
            running: at.running.value,
            left: at.left,
            ttft: at.ttft.value,
            tpot: at.tpot.value,
            e2e: at.e2e.value,
            kv: at.kv.value,
            cycle: at.cycle.value,
        }
    }
}

/// A row on its way.
#[derive(Clone, Copy, Debug)]
struct Row {
    status: Status,
    kv_pool: f64,
    curve: u32,
    rates: [f64; LIMITS],
    verdict: Verdict,
    evaluations: f64,
    converged: bool,
    /// Task that finds B, or `NONE` if it is known.
    inversion: u32,
    decoding: f64,
    spot: u32,
}

struct Block<'a> {
    replicas: &'a [Replica],
    table: &'a Rows,
    rows: Vec<Row>,
    charts: Vec<Chart>,
    /// E2E of the idle replica, by curve.
    idle_e2e: Vec<f64>,
    compute: Vec<Found>,
    spots: Vec<Spot>,
}

/// Solves a block of rows on one thread and writes its cells.
pub fn solve_block(replicas: &[Replica], table: &Rows, cells: &mut Cells) {
    let mut block = Block::new(replicas, table);
    block.chart_curves();
    let limits = BOUNDED.map(|limit| block.solve_limit(limit));
    block.judge(&limits);
    block.find_operating_points();
    block.close();
    block.write(cells);
}

impl<'a> Block<'a> {
    fn new(replicas: &'a [Replica], table: &'a Rows) -> Self {
        let verdict = Verdict {
            binding: Limit::Compute,
            next: None,
            smallest: Limit::Compute,
            rate: f64::NAN,
            sustained: Limit::Compute,
        };
        let blank = Row {
            status: Status::Ok,
            kv_pool: f64::NAN,
            curve: NONE,
            rates: [f64::NAN; LIMITS],
            verdict,
            evaluations: f64::NAN,
            converged: true,
            inversion: NONE,
            decoding: f64::NAN,
            spot: NONE,
        };
        let mut block = Self {
            replicas,
            table,
            rows: Vec::with_capacity(table.len()),
            charts: Vec::new(),
            idle_e2e: Vec::new(),
            compute: Vec::new(),
            spots: Vec::new(),
        };
        let mut known = (Status::Ok, f64::NAN);
        for (row, changed) in table.changes(&FEASIBILITY_INPUTS).into_iter().enumerate() {
            if changed {
                let replica = block.replica(row);
                let kv_pool = table.kv_pool(replica, row);
                known = (table.feasibility(replica, row, kv_pool), kv_pool);
            }
            let goals = known.0 != Status::Ok || table.goals_inside_model(row);
            let status = if goals { known.0 } else { Status::NotConverged };
            block.rows.push(Row { status, kv_pool: known.1, ..blank });
        }
        block
    }

    /// Numbers the curves of the rows that can be solved; returns the first row of each.
    fn number_curves(&mut self) -> Vec<usize> {
        let mut curves: Interner<[u64; 8]> = Interner::default();
        let mut first = Vec::new();
        let mut number = NONE;
        for (row, changed) in self.table.changes(&CURVE_INPUTS).into_iter().enumerate() {
            if changed {
                number = NONE;
            }
            if self.rows[row].status != Status::Ok {
                continue;
            }
            if number == NONE {
                number = self.number_curve(&mut curves, row);
                if number as usize == first.len() {
                    first.push(row);
                }
            }
            self.rows[row].curve = number;
        }
        first
    }

    fn number_curve(&self, curves: &mut Interner<[u64; 8]>, row: usize) -> u32 {
        let mut key = [u64::from(self.table.replica[row]); 8];
        for (part, &field) in key[1..].iter_mut().zip(&CURVE_INPUTS) {
            *part = self.table.at(field, row).to_bits();
        }
        curves.number(key, key.iter().fold(0, |hash, &part| mix(hash ^ part).rotate_left(29)))
    }

    fn chart_curves(&mut self) {
        let first = self.number_curves();
        for group in first.chunks(LANES) {
            let row = |lane: usize| group[lane.min(group.len() - 1)];
            let replicas: [&Replica; LANES] =
                std::array::from_fn(|lane| &self.replicas[self.table.replica[row(lane)] as usize]);
            let chart = Chart::new(curve_of(&replicas, |field, lane| self.table.at(field, row(lane))));
            let compute = LimitRate::compute(&chart);
            self.compute.extend((0..group.len()).map(|lane| Found::lane(&compute, lane)));
            self.idle_e2e.extend_from_slice(&chart.probes.0[0].e2e.value.0[..group.len()]);
            self.charts.push(chart);
        }
    }

    fn bound(&self, limit: Limit, row: usize) -> f64 {
        match limit {
            Limit::KvPool => self.rows[row].kv_pool,
            Limit::Seats => self.table.at(Input::Seats, row),
            Limit::TpotSlo => self.table.at(Input::SloTpot, row),
            Limit::TtftSlo => self.table.at(Input::SloTtft, row),
            Limit::E2eSlo => self.table.at(Input::SloE2e, row),
            Limit::Compute | Limit::Utilization => f64::NAN,
        }
    }

    /// Each distinct (curve, bound) of a limit, and which of them each row has.
    fn solve_limit(&self, limit: Limit) -> (Vec<u32>, Vec<Found>) {
        let mut tasks = Tasks::new(self.compute.len());
        let task = |row: usize| {
            let bound = self.bound(limit, row);
            let curve = self.rows[row].curve;
            if curve == NONE || bound.is_nan() { NONE } else { tasks.number(curve, bound) }
        };
        let of_row = (0..self.rows.len()).map(task).collect();
        let mut found = vec![Found::NOTHING; tasks.count()];
        tasks.solve(&self.charts, |chart, numbers, bounds| {
            Found::store(&mut found, numbers, &LimitRate::bounded(chart, limit, bounds));
        });
        (of_row, found)
    }

    /// Names what binds in each row, and finds B where a limit's own root gives it.
    fn judge(&mut self, limits: &[(Vec<u32>, Vec<Found>); BOUNDED.len()]) {
        for index in 0..self.rows.len() {
            let cap = self.table.at(Input::UtilizationCap, index);
            let row = &mut self.rows[index];
            if row.status != Status::Ok {
                continue;
            }
            let compute = &self.compute[row.curve as usize];
            row.rates[Limit::Compute as usize] = compute.rate;
            row.evaluations = compute.evaluations + 1.0;
            row.converged = compute.converged;
            for (limit, (of_row, all)) in BOUNDED.iter().zip(limits) {
                if of_row[index] != NONE {
                    let one = &all[of_row[index] as usize];
                    row.rates[*limit as usize] = one.rate;
                    row.evaluations += one.evaluations;
                    row.converged &= one.converged;
                }
            }
            row.verdict = Verdict::new(&mut row.rates, cap);
            let inverted = row.verdict.smallest == Limit::Utilization;
            let known = if inverted { row.verdict.sustained } else { row.verdict.smallest };
            let place = BOUNDED.iter().position(|&limit| limit == known);
            row.decoding = place.map_or(compute.decoding, |at| limits[at].1[limits[at].0[index] as usize].decoding);
            if row.verdict.rate == 0.0 {
                row.status = Status::SloUnreachable;
            }
        }
    }

    /// Finds B where the rate is a share of the sustained one, then looks at every operating point.
    fn find_operating_points(&mut self) {
        self.invert_rates();
        let mut tasks = Tasks::new(self.compute.len());
        for row in &mut self.rows {
            if row.status == Status::Ok {
                row.spot = tasks.number(row.curve, row.decoding);
            }
        }
        self.spots = vec![Spot::NOWHERE; tasks.count()];
        let spots = &mut self.spots;
        tasks.solve(&self.charts, |chart, numbers, decoding| {
            let at = chart.curve.see(decoding, &SpotView);
            for (lane, &number) in numbers.iter().enumerate() {
                if number != NONE {
                    spots[number as usize] = Spot::lane(&at, chart.curve.workload.decode_tokens, lane);
                }
            }
        });
    }

    fn invert_rates(&mut self) {
        let mut tasks = Tasks::new(self.compute.len());
        let mut most_decoding: Vec<f64> = Vec::new();
        for row in &mut self.rows {
            if row.status == Status::Ok && row.verdict.smallest == Limit::Utilization {
                row.inversion = tasks.number(row.curve, row.verdict.rate);
                if row.inversion as usize == most_decoding.len() {
                    most_decoding.push(row.decoding);
                }
            }
        }
        let mut found = vec![Found::NOTHING; tasks.count()];
        tasks.solve(&self.charts, |chart, numbers, rates| {
            let top = |lane: usize| most_decoding.get(numbers[lane] as usize).copied().unwrap_or(0.0);
            let root = invert(chart, Lanes::from_fn(top), rates);
            let Root { at: decoding, evaluations, converged, .. } = root;
            Found::store(&mut found, numbers, &LimitRate { rate: rates, decoding, evaluations, converged });
        });
        for row in &mut self.rows {
            if row.inversion != NONE {
                let one = found[row.inversion as usize];
                row.decoding = one.decoding;
                row.evaluations += one.evaluations;
                row.converged &= one.converged;
            }
        }
    }

    /// Settles the status of rows that have an operating point.
    fn close(&mut self) {
        for row in &mut self.rows {
            if row.status == Status::Ok {
                let spot = &self.spots[row.spot as usize];
                let finite =
                    [row.verdict.rate, spot.ttft, spot.cycle, spot.kv, spot.tpot].iter().all(|x| x.is_finite());
                if !(row.converged && finite && spot.decoding > 0.0) {
                    row.status = Status::NotConverged;
                }
            }
        }
    }

    fn replica(&self, row: usize) -> &'a Replica {
        &self.replicas[self.table.replica[row] as usize]
    }

    fn write(&self, cells: &mut Cells) {
        for (index, row) in self.rows.iter().enumerate() {
            let mut out = Writer { cells, index };
            self.write_replica(&mut out, row);
            self.write_limits(&mut out, row);
            let spot = if row.status.is_solved() { &self.spots[row.spot as usize] } else { &Spot::NOWHERE };
            self.write_operating_point(&mut out, row, spot);
            self.write_money(&mut out, row);
        }
    }

    fn write_replica(&self, out: &mut Writer, row: &Row) {
        let replica = if row.status.has_replica() { self.replica(out.index) } else { Replica::UNKNOWN };
        out.set(Answer::WeightBytes, replica.weight_bytes);
        out.set(Answer::TpotFloor, replica.tpot_floor_s);
        out.set(Answer::Gpus, replica.gpus);
        out.set(Answer::Cost, replica.gpus * self.table.at(Input::Price, out.index));
    }

    fn write_limits(&self, out: &mut Writer, row: &Row) {
        let known = row.status.has_limits();
        let or_null = |value: f64| if known { value } else { f64::NAN };
        for (answer, rate) in RATE_ANSWERS.into_iter().zip(row.rates) {
            out.set(answer, or_null(rate));
        }
        let context = self.table.at(Input::Isl, out.index) + 0.5 * self.table.at(Input::Osl, out.index);
        let idle = if known { self.idle_e2e[row.curve as usize] } else { f64::NAN };
        out.set(Answer::MaxRate, or_null(row.verdict.rate));
        out.set(Answer::KvPool, or_null(row.kv_pool));
        out.set(Answer::NaiveRate, row.kv_pool / (context * idle));
        let code = |limit: Option<Limit>| limit.filter(|_| known).map_or(NO_LIMIT, |limit| limit as u8);
        out.cells.binding[out.index] = code(Some(row.verdict.binding));
        out.cells.next[out.index] = code(row.verdict.next);
    }

    fn write_operating_point(&self, out: &mut Writer, row: &Row, spot: &Spot) {
        let solved = row.status.is_solved();
        let rate = if solved { row.verdict.rate } else { f64::NAN };
        let output = rate * self.table.at(Input::Osl, out.index);
        out.set(Answer::InFlight, rate * spot.e2e);
        out.set(Answer::Running, spot.running);
        out.set(Answer::Decoding, spot.decoding);
        out.set(Answer::TtftMean, spot.ttft);
        out.set(Answer::TpotMean, spot.tpot);
        out.set(Answer::TpotTokenMean, spot.tpot_token);
        out.set(Answer::E2eMean, spot.e2e);
        out.set(Answer::PrefillShare, spot.prefill_share);
        out.set(Answer::Utilization, rate / row.rates[row.verdict.sustained as usize]);
        out.set(Answer::KvInFlight, spot.kv);
        out.set(Answer::KvUse, spot.kv / row.kv_pool);
        out.set(Answer::OutputTokens, output);
        out.set(Answer::OutputTokensPerGpu, output / self.replica(out.index).gpus);
        out.set(Answer::Iterations, if solved { row.evaluations } else { f64::NAN });
        out.set(Answer::Residual, (rate * spot.cycle / spot.decoding - 1.0).abs());
    }

    fn write_money(&self, out: &mut Writer, row: &Row) {
        let (isl, osl) = (self.table.at(Input::Isl, out.index), self.table.at(Input::Osl, out.index));
        let cost = self.replica(out.index).gpus * self.table.at(Input::Price, out.index);
        let rate = if row.status.is_solved() { row.verdict.rate } else { f64::NAN };
        let usd_per_request = cost / (HOUR_S * rate);
        out.set(Answer::RequestsPerUsd, 1.0 / usd_per_request);
        out.set(Answer::UsdPerMtokOutput, usd_per_request / osl * MILLION_TOKENS);
        out.set(Answer::UsdPerMtokTotal, usd_per_request / (isl + osl) * MILLION_TOKENS);
        let unpriced = row.status == Status::Ok && cost.is_nan();
        out.cells.status[out.index] = if unpriced { Status::NoPrice } else { row.status } as u8;
    }
}

/// The cells of one row.
struct Writer<'a, 'b> {
    cells: &'a mut Cells<'b>,
    index: usize,
}

impl Writer<'_, '_> {
    #[inline]
    fn set(&mut self, field: Answer, value: f64) {
        self.cells.fields[field as usize][self.index] = value;
    }
}

/// The curves of eight rows, whose inputs `get(field, lane)` gives.
pub fn curve_of(replicas: &[&Replica; LANES], get: impl Fn(Input, usize) -> f64) -> Curve {
    let lanes = |field| Lanes::from_fn(|lane| get(field, lane));
    let lengths = Lengths {
        isl: lanes(Input::Isl),
        osl: lanes(Input::Osl),
        isl_cv: lanes(Input::IslCv),
        osl_cv: lanes(Input::OslCv),
        prefix_tokens: lanes(Input::PrefixTokens),
        prefix_hit_share: lanes(Input::PrefixHitShare),
    };
    Curve::new(replicas, Workload::new(&lengths), lanes(Input::Budget))
}
