//! The crate's one error type: a bad call, with the offending values.

use thiserror::Error;

/// Why a call was refused.
#[derive(Debug, Error, Clone, PartialEq)]
pub enum CoreError {
    /// A fact that must be a positive finite number is not.
    #[error("{name} = {value}: a positive finite number is needed")]
    NotPositive {
        /// The fact's name.
        name: &'static str,
        /// What was given.
        value: f64,
    },
    /// A fact that must not be negative is, or is not finite.
    #[error("{name} = {value}: a finite number, zero or more, is needed")]
    Negative {
        /// The fact's name.
        name: &'static str,
        /// What was given.
        value: f64,
    },
    /// A fact outside of what it may be.
    #[error("{name} = {value}: {allowed} is needed")]
    Fact {
        /// The fact's name.
        name: &'static str,
        /// What was given.
        value: f64,
        /// What it may be.
        allowed: &'static str,
    },
    /// Columns of one table differ in length.
    #[error("{name} has {found} values where {expected} are needed")]
    Length {
        /// The column's name.
        name: String,
        /// Values found.
        found: usize,
        /// Values needed.
        expected: usize,
    },
    /// A column is missing.
    #[error("{name} is missing")]
    Missing {
        /// The column's name.
        name: String,
    },
    /// A name that no input has.
    #[error("{name} is not an input")]
    Unknown {
        /// The name given.
        name: String,
    },
    /// A row refers to a replica that does not exist.
    #[error("replica {index} in row {row}: the table has {len}")]
    Replica {
        /// The row.
        row: usize,
        /// The index it holds.
        index: usize,
        /// Rows of the replica table.
        len: usize,
    },
    /// A row or an axis refers to an empirical law that does not exist.
    #[error("lengths {place}: the table has {len}")]
    Lengths {
        /// The place it names.
        place: f64,
        /// Laws in the table.
        len: usize,
    },
    /// A grid with more points than can be counted, or a range outside of it.
    #[error("points {start}..{stop} of a grid of {len}")]
    Range {
        /// First point asked for.
        start: u64,
        /// One past the last.
        stop: u64,
        /// Points in the grid.
        len: u64,
    },
    /// An axis without values, or a grid too large to index.
    #[error("axis {name} makes the grid empty or larger than 2^63 points")]
    Axis {
        /// The axis.
        name: String,
    },
    /// The same fault, in one row of a table.
    #[error("row {row}: {source}")]
    Row {
        /// The row.
        row: usize,
        /// What is wrong in it.
        source: Box<CoreError>,
    },
}

/// The value, if it is positive and finite.
pub fn positive(name: &'static str, value: f64) -> Result<f64, CoreError> {
    if value > 0.0 && value.is_finite() { Ok(value) } else { Err(CoreError::NotPositive { name, value }) }
}

/// The value, if it is finite and zero or more.
pub fn not_negative(name: &'static str, value: f64) -> Result<f64, CoreError> {
    if value >= 0.0 && value.is_finite() { Ok(value) } else { Err(CoreError::Negative { name, value }) }
}
