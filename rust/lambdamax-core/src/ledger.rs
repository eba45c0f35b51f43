//! What is known of the rows of a block, column by column, and the answer columns that follow from it.

use crate::points::{Answer, Input, NO_LIMIT, RATE_ANSWERS, Status};
use crate::replica::Replica;
use crate::spot::Spot;
use crate::table::{Cells, Stretch};
use crate::tasks::NONE;

/// Seconds in an hour.
const HOUR_S: f64 = 3600.0;
/// Tokens in the unit of token prices.
const MILLION_TOKENS: f64 = 1e6;

/// One entry a row; what is not known is NaN or `NONE`.
pub struct Ledger {
    /// What became of the row, prices aside.
    pub status: Vec<Status>,
    /// KV pool of one slot [tokens].
    pub kv_pool: Vec<f64>,
    /// Seats of one slot.
    pub seats: Vec<f64>,
    /// The row's curve.
    pub curve: Vec<u32>,
    /// Where the row's replica is full.
    pub ceiling: Vec<u32>,
    /// The largest rate.
    pub rate: Vec<f64>,
    /// The smallest of the physical limits.
    pub sustained: Vec<f64>,
    /// B at the largest rate.
    pub decoding: Vec<f64>,
    /// Curve evaluations.
    pub evaluations: Vec<f64>,
    /// Whether every root settled.
    pub converged: Vec<bool>,
    /// The operating point.
    pub spot: Vec<u32>,
}

impl Ledger {
    /// Nothing known of so many rows.
    pub fn new(rows: usize) -> Self {
        let unknown = || vec![f64::NAN; rows];
        Self {
            status: vec![Status::Ok; rows],
            kv_pool: unknown(),
            seats: unknown(),
            curve: vec![NONE; rows],
            ceiling: vec![NONE; rows],
            rate: unknown(),
            sustained: unknown(),
            decoding: unknown(),
            evaluations: unknown(),
            converged: vec![true; rows],
            spot: vec![NONE; rows],
        }
    }

    /// Settles the status of rows that have an operating point, and forgets what the others may not say. The last of `spots` is
    /// nowhere.
    pub fn close(&mut self, spots: &[Spot], cells: &mut Cells) {
        let sound: Vec<bool> = spots.iter().map(|spot| spot.sound).collect();
        for row in 0..self.status.len() {
            if self.status[row] == Status::Ok {
                let somewhere = sound.get(self.spot[row] as usize).copied().unwrap_or(false);
                let settled = self.converged[row] & self.rate[row].is_finite() & somewhere;
                if settled {
                    continue;
                }
                self.status[row] = Status::NotConverged;
            }
            self.evaluations[row] = f64::NAN;
            self.spot[row] = (spots.len() - 1) as u32;
            if !self.status[row].has_limits() {
                self.forget_limits(row, cells);
            }
        }
    }

    fn forget_limits(&mut self, row: usize, cells: &mut Cells) {
        self.rate[row] = f64::NAN;
        self.kv_pool[row] = f64::NAN;
        for answer in RATE_ANSWERS {
            cells.fields[answer as usize][row] = f64::NAN;
        }
        cells.binding[row] = NO_LIMIT;
        cells.next[row] = NO_LIMIT;
    }

    /// Writes every answer but each limit's rate and name; `idle_e2e` is the idle replica's, by curve. The bits are the same with
    /// any vectors.
    pub fn write(
        &mut self,
        replicas: &[Replica],
        table: &Stretch,
        idle_e2e: &[f64],
        spots: &[Spot],
        cells: &mut Cells,
    ) {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the feature was detected on the line above.
            return unsafe { self.write_with_avx2(replicas, table, idle_e2e, spots, cells) };
        }
        self.write_all(replicas, table, idle_e2e, spots, cells);
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn write_with_avx2(
        &mut self,
        replicas: &[Replica],
        table: &Stretch,
        idle_e2e: &[f64],
        spots: &[Spot],
        cells: &mut Cells,
    ) {
        self.write_all(replicas, table, idle_e2e, spots, cells);
    }

    #[inline(always)]
    fn write_all(
        &mut self,
        replicas: &[Replica],
        table: &Stretch,
        idle_e2e: &[f64],
        spots: &[Spot],
        cells: &mut Cells,
    ) {
        self.write_replica(replicas, table, cells);
        self.write_limits(table, idle_e2e, cells);
        for (rate, status) in self.rate.iter_mut().zip(&self.status) {
            *rate = if status.is_solved() { *rate } else { f64::NAN };
        }
        self.write_spots(spots, cells);
        self.write_use(replicas, table, cells);
        self.write_money(table, cells);
        multiply_slots(replicas, table, cells);
    }

    #[inline(always)]
    fn write_replica(&self, replicas: &[Replica], table: &Stretch, cells: &mut Cells) {
        let mut start = 0;
        for alike in table.replica.chunk_by(|a, b| a == b) {
            let stop = start + alike.len();
            let facts = &replicas[alike[0] as usize];
            let exists = self.status[start].has_replica();
            debug_assert!(self.status[start..stop].iter().all(|status| status.has_replica() == exists));
            let facts = if exists { facts } else { Replica::UNKNOWN };
            cells.fields[Answer::WeightBytes as usize][start..stop].fill(facts.weight_bytes);
            cells.fields[Answer::TpotFloor as usize][start..stop].fill(facts.tpot_floor_s);
            cells.fields[Answer::Gpus as usize][start..stop].fill(facts.gpus);
            let prices = &table.fields[Input::Price as usize][start..stop];
            let costs = &mut cells.fields[Answer::Cost as usize][start..stop];
            costs.iter_mut().zip(prices).for_each(|(cost, price)| *cost = facts.gpus * price);
            start = stop;
        }
    }

    #[inline(always)]
    fn write_limits(&self, table: &Stretch, idle_e2e: &[f64], cells: &mut Cells) {
        cells.fields[Answer::MaxRate as usize].copy_from_slice(&self.rate);
        cells.fields[Answer::KvPool as usize].copy_from_slice(&self.kv_pool);
        let idle = |row: usize| idle_e2e.get(self.curve[row] as usize).copied().unwrap_or(f64::NAN);
        let [isl, osl] = [Input::Isl, Input::Osl].map(|input| table.fields[input as usize]);
        let naive = |row: usize| self.kv_pool[row] / ((isl[row] + 0.5 * osl[row]) * idle(row));
        fill(cells, Answer::NaiveRate, naive);
    }

    #[inline(always)]
    fn write_spots(&self, spots: &[Spot], cells: &mut Cells) {
        let at = |row: usize| &spots[self.spot[row] as usize];
        fill(cells, Answer::InFlight, |row| self.rate[row] * at(row).e2e);
        fill(cells, Answer::Running, |row| at(row).running);
        fill(cells, Answer::Decoding, |row| at(row).decoding);
        fill(cells, Answer::Waiting, |row| self.rate[row] * at(row).e2e - at(row).running);
        fill(cells, Answer::SeatWait, |row| at(row).seat_wait);
        fill(cells, Answer::TtftMean, |row| at(row).ttft);
        fill(cells, Answer::TtftP50, |row| at(row).ttft_p50);
        fill(cells, Answer::TtftP90, |row| at(row).ttft_p90);
        fill(cells, Answer::TtftP99, |row| at(row).ttft_p99);
        fill(cells, Answer::TpotMean, |row| at(row).tpot);
        fill(cells, Answer::TpotTokenMean, |row| at(row).tpot_token);
        fill(cells, Answer::ItlP99, |row| at(row).itl_p99);
        fill(cells, Answer::E2eMean, |row| at(row).e2e);
        fill(cells, Answer::E2eP99, |row| at(row).e2e_p99);
        fill(cells, Answer::PrefillShare, |row| at(row).prefill_share);
        fill(cells, Answer::KvInFlight, |row| at(row).kv);
        fill(cells, Answer::KvUse, |row| at(row).kv / self.kv_pool[row]);
        fill(cells, Answer::Residual, |row| (self.rate[row] * at(row).cycle / at(row).decoding - 1.0).abs());
    }

    #[inline(always)]
    fn write_use(&self, replicas: &[Replica], table: &Stretch, cells: &mut Cells) {
        let output = |row: usize| self.rate[row] * table.at(Input::Osl, row);
        let gpus = |row: usize| replicas[table.replica[row] as usize].gpus;
        fill(cells, Answer::Utilization, |row| self.rate[row] / self.sustained[row]);
        fill(cells, Answer::OutputTokens, output);
        fill(cells, Answer::OutputTokensPerGpu, |row| output(row) / gpus(row));
        cells.fields[Answer::Iterations as usize].copy_from_slice(&self.evaluations);
    }

    #[inline(always)]
    fn write_money(&self, table: &Stretch, cells: &mut Cells) {
        let cost = std::mem::take(&mut cells.fields[Answer::Cost as usize]);
        let [isl, osl] = [Input::Isl, Input::Osl].map(|input| table.fields[input as usize]);
        let usd_per_request = |row: usize| cost[row] / (HOUR_S * self.rate[row]);
        fill(cells, Answer::RequestsPerUsd, |row| 1.0 / usd_per_request(row));
        fill(cells, Answer::UsdPerMtokOutput, |row| usd_per_request(row) / osl[row] * MILLION_TOKENS);
        fill(cells, Answer::UsdPerMtokTotal, |row| usd_per_request(row) / (isl[row] + osl[row]) * MILLION_TOKENS);
        for (row, status) in self.status.iter().enumerate() {
            let unpriced = *status == Status::Ok && cost[row].is_nan();
            cells.status[row] = if unpriced { Status::NoPrice } else { *status } as u8;
        }
        cells.fields[Answer::Cost as usize] = cost;
    }
}

/// Answers that grow with the number of slots.
const EXTENSIVE: [Answer; 17] = [
    Answer::MaxRate,
    Answer::RateAtCompute,
    Answer::RateAtKv,
    Answer::RateAtSeats,
    Answer::RateAtTpot,
    Answer::RateAtTtft,
    Answer::RateAtE2e,
    Answer::RateAtUtilization,
    Answer::NaiveRate,
    Answer::InFlight,
    Answer::Waiting,
    Answer::Running,
    Answer::Decoding,
    Answer::KvInFlight,
    Answer::KvPool,
    Answer::OutputTokens,
    Answer::OutputTokensPerGpu,
];

/// From one slot to all of a replica's; its price is for all of them already.
fn multiply_slots(replicas: &[Replica], table: &Stretch, cells: &mut Cells) {
    let mut start = 0;
    for alike in table.replica.chunk_by(|a, b| a == b) {
        let rows = start..start + alike.len();
        start = rows.end;
        let slots = replicas[alike[0] as usize].slots;
        if slots == 1.0 {
            continue;
        }
        for answer in EXTENSIVE.into_iter().chain([Answer::RequestsPerUsd]) {
            cells.fields[answer as usize][rows.clone()].iter_mut().for_each(|value| *value *= slots);
        }
        for answer in [Answer::UsdPerMtokOutput, Answer::UsdPerMtokTotal] {
            cells.fields[answer as usize][rows.clone()].iter_mut().for_each(|value| *value /= slots);
        }
    }
}

#[inline(always)]
fn fill(cells: &mut Cells, answer: Answer, value: impl Fn(usize) -> f64) {
    for (row, cell) in cells.fields[answer as usize].iter_mut().enumerate() {
        *cell = value(row);
    }
}
