//! Winners of groups, and how sure they are: arrays in, arrays out.

use std::sync::{Mutex, PoisonError};

use lambdamax_core::frontier::{Chunk, Frontier as CoreFrontier, Keep};
use lambdamax_core::points::STATUS_NAMES;
use lambdamax_sim::robustness::{Choice, Standing, standings};
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::convert::{bad_call, column, on_threads};

type Rows<'py> = Bound<'py, PyArray1<u32>>;

/// Columns that say what an option of `robustness` costs and how unsure that is.
const CHOICE_FIELDS: [&str; 7] =
    ["device_hours", "shared_sigma", "error_factor", "own_sigma", "lowest_price", "highest_price", "price_factor"];

/// Winners of groups of points that stream by.
#[pyclass(frozen)]
pub struct Frontier {
    state: Mutex<CoreFrontier>,
}

#[pymethods]
impl Frontier {
    /// For so many key columns and objectives; `best` points of each group, or with 0 its Pareto set.
    #[new]
    fn new(keys: usize, objectives: usize, best: usize, margin: f64) -> Self {
        let keep = if best == 0 { Keep::Pareto } else { Keep::Best(best) };
        Self { state: Mutex::new(CoreFrontier::new(keys, objectives, STATUS_NAMES.len(), keep, margin)) }
    }

    /// Takes a chunk in: rows that may be winners, the group of each, and the first rows of new groups. Larger objectives are better, NaN cannot win.
    #[pyo3(signature = (keys, objectives, status, weights = None))]
    fn add<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<PyReadonlyArray1<'py, u64>>,
        objectives: Vec<PyReadonlyArray1<'py, f64>>,
        status: PyReadonlyArray1<'py, u8>,
        weights: Option<PyReadonlyArray1<'py, u64>>,
    ) -> PyResult<(Rows<'py>, Rows<'py>, Rows<'py>)> {
        let keys = keys.iter().map(|column| column.as_slice()).collect::<Result<Vec<_>, _>>()?;
        let objectives = objectives.iter().map(|column| column.as_slice()).collect::<Result<Vec<_>, _>>()?;
        let weights = weights.as_ref().map(|column| column.as_slice()).transpose()?.unwrap_or_default();
        let chunk = Chunk { keys: &keys, objectives: &objectives, status: status.as_slice()?, weights };
        let added = py.detach(|| self.state.lock().unwrap_or_else(PoisonError::into_inner).add(&chunk));
        let added = added.map_err(bad_call)?;
        Ok([added.candidates, added.groups, added.opened].map(|rows| PyArray1::from_vec(py, rows)).into())
    }

    /// One column of the keys of each group, in the order of their first appearance.
    fn keys<'py>(&self, py: Python<'py>, column: usize) -> Bound<'py, PyArray1<u64>> {
        PyArray1::from_vec(py, self.state.lock().unwrap_or_else(PoisonError::into_inner).keys(column))
    }

    /// Points of each group that have the status of this code, in the order of their first appearance; empty where no point has it.
    fn counts<'py>(&self, py: Python<'py>, status: usize) -> Bound<'py, PyArray1<u64>> {
        PyArray1::from_vec(py, self.state.lock().unwrap_or_else(PoisonError::into_inner).counts(status))
    }
}

/// How often each option is the cheapest, its expected regret and the standard error of that.
#[pyfunction]
#[pyo3(signature = (options, draws, seed, threads = 0))]
pub fn robustness<'py>(
    py: Python<'py>,
    options: &Bound<'py, PyDict>,
    draws: u32,
    seed: u64,
    threads: usize,
) -> PyResult<Bound<'py, PyDict>> {
    let rows = options.get_item(CHOICE_FIELDS[0])?.map_or(Ok(0), |values| values.len())?;
    let columns = CHOICE_FIELDS.iter().map(|name| column(options, name, rows)).collect::<PyResult<Vec<_>>>()?;
    let choices: Vec<Choice> = (0..rows).map(|row| choice(&|field| columns[field][row])).collect();
    let found = py.detach(|| on_threads(threads, || standings(&choices, draws, seed)));
    let found = found.map_err(|error| PyValueError::new_err(error.to_string()))?;
    let out = PyDict::new(py);
    type Part = fn(&Standing) -> f64;
    let parts: [(&str, Part); 3] =
        [("cheapest", |s| s.cheapest), ("regret", |s| s.regret), ("regret_error", |s| s.regret_error)];
    for (name, part) in parts {
        out.set_item(name, PyArray1::from_iter(py, found.iter().map(part)))?;
    }
    Ok(out)
}

fn choice(get: &impl Fn(usize) -> f64) -> Choice {
    Choice {
        device_hours: get(0),
        shared_sigma: get(1),
        error_factor: get(2) as usize,
        own_sigma: get(3),
        lowest_price: get(4),
        highest_price: get(5),
        price_factor: get(6) as usize,
    }
}
