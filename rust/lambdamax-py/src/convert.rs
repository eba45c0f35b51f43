//! Arrays and dicts ↔ the core's tables, and its errors → ValueError.

use std::collections::HashMap;
use std::sync::Arc;

use lambdamax_core::block::{BLOCK_FIELDS, Block};
use lambdamax_core::error::CoreError;
use lambdamax_core::lengths::{EmpiricalLengths, Seen};
use lambdamax_core::points::POINT_FIELDS;
use lambdamax_core::replica::{REPLICA_FIELDS, Replica};
use lambdamax_core::span::Span;
use lambdamax_core::table::Cells;
use numpy::{Element, PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray1, PyReadwriteArray2};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Columns of codes among the answers of a point.
pub const CODES: [&str; 3] = ["status", "binding_limit", "next_limit"];

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

/// Float columns by name, all of one length.
struct Facts {
    columns: Vec<(&'static str, Vec<f64>)>,
    rows: usize,
}

impl Facts {
    fn new(columns: &Bound<'_, PyDict>, names: &[&'static str]) -> PyResult<Self> {
        let mut fields: Vec<(&'static str, Vec<f64>)> = Vec::with_capacity(names.len());
        for &name in names {
            let value = columns.get_item(name)?.ok_or_else(|| bad_call(CoreError::Missing { name: name.into() }))?;
            let array: PyReadonlyArray1<'_, f64> = value.extract()?;
            fields.push((name, array.as_slice()?.to_vec()));
        }
        let rows = fields[0].1.len();
        for (name, values) in &fields {
            check_length(name, values.len(), rows)?;
        }
        Ok(Self { columns: fields, rows })
    }

    fn at(&self, name: &'static str, row: usize) -> f64 {
        self.columns.iter().find(|column| column.0 == name).map_or(f64::NAN, |column| column.1[row])
    }

    /// What `read` makes of each row; an error names the row.
    fn read<T>(&self, read: impl Fn(usize) -> Result<T, CoreError>) -> PyResult<Vec<T>> {
        let named = |row| read(row).map_err(|source| bad_call(CoreError::Row { row, source: Box::new(source) }));
        (0..self.rows).map(named).collect()
    }
}

/// The replica table, and the blocks of layers of its models.
pub fn replicas(columns: &Bound<'_, PyDict>, blocks: &Bound<'_, PyDict>) -> PyResult<Vec<Replica>> {
    let blocks = Facts::new(blocks, BLOCK_FIELDS)?;
    let mut of_model: HashMap<u64, Vec<Block>> = HashMap::new();
    for (row, block) in blocks.read(|row| Block::read(&|name| blocks.at(name, row)))?.into_iter().enumerate() {
        of_model.entry(blocks.at("model", row).to_bits()).or_default().push(block);
    }
    let rows = Facts::new(columns, REPLICA_FIELDS)?;
    rows.read(|row| {
        let layers = of_model.get(&rows.at("model", row).to_bits()).map_or(&[][..], Vec::as_slice);
        Replica::read(&|name| rows.at(name, row), layers)
    })
}

/// Prompt tokens, output tokens and weights of an empirical law, row by row.
pub fn length_rows(columns: &[PyReadonlyArray1<'_, f64>; 3]) -> PyResult<Vec<(f64, f64, f64)>> {
    let [prompt, output, weight] = [columns[0].as_slice()?, columns[1].as_slice()?, columns[2].as_slice()?];
    check_length("osl_tokens", output.len(), prompt.len())?;
    check_length("weight", weight.len(), prompt.len())?;
    Ok(prompt.iter().zip(output).zip(weight).map(|((&prompt, &output), &weight)| (prompt, output, weight)).collect())
}

/// An empirical law, with what the spans of the replicas need of it.
pub fn law(rows: &[(f64, f64, f64)], replicas: &[Replica]) -> PyResult<Arc<EmpiricalLengths>> {
    let seen: Vec<Seen> = rows.iter().map(|&(prompt, output, weight)| Seen { prompt, output, weight }).collect();
    let costs = replicas.iter().flat_map(|replica| replica.spans.as_slice());
    let mut spans: Vec<Span> = Vec::new();
    for span in costs.map(|costs| costs.span).filter(|span| !span.is_full()) {
        if !spans.contains(&span) {
            spans.push(span);
        }
    }
    EmpiricalLengths::new(&seen, &spans).map(Arc::new).map_err(bad_call)
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

/// Columns of one type in one array, a column a row of it: memory taken at once comes in large pages, many times faster than page
/// by page for each column.
pub struct Table<'py, T> {
    array: Bound<'py, PyArray2<T>>,
    names: Vec<String>,
}

impl<'py, T: Element> Table<'py, T> {
    /// Zeros.
    pub fn new<'a>(py: Python<'py>, names: impl IntoIterator<Item = &'a str>, rows: usize) -> Self {
        Self::of(names, |columns| PyArray2::zeros(py, [columns, rows], false))
    }

    /// The columns of an array that is made for their number.
    pub fn of<'a>(
        names: impl IntoIterator<Item = &'a str>,
        array: impl FnOnce(usize) -> Bound<'py, PyArray2<T>>,
    ) -> Self {
        let names: Vec<String> = names.into_iter().map(String::from).collect();
        Self { array: array(names.len()), names }
    }

    /// All cells, column after column, to be written.
    pub fn cells(&self) -> PyReadwriteArray2<'py, T> {
        self.array.readwrite()
    }

    /// Puts the columns under their names.
    pub fn put(&self, out: &Bound<'py, PyDict>) -> PyResult<()> {
        for (place, name) in self.names.iter().enumerate() {
            out.set_item(name, self.array.get_item(place)?)?;
        }
        Ok(())
    }
}

/// The first columns of a table's cells; the rest stay in `cells`.
pub fn take_columns<'a, T, const N: usize>(cells: &mut &'a mut [T], rows: usize) -> [&'a mut [T]; N] {
    std::array::from_fn(|_| {
        let (column, rest) = std::mem::take(cells).split_at_mut(rows);
        *cells = rest;
        column
    })
}

/// The cells of answers, from those of tables of `ANSWER_FIELDS` and `CODES`.
pub fn answer_cells<'a>(mut floats: &'a mut [f64], mut codes: &'a mut [u8], rows: usize) -> Cells<'a> {
    let fields = take_columns(&mut floats, rows);
    let [status, binding, next] = take_columns(&mut codes, rows);
    Cells { fields, status, binding, next }
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

/// Named floats.
pub fn floats<'py>(py: Python<'py>, values: Vec<(&'static str, f64)>) -> PyResult<Bound<'py, PyDict>> {
    let out = PyDict::new(py);
    for (name, value) in values {
        out.set_item(name, value)?;
    }
    Ok(out)
}
