//! The columns of a point: what comes in, what goes out, and the codes of a row's status.

use crate::capacity::LIMITS;

/// An enum whose variants are columns, with their names in order.
macro_rules! columns {
    ($(#[$meta:meta])* $enum:ident, $names:ident, $count:ident: $($(#[$doc:meta])* $variant:ident = $name:literal,)+) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $enum {
            $($(#[$doc])* #[doc = $name] $variant,)+
        }
        impl $enum {
            /// Every one, in order.
            pub const ALL: [Self; $count] = [$(Self::$variant,)+];
        }
        /// Column names, in the order of the enum.
        pub const $names: &[&str] = &[$($name,)+];
        /// How many.
        pub const $count: usize = $names.len();
    };
}
pub(crate) use columns;

columns! {
    /// Numeric inputs of a point; NaN stands for "not given".
    Input, POINT_FIELDS, INPUTS:
    /// Place in the table of empirical laws; the law then gives the means and CVs of the lengths.
    Lengths = "lengths",
    Isl = "isl_tokens",
    Osl = "osl_tokens",
    IslCv = "isl_cv",
    OslCv = "osl_cv",
    PrefixTokens = "prefix_tokens",
    PrefixHitShare = "prefix_hit_share",
    ArrivalCv = "arrival_cv",
    Seats = "max_num_seqs",
    Budget = "max_num_batched_tokens",
    MemoryUtilization = "memory_utilization",
    MemoryBytes = "memory_bytes",
    ReservedBytes = "reserved_bytes",
    KvCacheTokens = "kv_cache_tokens",
    SloTtft = "slo_ttft_s",
    SloTpot = "slo_tpot_s",
    SloE2e = "slo_e2e_s",
    SloPercentile = "slo_percentile",
    UtilizationCap = "utilization_cap",
    Price = "usd_per_accelerator_hour",
}

columns! {
    /// Float answers of a point; NaN stands for null.
    Answer, ANSWER_FIELDS, ANSWERS:
    MaxRate = "max_rate_rps",
    RateAtCompute = "rate_at_compute_rps",
    RateAtKv = "rate_at_kv_rps",
    RateAtSeats = "rate_at_seats_rps",
    RateAtTpot = "rate_at_tpot_rps",
    RateAtTtft = "rate_at_ttft_rps",
    RateAtE2e = "rate_at_e2e_rps",
    RateAtUtilization = "rate_at_utilization_rps",
    NaiveRate = "naive_rate_rps",
    InFlight = "in_flight",
    Running = "running",
    Decoding = "decoding",
    Waiting = "waiting",
    SeatWait = "seat_wait_s",
    TtftMean = "ttft_mean_s",
    TtftP50 = "ttft_p50_s",
    TtftP90 = "ttft_p90_s",
    TtftP99 = "ttft_p99_s",
    TpotMean = "tpot_mean_s",
    TpotTokenMean = "tpot_token_mean_s",
    ItlP99 = "itl_p99_s",
    E2eMean = "e2e_mean_s",
    E2eP99 = "e2e_p99_s",
    PrefillShare = "prefill_share",
    Utilization = "utilization",
    KvInFlight = "kv_in_flight_tokens",
    KvPool = "kv_pool_tokens",
    KvUse = "kv_use",
    OutputTokens = "output_tok_s",
    OutputTokensPerGpu = "output_tok_s_per_gpu",
    TpotFloor = "tpot_floor_s",
    WeightBytes = "weight_bytes",
    Iterations = "iterations",
    Residual = "residual",
    Gpus = "gpus",
    Cost = "cost_usd_per_hour",
    RequestsPerUsd = "requests_per_usd",
    UsdPerMtokOutput = "usd_per_mtok_output",
    UsdPerMtokTotal = "usd_per_mtok_total",
}

/// The answers that hold each limit's rate, in the order of `Limit`.
pub const RATE_ANSWERS: [Answer; LIMITS] = [
    Answer::RateAtCompute,
    Answer::RateAtKv,
    Answer::RateAtSeats,
    Answer::RateAtTpot,
    Answer::RateAtTtft,
    Answer::RateAtE2e,
    Answer::RateAtUtilization,
];

/// Why a row has, or lacks, an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// Solved.
    Ok,
    /// Weights and one request do not fit in memory.
    DoesNotFit,
    /// Heads do not divide by tp.
    InvalidParallelism,
    /// An SLO fails even on an idle replica.
    SloUnreachable,
    /// Solved, but the catalogue has no such price.
    NoPrice,
    /// The catalogue cannot say how this would run.
    Unsupported,
    /// A root did not settle, or the inputs lie outside the model.
    NotConverged,
}

impl Status {
    /// Whether the replica exists, so that its sizes can be told.
    pub fn has_replica(self) -> bool {
        !matches!(self, Self::InvalidParallelism | Self::Unsupported)
    }
    /// Whether each limit's rate is known.
    pub fn has_limits(self) -> bool {
        self.is_solved() || self == Self::SloUnreachable
    }
    /// Whether there is an operating point.
    pub fn is_solved(self) -> bool {
        matches!(self, Self::Ok | Self::NoPrice)
    }
}

/// Names of the status codes.
pub const STATUS_NAMES: [&str; 7] =
    ["ok", "does_not_fit", "invalid_parallelism", "slo_unreachable", "no_price", "unsupported", "not_converged"];

/// Code of a limit that does not exist.
pub const NO_LIMIT: u8 = u8::MAX;
