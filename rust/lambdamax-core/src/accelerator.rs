//! A device and its links: peaks and sizes as the catalogue states them.

use crate::error::{CoreError, not_negative, positive};

/// One accelerator as a scheduler sees it. Peaks are the vendor's; what is reached of them is the profile's business.
#[derive(Clone, Copy, Debug)]
pub struct Accelerator {
    /// Memory that the driver reports, bytes.
    pub memory_bytes: f64,
    /// Memory bandwidth, bytes/s.
    pub bandwidth: f64,
    /// Dense 16-bit peak, FLOP/s.
    pub attention_flops: f64,
    scaleup_bytes_per_s: f64,
    scaleup_domain_size: f64,
    scaleup_mesh: bool,
    pcie_bytes_per_s: f64,
}

/// The link that a collective crosses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Link {
    /// The scale-up fabric, bytes/s in one direction.
    ScaleUp(f64),
    /// The host's PCIe, bytes/s in one direction.
    Pcie(f64),
}

impl Accelerator {
    /// A device of which nothing is known.
    pub const UNKNOWN: Self = Self {
        memory_bytes: f64::NAN,
        bandwidth: f64::NAN,
        attention_flops: f64::NAN,
        scaleup_bytes_per_s: 0.0,
        scaleup_domain_size: 0.0,
        scaleup_mesh: false,
        pcie_bytes_per_s: 0.0,
    };

    /// Reads the facts by name; absent links are NaN or zero.
    pub fn read(get: &impl Fn(&'static str) -> f64) -> Result<Self, CoreError> {
        let or_zero = |name| not_negative(name, if get(name).is_nan() { 0.0 } else { get(name) });
        Ok(Self {
            memory_bytes: positive("accelerator_memory_bytes", get("accelerator_memory_bytes"))?,
            bandwidth: positive("memory_bandwidth_bytes_per_s", get("memory_bandwidth_bytes_per_s"))?,
            attention_flops: positive("attention_flops", get("attention_flops"))?,
            scaleup_bytes_per_s: or_zero("scaleup_bytes_per_s")?,
            scaleup_domain_size: or_zero("scaleup_domain_size")?,
            scaleup_mesh: get("scaleup_mesh") == 1.0,
            pcie_bytes_per_s: or_zero("pcie_bytes_per_s")?,
        })
    }

    /// The slowest link among `reach` devices, of which `group` > 1 talk to each other; none if the catalogue knows no link that
    /// reaches so far.
    pub fn link(&self, reach: f64, group: f64) -> Option<Link> {
        if reach <= self.scaleup_domain_size && self.scaleup_bytes_per_s > 0.0 {
            Some(Link::ScaleUp(self.scaleup_bytes_per_s * self.reached_links(group)))
        } else {
            (self.pcie_bytes_per_s > 0.0).then_some(Link::Pcie(self.pcie_bytes_per_s))
        }
    }

    /// Share of its links that a device uses in a group: in a full mesh each pair has a link of its own.
    fn reached_links(&self, group: f64) -> f64 {
        if self.scaleup_mesh { (group - 1.0) / (self.scaleup_domain_size - 1.0) } else { 1.0 }
    }
}
