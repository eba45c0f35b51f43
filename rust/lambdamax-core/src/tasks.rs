//! Work of one block, each piece once: (curve, setting, number) run in the lane of their curve.

use crate::capacity::LimitRate;
use crate::chart::Chart;
use crate::intern::{Interner, mix};
use crate::real::{LANES, Lanes};

/// Stands for a row, limit or lane without a task.
pub const NONE: u32 = u32::MAX;

/// A curve, a setting of the question, and a number: a bound, a rate or a B.
type Task = (u32, u32, u64);

/// Tasks of up to eight lanes; idle lanes have the task `NONE`, the setting 0 and NaN.
pub struct Group {
    /// Numbers of the tasks.
    pub tasks: [u32; LANES],
    /// Their settings.
    pub settings: [u32; LANES],
    /// Their numbers.
    pub values: Lanes,
}

/// Distinct tasks of a block, and those of each curve as a list.
pub struct Tasks {
    distinct: Interner<Task>,
    /// First task of each curve.
    first: Vec<u32>,
    /// Next task of the same curve.
    next: Vec<u32>,
    /// The task asked for last, and its number: neighbouring rows often share it.
    last: (Task, u32),
}

impl Tasks {
    /// None yet, on so many curves, for so many rows.
    pub fn new(curves: usize, rows: usize) -> Self {
        Self { distinct: Interner::new(rows), first: vec![NONE; curves], next: Vec::new(), last: ((NONE, 0, 0), NONE) }
    }

    /// The task's number; a new one if it is not remembered.
    pub fn number(&mut self, curve: u32, setting: u32, value: f64) -> u32 {
        let task = (curve, setting, value.to_bits());
        if self.last.0 == task {
            return self.last.1;
        }
        let number = self.distinct.number(task, task.2 ^ mix(u64::from(curve) | u64::from(setting) << 32));
        if number as usize == self.next.len() {
            self.next.push(self.first[curve as usize]);
            self.first[curve as usize] = number;
        }
        self.last = (task, number);
        number
    }

    /// The number of each row's task with setting 0; `NONE` where it has no curve or no value.
    pub fn numbers(&mut self, curves: &[u32], values: &[f64]) -> Vec<u32> {
        let number = |(&curve, &value): (&u32, &f64)| {
            if curve == NONE || value.is_nan() { NONE } else { self.number(curve, 0, value) }
        };
        curves.iter().zip(values).map(number).collect()
    }

    /// How many.
    pub fn count(&self) -> usize {
        self.next.len()
    }

    /// Runs every task in the lane of its curve.
    pub fn solve<'a>(&self, charts: &'a [Chart], mut run: impl FnMut(&'a Chart, &Group)) {
        for (group, chart) in charts.iter().enumerate() {
            let mut tasks: [u32; LANES] =
                std::array::from_fn(|lane| self.first.get(group * LANES + lane).copied().unwrap_or(NONE));
            while tasks.iter().any(|&task| task != NONE) {
                let settings = tasks.map(|task| self.task(task).map_or(0, |known| known.1));
                let value = |lane: usize| self.task(tasks[lane]).map_or(f64::NAN, |known| f64::from_bits(known.2));
                run(chart, &Group { tasks, settings, values: Lanes::from_fn(value) });
                tasks = tasks.map(|task| if task == NONE { NONE } else { self.next[task as usize] });
            }
        }
    }

    fn task(&self, number: u32) -> Option<Task> {
        self.distinct.keys().get(number as usize).copied()
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
