//! The operating point at a given load: a rate, or clients with think time (docs/model.md section 8).

use crate::capacity::{Excess, Limit, LimitRate, OverRate, smallest_root};
use crate::chart::Chart;
use crate::equilibrium::{Operating, lanes_of};
use crate::points::{Input, Status, columns};
use crate::real::{Dual, LANES, LaneMask, Lanes, Real};
use crate::replica::Replica;
use crate::solve::curve_of;
use crate::spot::{Queue, Spots};
use crate::table::Stretch;
use crate::waiting::Ceiling;
use crate::workload::Workload;

columns! {
    /// Float answers at a given load; NaN stands for null.
    LoadAnswer, LOAD_FIELDS, LOAD_ANSWERS:
    Rate = "rate_rps",
    Excess = "excess",
    InFlight = "in_flight",
    Running = "running",
    Decoding = "decoding",
    Waiting = "waiting",
    TtftMean = "ttft_mean_s",
    TtftP50 = "ttft_p50_s",
    TtftP90 = "ttft_p90_s",
    TtftP99 = "ttft_p99_s",
    TpotMean = "tpot_mean_s",
    TpotTokenMean = "tpot_token_mean_s",
    ItlP99 = "itl_p99_s",
    E2eMean = "e2e_mean_s",
    E2eP99 = "e2e_p99_s",
    PrefillShare = "prefill_share",
    Utilization = "utilization",
    KvInFlight = "kv_in_flight_tokens",
    KvUse = "kv_use",
    OutputTokens = "output_tok_s",
    SeatWait = "seat_wait_s",
    SeatWaitP99 = "seat_wait_p99_s",
    IterationWait = "iteration_wait_s",
    IterationWaitP99 = "iteration_wait_p99_s",
    FirstIteration = "first_iteration_s",
    FirstIterationP99 = "first_iteration_p99_s",
    OwnPrefill = "own_prefill_s",
    OwnPrefillP99 = "own_prefill_p99_s",
    Riders = "riders_s",
    RidersP99 = "riders_p99_s",
    Host = "host_s",
}

/// Answers that grow with the number of slots.
const EXTENSIVE: [LoadAnswer; 7] = [
    LoadAnswer::Rate,
    LoadAnswer::InFlight,
    LoadAnswer::Running,
    LoadAnswer::Decoding,
    LoadAnswer::Waiting,
    LoadAnswer::KvInFlight,
    LoadAnswer::OutputTokens,
];

/// What a load does to a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum LoadStatus {
    /// There is an operating point.
    Ok,
    /// More arrives than can be served: no operating point.
    Unstable,
    /// More clients than seats: served at the largest rate, the rest wait.
    Saturated,
    /// As `Status`.
    DoesNotFit,
    /// As `Status`.
    InvalidParallelism,
    /// As `Status`.
    Unsupported,
    /// As `Status`.
    NotConverged,
}

/// Names of the codes.
pub const LOAD_STATUS_NAMES: [&str; 7] =
    ["ok", "unstable", "saturated", "does_not_fit", "invalid_parallelism", "unsupported", "not_converged"];

/// Loads of eight points; a lane has a rate (open loop) or clients (closed loop), the other is NaN.
#[derive(Clone, Copy, Debug)]
pub struct Loads {
    /// Arrivals [requests/s].
    pub rate: Lanes,
    /// Clients, each with one request at a time.
    pub concurrency: Lanes,
    /// Pause of a client between two requests [s].
    pub think_time: Lanes,
}

impl Loads {
    /// The share of each slot.
    fn shared(&self, slots: Lanes) -> Self {
        Self { rate: self.rate / slots, concurrency: self.concurrency / slots, think_time: self.think_time }
    }

    /// One of a rate or clients, above zero, and a pause that is not negative.
    fn possible(&self, lane: usize) -> bool {
        let (rate, clients) = (self.rate.0[lane], self.concurrency.0[lane]);
        let load = if clients.is_nan() { rate } else { clients };
        load > 0.0 && (rate.is_nan() || clients.is_nan()) && self.think_time.0[lane] >= 0.0
    }
}

/// Answers of eight points.
pub struct LoadAnswers {
    /// One value a lane for each `LoadAnswer`.
    pub fields: [Lanes; LOAD_ANSWERS],
    /// Codes.
    pub status: [LoadStatus; LANES],
}

/// λ(B) against a rate, or the clients that B keeps busy against those there are.
struct OverLoad {
    open: LaneMask,
    rate: OverRate,
    think: Lanes,
    per_client: Lanes,
}

impl Excess for OverLoad {
    #[inline(always)]
    fn excess(&self, at: &Operating) -> Dual<Lanes> {
        let clients = at.rate * at.e2e.offset(self.think);
        let missing = clients.scale(self.per_client).offset(Lanes::splat(-1.0));
        Real::select(self.open, self.rate.excess(at), missing)
    }
}

/// Answers that have no end where the replica is exactly full.
const WAITING: [LoadAnswer; 10] = [
    LoadAnswer::InFlight,
    LoadAnswer::Waiting,
    LoadAnswer::SeatWait,
    LoadAnswer::TtftMean,
    LoadAnswer::TtftP50,
    LoadAnswer::TtftP90,
    LoadAnswer::TtftP99,
    LoadAnswer::E2eMean,
    LoadAnswer::E2eP99,
    LoadAnswer::Excess,
];

/// The largest rate that a replica sustains, and the B there, in eight lanes.
struct Sustained {
    rate: Lanes,
    decoding: Lanes,
    by_pool: LaneMask,
    converged: LaneMask,
}

impl Sustained {
    fn new(chart: &Chart, kv_pool: Lanes, seats: Lanes) -> Self {
        let compute = LimitRate::compute(chart);
        let (rate, decoding, converged) = (compute.rate, compute.decoding, compute.converged);
        let mut best = Self { rate, decoding, by_pool: LaneMask::NONE, converged };
        for (limit, bound) in [(Limit::KvPool, kv_pool), (Limit::Seats, seats)] {
            let found = LimitRate::bounded(chart, limit, bound);
            let smaller = found.rate.less(best.rate);
            best.rate = Lanes::select(smaller, found.rate, best.rate);
            best.decoding = Lanes::select(smaller, found.decoding, best.decoding);
            best.by_pool = if limit == Limit::KvPool { smaller } else { best.by_pool.and(!smaller) };
            best.converged = best.converged.and(found.converged);
        }
        best
    }
}

/// Finds the operating points of up to eight rows of a table under their loads.
pub fn solve_load(replicas: &[Replica], rows: &Stretch, group: &[usize], loads: &Loads) -> LoadAnswers {
    let row = |lane: usize| group[lane.min(group.len() - 1)];
    let of_lane: [&Replica; LANES] = std::array::from_fn(|lane| &replicas[rows.replica[row(lane)] as usize]);
    let kv_pool = Lanes::from_fn(|lane| rows.kv_pool(of_lane[lane], row(lane)));
    let feasible: [Status; LANES] =
        std::array::from_fn(|lane| rows.feasibility(of_lane[lane], row(lane), kv_pool.0[lane]));
    let slots = lanes_of(&of_lane, |r| r.slots);
    let loads = loads.shared(slots);
    let curve = curve_of(&of_lane, rows.lengths, |field, lane| rows.at(field, row(lane)));
    let chart = Chart::new(curve.among(loads.concurrency));
    let seats = Lanes::from_fn(|lane| rows.at(Input::Seats, row(lane)) / of_lane[lane].stages);
    let most = Sustained::new(&chart, kv_pool / slots, seats);
    let full = chart.curve.at(most.decoding);
    let open = loads.concurrency.is_nan();
    let clients = most.rate * (full.e2e.value + loads.think_time);
    let over = (!open).and(clients.at_most(loads.concurrency));
    let unstable = open.and(most.rate.less(loads.rate));
    let per_client = Lanes::splat(1.0) / loads.concurrency;
    let excess = OverLoad { open, rate: OverRate(loads.rate), think: loads.think_time, per_client };
    let root = smallest_root(&chart, most.decoding, &excess);
    let decoding = Lanes::select(over, most.decoding, root.at);
    let at = chart.curve.at(decoding);
    let rate = Lanes::select(open, loads.rate, at.rate.value);
    let wait = loads.concurrency / rate - loads.think_time - at.e2e.value;
    let everybody = Lanes::select(over, wait, Lanes::ZERO);
    let ceiling = Ceiling { rate: full.rate.value, running: full.running.value, by_pool: most.by_pool };
    let queue = Queue { ceiling, closed: !open, everybody };
    let spots = Spots::look(&chart, decoding, &queue);
    let mut answers = LoadAnswers::at(&spots, rate, rate / most.rate, kv_pool / slots, &chart.curve.workload);
    answers.multiply(slots);
    let settled = root.converged.and(most.converged);
    for (lane, &feasible) in feasible.iter().enumerate() {
        let (over, unstable) = (over.0[lane] != 0, unstable.0[lane] != 0);
        let status = if loads.possible(lane) { feasible } else { Status::NotConverged };
        answers.close(lane, status, settled.0[lane] != 0, over, unstable);
    }
    answers
}

impl LoadAnswers {
    /// From one slot to all of them.
    fn multiply(&mut self, slots: Lanes) {
        for answer in EXTENSIVE {
            let field = &mut self.fields[answer as usize];
            *field = *field * slots;
        }
    }

    fn at(at: &Spots, rate: Lanes, utilization: Lanes, kv_pool: Lanes, workload: &Workload) -> Self {
        let in_flight = rate * at.e2e;
        let one = Lanes::splat(1.0);
        let mut fields = [Lanes::splat(f64::NAN); LOAD_ANSWERS];
        let mut set = |field: LoadAnswer, value| fields[field as usize] = value;
        set(LoadAnswer::Rate, rate);
        set(LoadAnswer::Excess, utilization - one);
        set(LoadAnswer::InFlight, in_flight);
        set(LoadAnswer::Running, at.running);
        set(LoadAnswer::Decoding, at.decoding);
        set(LoadAnswer::Waiting, (in_flight - at.running).max(Lanes::ZERO));
        set(LoadAnswer::TtftMean, at.ttft);
        set(LoadAnswer::TtftP50, at.ttft_p50);
        set(LoadAnswer::TtftP90, at.ttft_p90);
        set(LoadAnswer::TtftP99, at.ttft_p99);
        set(LoadAnswer::TpotMean, at.tpot);
        set(LoadAnswer::TpotTokenMean, at.tpot_token);
        set(LoadAnswer::ItlP99, at.itl_p99);
        set(LoadAnswer::E2eMean, at.e2e);
        set(LoadAnswer::E2eP99, at.e2e_p99);
        set(LoadAnswer::PrefillShare, one - at.left);
        set(LoadAnswer::Utilization, utilization);
        set(LoadAnswer::KvInFlight, at.kv);
        set(LoadAnswer::KvUse, at.kv / kv_pool);
        set(LoadAnswer::OutputTokens, rate * workload.mean_output);
        set(LoadAnswer::SeatWait, at.seat_wait);
        set(LoadAnswer::SeatWaitP99, at.links.seat.high);
        set(LoadAnswer::IterationWait, at.links.iteration.mean);
        set(LoadAnswer::IterationWaitP99, at.links.iteration.high);
        set(LoadAnswer::FirstIteration, at.links.first.mean);
        set(LoadAnswer::FirstIterationP99, at.links.first.high);
        set(LoadAnswer::OwnPrefill, at.links.own.mean);
        set(LoadAnswer::OwnPrefillP99, at.links.own.high);
        set(LoadAnswer::Riders, at.links.riders.mean);
        set(LoadAnswer::RidersP99, at.links.riders.high);
        set(LoadAnswer::Host, at.links.host);
        Self { fields, status: [LoadStatus::Ok; LANES] }
    }

    fn close(&mut self, lane: usize, feasible: Status, settled: bool, over: bool, unstable: bool) {
        let may_be_null = |i: usize| WAITING.iter().any(|&waiting| i == waiting as usize);
        let finite = self.fields.iter().enumerate().all(|(i, field)| may_be_null(i) || field.0[lane].is_finite());
        let status = match feasible {
            Status::DoesNotFit => LoadStatus::DoesNotFit,
            Status::InvalidParallelism => LoadStatus::InvalidParallelism,
            Status::Unsupported => LoadStatus::Unsupported,
            Status::Ok if unstable => LoadStatus::Unstable,
            Status::Ok if settled && finite && over => LoadStatus::Saturated,
            Status::Ok if settled && finite => LoadStatus::Ok,
            _ => LoadStatus::NotConverged,
        };
        self.status[lane] = status;
        let solved = matches!(status, LoadStatus::Ok | LoadStatus::Saturated);
        for (i, field) in self.fields.iter_mut().enumerate() {
            let excess = i == LoadAnswer::Excess as usize;
            let kept = if excess { status == LoadStatus::Unstable } else { solved };
            if !kept {
                field.0[lane] = f64::NAN;
            }
        }
    }
}
