//! Rows → columns, in blocks and in parallel; the same bits for any number of threads and any place in the table.

use std::sync::Arc;

use rayon::prelude::*;

use crate::error::CoreError;
use crate::grid::Grid;
use crate::lengths::EmpiricalLengths;
use crate::load::{LOAD_FIELDS, LoadAnswers, Loads, solve_load};
use crate::points::{INPUTS, Input, POINT_FIELDS};
use crate::real::{LANES, Lanes};
use crate::replica::Replica;
use crate::solve::{CURVE_INPUTS, solve_block};
use crate::table::{Cells, Rows, Stretch, blocks_of, check_lengths, fill_defaults, fill_lengths};

/// Rows solved by one task, where few of them share a curve: their charts stay in the cache.
const BLOCK_ROWS: usize = 256;
/// At most so many where more rows share a curve.
const MOST_BLOCK_ROWS: usize = 2048;
/// Curves wanted in a block, enough to fill vectors.
const BLOCK_CURVES: usize = 2 * LANES;
/// Axes that choose the replica, as one mixed-radix number in the order in which they stand in the grid.
pub const REPLICA_AXES: [&str; 10] =
    ["model", "gpu", "tp", "pp", "dp", "ep", "weight_dtype", "kv_dtype", "engine", "profile"];
/// Axes that choose the price, in the order of the price table.
pub const PRICE_AXES: [&str; 3] = ["gpu", "price_plan", "provider"];

/// Answers of a stretch of rows at given loads.
#[derive(Clone, Debug, Default)]
pub struct LoadColumns {
    /// One column for each `LoadAnswer`.
    pub fields: Vec<Vec<f64>>,
    /// Status codes.
    pub status: Vec<u8>,
}

/// Solves a table of points into as many cells.
pub fn solve_rows(replicas: &[Replica], rows: &Rows, cells: Cells) {
    cells.blocks(BLOCK_ROWS).into_par_iter().enumerate().for_each(|(block, mut cells)| {
        let table = rows.stretch(block * BLOCK_ROWS, cells.len());
        solve_block(replicas, &table, &mut cells);
    });
}

/// Operating points at given loads; `loads` are rate, clients, think time, one column each, NaN where not given.
pub fn solve_loads(replicas: &[Replica], rows: &Rows, loads: &[Vec<f64>; 3]) -> LoadColumns {
    let table = rows.stretch(0, rows.len());
    let order: Vec<usize> = (0..rows.len()).collect();
    let groups: Vec<LoadAnswers> = order
        .par_chunks(LANES)
        .map(|group| {
            let lanes = |column: &Vec<f64>| Lanes::from_fn(|lane| column[group[lane.min(group.len() - 1)]]);
            let think_time = Lanes(lanes(&loads[2]).0.map(|z| if z.is_nan() { 0.0 } else { z }));
            let loads = Loads { rate: lanes(&loads[0]), concurrency: lanes(&loads[1]), think_time };
            solve_load(replicas, &table, group, &loads)
        })
        .collect();
    let lane = |row: usize| (&groups[row / LANES], row % LANES);
    let column = |field: usize| order.iter().map(|&row| lane(row).0.fields[field].0[lane(row).1]).collect();
    LoadColumns {
        fields: (0..LOAD_FIELDS.len()).map(column).collect(),
        status: order.iter().map(|&row| lane(row).0.status[lane(row).1] as u8).collect(),
    }
}

/// A grid of points over a replica table and a price table.
#[derive(Debug)]
pub struct GridSweep<'a> {
    /// Rows that the replica axes choose from.
    pub replicas: &'a [Replica],
    /// Empirical laws that the axis of lengths refers to.
    pub lengths: &'a [Arc<EmpiricalLengths>],
    /// The axes.
    pub grid: Grid,
    /// USD per accelerator and hour, [gpu][price_plan][provider]; NaN where there is none.
    pub prices: &'a [f64],
    replica_axes: Vec<usize>,
    price_axes: Vec<usize>,
    input_axes: Vec<Option<usize>>,
}

/// The cells of neighbouring points of a grid, to be written.
#[derive(Debug)]
pub struct GridCells<'a> {
    /// Inputs, defaults filled in.
    pub inputs: [&'a mut [f64]; INPUTS],
    /// Answers.
    pub answers: Cells<'a>,
}

impl<'a> GridSweep<'a> {
    /// Checks that the axes are known and that both tables have the sizes that the axes give.
    pub fn new(
        replicas: &'a [Replica],
        lengths: &'a [Arc<EmpiricalLengths>],
        grid: Grid,
        prices: &'a [f64],
    ) -> Result<Self, CoreError> {
        let named = |names: &[&str]| -> Vec<usize> {
            (0..grid.axes().len()).filter(|&i| names.contains(&grid.axes()[i].name.as_str())).collect()
        };
        let find = |name: &str| grid.axes().iter().position(|axis| axis.name == name);
        for axis in grid.axes() {
            let name = axis.name.as_str();
            let known = [&REPLICA_AXES[..], &PRICE_AXES[..], POINT_FIELDS].iter().any(|names| names.contains(&name));
            if !known || name == POINT_FIELDS[Input::Price as usize] {
                return Err(CoreError::Unknown { name: axis.name.clone() });
            }
        }
        let size = |axes: &[usize]| axes.iter().map(|&i| grid.axes()[i].values.len()).product::<usize>();
        let replica_axes = named(&REPLICA_AXES);
        let price_axes: Vec<usize> = PRICE_AXES.iter().filter_map(|name| find(name)).collect();
        let sizes = [("replicas", replicas.len(), size(&replica_axes)), ("prices", prices.len(), size(&price_axes))];
        for (name, found, expected) in sizes {
            if found != expected {
                return Err(CoreError::Length { name: name.into(), found, expected });
            }
        }
        if let Some(axis) = find(POINT_FIELDS[Input::Lengths as usize]) {
            check_lengths(lengths, &grid.axes()[axis].values)?;
        }
        let input_axes = POINT_FIELDS.iter().map(|name| find(name)).collect();
        Ok(Self { replicas, lengths, grid, prices, replica_axes, price_axes, input_axes })
    }

    /// Index into a table laid out by some of the axes, for each row.
    fn table_index(&self, axes: &[usize], start: u64, rows: usize) -> Vec<u32> {
        let mut index = vec![0u32; rows];
        for &axis in axes {
            let radix = self.grid.axes()[axis].values.len() as u32;
            if radix > 1 {
                self.grid.runs(axis, start, rows, |from, to, digit| {
                    index[from..to].iter_mut().for_each(|i| *i = *i * radix + digit as u32);
                });
            }
        }
        index
    }

    /// Fills in the inputs of points from `start` on; returns their replicas.
    fn fill_inputs(&self, start: u64, inputs: &mut [&mut [f64]; INPUTS]) -> Vec<u32> {
        let rows = inputs[0].len();
        let replica = self.table_index(&self.replica_axes, start, rows);
        for (cells, axis) in inputs.iter_mut().zip(&self.input_axes) {
            match *axis {
                Some(axis) => self.grid.fill(axis, start, &self.grid.axes()[axis].values, cells),
                None => cells.fill(f64::NAN),
            }
        }
        let price = self.table_index(&self.price_axes, start, rows);
        let cells = inputs[Input::Price as usize].iter_mut();
        cells.zip(price).for_each(|(cell, place)| *cell = self.prices[place as usize]);
        fill_lengths(self.lengths, inputs);
        fill_defaults(self.replicas, &replica, inputs);
        replica
    }

    /// Rows of a block that holds enough curves: neighbouring rows share one while its axes stand still.
    fn block_rows(&self) -> usize {
        let shapes = |name: &str| {
            REPLICA_AXES.contains(&name) || CURVE_INPUTS.iter().any(|&input| POINT_FIELDS[input as usize] == name)
        };
        let axes = self.grid.axes().iter().enumerate();
        let moving = axes.filter(|(_, axis)| axis.values.len() > 1 && shapes(&axis.name));
        let alike = moving.map(|(place, _)| self.grid.stride(place)).min().unwrap_or(1);
        let wanted = alike.saturating_mul(BLOCK_CURVES as u64);
        wanted.clamp(BLOCK_ROWS as u64, MOST_BLOCK_ROWS as u64) as usize
    }

    /// The number of points `start..stop`, which must all exist.
    pub fn rows(&self, start: u64, stop: u64) -> Result<usize, CoreError> {
        if start > stop || stop > self.grid.len() {
            return Err(CoreError::Range { start, stop, len: self.grid.len() });
        }
        Ok((stop - start) as usize)
    }

    /// Solves the points from `start` on, as many as there are cells.
    pub fn solve(&self, start: u64, cells: GridCells) -> Result<(), CoreError> {
        self.rows(start, start.saturating_add(cells.answers.len() as u64))?;
        let block_rows = self.block_rows();
        let blocks =
            blocks_of(cells.inputs, block_rows).into_par_iter().zip(cells.answers.blocks(block_rows)).enumerate();
        blocks.for_each(|(block, (mut inputs, mut cells))| {
            let replica = self.fill_inputs(start + (block * block_rows) as u64, &mut inputs);
            let fields = inputs.each_ref().map(|column| &**column);
            solve_block(self.replicas, &Stretch { lengths: self.lengths, replica: &replica, fields }, &mut cells);
        });
        Ok(())
    }

    /// Positions on one axis of the points from `start` on.
    pub fn codes(&self, axis: usize, start: u64, cells: &mut [u32]) {
        let digits: Vec<u32> = (0..self.grid.axes()[axis].values.len() as u32).collect();
        self.grid.fill(axis, start, &digits, cells);
    }
}
