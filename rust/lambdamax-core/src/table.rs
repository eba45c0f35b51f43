//! Tables of points: inputs with defaults filled in, and answers, column by column.

use crate::error::CoreError;
use crate::points::{ANSWERS, Input, POINT_FIELDS, Status};
use crate::replica::{BLOCK_TOKENS, Feasibility, Replica};

/// Share of the physical capacity that a plan may use, where a point says nothing.
const DEFAULT_UTILIZATION_CAP: f64 = 0.9;

/// Inputs of a stretch of rows, defaults filled in.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    /// Index into the replica table.
    pub replica: Vec<u32>,
    /// One column for each `Input`.
    pub fields: Vec<Vec<f64>>,
}

/// Answers of a stretch of rows; NaN is null.
#[derive(Clone, Debug, Default)]
pub struct Columns {
    /// One column for each `Answer`.
    pub fields: Vec<Vec<f64>>,
    /// Status codes.
    pub status: Vec<u8>,
    /// Codes of the binding limits.
    pub binding: Vec<u8>,
    /// Codes of the next limits.
    pub next: Vec<u8>,
}

/// The cells of one block of rows, to be written.
#[derive(Debug, Default)]
pub struct Cells<'a> {
    /// One slice for each `Answer`.
    pub fields: [&'a mut [f64]; ANSWERS],
    /// Status codes.
    pub status: &'a mut [u8],
    /// Codes of the binding limits.
    pub binding: &'a mut [u8],
    /// Codes of the next limits.
    pub next: &'a mut [u8],
}

/// Zeroed columns.
pub fn zeroed(count: usize, rows: usize) -> Vec<Vec<f64>> {
    (0..count).map(|_| vec![0.0; rows]).collect()
}

/// Cuts columns into blocks of at most `block` rows; one array of slices for each block.
pub fn blocks_of<const N: usize>(columns: &mut [Vec<f64>], block: usize) -> Vec<[&mut [f64]; N]> {
    let rows = columns.first().map_or(0, Vec::len);
    let mut blocks: Vec<[&mut [f64]; N]> =
        (0..rows.div_ceil(block)).map(|_| std::array::from_fn(|_| Default::default())).collect();
    for (place, column) in columns.iter_mut().enumerate() {
        for (cells, slice) in blocks.iter_mut().zip(column.chunks_mut(block)) {
            cells[place] = slice;
        }
    }
    blocks
}

/// What holds where a point gives no value; SLOs and price have no default and stay NaN.
fn default_of(replica: &Replica, field: Input) -> f64 {
    match field {
        Input::IslCv | Input::OslCv | Input::PrefixTokens | Input::PrefixHitShare => 0.0,
        Input::Seats => replica.defaults.max_num_seqs,
        Input::Budget => replica.defaults.max_num_batched_tokens,
        Input::MemoryUtilization => replica.defaults.memory_utilization,
        Input::MemoryBytes => replica.memory_bytes,
        Input::ReservedBytes => replica.defaults.reserved_bytes,
        Input::UtilizationCap => DEFAULT_UTILIZATION_CAP,
        Input::Isl | Input::Osl | Input::SloTtft | Input::SloTpot | Input::SloE2e | Input::Price => f64::NAN,
    }
}

fn mark_changes<T>(changed: &mut [bool], column: &[T], bits: impl Fn(&T) -> u64) {
    for (mark, pair) in changed.iter_mut().skip(1).zip(column.windows(2)) {
        *mark |= bits(&pair[0]) != bits(&pair[1]);
    }
}

impl Rows {
    /// Checks lengths and replica indices, and fills defaults. Columns follow `POINT_FIELDS`.
    pub fn new(replicas: &[Replica], replica: Vec<u32>, fields: Vec<Vec<f64>>) -> Result<Self, CoreError> {
        let rows = replica.len();
        for (name, column) in POINT_FIELDS.iter().zip(&fields) {
            if column.len() != rows {
                return Err(CoreError::Length { name: (*name).into(), found: column.len(), expected: rows });
            }
        }
        let len = replicas.len();
        if let Some(row) = replica.iter().position(|&index| index as usize >= len) {
            return Err(CoreError::Replica { row, index: replica[row] as usize, len });
        }
        let mut rows = Self { replica, fields };
        rows.fill_defaults(replicas);
        Ok(rows)
    }

    /// Puts defaults where a value is NaN; replica indices must be inside the table.
    pub fn fill_defaults(&mut self, replicas: &[Replica]) {
        let alike = self.replica.iter().all(|&index| index == self.replica[0]);
        for field in Input::ALL {
            if matches!(field, Input::PrefixHitShare) {
                self.fill_hit_share();
                continue;
            }
            let column = &mut self.fields[field as usize];
            if alike && !column.is_empty() {
                let default = default_of(&replicas[self.replica[0] as usize], field);
                column.iter_mut().for_each(|value| *value = if value.is_nan() { default } else { *value });
            } else {
                for (value, &index) in column.iter_mut().zip(&self.replica) {
                    if value.is_nan() {
                        *value = default_of(&replicas[index as usize], field);
                    }
                }
            }
        }
    }

    /// A given prefix is shared by every prompt unless the row says otherwise; without a prefix nothing is.
    fn fill_hit_share(&mut self) {
        let (before, rest) = self.fields.split_at_mut(Input::PrefixHitShare as usize);
        for (share, &prefix) in rest[0].iter_mut().zip(&before[Input::PrefixTokens as usize]) {
            let default = if prefix > 0.0 { 1.0 } else { 0.0 };
            *share = if share.is_nan() { default } else { *share };
        }
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.replica.len()
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.replica.is_empty()
    }

    /// One value.
    pub fn at(&self, field: Input, row: usize) -> f64 {
        self.fields[field as usize][row]
    }

    /// A copy of some rows.
    pub fn slice(&self, start: usize, rows: usize) -> Self {
        let cut = |column: &Vec<f64>| column[start..start + rows].to_vec();
        Self { replica: self.replica[start..start + rows].to_vec(), fields: self.fields.iter().map(cut).collect() }
    }

    /// Rows whose replica or some of these inputs differ from the row before; the first row always does.
    pub fn changes(&self, inputs: &[Input]) -> Vec<bool> {
        let mut changed = vec![false; self.len()];
        if let Some(first) = changed.first_mut() {
            *first = true;
        }
        mark_changes(&mut changed, &self.replica, |value| u64::from(*value));
        for &input in inputs {
            mark_changes(&mut changed, &self.fields[input as usize], |value| value.to_bits());
        }
        changed
    }

    /// KV pool of a row [tokens].
    pub fn kv_pool(&self, replica: &Replica, row: usize) -> f64 {
        let get = |field| self.at(field, row);
        replica.kv_pool_tokens(get(Input::MemoryBytes), get(Input::MemoryUtilization), get(Input::ReservedBytes))
    }

    /// What no load can change: whether the row can be solved at all.
    pub fn feasibility(&self, replica: &Replica, row: usize, kv_pool: f64) -> Status {
        match replica.feasibility {
            Feasibility::Unsupported => Status::Unsupported,
            Feasibility::InvalidParallelism => Status::InvalidParallelism,
            Feasibility::Possible if !self.workload_inside_model(row) => Status::NotConverged,
            Feasibility::Possible => {
                let prefix = (self.at(Input::PrefixTokens, row) / BLOCK_TOKENS).floor() * BLOCK_TOKENS;
                let shared = if self.at(Input::PrefixHitShare, row) > 0.0 { prefix } else { 0.0 };
                let request = self.at(Input::Isl, row) + self.at(Input::Osl, row);
                if kv_pool >= request + shared { Status::Ok } else { Status::DoesNotFit }
            }
        }
    }

    fn workload_inside_model(&self, row: usize) -> bool {
        let get = |field| self.at(field, row);
        let at_least_one = [Input::Isl, Input::Seats, Input::Budget].iter().all(|&f| get(f) >= 1.0);
        let not_negative =
            [Input::IslCv, Input::OslCv, Input::PrefixTokens, Input::PrefixHitShare, Input::ReservedBytes];
        at_least_one
            && get(Input::Osl) > 1.0
            && get(Input::PrefixHitShare) <= 1.0
            && not_negative.iter().all(|&f| get(f) >= 0.0)
    }

    /// Whether SLOs, utilization cap and price lie where the formulas hold.
    pub fn goals_inside_model(&self, row: usize) -> bool {
        let get = |field| self.at(field, row);
        let slos = [Input::SloTtft, Input::SloTpot, Input::SloE2e];
        get(Input::UtilizationCap) > 0.0
            && slos.iter().all(|&f| get(f).is_nan() || get(f) > 0.0)
            && (get(Input::Price).is_nan() || get(Input::Price) >= 0.0)
    }
}

impl Columns {
    /// Columns of zeros, to be written block by block.
    pub fn zeroed(rows: usize) -> Self {
        Self { fields: zeroed(ANSWERS, rows), status: vec![0; rows], binding: vec![0; rows], next: vec![0; rows] }
    }

    /// The cells of each block of at most `block` rows.
    pub fn blocks(&mut self, block: usize) -> Vec<Cells<'_>> {
        let codes = self.status.chunks_mut(block).zip(self.binding.chunks_mut(block)).zip(self.next.chunks_mut(block));
        blocks_of(&mut self.fields, block)
            .into_iter()
            .zip(codes)
            .map(|(fields, ((status, binding), next))| Cells { fields, status, binding, next })
            .collect()
    }
}
