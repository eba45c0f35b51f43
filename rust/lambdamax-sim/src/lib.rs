//! Iteration-level simulator of an LLM serving engine, with the scheduling rules of vLLM V1 by name and default.
//!
//! One file per noun, from the ground up: `error`, `random`, `robustness`, `blocks`, `settings` · `lengths`, `arrivals` · `requests`, `decoding`, `plan` ·
//! `scheduler`, `admission` · `stretch`, `histogram`, `window`, `recorder` · `point` · `engine`, `lockstep` · `confidence`, `verdict`, `summary` ·
//! `replications`. Of the solvers it shares the step time and the replica, nothing else, so that each checks the other.

pub mod admission;
pub mod arrivals;
pub mod blocks;
pub mod confidence;
pub mod decoding;
pub mod engine;
pub mod error;
pub mod histogram;
#[cfg(test)]
mod invariants;
pub mod lengths;
pub mod lockstep;
pub mod plan;
pub mod point;
pub mod random;
pub mod recorder;
pub mod replications;
pub mod requests;
pub mod robustness;
pub mod scheduler;
pub mod settings;
pub mod stretch;
pub mod summary;
pub mod verdict;
pub mod window;
