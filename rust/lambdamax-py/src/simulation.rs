//! A table of points → the simulator's, and its outcomes → columns.

use std::sync::Arc;

use lambdamax_core::points::{Input, Status};
use lambdamax_core::replica::Replica;
use lambdamax_core::table::Stretch;
use lambdamax_sim::arrivals::TraceRow;
use lambdamax_sim::error::SimError;
use lambdamax_sim::lengths::{Lengths, WeightedPairs};
use lambdamax_sim::point::{Inputs, Point, SIM_INPUTS};
use lambdamax_sim::recorder::Finished;
pub use lambdamax_sim::replications::Control;
use lambdamax_sim::replications::{Outcome, simulate};
use lambdamax_sim::summary::{Numbers, SIM_FIELDS};
use lambdamax_sim::verdict::SIM_STATUS_NAMES;
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rayon::prelude::*;

use crate::convert::{codes, put_columns};

/// What is asked of the simulator.
pub struct Request<'a> {
    /// The replicas.
    pub table: &'a [Replica],
    /// Empirical laws that points refer to.
    pub lengths: &'a [Lengths],
    /// The points, defaults filled in.
    pub rows: Stretch<'a>,
    /// One column for each of `SIM_INPUTS`.
    pub own: &'a [Vec<f64>],
    /// Requests to replay or to draw lengths from.
    pub trace: Option<Arc<[TraceRow]>>,
    /// How long and how often.
    pub control: Control,
}

/// A row's outcome, or why there is none.
type Answer = Result<Outcome, Status>;

fn refused(error: SimError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// Arrival, input tokens and output tokens as the rows of a trace; fractions of tokens are cut off.
pub fn trace_rows(columns: &[PyReadonlyArray1<'_, f64>; 3]) -> PyResult<Arc<[TraceRow]>> {
    let [arrival, prompt, output] = [columns[0].as_slice()?, columns[1].as_slice()?, columns[2].as_slice()?];
    if arrival.len() != prompt.len() || arrival.len() != output.len() {
        return Err(PyValueError::new_err("the columns of a trace differ in length"));
    }
    let rows = arrival.iter().zip(prompt.iter().zip(output));
    Ok(rows
        .map(|(&arrival_s, (&prompt, &output))| TraceRow { arrival_s, prompt: prompt as u32, output: output as u32 })
        .collect())
}

/// Rows (prompt, output, weight) of an empirical law, as the simulator draws from it.
pub fn drawn_lengths(rows: &[(f64, f64, f64)]) -> PyResult<Lengths> {
    Ok(Lengths::Weighted(Arc::new(WeightedPairs::new(rows).map_err(refused)?)))
}

impl Request<'_> {
    /// Every row, side by side.
    pub fn run(&self) -> PyResult<Vec<Answer>> {
        (0..self.rows.len()).into_par_iter().map(|row| self.row(row)).collect()
    }

    fn row(&self, row: usize) -> PyResult<Answer> {
        let replica = &self.table[self.rows.replica[row] as usize];
        let kv_pool = self.rows.kv_pool(replica, row);
        match self.rows.feasibility(replica, row, kv_pool) {
            Status::Ok => {}
            status => return Ok(Err(status)),
        }
        let point = match Point::new(replica, &self.inputs(row, kv_pool)) {
            Err(SimError::NotPlayed) => return Ok(Err(Status::Unsupported)),
            made => made.map_err(refused)?,
        };
        simulate(&point, &self.control).map(Ok).map_err(refused)
    }

    fn inputs(&self, row: usize, kv_pool_tokens: f64) -> Inputs {
        let get = |input| self.rows.at(input, row);
        let own = |name: &str| SIM_INPUTS.iter().position(|&own| own == name).map_or(f64::NAN, |i| self.own[i][row]);
        Inputs {
            isl_tokens: get(Input::Isl),
            osl_tokens: get(Input::Osl),
            isl_cv: get(Input::IslCv),
            osl_cv: get(Input::OslCv),
            prefix_tokens: get(Input::PrefixTokens),
            prefix_hit_share: get(Input::PrefixHitShare),
            max_num_seqs: get(Input::Seats),
            max_num_batched_tokens: get(Input::Budget),
            kv_pool_tokens,
            rate_rps: own("rate_rps"),
            concurrency: own("concurrency"),
            think_time_s: own("think_time_s"),
            arrival_cv: own("arrival_cv"),
            long_prefill_token_threshold: own("long_prefill_token_threshold"),
            scheduler_reserve_full_isl: own("scheduler_reserve_full_isl"),
            watermark: own("watermark"),
            enable_prefix_caching: own("enable_prefix_caching"),
            async_scheduling: own("async_scheduling"),
            lengths: self.lengths.get(get(Input::Lengths) as usize).filter(|_| !get(Input::Lengths).is_nan()).cloned(),
            trace: self.trace.clone(),
        }
    }
}

/// The code of a verdict, or of what stands in its place.
fn status_code(answer: &Answer) -> u8 {
    let name = match answer {
        Ok(outcome) => return outcome.summary.verdict as u8,
        Err(Status::DoesNotFit) => "does_not_fit",
        Err(Status::InvalidParallelism) => "invalid_parallelism",
        Err(Status::Unsupported) => "unsupported",
        Err(_) => "not_converged",
    };
    SIM_STATUS_NAMES.iter().position(|&known| known == name).map_or(u8::MAX, |code| code as u8)
}

/// Numbers and codes of every row; the requests of a trace, if one was replayed.
pub fn put_outcomes(out: &Bound<'_, PyDict>, answers: Vec<Answer>) -> PyResult<()> {
    let mut columns = vec![Vec::with_capacity(answers.len()); SIM_FIELDS.len()];
    for answer in &answers {
        let numbers = answer.as_ref().map_or(Numbers::NONE, |outcome| outcome.summary.numbers);
        columns.iter_mut().zip(numbers.values()).for_each(|(column, value)| column.push(value));
    }
    put_columns(out, SIM_FIELDS, columns)?;
    out.set_item("status", codes(out.py(), answers.iter().map(status_code).collect()))?;
    match answers.first() {
        Some(Ok(outcome)) if answers.len() == 1 => put_requests(out, &outcome.requests),
        _ => put_requests(out, &[]),
    }
}

fn put_requests(out: &Bound<'_, PyDict>, requests: &[Finished]) -> PyResult<()> {
    type Time = fn(&Finished) -> f64;
    let columns: [(&str, Time); 3] = [
        ("request_ttft_s", |request| request.ttft_s),
        ("request_tpot_s", Finished::tpot_s),
        ("request_e2e_s", |request| request.e2e_s),
    ];
    for (name, of) in columns {
        out.set_item(name, PyArray1::from_iter(out.py(), requests.iter().map(of)))?;
    }
    Ok(())
}
