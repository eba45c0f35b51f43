//! How a model is cut over devices: tensor, pipeline, data and expert parallelism (docs/model.md section 2).

use crate::error::{CoreError, positive};

/// Degrees of parallelism of one engine instance.
#[derive(Clone, Copy, Debug)]
pub struct Parallelism {
    /// Ranks that share each layer.
    pub tp: f64,
    /// Stages of layers, each of which works on a batch of its own.
    pub pp: f64,
    /// Ranks that serve requests of their own and share the experts.
    pub dp: f64,
    /// Groups of experts: 1, or tp·dp for whole experts on each rank.
    pub ep: f64,
}

impl Parallelism {
    /// One device.
    pub const NONE: Self = Self { tp: 1.0, pp: 1.0, dp: 1.0, ep: 1.0 };

    /// Reads `tp`, `pp`, `dp` and `ep`.
    pub fn read(get: &impl Fn(&'static str) -> f64) -> Result<Self, CoreError> {
        let degree = |name| positive(name, get(name));
        Ok(Self { tp: degree("tp")?, pp: degree("pp")?, dp: degree("dp")?, ep: degree("ep")? })
    }

    /// Devices.
    pub fn gpus(&self) -> f64 {
        self.tp * self.pp * self.dp
    }

    /// Independent batches, S.
    pub fn slots(&self) -> f64 {
        self.pp * self.dp
    }

    /// Share of the layers on the fullest stage.
    pub fn stage_share(&self, layers: f64) -> f64 {
        (layers / self.pp).ceil() / layers
    }

    /// φ: the fullest stage over the mean one; it sets the pace of all.
    pub fn stage_imbalance(&self, layers: f64) -> f64 {
        self.stage_share(layers) * self.pp
    }
}
