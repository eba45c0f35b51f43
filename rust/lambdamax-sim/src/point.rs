//! What is simulated: a replica's step times, its settings, and the requests that come.

use std::sync::Arc;

use lambdamax_core::iteration::Iteration;
use lambdamax_core::replica::{HostCosts, Replica};

use crate::arrivals::{Pattern, TraceRow};
use crate::blocks::BLOCK;
use crate::error::{SimError, within};
use crate::lengths::{LengthLaw, Lengths, Prefix};
use crate::settings::Settings;

/// Everything about a run but its length and its seed.
#[derive(Clone, Debug)]
pub struct Point {
    /// Ranks that take every step together, each with settings, blocks and queue of its own.
    pub ranks: u32,
    /// Time of an iteration.
    pub costs: Iteration,
    /// Latency outside of the engine.
    pub host: HostCosts,
    /// The scheduler's settings.
    pub settings: Settings,
    /// How requests arrive.
    pub arrivals: Pattern,
    /// How long they are, where no trace tells.
    pub lengths: Lengths,
    /// What the cache holds of them.
    pub prefix: Prefix,
}

/// Numbers that make up a point, with names as in the column dictionary or in the engine; NaN is "not given".
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Inputs {
    pub isl_tokens: f64,
    pub osl_tokens: f64,
    pub isl_cv: f64,
    pub osl_cv: f64,
    pub prefix_tokens: f64,
    pub prefix_hit_share: f64,
    pub max_num_seqs: f64,
    pub max_num_batched_tokens: f64,
    pub kv_pool_tokens: f64,
    pub rate_rps: f64,
    pub concurrency: f64,
    pub think_time_s: f64,
    pub arrival_cv: f64,
    pub long_prefill_token_threshold: f64,
    pub scheduler_reserve_full_isl: f64,
    pub watermark: f64,
    pub enable_prefix_caching: f64,
    pub async_scheduling: f64,
    /// An empirical law, in place of means and CVs.
    pub lengths: Option<Lengths>,
    /// Requests to replay; with a rate or clients given, lengths to draw from.
    pub trace: Option<Arc<[TraceRow]>>,
}

/// Inputs that only the simulator has, each with a default.
pub const SIM_INPUTS: &[&str] = &[
    "rate_rps",
    "concurrency",
    "think_time_s",
    "arrival_cv",
    "long_prefill_token_threshold",
    "scheduler_reserve_full_isl",
    "watermark",
    "enable_prefix_caching",
    "async_scheduling",
];

impl Point {
    /// A replica under a load, with the engine's defaults where nothing is given.
    pub fn new(replica: &Replica, inputs: &Inputs) -> Result<Self, SimError> {
        let point = Self {
            ranks: replica.pools() as u32,
            costs: Iteration::of(replica).ok_or(SimError::NotPlayed)?,
            host: replica.host,
            settings: inputs.settings(replica)?,
            arrivals: inputs.arrivals()?,
            lengths: inputs.lengths()?,
            prefix: inputs.prefix(),
        };
        point.checked()
    }

    /// A point that can be simulated, or why not.
    pub fn checked(self) -> Result<Self, SimError> {
        self.settings.checked()?;
        let arrivals = self.arrivals.checked()?;
        Ok(Self { arrivals, ..self })
    }
}

/// A whole number that the engine can count to.
fn whole(name: &'static str, value: f64) -> Result<u32, SimError> {
    within(name, value, (0.0..4e9).contains(&value), "0 to 4e9").map(|value| value as u32)
}

fn or(value: f64, default: f64) -> f64 {
    if value.is_nan() { default } else { value }
}

impl Inputs {
    fn settings(&self, replica: &Replica) -> Result<Settings, SimError> {
        let pool = self.kv_pool_tokens / replica.pools() / f64::from(BLOCK);
        Ok(Settings {
            max_num_batched_tokens: whole("max_num_batched_tokens", self.max_num_batched_tokens.min(1e9))?,
            max_num_seqs: whole("max_num_seqs", self.max_num_seqs.min(1e9))?,
            num_gpu_blocks: whole("kv_pool_tokens", pool.min(1e9))?,
            long_prefill_token_threshold: whole(
                "long_prefill_token_threshold",
                or(self.long_prefill_token_threshold, 0.0),
            )?,
            scheduler_reserve_full_isl: or(self.scheduler_reserve_full_isl, 1.0) != 0.0,
            watermark: or(self.watermark, 0.0),
            enable_prefix_caching: or(self.enable_prefix_caching, 1.0) != 0.0,
            async_scheduling: or(self.async_scheduling, replica.host.async_scheduling) != 0.0,
        })
    }

    fn arrivals(&self) -> Result<Pattern, SimError> {
        match &self.trace {
            Some(rows) if self.rate_rps.is_nan() && self.concurrency.is_nan() => Ok(Pattern::Trace(rows.clone())),
            _ if self.concurrency.is_nan() => Ok(Pattern::Open { rate: self.rate_rps, cv: or(self.arrival_cv, 1.0) }),
            _ => {
                let clients =
                    within("concurrency", self.concurrency, self.rate_rps.is_nan(), "one of rate and clients")?;
                Ok(Pattern::Closed { clients: whole("concurrency", clients)?, think_s: or(self.think_time_s, 0.0) })
            }
        }
    }

    fn lengths(&self) -> Result<Lengths, SimError> {
        if let Some(rows) = &self.trace {
            return Ok(Lengths::Pairs(rows.iter().map(|row| (row.prompt, row.output)).collect()));
        }
        if let Some(lengths) = &self.lengths {
            return Ok(lengths.clone());
        }
        Ok(Lengths::Independent {
            prompt: LengthLaw::from_moments("isl_tokens", self.isl_tokens, self.isl_cv)?,
            output: LengthLaw::from_moments("osl_tokens", self.osl_tokens, self.osl_cv)?,
        })
    }

    fn prefix(&self) -> Prefix {
        if self.prefix_tokens > 0.0 {
            Prefix::Common { tokens: self.prefix_tokens as u32, share: self.prefix_hit_share }
        } else if self.prefix_hit_share > 0.0 {
            Prefix::Own { share: self.prefix_hit_share }
        } else {
            Prefix::None
        }
    }
}
