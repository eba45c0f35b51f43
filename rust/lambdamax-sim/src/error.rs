//! The crate's one error type: a bad call, with the offending values.

use thiserror::Error;

/// Why a simulation was refused.
#[derive(Debug, Error, Clone, PartialEq)]
pub enum SimError {
    /// A number lies outside of what is possible.
    #[error("{name} = {value}: allowed: {allowed}")]
    Range {
        /// What it is.
        name: &'static str,
        /// What was given.
        value: f64,
        /// What is possible.
        allowed: &'static str,
    },
    /// A replica whose iterations the simulator cannot play.
    #[error("windowed attention, recurrent states and several batches at a time (pp, dp) are not simulated")]
    NotPlayed,
    /// A trace without requests.
    #[error("the trace holds no request")]
    EmptyTrace,
    /// Arrivals of a trace go back in time.
    #[error("the trace's arrival {row} at {value} s comes before the one ahead of it")]
    Unsorted {
        /// The row.
        row: usize,
        /// When it arrives.
        value: f64,
    },
}

/// The value, if it passes.
pub fn within(name: &'static str, value: f64, passes: bool, allowed: &'static str) -> Result<f64, SimError> {
    if passes { Ok(value) } else { Err(SimError::Range { name, value, allowed }) }
}
