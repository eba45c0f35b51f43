//! One block of rows, from inputs to answers, eight curves or roots at a time.
//!
//! Rows of a grid share most of their work. A curve λ(B) depends on the replica, the lengths and the token budget; the rate under
//! a limit on the curve and the bound; the operating point on the curve and B. Each is solved once per block, in the lane
//! of its curve.

use std::rc::Rc;
use std::sync::Arc;

use crate::approach::{Approach, Goal, Slo};
use crate::capacity::{BOUNDED, LIMITS, Limit, LimitRate, Verdict, WAITING, invert};
use crate::ceilings::{Ceilings, smallest};
use crate::chart::Chart;
use crate::equilibrium::Curve;
use crate::intern::{Interner, mix};
use crate::ledger::Ledger;
use crate::lengths::EmpiricalLengths;
use crate::points::{Input, NO_LIMIT, RATE_ANSWERS, Status};
use crate::real::{LANES, LaneMask, Lanes, Real};
use crate::replica::Replica;
use crate::root::Root;
use crate::slo;
use crate::spot::{Queue, Spot, Spots};
use crate::table::{Cells, Stretch, law_at};
use crate::tasks::{Found, Group, NONE, Tasks};
use crate::workload::{Lengths, Workload};

/// Inputs that shape a curve, beside the replica.
pub const CURVE_INPUTS: [Input; 9] = [
    Input::Lengths,
    Input::Isl,
    Input::Osl,
    Input::IslCv,
    Input::OslCv,
    Input::PrefixTokens,
    Input::PrefixHitShare,
    Input::ArrivalCv,
    Input::Budget,
];
/// What makes a curve: the replica and its inputs.
type CurveKey = [u64; 1 + CURVE_INPUTS.len()];
/// Inputs that decide whether a row can be solved at all, beside those of its curve and its goals.
const MEMORY_INPUTS: [Input; 5] =
    [Input::Seats, Input::MemoryUtilization, Input::MemoryBytes, Input::ReservedBytes, Input::KvCacheTokens];

/// Limits that are solved for, in the order in which they are.
const ASKED: [Limit; 5] = [Limit::KvPool, Limit::Seats, Limit::TpotSlo, Limit::TtftSlo, Limit::E2eSlo];

/// A ceiling and the percentile that its latencies are asked for in.
type GoalKey = (u32, u64);

/// The setting of a task: its goal, and which of `WAITING` it asks for.
fn setting_of(goal: u32, which: u32) -> u32 {
    goal * WAITING.len() as u32 + which
}

fn goal_of(setting: u32) -> u32 {
    setting / WAITING.len() as u32
}

fn is_first_token(setting: u32) -> bool {
    WAITING[(setting % WAITING.len() as u32) as usize] == Limit::TtftSlo
}

/// Work on one limit: which task each row has, and what the tasks found.
struct Asked {
    of_row: Vec<u32>,
    found: Rc<[Found]>,
}

impl Asked {
    /// What was found for a row.
    fn of(&self, row: usize) -> Option<&Found> {
        self.found.get(self.of_row[row] as usize)
    }
}

/// What the limits of eight rows found; NaN where a limit was not asked for.
struct Eight {
    rates: [Lanes; LIMITS],
    decoding: [Lanes; LIMITS],
    evaluations: Lanes,
    converged: [bool; LANES],
}

impl Eight {
    #[inline(always)]
    fn new() -> Self {
        let none = [Lanes::splat(f64::NAN); LIMITS];
        Self { rates: none, decoding: none, evaluations: Lanes::ZERO, converged: [true; LANES] }
    }

    #[inline(always)]
    fn add(&mut self, limit: Limit, lane: usize, found: Option<&Found>) {
        if let Some(found) = found {
            self.rates[limit as usize].0[lane] = found.rate;
            self.decoding[limit as usize].0[lane] = found.decoding;
            self.evaluations.0[lane] += found.evaluations;
            self.converged[lane] &= found.converged;
        }
    }
}

/// Whether a row can be solved at all, and what one slot of its replica may hold.
struct Bounds {
    status: Status,
    kv_pool: f64,
    seats: f64,
}

struct Block<'a> {
    replicas: &'a [Replica],
    table: &'a Stretch<'a>,
    ledger: Ledger,
    charts: Vec<Chart>,
    /// E2E of the idle replica, by curve.
    idle_e2e: Vec<f64>,
    compute: Vec<Found>,
    ceilings: Ceilings,
}

/// Solves a block of rows on one thread and writes its cells.
pub fn solve_block(replicas: &[Replica], table: &Stretch, cells: &mut Cells) {
    let ledger = Ledger::new(table.len());
    let mut block = Block {
        replicas,
        table,
        ledger,
        charts: Vec::new(),
        idle_e2e: Vec::new(),
        compute: Vec::new(),
        ceilings: Ceilings::default(),
    };
    let first = block.number_curves();
    block.chart_curves(&first);
    let [kv_pool, seats, tpot] = BOUNDED.map(|limit| block.solve_limit(limit));
    block.find_ceilings(&kv_pool, &seats);
    let [ttft, e2e] = block.solve_slos();
    let inverted = block.judge(&[kv_pool, seats, tpot, ttft, e2e], cells);
    block.invert_rates(&inverted);
    let spots = block.find_operating_points();
    block.ledger.close(&spots, cells);
    block.ledger.write(replicas, table, &block.idle_e2e, &spots, cells);
}

impl Block<'_> {
    /// Finds the rows that can be solved and numbers their curves; returns the first row of each.
    fn number_curves(&mut self) -> Vec<usize> {
        let mut new_curve = vec![false; self.table.len()];
        self.table.mark_replicas(&mut new_curve);
        self.table.mark_changes(&CURVE_INPUTS, &mut new_curve);
        let mut changed = new_curve.clone();
        self.table.mark_changes(&MEMORY_INPUTS, &mut changed);
        let mut curves: Interner<CurveKey> = Interner::new(self.table.len());
        let mut first = Vec::new();
        let mut known = Bounds { status: Status::Ok, kv_pool: f64::NAN, seats: f64::NAN };
        let mut number = NONE;
        for row in 0..self.table.len() {
            if changed[row] {
                known = self.bounds_of(row);
            }
            if new_curve[row] {
                number = NONE;
            }
            let outside = known.status == Status::Ok && !self.table.goals_inside_model(row);
            self.ledger.status[row] = if outside { Status::NotConverged } else { known.status };
            self.ledger.kv_pool[row] = known.kv_pool;
            self.ledger.seats[row] = known.seats;
            if self.ledger.status[row] == Status::Ok {
                if number == NONE {
                    number = self.number_curve(&mut curves, row);
                    if number as usize == first.len() {
                        first.push(row);
                    }
                }
                self.ledger.curve[row] = number;
            }
        }
        first
    }

    fn bounds_of(&self, row: usize) -> Bounds {
        let replica = &self.replicas[self.table.replica[row] as usize];
        let kv_pool = self.table.kv_pool(replica, row);
        Bounds {
            status: self.table.feasibility(replica, row, kv_pool),
            kv_pool: kv_pool / replica.slots,
            seats: self.table.at(Input::Seats, row) / replica.stages,
        }
    }

    fn number_curve(&self, curves: &mut Interner<CurveKey>, row: usize) -> u32 {
        let mut key: CurveKey = [u64::from(self.table.replica[row]); 1 + CURVE_INPUTS.len()];
        for (part, &field) in key[1..].iter_mut().zip(&CURVE_INPUTS) {
            *part = self.table.at(field, row).to_bits();
        }
        curves.number(key, key.iter().fold(0, |hash, &part| mix(hash ^ part).rotate_left(29)))
    }

    fn chart_curves(&mut self, first: &[usize]) {
        self.charts.reserve_exact(first.len().div_ceil(LANES));
        for group in first.chunks(LANES) {
            let row = |lane: usize| group[lane.min(group.len() - 1)];
            let replicas: [&Replica; LANES] =
                std::array::from_fn(|lane| &self.replicas[self.table.replica[row(lane)] as usize]);
            let lengths = self.table.lengths;
            let chart = Chart::new(curve_of(&replicas, lengths, |field, lane| self.table.at(field, row(lane))));
            let compute = LimitRate::compute(&chart);
            self.compute.extend((0..group.len()).map(|lane| Found::lane(&compute, lane)));
            self.idle_e2e.extend_from_slice(&chart.probes.0[0].e2e.value.0[..group.len()]);
            self.charts.push(chart);
        }
    }

    fn bounds(&self, limit: Limit) -> &[f64] {
        match limit {
            Limit::KvPool => &self.ledger.kv_pool,
            Limit::Seats => &self.ledger.seats,
            Limit::TpotSlo => self.table.fields[Input::SloTpot as usize],
            Limit::TtftSlo => self.table.fields[Input::SloTtft as usize],
            Limit::E2eSlo => self.table.fields[Input::SloE2e as usize],
            Limit::Compute | Limit::Utilization => &[],
        }
    }

    /// Solves each distinct (curve, bound) of a limit.
    fn solve_limit(&self, limit: Limit) -> Asked {
        let mut tasks = Tasks::new(self.compute.len(), self.table.len());
        let of_row = tasks.numbers(&self.ledger.curve, self.bounds(limit));
        let mut found = vec![Found::NOTHING; tasks.count()];
        tasks.solve(&self.charts, |chart, group| {
            Found::store(&mut found, group.tasks, &LimitRate::bounded(chart, limit, group.values));
        });
        Asked { of_row, found: found.into() }
    }

    /// Finds out where each row's replica is full.
    fn find_ceilings(&mut self, kv_pool: &Asked, seats: &Asked) {
        let mut tasks = Tasks::new(self.compute.len(), self.table.len());
        for row in 0..self.table.len() {
            let curve = self.ledger.curve[row];
            let limits = [
                (Limit::Compute, self.compute.get(curve as usize)),
                (Limit::KvPool, kv_pool.of(row)),
                (Limit::Seats, seats.of(row)),
            ];
            self.ledger.ceiling[row] = smallest(limits)
                .map_or(NONE, |(limit, found)| tasks.number(curve, u32::from(limit as u8), found.decoding));
        }
        self.ceilings = Ceilings::look(&tasks, &self.charts);
    }

    /// Solves each distinct (curve, ceiling, percentile, bound) of the limits that include the wait for a seat. Those of one curve that differ
    /// in the bound alone share their looks.
    fn solve_slos(&self) -> [Asked; WAITING.len()] {
        let mut goals: Interner<GoalKey> = Interner::new(self.table.len());
        let mut tasks = Tasks::new(self.compute.len(), self.table.len());
        let of_rows = [0, 1].map(|which| self.number_slos(which, &mut goals, &mut tasks));
        let mut found = vec![Found::NOTHING; tasks.count()];
        let mut known: Option<(Approach, [u32; LANES])> = None;
        tasks.solve(&self.charts, |chart, Group { tasks, settings, values }| {
            let goal = settings.map(goal_of);
            let same = |lane: usize, of: &[u32; LANES]| tasks[lane] == NONE || of[lane] == goal[lane];
            let (approach, _) = match known.take() {
                Some(one) if std::ptr::eq(one.0.chart, chart) && (0..LANES).all(|lane| same(lane, &one.1)) => {
                    known.insert(one)
                }
                _ => known.insert((Approach::new(chart, &self.goal(&goals, &goal)), goal)),
            };
            let first_token = LaneMask(settings.map(|setting| if is_first_token(setting) { u64::MAX } else { 0 }));
            let slo = Slo { first_token, bound: *values };
            Found::store(&mut found, *tasks, &slo::largest_rate(approach, &slo));
        });
        let found: Rc<[Found]> = found.into();
        of_rows.map(|of_row| Asked { of_row, found: Rc::clone(&found) })
    }

    /// Numbers the tasks of one of `WAITING`.
    fn number_slos(&self, which: u32, goals: &mut Interner<GoalKey>, tasks: &mut Tasks) -> Vec<u32> {
        let bounds = self.bounds(WAITING[which as usize]);
        let percentiles = self.table.fields[Input::SloPercentile as usize];
        let number = |row: usize| {
            let (curve, bound, ceiling) = (self.ledger.curve[row], bounds[row], self.ledger.ceiling[row]);
            if curve == NONE || bound.is_nan() {
                return NONE;
            }
            let goal = (ceiling, percentiles[row].to_bits());
            tasks.number(curve, setting_of(goals.number(goal, mix(u64::from(ceiling)) ^ goal.1), which), bound)
        };
        (0..self.table.len()).map(number).collect()
    }

    fn goal(&self, goals: &Interner<GoalKey>, numbers: &[u32; LANES]) -> Goal {
        let key = |lane: usize| goals.keys()[numbers[lane] as usize];
        let (ceiling, top) = self.ceilings.gather(std::array::from_fn(|lane| key(lane).0));
        Goal { ceiling, top, percentile: Lanes::from_fn(|lane| f64::from_bits(key(lane).1)) }
    }

    /// Names what binds in each row, and finds B where a limit's own root gives it; returns the rate whose B is still to be found,
    /// NaN where none is. The bits are the same with any vectors.
    fn judge(&mut self, limits: &[Asked; ASKED.len()], cells: &mut Cells) -> Vec<f64> {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the feature was detected on the line above.
            return unsafe { self.judge_with_avx2(limits, cells) };
        }
        self.judge_all(limits, cells)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn judge_with_avx2(&mut self, limits: &[Asked; ASKED.len()], cells: &mut Cells) -> Vec<f64> {
        self.judge_all(limits, cells)
    }

    #[inline(always)]
    fn judge_all(&mut self, limits: &[Asked; ASKED.len()], cells: &mut Cells) -> Vec<f64> {
        let mut inverted = vec![f64::NAN; self.table.len()];
        for start in (0..self.table.len()).step_by(LANES) {
            self.judge_eight(start, limits, cells, &mut inverted);
        }
        inverted
    }

    #[inline(always)]
    fn judge_eight(&mut self, start: usize, limits: &[Asked; ASKED.len()], cells: &mut Cells, inverted: &mut [f64]) {
        let rows = start..self.table.len().min(start + LANES);
        let mut eight = Eight::new();
        for (lane, row) in rows.clone().enumerate() {
            eight.add(Limit::Compute, lane, self.compute.get(self.ledger.curve[row] as usize));
        }
        for (limit, asked) in ASKED.into_iter().zip(limits) {
            for (lane, row) in rows.clone().enumerate() {
                eight.add(limit, lane, asked.of(row));
            }
        }
        let caps = &self.table.fields[Input::UtilizationCap as usize][rows.clone()];
        let caps = Lanes::from_fn(|lane| caps.get(lane).copied().unwrap_or(f64::NAN));
        let verdict = Verdict::new(&mut eight.rates, &eight.decoding, caps);
        let zero = Lanes::splat(0.0);
        let none = Lanes::splat(f64::NAN);
        let reached = zero.less(verdict.rate);
        let put = |column: &mut [f64], lanes: Lanes| column[rows.clone()].copy_from_slice(&lanes.0[..rows.len()]);
        for (answer, rates) in RATE_ANSWERS.into_iter().zip(eight.rates) {
            put(cells.fields[answer as usize], rates);
        }
        put(inverted, Lanes::select(verdict.capped.and(reached), verdict.rate, none));
        put(&mut self.ledger.rate, verdict.rate);
        put(&mut self.ledger.sustained, verdict.sustained);
        put(&mut self.ledger.decoding, Lanes::select(zero.same(verdict.rate), none, verdict.decoding));
        put(&mut self.ledger.evaluations, eight.evaluations + Lanes::splat(1.0));
        for (lane, row) in rows.enumerate() {
            cells.binding[row] = verdict.binding.0[lane] as u8;
            let next = verdict.next.0[lane];
            cells.next[row] = if next.is_nan() { NO_LIMIT } else { next as u8 };
            self.ledger.converged[row] = eight.converged[lane];
            if verdict.rate.0[lane] == 0.0 {
                self.ledger.status[row] = Status::SloUnreachable;
            }
        }
    }

    /// Finds B where the rate is a share of the sustained one.
    fn invert_rates(&mut self, inverted: &[f64]) {
        let mut tasks = Tasks::new(self.compute.len(), self.table.len());
        let of_row = tasks.numbers(&self.ledger.curve, inverted);
        let mut most_decoding = vec![0.0; tasks.count()];
        for (&task, &decoding) in of_row.iter().zip(&self.ledger.decoding).rev() {
            if task != NONE {
                most_decoding[task as usize] = decoding;
            }
        }
        let mut found = vec![Found::NOTHING; tasks.count()];
        tasks.solve(&self.charts, |chart, group| {
            let top = |lane: usize| most_decoding.get(group.tasks[lane] as usize).copied().unwrap_or(0.0);
            let root = invert(chart, Lanes::from_fn(top), group.values);
            let Root { at: decoding, evaluations, converged, .. } = root;
            Found::store(&mut found, group.tasks, &LimitRate { rate: group.values, decoding, evaluations, converged });
        });
        for (row, &task) in of_row.iter().enumerate() {
            if let Some(one) = found.get(task as usize) {
                self.ledger.decoding[row] = one.decoding;
                self.ledger.evaluations[row] += one.evaluations;
                self.ledger.converged[row] &= one.converged;
            }
        }
    }

    /// Looks at each distinct operating point; the last is nowhere.
    fn find_operating_points(&mut self) -> Vec<Spot> {
        let mut tasks = Tasks::new(self.compute.len(), self.table.len());
        for row in 0..self.table.len() {
            let (curve, ceiling, decoding) =
                (self.ledger.curve[row], self.ledger.ceiling[row], self.ledger.decoding[row]);
            let nowhere = curve == NONE || decoding.is_nan();
            self.ledger.spot[row] = if nowhere { NONE } else { tasks.number(curve, ceiling, decoding) };
        }
        let mut spots = vec![Spot::NOWHERE; tasks.count() + 1];
        tasks.solve(&self.charts, |chart, Group { tasks, settings, values }| {
            let (ceiling, _) = self.ceilings.gather(*settings);
            let found = Spots::look(chart, *values, &Queue::open(ceiling));
            for (lane, &task) in tasks.iter().enumerate() {
                if task != NONE {
                    spots[task as usize] = found.lane(lane);
                }
            }
        });
        spots
    }
}

/// The curves of eight rows, whose inputs `get(field, lane)` gives.
pub fn curve_of(
    replicas: &[&Replica; LANES],
    laws: &[Arc<EmpiricalLengths>],
    get: impl Fn(Input, usize) -> f64,
) -> Curve {
    let lanes = |field| Lanes::from_fn(|lane| get(field, lane));
    let lengths = Lengths {
        laws: std::array::from_fn(|lane| law_at(laws, get(Input::Lengths, lane)).cloned()),
        isl: lanes(Input::Isl),
        osl: lanes(Input::Osl),
        isl_cv: lanes(Input::IslCv),
        osl_cv: lanes(Input::OslCv),
        prefix_tokens: lanes(Input::PrefixTokens),
        prefix_hit_share: lanes(Input::PrefixHitShare),
        arrival_cv: lanes(Input::ArrivalCv),
    };
    Curve::new(replicas, Workload::new(lengths), lanes(Input::Budget))
}
