//! Tables of points: inputs with defaults filled in, and answers, column by column.

use std::ops::Range;

use std::sync::Arc;

use crate::approach::MEAN;
use crate::error::CoreError;
use crate::lengths::EmpiricalLengths;
use crate::points::{ANSWERS, INPUTS, Input, POINT_FIELDS, Status};
use crate::replica::{BLOCK_TOKENS, Feasibility, Replica};

/// Share of the physical capacity that a plan may use, where a point says nothing.
const DEFAULT_UTILIZATION_CAP: f64 = 0.9;

/// Inputs of a table of rows, defaults filled in.
#[derive(Clone, Debug, Default)]
pub struct Rows<'a> {
    /// Empirical laws that rows refer to.
    lengths: &'a [Arc<EmpiricalLengths>],
    /// Index into the replica table.
    replica: Vec<u32>,
    /// One column for each `Input`.
    fields: Vec<Vec<f64>>,
}

/// Inputs of neighbouring rows, defaults filled in.
#[derive(Clone, Copy, Debug)]
pub struct Stretch<'a> {
    /// Empirical laws that rows refer to.
    pub lengths: &'a [Arc<EmpiricalLengths>],
    /// Index into the replica table.
    pub replica: &'a [u32],
    /// One column for each `Input`.
    pub fields: [&'a [f64]; INPUTS],
}

/// Answers of a table of rows; NaN is null.
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

/// The answer cells of neighbouring rows, to be written.
#[derive(Debug)]
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

/// Cuts columns into blocks of at most `block` rows; one array of slices for each block.
pub fn blocks_of<const N: usize>(columns: [&mut [f64]; N], block: usize) -> Vec<[&mut [f64]; N]> {
    let rows = columns.first().map_or(0, |column| column.len());
    let mut blocks: Vec<[&mut [f64]; N]> =
        (0..rows.div_ceil(block)).map(|_| std::array::from_fn(|_| Default::default())).collect();
    for (place, column) in columns.into_iter().enumerate() {
        for (cells, slice) in blocks.iter_mut().zip(column.chunks_mut(block)) {
            cells[place] = slice;
        }
    }
    blocks
}

/// Coefficient of variation of the gaps of Poisson arrivals.
const POISSON_CV: f64 = 1.0;
/// Largest coefficient of variation of gaps for which the dispersion of gamma renewals was fitted.
const MOST_ARRIVAL_CV: f64 = 20.0;
/// Largest percentile of an SLO.
const MOST_PERCENTILE: f64 = 99.9;

/// What holds where a point gives no value; SLOs and price have no default and stay NaN, and so do for now what follows from others.
fn default_of(replica: &Replica, field: Input) -> f64 {
    match field {
        Input::IslCv | Input::OslCv | Input::PrefixTokens => 0.0,
        Input::ArrivalCv => POISSON_CV,
        Input::SloPercentile => MEAN,
        Input::Seats => replica.defaults.max_num_seqs,
        Input::Budget => replica.defaults.max_num_batched_tokens,
        Input::MemoryUtilization => replica.defaults.memory_utilization,
        Input::MemoryBytes => replica.memory_bytes,
        Input::UtilizationCap => DEFAULT_UTILIZATION_CAP,
        Input::PrefixHitShare | Input::ReservedBytes | Input::KvCacheTokens => f64::NAN,
        Input::Lengths | Input::Isl | Input::Osl => f64::NAN,
        Input::SloTtft | Input::SloTpot | Input::SloE2e | Input::Price => f64::NAN,
    }
}

/// The empirical law at a place of a table; none where there is no place.
pub fn law_at(lengths: &[Arc<EmpiricalLengths>], place: f64) -> Option<&Arc<EmpiricalLengths>> {
    if place.is_nan() { None } else { lengths.get(place as usize) }
}

/// Every place must be in the table, or NaN.
pub fn check_lengths(lengths: &[Arc<EmpiricalLengths>], places: &[f64]) -> Result<(), CoreError> {
    let inside = |place: f64| place.is_nan() || (place >= 0.0 && place.fract() == 0.0 && place < lengths.len() as f64);
    match places.iter().find(|&&place| !inside(place)) {
        Some(&place) => Err(CoreError::Lengths { place, len: lengths.len() }),
        None => Ok(()),
    }
}

/// Puts the means and CVs of the empirical laws where rows refer to one.
pub fn fill_lengths(lengths: &[Arc<EmpiricalLengths>], fields: &mut [&mut [f64]; INPUTS]) {
    let (before, rest) = fields.split_at_mut(Input::Isl as usize);
    for (row, &place) in before[Input::Lengths as usize].iter().enumerate() {
        if let Some(law) = law_at(lengths, place) {
            let moments = [law.mean_prompt, law.mean_output, law.prompt_cv, law.output_cv];
            let cells = [Input::Isl, Input::Osl, Input::IslCv, Input::OslCv];
            for (cell, moment) in cells.into_iter().zip(moments) {
                rest[cell as usize - Input::Isl as usize][row] = moment;
            }
        }
    }
}

/// Puts defaults where a value is NaN; replica indices must be inside the table.
pub fn fill_defaults(replicas: &[Replica], replica: &[u32], fields: &mut [&mut [f64]; INPUTS]) {
    let mut start = 0;
    for alike in replica.chunk_by(|a, b| a == b) {
        let stop = start + alike.len();
        for field in Input::ALL {
            let default = default_of(&replicas[alike[0] as usize], field);
            if !default.is_nan() {
                let cells = &mut fields[field as usize][start..stop];
                cells.iter_mut().for_each(|value| *value = if value.is_nan() { default } else { *value });
            }
        }
        fill_reserve(&replicas[alike[0] as usize], start..stop, fields);
        start = stop;
    }
    fill_hit_share(fields);
}

/// What an engine reserves depends on the point; neighbouring rows often agree.
fn fill_reserve(replica: &Replica, rows: Range<usize>, fields: &mut [&mut [f64]; INPUTS]) {
    let (before, rest) = fields.split_at_mut(Input::ReservedBytes as usize);
    let at =
        |row: usize| [Input::MemoryUtilization, Input::Budget, Input::Seats].map(|input| before[input as usize][row]);
    let mut known = ([f64::NAN; 3], f64::NAN);
    for row in rows {
        let value = &mut rest[0][row];
        if value.is_nan() {
            let asked = at(row);
            if asked != known.0 {
                known = (asked, replica.reserved_bytes(asked[0], asked[1], asked[2]));
            }
            *value = known.1;
        }
    }
}

/// A given prefix is shared by every prompt unless the row says otherwise; without a prefix nothing is.
fn fill_hit_share(fields: &mut [&mut [f64]; INPUTS]) {
    let (before, rest) = fields.split_at_mut(Input::PrefixHitShare as usize);
    for (share, &prefix) in rest[0].iter_mut().zip(before[Input::PrefixTokens as usize].iter()) {
        let default = if prefix > 0.0 { 1.0 } else { 0.0 };
        *share = if share.is_nan() { default } else { *share };
    }
}

fn mark_changes<T>(changed: &mut [bool], column: &[T], bits: impl Fn(&T) -> u64) {
    let Some(first) = column.first().map(&bits) else { return };
    if column.iter().fold(0, |differs, value| differs | (bits(value) ^ first)) == 0 {
        return;
    }
    for (mark, pair) in changed.iter_mut().skip(1).zip(column.windows(2)) {
        *mark |= bits(&pair[0]) != bits(&pair[1]);
    }
}

impl<'a> Rows<'a> {
    /// Checks the columns' length, replica indices and laws, and fills defaults. Columns follow `POINT_FIELDS`.
    pub fn new(
        replicas: &[Replica],
        lengths: &'a [Arc<EmpiricalLengths>],
        replica: Vec<u32>,
        mut fields: Vec<Vec<f64>>,
    ) -> Result<Self, CoreError> {
        let rows = replica.len();
        for (place, name) in POINT_FIELDS.iter().enumerate() {
            let found = fields.get(place).map_or(0, Vec::len);
            if found != rows {
                return Err(CoreError::Length { name: (*name).into(), found, expected: rows });
            }
        }
        let len = replicas.len();
        if let Some(row) = replica.iter().position(|&index| index as usize >= len) {
            return Err(CoreError::Replica { row, index: replica[row] as usize, len });
        }
        check_lengths(lengths, &fields[Input::Lengths as usize])?;
        let mut columns = fields.iter_mut();
        let mut slices = std::array::from_fn(|_| columns.next().map(Vec::as_mut_slice).unwrap_or_default());
        fill_lengths(lengths, &mut slices);
        fill_defaults(replicas, &replica, &mut slices);
        Ok(Self { lengths, replica, fields })
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.replica.len()
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.replica.is_empty()
    }

    /// Some of the rows.
    pub fn stretch(&self, start: usize, rows: usize) -> Stretch<'_> {
        let cut = |field: usize| &self.fields[field][start..start + rows];
        Stretch { lengths: self.lengths, replica: &self.replica[start..start + rows], fields: std::array::from_fn(cut) }
    }
}

impl Stretch<'_> {
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

    /// Marks rows where some of these inputs differ from the row before.
    pub fn mark_changes(&self, inputs: &[Input], changed: &mut [bool]) {
        for &input in inputs {
            mark_changes(changed, self.fields[input as usize], |value| value.to_bits());
        }
    }

    /// Marks the first row, and rows whose replica differs from that of the row before.
    pub fn mark_replicas(&self, changed: &mut [bool]) {
        if let Some(first) = changed.first_mut() {
            *first = true;
        }
        mark_changes(changed, self.replica, |value| u64::from(*value));
    }

    /// KV pool of a row [tokens]: as the engine reported it, else computed.
    pub fn kv_pool(&self, replica: &Replica, row: usize) -> f64 {
        let get = |field| self.at(field, row);
        let reported = get(Input::KvCacheTokens);
        if !reported.is_nan() {
            return reported;
        }
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
                if kv_pool / replica.pools() >= request + shared { Status::Ok } else { Status::DoesNotFit }
            }
        }
    }

    fn workload_inside_model(&self, row: usize) -> bool {
        let get = |field| self.at(field, row);
        let at_least_one = [Input::Isl, Input::Seats, Input::Budget].iter().all(|&f| get(f) >= 1.0);
        let not_negative =
            [Input::IslCv, Input::OslCv, Input::PrefixTokens, Input::PrefixHitShare, Input::ReservedBytes];
        at_least_one
            && (0.0..=MOST_ARRIVAL_CV).contains(&get(Input::ArrivalCv))
            && get(Input::Osl) > 1.0
            && get(Input::PrefixHitShare) <= 1.0
            && not_negative.iter().all(|&f| get(f) >= 0.0)
    }

    /// Whether SLOs, utilization cap and price lie where the formulas hold.
    pub fn goals_inside_model(&self, row: usize) -> bool {
        let get = |field| self.at(field, row);
        let positive_or_absent = |value: f64| (value > 0.0) | value.is_nan();
        let price = get(Input::Price);
        (get(Input::UtilizationCap) > 0.0)
            & (MEAN..=MOST_PERCENTILE).contains(&get(Input::SloPercentile))
            & positive_or_absent(get(Input::SloTtft))
            & positive_or_absent(get(Input::SloTpot))
            & positive_or_absent(get(Input::SloE2e))
            & ((price >= 0.0) | price.is_nan())
    }
}

impl Columns {
    /// Columns of zeros, to be written.
    pub fn zeroed(rows: usize) -> Self {
        let fields = (0..ANSWERS).map(|_| vec![0.0; rows]).collect();
        Self { fields, status: vec![0; rows], binding: vec![0; rows], next: vec![0; rows] }
    }

    /// All cells.
    pub fn cells(&mut self) -> Cells<'_> {
        let mut fields = self.fields.iter_mut();
        Cells {
            fields: std::array::from_fn(|_| fields.next().map(Vec::as_mut_slice).unwrap_or_default()),
            status: &mut self.status,
            binding: &mut self.binding,
            next: &mut self.next,
        }
    }
}

impl<'a> Cells<'a> {
    /// The cells of each block of at most `block` rows.
    pub fn blocks(self, block: usize) -> Vec<Cells<'a>> {
        let codes = self.status.chunks_mut(block).zip(self.binding.chunks_mut(block)).zip(self.next.chunks_mut(block));
        blocks_of(self.fields, block)
            .into_iter()
            .zip(codes)
            .map(|(fields, ((status, binding), next))| Cells { fields, status, binding, next })
            .collect()
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.status.len()
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.status.is_empty()
    }
}
