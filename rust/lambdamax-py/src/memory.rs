//! Memory of solved tables, written again once nobody holds it: fresh pages cost as much as solving what is written into them.

use std::sync::{Mutex, PoisonError};

use numpy::{PyArray2, PyUntypedArrayMethods};
use pyo3::prelude::*;

/// Arrays that are kept; the one that was made first gives way.
const MOST_KEPT: usize = 2;

/// Memory for the floats of one table after another, of which a caller holds one while the next is solved.
#[pyclass(frozen)]
pub struct Memory {
    arrays: Mutex<Vec<Py<PyArray2<f64>>>>,
}

#[pymethods]
impl Memory {
    /// None yet.
    #[new]
    fn new() -> Self {
        Self { arrays: Mutex::new(Vec::new()) }
    }
}

impl Memory {
    /// An array of this shape that nobody else refers to, and that holds anything.
    pub fn array<'py>(&self, py: Python<'py>, shape: [usize; 2]) -> Bound<'py, PyArray2<f64>> {
        let mut arrays = self.arrays.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the pointer is that of a live object, and the interpreter is held.
        let holders = |array: &Py<PyArray2<f64>>| unsafe { pyo3::ffi::Py_REFCNT(array.as_ptr()) };
        let free = |array: &&Py<PyArray2<f64>>| holders(array) == 1 && array.bind(py).shape() == shape;
        if let Some(array) = arrays.iter().find(free) {
            return array.bind(py).clone();
        }
        let made = PyArray2::zeros(py, shape, false);
        if arrays.len() == MOST_KEPT {
            arrays.remove(0);
        }
        arrays.push(made.clone().unbind());
        made
    }
}
