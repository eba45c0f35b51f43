//! Arrays and dicts ↔ the core's tables, and its errors → ValueError.

use lambdamax_core::error::CoreError;
use lambdamax_core::points::{ANSWER_FIELDS, POINT_FIELDS};
use lambdamax_core::replica::{REPLICA_FIELDS, Replica};
use lambdamax_core::table::Columns;
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// The core's refusal as a ValueError.
pub fn bad_call(error: CoreError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

fn check_length(name: &str, found: usize, expected: usize) -> PyResult<()> {
    if found == expected {
        return Ok(());
    }
    Err(bad_call(CoreError::Length { name: name.into(), found, expected }))
}

/// One float column of a dict; all NaN where it is missing.
pub fn column(columns: &Bound<'_, PyDict>, name: &str, rows: usize) -> PyResult<Vec<f64>> {
    let Some(value) = columns.get_item(name)? else {
        return Ok(vec![f64::NAN; rows]);
    };
    let array: PyReadonlyArray1<'_, f64> = value.extract()?;
    let values = array.as_slice()?.to_vec();
    check_length(name, values.len(), rows)?;
    Ok(values)
}

/// The point inputs in the core's order; a name that is neither an input nor among `also` is refused.
pub fn point_columns(columns: &Bound<'_, PyDict>, rows: usize, also: &[&str]) -> PyResult<Vec<Vec<f64>>> {
    for key in columns.keys() {
        let name: String = key.extract()?;
        if !POINT_FIELDS.contains(&name.as_str()) && !also.contains(&name.as_str()) {
            return Err(bad_call(CoreError::Unknown { name }));
        }
    }
    POINT_FIELDS.iter().map(|name| column(columns, name, rows)).collect()
}

/// The replica table.
pub fn replicas(columns: &Bound<'_, PyDict>) -> PyResult<Vec<Replica>> {
    let mut fields: Vec<(&'static str, Vec<f64>)> = Vec::with_capacity(REPLICA_FIELDS.len());
    for &name in REPLICA_FIELDS {
        let value = columns.get_item(name)?.ok_or_else(|| bad_call(CoreError::Missing { name: name.into() }))?;
        let array: PyReadonlyArray1<'_, f64> = value.extract()?;
        fields.push((name, array.as_slice()?.to_vec()));
    }
    let rows = fields[0].1.len();
    for (name, values) in &fields {
        check_length(name, values.len(), rows)?;
    }
    let read = |row: usize| {
        let get =
            |name: &'static str| fields.iter().find(|field| field.0 == name).map_or(f64::NAN, |field| field.1[row]);
        Replica::read(&get).map_err(|source| bad_call(CoreError::Row { row, source: Box::new(source) }))
    };
    (0..rows).map(read).collect()
}

/// Runs on a pool of that many threads; 0 is the process's own pool.
pub fn on_threads<T: Send>(threads: usize, work: impl FnOnce() -> T + Send) -> T {
    if threads == 0 {
        return work();
    }
    match rayon::ThreadPoolBuilder::new().num_threads(threads).build() {
        Ok(pool) => pool.install(work),
        Err(_) => work(),
    }
}

/// A column of codes.
pub fn codes(py: Python<'_>, values: Vec<u8>) -> Bound<'_, PyArray1<u8>> {
    PyArray1::from_vec(py, values)
}

/// Float columns under their names; the arrays take over the memory.
pub fn put_columns(out: &Bound<'_, PyDict>, names: &[&str], columns: Vec<Vec<f64>>) -> PyResult<()> {
    for (name, column) in names.iter().zip(columns) {
        out.set_item(name, PyArray1::from_vec(out.py(), column))?;
    }
    Ok(())
}

/// Answers and codes.
pub fn put_answers(out: &Bound<'_, PyDict>, columns: Columns) -> PyResult<()> {
    put_columns(out, ANSWER_FIELDS, columns.fields)?;
    out.set_item("status", codes(out.py(), columns.status))?;
    out.set_item("binding_limit", codes(out.py(), columns.binding))?;
    out.set_item("next_limit", codes(out.py(), columns.next))
}

/// Named floats.
pub fn floats<'py>(py: Python<'py>, values: Vec<(&'static str, f64)>) -> PyResult<Bound<'py, PyDict>> {
    let out = PyDict::new(py);
    for (name, value) in values {
        out.set_item(name, value)?;
    }
    Ok(out)
}
