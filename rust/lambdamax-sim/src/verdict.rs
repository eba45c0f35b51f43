//! Whether the numbers of a run mean anything: a replica that falls behind has no steady state.

use crate::arrivals::Pattern;
use crate::confidence::serial_correlation;

/// What a run says about the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Verdict {
    /// The replica carries the load, and the means are as sure as was asked for.
    Steady,
    /// More arrives than is served, or a closed loop keeps every seat or block taken.
    Saturated,
    /// The run was too short to tell, or to be as sure as was asked for.
    Unsettled,
}

/// Names of the codes: the verdicts, and why a replica cannot be simulated.
pub const SIM_STATUS_NAMES: [&str; 7] =
    ["steady", "saturated", "unsettled", "does_not_fit", "invalid_parallelism", "unsupported", "not_converged"];

/// Growth beyond this many standard deviations of the arrivals' and departures' randomness is no chance.
const DEVIATIONS: f64 = 4.0;
/// A run that is shorter than this many residence times of running requests does not show a steady state.
const RESIDENCES: f64 = 3.0;
/// Batches that follow each other so closely are too short.
const CORRELATED: f64 = 0.6;

/// What the verdict rests on, all replications together.
#[derive(Clone, Debug)]
pub struct Evidence {
    /// Replications.
    pub replications: f64,
    /// Time measured in each [s].
    pub seconds: f64,
    /// Requests that arrived in each.
    pub arrivals: f64,
    /// Requests in flight at the end less those at the beginning, mean over replications.
    pub growth: f64,
    /// Requests running, time average.
    pub running: f64,
    /// Requests per second served.
    pub rate: f64,
    /// Share of the steps in which the head of the queue waited for a seat or for blocks.
    pub blocked_share: f64,
    /// Mean in flight of each batch of each replication.
    pub in_flight: Vec<Vec<f64>>,
    /// Whether the means are as sure as was asked for.
    pub precise: bool,
}

impl Verdict {
    /// Judges a run.
    pub fn of(pattern: &Pattern, evidence: &Evidence) -> Self {
        let steady = if evidence.precise { Self::Steady } else { Self::Unsettled };
        match pattern {
            Pattern::Closed { .. } if evidence.blocked_share > 0.5 => Self::Saturated,
            Pattern::Open { .. } if !evidence.long_enough() => Self::Unsettled,
            Pattern::Open { cv, .. } if evidence.falls_behind(*cv) => Self::Saturated,
            Pattern::Open { .. } if evidence.correlated() => Self::Unsettled,
            Pattern::Trace(_) => Self::Steady,
            _ => steady,
        }
    }
}

impl Evidence {
    fn long_enough(&self) -> bool {
        self.seconds * self.rate > RESIDENCES * self.running
    }

    /// More pile up than a random walk of as many arrivals and departures would.
    fn falls_behind(&self, cv: f64) -> bool {
        let variance = (1.0 + cv * cv) * self.arrivals / self.replications;
        self.growth > DEVIATIONS * variance.sqrt().max(1.0) && self.blocked_share > 0.5
    }

    fn correlated(&self) -> bool {
        let mean = self.in_flight.iter().map(|batches| serial_correlation(batches)).sum::<f64>() / self.replications;
        mean > CORRELATED
    }
}
