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
    pub fields: Vec<&'a mut [f64]>,
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

/// Cuts columns into blocks of at most `block` rows; one vector of slices for each block.
pub fn blocks_of(columns: &mut [Vec<f64>], block: usize) -> Vec<Vec<&mut [f64]>> {
    let count = columns.len();
    let rows = columns.first().map_or(0, Vec::len);
    let mut blocks: Vec<Vec<&mut [f64]>> = (0..rows.div_ceil(block)).map(|_| Vec::with_capacity(count)).collect();
    for column in columns {
        for (cells, slice) in blocks.iter_mut().zip(column.chunks_mut(block)) {
            cells.push(slice);
        }
    }
    blocks
}

/// What holds where a point gives no value; SLOs and price have no default and stay NaN.
fn default_of(replica: &Replica, field: Input, prefix_tokens: f64) -> f64 {
    match field {
        Input::IslCv | Input::OslCv | Input::PrefixTokens => 0.0,
        Input::PrefixHitShare => f64::from(u8::from(prefix_tokens > 0.0)),
        Input::Seats => replica.defaults.max_num_seqs,
        Input::Budget => replica.defaults.max_num_batched_tokens,
        Input::MemoryUtilization => replica.defaults.memory_utilization,
        Input::MemoryBytes => replica.memory_bytes,
        Input::ReservedBytes => replica.defaults.reserved_bytes,
        Input::UtilizationCap => DEFAULT_UTILIZATION_CAP,
        Input::Isl | Input::Osl | Input::SloTtft | Input::SloTpot | Input::SloE2e | Input::Price => f64::NAN,
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
        for field in Input::ALL {
            let (before, rest) = self.fields.split_at_mut(field as usize);
            let prefix = before.get(Input::PrefixTokens as usize);
            for (row, value) in rest[0].iter_mut().enumerate() {
                if value.is_nan() {
                    let prefix_tokens = prefix.map_or(0.0, |column| column[row]);
                    *value = default_of(&replicas[self.replica[row] as usize], field, prefix_tokens);
                }
            }
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
        Self {
            replica: self.replica[start..start + rows].to_vec(),
            fields: self.fields.iter().map(cut).collect(),
        }
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
            Feasibility::Possible if !self.inside_model(row) => Status::NotConverged,
            Feasibility::Possible => {
                let prefix = (self.at(Input::PrefixTokens, row) / BLOCK_TOKENS).floor() * BLOCK_TOKENS;
                let shared = if self.at(Input::PrefixHitShare, row) > 0.0 { prefix } else { 0.0 };
                let request = self.at(Input::Isl, row) + self.at(Input::Osl, row);
                if kv_pool >= request + shared { Status::Ok } else { Status::DoesNotFit }
            }
        }
    }

    /// Whether every input lies where the formulas hold.
    fn inside_model(&self, row: usize) -> bool {
        let get = |field| self.at(field, row);
        let at_least_one = [Input::Isl, Input::Seats, Input::Budget].iter().all(|&f| get(f) >= 1.0);
        let not_negative = [Input::IslCv, Input::OslCv, Input::PrefixTokens, Input::PrefixHitShare, Input::ReservedBytes];
        at_least_one
            && get(Input::Osl) > 1.0
            && get(Input::UtilizationCap) > 0.0
            && get(Input::PrefixHitShare) <= 1.0
            && not_negative.iter().all(|&f| get(f) >= 0.0)
            && [Input::SloTtft, Input::SloTpot, Input::SloE2e].iter().all(|&f| get(f).is_nan() || get(f) > 0.0)
            && (get(Input::Price).is_nan() || get(Input::Price) >= 0.0)
    }
}

impl Columns {
    /// Columns of zeros, to be written block by block.
    pub fn zeroed(rows: usize) -> Self {
        Self {
            fields: zeroed(ANSWERS, rows),
            status: vec![0; rows],
            binding: vec![0; rows],
            next: vec![0; rows],
        }
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
