//! Rows → columns, in blocks and in parallel; the same bits for any number of threads and any place in the table.

use rayon::prelude::*;

use crate::error::CoreError;
use crate::grid::Grid;
use crate::load::{LOAD_FIELDS, LoadAnswers, Loads, solve_load};
use crate::points::{INPUTS, Input, POINT_FIELDS};
use crate::real::{LANES, Lanes};
use crate::replica::Replica;
use crate::solve::solve_block;
use crate::table::{Columns, Rows, blocks_of, zeroed};

/// Rows solved by one task.
const BLOCK_ROWS: usize = 256;
/// Axes that choose the replica, as one mixed-radix number in the order in which they stand in the grid.
pub const REPLICA_AXES: [&str; 7] = ["model", "gpu", "tp", "weight_dtype", "kv_dtype", "engine", "profile"];
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

/// Solves a table of points.
pub fn solve_rows(replicas: &[Replica], rows: &Rows) -> Columns {
    let mut columns = Columns::zeroed(rows.len());
    columns.blocks(BLOCK_ROWS).into_par_iter().enumerate().for_each(|(block, mut cells)| {
        let table = rows.slice(block * BLOCK_ROWS, cells.status.len());
        solve_block(replicas, &table, &mut cells);
    });
    columns
}

/// Operating points at given loads; `loads` are rate, clients, think time, one column each, NaN where not given.
pub fn solve_loads(replicas: &[Replica], rows: &Rows, loads: &[Vec<f64>; 3]) -> LoadColumns {
    let order: Vec<usize> = (0..rows.len()).collect();
    let groups: Vec<LoadAnswers> = order
        .par_chunks(LANES)
        .map(|group| {
            let lanes = |column: &Vec<f64>| Lanes::from_fn(|lane| column[group[lane.min(group.len() - 1)]]);
            let think_time = Lanes(lanes(&loads[2]).0.map(|z| if z.is_nan() { 0.0 } else { z }));
            let loads = Loads { rate: lanes(&loads[0]), concurrency: lanes(&loads[1]), think_time };
            solve_load(replicas, rows, group, &loads)
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
    /// The axes.
    pub grid: Grid,
    /// USD per accelerator and hour, [gpu][price_plan][provider]; NaN where there is none.
    pub prices: &'a [f64],
    replica_axes: Vec<usize>,
    price_axes: Vec<usize>,
    input_axes: Vec<Option<usize>>,
}

/// A stretch of a grid: its axes as columns, and the answers.
#[derive(Clone, Debug, Default)]
pub struct GridColumns {
    /// Inputs, defaults filled in.
    pub inputs: Vec<Vec<f64>>,
    /// Answers.
    pub answers: Columns,
}

impl<'a> GridSweep<'a> {
    /// Checks that the axes are known and that both tables have the sizes that the axes give.
    pub fn new(replicas: &'a [Replica], grid: Grid, prices: &'a [f64]) -> Result<Self, CoreError> {
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
        let input_axes = POINT_FIELDS.iter().map(|name| find(name)).collect();
        Ok(Self { replicas, grid, prices, replica_axes, price_axes, input_axes })
    }

    /// Index into a table laid out by some of the axes, for each row.
    fn table_index(&self, axes: &[usize], start: u64, rows: usize) -> Vec<u32> {
        let mut index = vec![0u32; rows];
        for &axis in axes {
            let radix = self.grid.axes()[axis].values.len() as u32;
            self.grid.runs(axis, start, rows, |from, to, digit| {
                index[from..to].iter_mut().for_each(|i| *i = *i * radix + digit as u32);
            });
        }
        index
    }

    fn rows(&self, start: u64, rows: usize) -> Rows {
        let replica = self.table_index(&self.replica_axes, start, rows);
        let mut fields: Vec<Vec<f64>> = self.input_axes.iter().map(|_| vec![f64::NAN; rows]).collect();
        for (field, axis) in fields.iter_mut().zip(&self.input_axes) {
            if let Some(axis) = *axis {
                let values = &self.grid.axes()[axis].values;
                self.grid.runs(axis, start, rows, |from, to, digit| field[from..to].fill(values[digit]));
            }
        }
        let price = self.table_index(&self.price_axes, start, rows);
        fields[Input::Price as usize] = price.iter().map(|&i| self.prices[i as usize]).collect();
        let mut rows = Rows { replica, fields };
        rows.fill_defaults(self.replicas);
        rows
    }

    /// Solves points `start..stop`.
    pub fn solve(&self, start: u64, stop: u64) -> Result<GridColumns, CoreError> {
        if start > stop || stop > self.grid.len() {
            return Err(CoreError::Range { start, stop, len: self.grid.len() });
        }
        let total = (stop - start) as usize;
        let mut all = GridColumns { inputs: zeroed(INPUTS, total), answers: Columns::zeroed(total) };
        let blocks =
            blocks_of::<INPUTS>(&mut all.inputs, BLOCK_ROWS).into_par_iter().zip(all.answers.blocks(BLOCK_ROWS));
        blocks.enumerate().for_each(|(block, (mut inputs, mut cells))| {
            let rows = self.rows(start + (block * BLOCK_ROWS) as u64, cells.status.len());
            for (cells, column) in inputs.iter_mut().zip(&rows.fields) {
                cells.copy_from_slice(column);
            }
            solve_block(self.replicas, &rows, &mut cells);
        });
        Ok(all)
    }

    /// Positions on one axis of points `start..stop`.
    pub fn codes(&self, axis: usize, start: u64, stop: u64) -> Vec<u32> {
        let mut codes = vec![0; (stop - start) as usize];
        self.grid.runs(axis, start, codes.len(), |from, to, digit| codes[from..to].fill(digit as u32));
        codes
    }
}
