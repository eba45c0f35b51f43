//! Work of one block, each piece once: (curve, number) pairs run in the lane of their curve.

use crate::capacity::LimitRate;
use crate::chart::Chart;
use crate::intern::{Interner, mix};
use crate::real::{LANES, Lanes};

/// Stands for a row, limit or lane without a task.
pub const NONE: u32 = u32::MAX;

/// A curve and a number: a bound, a rate or a B.
type Task = (u32, u64);

/// Distinct (curve, number) pairs of a block, and those of each curve as a list.
pub struct Tasks {
    pairs: Interner<Task>,
    /// First task of each curve.
    first: Vec<u32>,
    /// Next task of the same curve.
    next: Vec<u32>,
    /// The pair asked for last, and its number: neighbouring rows often share it.
    last: (Task, u32),
}

impl Tasks {
    /// None yet, on so many curves, for so many rows.
    pub fn new(curves: usize, rows: usize) -> Self {
        Self { pairs: Interner::new(rows), first: vec![NONE; curves], next: Vec::new(), last: ((NONE, 0), NONE) }
    }

    /// The pair's number; a new one if it is not remembered.
    fn number(&mut self, curve: u32, value: f64) -> u32 {
        let bits = value.to_bits();
        if self.last.0 == (curve, bits) {
            return self.last.1;
        }
        let number = self.pairs.number((curve, bits), bits ^ mix(u64::from(curve)));
        if number as usize == self.next.len() {
            self.next.push(self.first[curve as usize]);
            self.first[curve as usize] = number;
        }
        self.last = ((curve, bits), number);
        number
    }

    /// The number of each row's pair; `NONE` where it has no curve or no value.
    pub fn numbers(&mut self, curves: &[u32], values: &[f64]) -> Vec<u32> {
        let number = |(&curve, &value): (&u32, &f64)| {
            if curve == NONE || value.is_nan() { NONE } else { self.number(curve, value) }
        };
        curves.iter().zip(values).map(number).collect()
    }

    /// How many.
    pub fn count(&self) -> usize {
        self.next.len()
    }

    /// Runs every task in the lane of its curve; `run` gets the numbers of the tasks (`NONE` in idle lanes) and their values
    /// (NaN in idle lanes).
    pub fn solve(&self, charts: &[Chart], mut run: impl FnMut(&Chart, [u32; LANES], Lanes)) {
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
pub struct Found {
    /// The rate [requests/s].
    pub rate: f64,
    /// B there.
    pub decoding: f64,
    /// Curve evaluations spent.
    pub evaluations: f64,
    /// Whether the root settled.
    pub converged: bool,
}

impl Found {
    /// Before the task has run.
    pub const NOTHING: Self = Self { rate: f64::NAN, decoding: f64::NAN, evaluations: 0.0, converged: false };

    /// One lane of a result.
    pub fn lane(found: &LimitRate, lane: usize) -> Self {
        Self {
            rate: found.rate.0[lane],
            decoding: found.decoding.0[lane],
            evaluations: found.evaluations.0[lane],
            converged: found.converged.0[lane] != 0,
        }
    }

    /// Puts lanes under the numbers of their tasks.
    pub fn store(out: &mut [Self], tasks: [u32; LANES], found: &LimitRate) {
        for (lane, &task) in tasks.iter().enumerate() {
            if task != NONE {
                out[task as usize] = Self::lane(found, lane);
            }
        }
    }
}
