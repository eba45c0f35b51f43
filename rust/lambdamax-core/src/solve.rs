//! One block of rows, from inputs to answers, eight curves or roots at a time.
//!
//! Rows of a grid share most of their work. A curve λ(B) depends on the replica, the lengths and the token budget; the rate under
//! a limit on the curve and the bound; the operating point on the curve and B. Each is solved once per block, in the lane
//! of its curve.

use crate::capacity::{BOUNDED, LIMITS, Limit, LimitRate, Verdict, invert};
use crate::chart::Chart;
use crate::equilibrium::{Curve, Operating};
use crate::intern::{Interner, mix};
use crate::points::{Answer, Input, NO_LIMIT, RATE_ANSWERS, Status};
use crate::real::{LANES, Lanes};
use crate::replica::Replica;
use crate::root::Root;
use crate::table::{Cells, Rows};
use crate::workload::{Lengths, Workload};

/// Seconds in an hour.
const HOUR_S: f64 = 3600.0;
/// Tokens in the unit of token prices.
const MILLION_TOKENS: f64 = 1e6;
/// Inputs that shape a curve, beside the replica.
const CURVE_INPUTS: [Input; 7] = [
    Input::Isl,
    Input::Osl,
    Input::IslCv,
    Input::OslCv,
    Input::PrefixTokens,
    Input::PrefixHitShare,
    Input::Budget,
];
/// Stands for a row or limit without a task.
const NONE: u32 = u32::MAX;

/// A curve and a number: a bound, a rate or a B.
type Task = (u32, u64);

/// Distinct (curve, number) pairs of a block, and those of each curve as a list.
struct Tasks {
    pairs: Interner<Task>,
    /// First task of each curve.
    first: Vec<u32>,
    /// Next task of the same curve.
    next: Vec<u32>,
}

impl Tasks {
    fn new(curves: usize) -> Self {
        Self { pairs: Interner::new(), first: vec![NONE; curves], next: Vec::new() }
    }

    fn number(&mut self, curve: u32, value: f64) -> u32 {
        let bits = value.to_bits();
        let number = self.pairs.number((curve, bits), bits ^ mix(u64::from(curve)));
        if number as usize == self.next.len() {
            self.next.push(self.first[curve as usize]);
            self.first[curve as usize] = number;
        }
        number
    }

    fn len(&self) -> usize {
        self.next.len()
    }

    /// Runs every task in the lane of its curve; `run` gets the numbers of the tasks (`NONE` in idle lanes) and their values
    /// (NaN in idle lanes).
    fn solve(&self, charts: &[Chart], mut run: impl FnMut(&Chart, [u32; LANES], Lanes)) {
        for (group, chart) in charts.iter().enumerate() {
            let mut tasks: [u32; LANES] =
                std::array::from_fn(|lane| self.first.get(group * LANES + lane).copied().unwrap_or(NONE));
            while tasks.iter().any(|&task| task != NONE) {
                run(chart, tasks, Lanes::from_fn(|lane| self.value(tasks[lane])));
                tasks = tasks.map(|task| if task == NONE { NONE } else { self.next[task as usize] });
            }
        }
    }

    fn value(&self, task: u32) -> f64 {
        if task == NONE { f64::NAN } else { f64::from_bits(self.pairs.keys()[task as usize].1) }
    }
}

/// The rate under a limit, the B there, and how it was found.
#[derive(Clone, Copy, Debug)]
struct Found {
    rate: f64,
    decoding: f64,
    evaluations: f64,
    converged: bool,
}

impl Found {
    const NOTHING: Self = Self { rate: f64::NAN, decoding: f64::NAN, evaluations: 0.0, converged: false };

    fn lane(found: &LimitRate, lane: usize) -> Self {
        Self {
            rate: found.rate.0[lane],
            decoding: found.decoding.0[lane],
            evaluations: found.evaluations.0[lane],
            converged: found.converged.0[lane] != 0,
        }
    }

    /// Puts lanes under the numbers of their tasks.
    fn store(out: &mut [Self], tasks: [u32; LANES], found: &LimitRate) {
        for (lane, &task) in tasks.iter().enumerate() {
            if task != NONE {
                out[task as usize] = Self::lane(found, lane);
            }
        }
    }
}

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

    fn lane(at: &Operating, decode_tokens: Lanes, lane: usize) -> Self {
        Self {
            decoding: at.decoding.value.0[lane],
            running: at.running.value.0[lane],
            prefill_share: 1.0 - at.left.0[lane],
            ttft: at.ttft.value.0[lane],
            tpot: at.tpot.value.0[lane],
            tpot_token: at.cycle.value.0[lane] / decode_tokens.0[lane],
            e2e: at.e2e.value.0[lane],
            kv: at.kv.value.0[lane],
            cycle: at.cycle.value.0[lane],
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
    block.put_limits(cells);
    block.put_operating_points(cells);
    block.put_money(cells);
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
        let row = |row: usize| {
            let replica = &replicas[table.replica[row] as usize];
            let kv_pool = table.kv_pool(replica, row);
            Row {
                status: table.feasibility(replica, row, kv_pool),
                kv_pool,
                curve: NONE,
                rates: [f64::NAN; LIMITS],
                verdict,
                evaluations: f64::NAN,
                converged: true,
                inversion: NONE,
                decoding: f64::NAN,
                spot: NONE,
            }
        };
        Self {
            replicas,
            table,
            rows: (0..table.len()).map(row).collect(),
            charts: Vec::new(),
            idle_e2e: Vec::new(),
            compute: Vec::new(),
            spots: Vec::new(),
        }
    }

    fn same_curve(&self, a: usize, b: usize) -> bool {
        let same = |&field: &Input| self.table.at(field, a).to_bits() == self.table.at(field, b).to_bits();
        self.table.replica[a] == self.table.replica[b] && CURVE_INPUTS.iter().all(same)
    }

    /// Numbers the curves of the rows that can be solved; returns the first row of each.
    fn number_curves(&mut self) -> Vec<usize> {
        let mut curves: Interner<[u64; 8]> = Interner::new();
        let mut first = Vec::new();
        let mut previous: Option<usize> = None;
        for row in 0..self.rows.len() {
            if self.rows[row].status != Status::Ok {
                continue;
            }
            let number = match previous {
                Some(before) if self.same_curve(before, row) => self.rows[before].curve,
                _ => {
                    let mut key = [u64::from(self.table.replica[row]); 8];
                    for (part, &field) in key[1..].iter_mut().zip(&CURVE_INPUTS) {
                        *part = self.table.at(field, row).to_bits();
                    }
                    let hash = key.iter().fold(0, |hash, &part| mix(hash ^ part).rotate_left(29));
                    curves.number(key, hash)
                }
            };
            if number as usize == first.len() {
                first.push(row);
            }
            self.rows[row].curve = number;
            previous = Some(row);
        }
        first
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
        let mut found = vec![Found::NOTHING; tasks.len()];
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
            let compute = self.compute[row.curve as usize];
            let mut found = [compute; LIMITS];
            row.rates[Limit::Compute as usize] = compute.rate;
            row.evaluations = compute.evaluations + 1.0;
            row.converged = compute.converged;
            for (limit, (of_row, all)) in BOUNDED.iter().zip(limits) {
                if of_row[index] != NONE {
                    let one = all[of_row[index] as usize];
                    found[*limit as usize] = one;
                    row.rates[*limit as usize] = one.rate;
                    row.evaluations += one.evaluations;
                    row.converged &= one.converged;
                }
            }
            row.verdict = Verdict::new(&mut row.rates, cap);
            let known = if row.verdict.smallest == Limit::Utilization { row.verdict.sustained } else { row.verdict.smallest };
            row.decoding = found[known as usize].decoding;
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
        self.spots = vec![Spot::NOWHERE; tasks.len()];
        let spots = &mut self.spots;
        tasks.solve(&self.charts, |chart, numbers, decoding| {
            let at = chart.curve.at(decoding);
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
        let mut found = vec![Found::NOTHING; tasks.len()];
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
                let finite = [row.verdict.rate, spot.ttft, spot.cycle, spot.kv, spot.tpot].iter().all(|x| x.is_finite());
                if !(row.converged && finite && spot.decoding > 0.0) {
                    row.status = Status::NotConverged;
                }
            }
        }
    }

    /// Fills one column from the rows that have an answer to it; NaN elsewhere.
    fn put(&self, cells: &mut Cells, field: Answer, has: fn(Status) -> bool, value: impl Fn(usize, &Row) -> f64) {
        for ((index, row), cell) in self.rows.iter().enumerate().zip(cells.fields[field as usize].iter_mut()) {
            *cell = if has(row.status) { value(index, row) } else { f64::NAN };
        }
    }

    fn replica(&self, row: usize) -> &Replica {
        &self.replicas[self.table.replica[row] as usize]
    }

    fn put_limits(&self, cells: &mut Cells) {
        for (limit, &answer) in RATE_ANSWERS.iter().enumerate() {
            self.put(cells, answer, Status::has_limits, |_, row| row.rates[limit]);
        }
        self.put(cells, Answer::MaxRate, Status::has_limits, |_, row| row.verdict.rate);
        self.put(cells, Answer::KvPool, Status::has_limits, |_, row| row.kv_pool);
        self.put(cells, Answer::NaiveRate, Status::has_limits, |index, row| {
            let context = self.table.at(Input::Isl, index) + 0.5 * self.table.at(Input::Osl, index);
            row.kv_pool / (context * self.idle_e2e[row.curve as usize])
        });
        self.put(cells, Answer::WeightBytes, Status::has_replica, |index, _| self.replica(index).weight_bytes);
        self.put(cells, Answer::TpotFloor, Status::has_replica, |index, _| self.replica(index).tpot_floor_s);
        self.put(cells, Answer::Gpus, Status::has_replica, |index, _| self.replica(index).gpus);
        let code = |row: &Row, limit: Option<Limit>| match limit {
            Some(limit) if row.status.has_limits() => limit as u8,
            _ => NO_LIMIT,
        };
        for (row, (binding, next)) in self.rows.iter().zip(cells.binding.iter_mut().zip(cells.next.iter_mut())) {
            *binding = code(row, Some(row.verdict.binding));
            *next = code(row, row.verdict.next);
        }
    }

    fn put_operating_points(&self, cells: &mut Cells) {
        let mut put = |field, value: &dyn Fn(usize, &Row, &Spot) -> f64| {
            self.put(cells, field, Status::is_solved, |index, row| value(index, row, &self.spots[row.spot as usize]));
        };
        put(Answer::InFlight, &|_, row, spot| row.verdict.rate * spot.e2e);
        put(Answer::Running, &|_, _, spot| spot.running);
        put(Answer::Decoding, &|_, _, spot| spot.decoding);
        put(Answer::TtftMean, &|_, _, spot| spot.ttft);
        put(Answer::TpotMean, &|_, _, spot| spot.tpot);
        put(Answer::TpotTokenMean, &|_, _, spot| spot.tpot_token);
        put(Answer::E2eMean, &|_, _, spot| spot.e2e);
        put(Answer::PrefillShare, &|_, _, spot| spot.prefill_share);
        put(Answer::Utilization, &|_, row, _| row.verdict.rate / row.rates[row.verdict.sustained as usize]);
        put(Answer::KvInFlight, &|_, _, spot| spot.kv);
        put(Answer::KvUse, &|_, row, spot| spot.kv / row.kv_pool);
        put(Answer::OutputTokens, &|index, row, _| row.verdict.rate * self.table.at(Input::Osl, index));
        put(Answer::OutputTokensPerGpu, &|index, row, _| {
            row.verdict.rate * self.table.at(Input::Osl, index) / self.replica(index).gpus
        });
        put(Answer::Iterations, &|_, row, _| row.evaluations);
        put(Answer::Residual, &|_, row, spot| (row.verdict.rate * spot.cycle / spot.decoding - 1.0).abs());
    }

    fn put_money(&self, cells: &mut Cells) {
        let cost = |index: usize| self.replica(index).gpus * self.table.at(Input::Price, index);
        let per_request = |index: usize, row: &Row| cost(index) / (HOUR_S * row.verdict.rate);
        self.put(cells, Answer::Cost, Status::has_replica, |index, _| cost(index));
        self.put(cells, Answer::RequestsPerUsd, Status::is_solved, |index, row| 1.0 / per_request(index, row));
        self.put(cells, Answer::UsdPerMtokOutput, Status::is_solved, |index, row| {
            per_request(index, row) / self.table.at(Input::Osl, index) * MILLION_TOKENS
        });
        self.put(cells, Answer::UsdPerMtokTotal, Status::is_solved, |index, row| {
            let tokens = self.table.at(Input::Isl, index) + self.table.at(Input::Osl, index);
            per_request(index, row) / tokens * MILLION_TOKENS
        });
        for ((index, row), status) in self.rows.iter().enumerate().zip(cells.status.iter_mut()) {
            let unpriced = row.status == Status::Ok && cost(index).is_nan();
            *status = if unpriced { Status::NoPrice } else { row.status } as u8;
        }
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
