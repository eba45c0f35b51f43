//! Physics and fixed-point solvers for sizing LLM-serving fleets.
//!
//! Floors, each importing only those below: `error`, `real`, `root`, `grid`, `frontier`, `intern`, `span`, `parallelism`, `memory`,
//! `precision`, `accelerator` · `block` · `model`, `profile` · `step` · `replica` · `iteration` · `lengths` · `workload` · `attention` ·
//! `ttft`, `bursts` · `equilibrium` · `normal` · `mixture` · `waiting` · `latency` · `chart` · `capacity` · `approach` · `slo` ·
//! `points`, `table`, `tasks` · `ceilings`, `spot` · `ledger` · `solve`, `load`, `one_number` · `sweep`.
//! The formulas stand in docs/model.md.

pub mod accelerator;
pub mod approach;
pub mod attention;
pub mod block;
pub mod bursts;
pub mod capacity;
mod ceilings;
pub mod chart;
pub mod equilibrium;
pub mod error;
pub mod frontier;
pub mod grid;
pub mod intern;
pub mod iteration;
pub mod latency;
mod ledger;
pub mod lengths;
pub mod load;
pub mod memory;
pub mod mixture;
pub mod model;
pub mod normal;
pub mod one_number;
pub mod parallelism;
pub mod points;
pub mod precision;
pub mod profile;
pub mod real;
pub mod replica;
pub mod root;
pub mod slo;
pub mod solve;
pub mod span;
mod spot;
pub mod step;
pub mod sweep;
pub mod table;
pub mod tasks;
pub mod ttft;
pub mod waiting;
pub mod workload;
