//! `lambdamax._engine`: NumPy arrays in, NumPy arrays out, the interpreter released in between. No arithmetic here.

mod choosing;
mod convert;
mod memory;
mod simulation;

use pyo3::prelude::*;

/// Rust solvers behind lambdamax; see `lambdamax.engine` for the typed front.
#[pymodule]
mod _engine {
    use std::sync::Arc;

    use lambdamax_core::block::BLOCK_FIELDS;
    use lambdamax_core::capacity::LIMIT_NAMES;
    use lambdamax_core::grid::{Axis, Grid};
    use lambdamax_core::lengths::EmpiricalLengths;
    use lambdamax_core::load::{LOAD_FIELDS, LOAD_STATUS_NAMES};
    use lambdamax_core::one_number::{Measured, one_number as core_one_number};
    use lambdamax_core::points::{ANSWER_FIELDS, POINT_FIELDS, STATUS_NAMES};
    use lambdamax_core::replica::{REPLICA_FIELDS, Replica};
    use lambdamax_core::sweep::{GridCells, GridSweep, PRICE_AXES, REPLICA_AXES, solve_loads, solve_rows};
    use lambdamax_core::table::Rows;
    use lambdamax_sim::lengths::Lengths as SimLengths;
    use lambdamax_sim::point::SIM_INPUTS;
    use lambdamax_sim::summary::SIM_FIELDS;
    use lambdamax_sim::verdict::SIM_STATUS_NAMES;
    use numpy::{PyArray1, PyArray2, PyReadonlyArray1};
    use pyo3::exceptions::PyIndexError;
    use pyo3::prelude::*;
    use pyo3::types::{PyDict, PyTuple};

    #[pymodule_export]
    use crate::choosing::{Frontier, robustness};
    use crate::convert::{
        CODES, Table, answer_cells, bad_call, codes, column, floats, law, length_rows, on_threads, point_columns,
        put_columns, replicas, take_columns,
    };
    #[pymodule_export]
    use crate::memory::Memory;
    use crate::simulation::{Control, Request, drawn_lengths, put_outcomes, trace_rows};

    /// Floats as Python sees them.
    type Column<'py> = Bound<'py, PyArray1<f64>>;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        let py = module.py();
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        let names: [(&str, &[&str]); 9] = [
            ("REPLICA_FIELDS", REPLICA_FIELDS),
            ("BLOCK_FIELDS", BLOCK_FIELDS),
            ("POINT_FIELDS", POINT_FIELDS),
            ("ANSWER_FIELDS", ANSWER_FIELDS),
            ("LOAD_FIELDS", LOAD_FIELDS),
            ("REPLICA_AXES", &REPLICA_AXES),
            ("PRICE_AXES", &PRICE_AXES),
            ("SIM_INPUTS", SIM_INPUTS),
            ("SIM_FIELDS", SIM_FIELDS),
        ];
        for (name, values) in names {
            module.add(name, PyTuple::new(py, values)?)?;
        }
        module.add("STATUSES", PyTuple::new(py, STATUS_NAMES)?)?;
        module.add("LIMITS", PyTuple::new(py, LIMIT_NAMES)?)?;
        module.add("LOAD_STATUSES", PyTuple::new(py, LOAD_STATUS_NAMES)?)?;
        module.add("SIM_STATUSES", PyTuple::new(py, SIM_STATUS_NAMES)?)
    }

    /// Build profile of the extension: "release" or "debug".
    #[pyfunction]
    fn build_profile() -> &'static str {
        if cfg!(debug_assertions) { "debug" } else { "release" }
    }

    /// A table of replicas (one row is one model on one accelerator with one tp, dtypes and profile), and the empirical laws of lengths
    /// that points refer to by their place.
    #[pyclass(frozen)]
    struct Replicas {
        rows: Vec<Replica>,
        lengths: Vec<Arc<EmpiricalLengths>>,
        drawn: Vec<SimLengths>,
    }

    #[pymethods]
    impl Replicas {
        /// Takes one float64 array for each name in REPLICA_FIELDS, and for each in BLOCK_FIELDS, and for each law its prompt tokens,
        /// output tokens and weights; raises ValueError naming row, field and value.
        #[new]
        #[pyo3(signature = (columns, blocks, lengths = Vec::new()))]
        fn new(
            columns: &Bound<'_, PyDict>,
            blocks: &Bound<'_, PyDict>,
            lengths: Vec<[PyReadonlyArray1<'_, f64>; 3]>,
        ) -> PyResult<Self> {
            let rows = replicas(columns, blocks)?;
            let tables = lengths.iter().map(length_rows).collect::<PyResult<Vec<_>>>()?;
            let laws = tables.iter().map(|table| law(table, &rows)).collect::<PyResult<_>>()?;
            let drawn = tables.iter().map(|table| drawn_lengths(table)).collect::<PyResult<_>>()?;
            Ok(Self { rows, lengths: laws, drawn })
        }

        fn __len__(&self) -> usize {
            self.rows.len()
        }

        /// Sizes that follow from the facts, as arrays: bytes, parameters, KV bytes per token, and the single-stream floor [s].
        fn facts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
            let out = PyDict::new(py);
            type Fact = fn(&Replica) -> f64;
            let facts: [(&str, Fact); 12] = [
                ("weight_bytes", |r| r.weight_bytes),
                ("weight_shard_bytes", |r| r.weight_shard_bytes),
                ("weight_read_bytes", |r| r.weight_read_bytes),
                ("kv_bytes_per_token", |r| r.kv_bytes_per_token),
                ("kv_bytes_per_token_rank", |r| r.kv_bytes_per_token_rank),
                ("state_bytes", |r| r.state_bytes),
                ("slots", |r| r.slots),
                ("total_params", |r| r.total_params),
                ("active_params", |r| r.active_params),
                ("layer_matmul_params", |r| r.layer_matmul_params),
                ("head_params", |r| r.head_params),
                ("tpot_floor_s", |r| r.tpot_floor_s),
            ];
            for (name, fact) in facts {
                out.set_item(name, PyArray1::from_iter(py, self.rows.iter().map(fact)))?;
            }
            Ok(out)
        }

        /// Weights and lengths of the prompt nodes of one empirical law.
        fn prompt_nodes<'py>(&self, py: Python<'py>, place: usize) -> PyResult<(Column<'py>, Column<'py>)> {
            let law = self.lengths.get(place).ok_or_else(|| PyIndexError::new_err(format!("lengths {place}")))?;
            let (weights, lengths): (Vec<f64>, Vec<f64>) = law.nodes().iter().copied().unzip();
            Ok((PyArray1::from_vec(py, weights), PyArray1::from_vec(py, lengths)))
        }
    }

    /// Solves a table of points; `points` maps POINT_FIELDS to float64 arrays (missing ones take defaults).
    #[pyfunction]
    #[pyo3(signature = (replicas, replica, points, threads = 0))]
    fn solve<'py>(
        py: Python<'py>,
        replicas: &Replicas,
        replica: PyReadonlyArray1<'py, u32>,
        points: &Bound<'py, PyDict>,
        threads: usize,
    ) -> PyResult<Bound<'py, PyDict>> {
        let replica = replica.as_slice()?.to_vec();
        let fields = point_columns(points, replica.len(), &[])?;
        let table = &replicas.rows;
        let rows = py.detach(|| Rows::new(table, &replicas.lengths, replica, fields)).map_err(bad_call)?;
        let answers = Table::new(py, ANSWER_FIELDS.iter().copied(), rows.len());
        let codes = Table::new(py, CODES, rows.len());
        let (mut floats, mut names) = (answers.cells(), codes.cells());
        let cells = answer_cells(floats.as_slice_mut()?, names.as_slice_mut()?, rows.len());
        py.detach(|| on_threads(threads, || solve_rows(table, &rows, cells)));
        let out = PyDict::new(py);
        answers.put(&out)?;
        codes.put(&out)?;
        Ok(out)
    }

    /// Solves points `start..stop` of a grid; axes slowest first, see REPLICA_AXES, PRICE_AXES and POINT_FIELDS. The floats are in `memory`, if any.
    #[pyfunction]
    #[pyo3(signature = (replicas, axes, prices, start, stop, threads = 0, memory = None))]
    #[allow(clippy::too_many_arguments)]
    fn solve_grid<'py>(
        py: Python<'py>,
        replicas: &Replicas,
        axes: Vec<(String, PyReadonlyArray1<'py, f64>)>,
        prices: PyReadonlyArray1<'py, f64>,
        start: u64,
        stop: u64,
        threads: usize,
        memory: Option<&Memory>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let mut grid_axes = Vec::with_capacity(axes.len());
        for (name, values) in axes {
            grid_axes.push(Axis { name, values: values.as_slice()?.to_vec() });
        }
        let grid = Grid::new(grid_axes).map_err(bad_call)?;
        let prices = prices.as_slice()?.to_vec();
        let table = &replicas.rows;
        let sweep = GridSweep::new(table, &replicas.lengths, grid, &prices).map_err(bad_call)?;
        let rows = sweep.rows(start, stop).map_err(bad_call)?;
        let names = || sweep.grid.axes().iter().map(|axis| axis.name.as_str()).enumerate();
        let texts: Vec<(usize, &str)> = names().filter(|(_, name)| !POINT_FIELDS.contains(name)).collect();
        let places = Table::new(py, texts.iter().map(|&(_, name)| name), rows);
        let numbers = Table::of(POINT_FIELDS.iter().chain(ANSWER_FIELDS).copied(), |columns| match memory {
            Some(memory) => memory.array(py, [columns, rows]),
            None => PyArray2::zeros(py, [columns, rows], false),
        });
        let codes = Table::new(py, CODES, rows);
        let (mut positions, mut floats, mut answers) = (places.cells(), numbers.cells(), codes.cells());
        let mut floats = floats.as_slice_mut()?;
        let inputs = take_columns(&mut floats, rows);
        let cells = GridCells { inputs, answers: answer_cells(floats, answers.as_slice_mut()?, rows) };
        let positions = positions.as_slice_mut()?;
        let work = || {
            for ((axis, _), cells) in texts.iter().zip(positions.chunks_exact_mut(rows.max(1))) {
                sweep.codes(*axis, start, cells);
            }
            sweep.solve(start, cells)
        };
        py.detach(|| on_threads(threads, work)).map_err(bad_call)?;
        let out = PyDict::new(py);
        places.put(&out)?;
        numbers.put(&out)?;
        codes.put(&out)?;
        Ok(out)
    }

    /// Operating points at given loads: `points` also holds rate_rps, or concurrency and think_time_s.
    #[pyfunction]
    #[pyo3(signature = (replicas, replica, points, threads = 0))]
    fn load<'py>(
        py: Python<'py>,
        replicas: &Replicas,
        replica: PyReadonlyArray1<'py, u32>,
        points: &Bound<'py, PyDict>,
        threads: usize,
    ) -> PyResult<Bound<'py, PyDict>> {
        const LOADS: [&str; 3] = ["rate_rps", "concurrency", "think_time_s"];
        let replica = replica.as_slice()?.to_vec();
        let len = replica.len();
        let fields = point_columns(points, len, &LOADS)?;
        let loads = [column(points, LOADS[0], len)?, column(points, LOADS[1], len)?, column(points, LOADS[2], len)?];
        let table = &replicas.rows;
        let columns = py.detach(|| {
            let rows = Rows::new(table, &replicas.lengths, replica, fields)?;
            Ok(on_threads(threads, || solve_loads(table, &rows, &loads)))
        });
        let columns = columns.map_err(bad_call)?;
        let out = PyDict::new(py);
        put_columns(&out, LOAD_FIELDS, columns.fields)?;
        out.set_item("status", codes(py, columns.status))?;
        Ok(out)
    }

    /// Simulates a table of points, or one point under a trace (arrival [s], input and output tokens); `points` also holds SIM_INPUTS.
    #[pyfunction]
    #[pyo3(signature = (replicas, replica, points, *, requests, precision, replications, seed, trace = None, threads = 0))]
    #[allow(clippy::too_many_arguments)]
    fn simulate<'py>(
        py: Python<'py>,
        replicas: &Replicas,
        replica: PyReadonlyArray1<'py, u32>,
        points: &Bound<'py, PyDict>,
        requests: u64,
        precision: f64,
        replications: u32,
        seed: u64,
        trace: Option<[PyReadonlyArray1<'py, f64>; 3]>,
        threads: usize,
    ) -> PyResult<Bound<'py, PyDict>> {
        let replica = replica.as_slice()?.to_vec();
        let len = replica.len();
        let fields = point_columns(points, len, SIM_INPUTS)?;
        let own = SIM_INPUTS.iter().map(|name| column(points, name, len)).collect::<PyResult<Vec<_>>>()?;
        let trace = trace.as_ref().map(trace_rows).transpose()?;
        let control = Control { requests, precision, replications, seed };
        let table = &replicas.rows;
        let rows = Rows::new(table, &replicas.lengths, replica, fields).map_err(bad_call)?;
        let asked =
            Request { table, lengths: &replicas.drawn, rows: rows.stretch(0, rows.len()), own: &own, trace, control };
        let outcomes = py.detach(|| on_threads(threads, || asked.run()))?;
        let out = PyDict::new(py);
        put_outcomes(&out, outcomes)?;
        Ok(out)
    }

    /// The chain of one measured point and the one-number fixed point behind it; see docs/model.md.
    #[pyfunction]
    #[pyo3(signature = (replicas, row, *, isl_tokens, osl_tokens, rate_rps, measured_ttft_s, measured_tpot_s, kv_pool_tokens, slo_tpot_s))]
    #[allow(clippy::too_many_arguments)]
    fn one_number<'py>(
        py: Python<'py>,
        replicas: &Replicas,
        row: usize,
        isl_tokens: f64,
        osl_tokens: f64,
        rate_rps: f64,
        measured_ttft_s: f64,
        measured_tpot_s: f64,
        kv_pool_tokens: f64,
        slo_tpot_s: f64,
    ) -> PyResult<Bound<'py, PyDict>> {
        let replica = replicas.rows.get(row).ok_or_else(|| PyIndexError::new_err(format!("row {row}")))?;
        let at = Measured { isl_tokens, osl_tokens, rate_rps, ttft_s: measured_ttft_s, tpot_s: measured_tpot_s };
        floats(py, core_one_number(replica, &at, kv_pool_tokens, slo_tpot_s))
    }
}
