//! Real numbers for the solvers: plain `f64`, eight lanes side by side, and duals that carry d/dB.
//!
//! One formula serves all three. `exp` and `ln` are our own, made of additions, multiplications, fused multiply-adds that are
//! written out, and one division, in a fixed order, so every machine, vector width and thread count gives the same bits.

use std::ops::{Add, Div, Mul, Neg, Not, Sub};

/// Lanes solved side by side.
pub const LANES: usize = 8;

/// What a formula may do with a number.
pub trait Real:
    Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self> + Neg<Output = Self>
{
    /// Outcome of a comparison, lane by lane.
    type Mask: Copy;
    /// The same value in every lane.
    fn splat(value: f64) -> Self;
    /// `self < other`.
    fn less(self, other: Self) -> Self::Mask;
    /// `a` where the mask holds, else `b`.
    fn select(mask: Self::Mask, a: Self, b: Self) -> Self;
    /// Whether the mask holds in any lane.
    fn any(mask: Self::Mask) -> bool;
    /// Smallest whole number not below `self`, which lies between 0 and 2^52; its derivative is zero.
    fn ceil(self) -> Self;
    /// e^self, for |self| ≤ 700 (clamped); relative error below 1e-15.
    fn exp(self) -> Self;
    /// Natural logarithm of a positive number, clamped to [1e-300, 1e300]; error below 1e-15·max(1, |ln|).
    fn ln(self) -> Self;
    /// (1 + x^q)^(1/q) of some positive numbers: a roofline whose ridge is rounded. Each stage runs over all of them before the
    /// next, so that their long chains of arithmetic overlap.
    fn rounded_ridges<const N: usize>(xs: [Self; N], q: Self, inverse_q: Self) -> [Self; N];
    /// The larger of two.
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        Self::select(self.less(other), other, self)
    }
    /// The smaller of two.
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        Self::select(other.less(self), other, self)
    }
}

/// x^exponent of some positive numbers, stage by stage.
#[inline(always)]
fn powers<R: Real, const N: usize>(xs: [R; N], exponent: R) -> [R; N] {
    let mut out = xs;
    let mut i = 0;
    while i < N {
        out[i] = out[i].ln() * exponent;
        i += 1;
    }
    i = 0;
    while i < N {
        out[i] = out[i].exp();
        i += 1;
    }
    out
}

#[inline(always)]
fn add_one<R: Real, const N: usize>(xs: [R; N]) -> [R; N] {
    let mut out = xs;
    let mut i = 0;
    while i < N {
        out[i] = out[i] + R::splat(1.0);
        i += 1;
    }
    out
}

const SQRT_HALF_BITS: u64 = 0x3fe6_a09e_667f_3bcd;
const MANTISSA: u64 = 0x000f_ffff_ffff_ffff;
const TWO_52_BITS: u64 = 0x4330_0000_0000_0000;
const TWO_52: f64 = 4_503_599_627_370_496.0;
const ROUND: f64 = 6_755_399_441_055_744.0; // 1.5·2^52: adding it rounds to an integer in the low mantissa bits
const LN2_HIGH: f64 = f64::from_bits(0x3fe6_2e42_fee0_0000); // 32 significant bits: k·LN2_HIGH is exact
const LN2_LOW: f64 = 1.908_214_929_270_587_7e-10;
const TINY: f64 = 1e-300;
const HUGE: f64 = 1e300;
const EXP_LIMIT: f64 = 700.0;

/// The smallest whole number not below a number from 0 to 2^52, by addition alone: baseline x86-64 has no such instruction.
#[inline(always)]
fn ceil_f64(x: f64) -> f64 {
    let rounded = (x + TWO_52) - TWO_52;
    if rounded < x { rounded + 1.0 } else { rounded }
}

#[inline(always)]
fn clamp(x: f64, low: f64, high: f64) -> f64 {
    let x = if x < low { low } else { x };
    if high < x { high } else { x }
}

/// Series of 2·artanh(t) for m = (1 + t)/(1 − t) in [√½, √2], plus the exponent's share.
#[inline(always)]
fn ln_f64(x: f64) -> f64 {
    let shifted = clamp(x, TINY, HUGE).to_bits().wrapping_add(0x3ff0_0000_0000_0000 - SQRT_HALF_BITS);
    let k = f64::from_bits(TWO_52_BITS | (shifted >> 52)) - (TWO_52 + 1023.0);
    let m = f64::from_bits((shifted & MANTISSA) + SQRT_HALF_BITS);
    let t = (m - 1.0) / (m + 1.0);
    let s = t * t;
    let s2 = s * s;
    let s4 = s2 * s2;
    let low = s2.mul_add(s.mul_add(1.0 / 9.0, 1.0 / 7.0), s.mul_add(1.0 / 5.0, 1.0 / 3.0));
    let top = s.mul_add(1.0 / 19.0, 1.0 / 17.0);
    let high = s2.mul_add(s.mul_add(top, 1.0 / 15.0), s.mul_add(1.0 / 13.0, 1.0 / 11.0));
    let tail = s * s4.mul_add(high, low);
    let twice = t + t;
    k.mul_add(LN2_HIGH, twice + twice.mul_add(tail, k * LN2_LOW))
}

/// 2^k·e^r with |r| ≤ ln2/2, e^r by its Taylor series to degree 12.
#[inline(always)]
fn exp_f64(x: f64) -> f64 {
    let x = clamp(x, -EXP_LIMIT, EXP_LIMIT);
    let rounded = x.mul_add(std::f64::consts::LOG2_E, ROUND);
    let k = rounded - ROUND;
    let r = k.mul_add(-LN2_LOW, k.mul_add(-LN2_HIGH, x));
    let r2 = r * r;
    let r4 = r2 * r2;
    let a = r2.mul_add(r.mul_add(1.0 / 120.0, 1.0 / 24.0), r.mul_add(1.0 / 6.0, 1.0 / 2.0));
    let b = r2.mul_add(r.mul_add(1.0 / 362_880.0, 1.0 / 40_320.0), r.mul_add(1.0 / 5_040.0, 1.0 / 720.0));
    let c = r2.mul_add(1.0 / 479_001_600.0, r.mul_add(1.0 / 39_916_800.0, 1.0 / 3_628_800.0));
    let poly = 1.0 + r2.mul_add(r4.mul_add(r4.mul_add(c, b), a), r);
    f64::from_bits(poly.to_bits().wrapping_add(rounded.to_bits() << 52))
}

/// Newton's steps to an inverse cube root.
const CUBE_ROOT_STEPS: usize = 4;
/// Bits of the inverse cube root's first guess, those of the number divided by three taken away, in units of 2^12: within 4 %.
const CUBE_ROOT_GUESS: f64 = (0x553e_f0ff_289d_d796_u64 >> 12) as f64;

/// x^(−⅓), from a guess that a third of the exponent gives.
#[inline(always)]
fn inverse_cube_root_f64(x: f64) -> f64 {
    let x = clamp(x, TINY, HUGE);
    let bits = f64::from_bits((x.to_bits() >> 12) | TWO_52_BITS) - TWO_52;
    let guess = CUBE_ROOT_GUESS - bits * (1.0 / 3.0);
    let mut y = f64::from_bits((guess + TWO_52).to_bits() << 12);
    let third = x * (-1.0 / 3.0);
    let mut step = 0;
    while step < CUBE_ROOT_STEPS {
        y *= (y * y * y).mul_add(third, 4.0 / 3.0);
        step += 1;
    }
    y
}

impl Real for f64 {
    type Mask = bool;
    #[inline(always)]
    fn splat(value: f64) -> Self {
        value
    }
    #[inline(always)]
    fn less(self, other: Self) -> bool {
        self < other
    }
    #[inline(always)]
    fn select(mask: bool, a: Self, b: Self) -> Self {
        if mask { a } else { b }
    }
    #[inline(always)]
    fn any(mask: bool) -> bool {
        mask
    }
    #[inline(always)]
    fn ceil(self) -> Self {
        ceil_f64(self)
    }
    #[inline(always)]
    fn exp(self) -> Self {
        exp_f64(self)
    }
    #[inline(always)]
    fn ln(self) -> Self {
        ln_f64(self)
    }
    #[inline(always)]
    fn rounded_ridges<const N: usize>(xs: [Self; N], q: Self, inverse_q: Self) -> [Self; N] {
        let wholes = add_one(powers(xs, q));
        powers(wholes, inverse_q)
    }
}

/// An array built by a plain counted loop, which is what the compiler turns into vector instructions.
macro_rules! each_lane {
    ($zero:expr, $i:ident => $value:expr) => {{
        let mut out = [$zero; LANES];
        let mut $i = 0;
        while $i < LANES {
            out[$i] = $value;
            $i += 1;
        }
        out
    }};
}

/// Eight `f64` in step; the loops become vector instructions.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub struct Lanes(pub [f64; LANES]);

/// All bits set where a comparison held.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub struct LaneMask(pub [u64; LANES]);

impl LaneMask {
    /// No lane.
    pub const NONE: Self = Self([0; LANES]);
    /// Lanes where both hold.
    #[inline(always)]
    pub fn and(self, other: Self) -> Self {
        Self(each_lane!(0, i => self.0[i] & other.0[i]))
    }
    /// Lanes where either holds.
    #[inline(always)]
    pub fn or(self, other: Self) -> Self {
        Self(each_lane!(0, i => self.0[i] | other.0[i]))
    }
    /// Whether it holds in every lane.
    #[inline(always)]
    pub fn all(self) -> bool {
        self.0.iter().fold(u64::MAX, |all, &lane| all & lane) != 0
    }
}

impl Not for LaneMask {
    type Output = Self;
    #[inline(always)]
    fn not(self) -> Self {
        Self(each_lane!(0, i => !self.0[i]))
    }
}

impl Lanes {
    /// Zero in every lane.
    pub const ZERO: Self = Self([0.0; LANES]);
    /// Built lane by lane.
    #[inline(always)]
    pub fn from_fn(mut f: impl FnMut(usize) -> f64) -> Self {
        Self(each_lane!(0.0, i => f(i)))
    }
    /// `self ≤ other`.
    #[inline(always)]
    pub fn at_most(self, other: Self) -> LaneMask {
        LaneMask(each_lane!(0, i => if self.0[i] <= other.0[i] { u64::MAX } else { 0 }))
    }
    /// `self = other`.
    #[inline(always)]
    pub fn same(self, other: Self) -> LaneMask {
        LaneMask(each_lane!(0, i => if self.0[i] == other.0[i] { u64::MAX } else { 0 }))
    }
    /// Lanes that hold a NaN.
    #[inline(always)]
    pub fn is_nan(self) -> LaneMask {
        LaneMask(each_lane!(0, i => if self.0[i].is_nan() { u64::MAX } else { 0 }))
    }
    /// Largest whole number not above, lane by lane.
    #[inline(always)]
    pub fn floor(self) -> Self {
        Self(each_lane!(0.0, i => self.0[i].floor()))
    }
    /// Magnitude.
    #[inline(always)]
    pub fn abs(self) -> Self {
        Self(each_lane!(0.0, i => self.0[i].abs()))
    }
    /// self·factor + term, rounded once.
    #[inline(always)]
    pub fn fused(self, factor: Self, term: Self) -> Self {
        Self(each_lane!(0.0, i => self.0[i].mul_add(factor.0[i], term.0[i])))
    }
    /// self^(−⅓) of a positive number, clamped to [1e-300, 1e300]; relative error below 1e-15.
    #[inline(always)]
    pub fn inverse_cube_root(self) -> Self {
        Self(each_lane!(0.0, i => inverse_cube_root_f64(self.0[i])))
    }
    /// Square root, exactly rounded.
    #[inline(always)]
    pub fn sqrt(self) -> Self {
        Self(each_lane!(0.0, i => self.0[i].sqrt()))
    }
}

macro_rules! lane_operator {
    ($trait:ident, $method:ident, $operator:tt) => {
        impl $trait for Lanes {
            type Output = Self;
            #[inline(always)]
            fn $method(self, other: Self) -> Self {
                Self(each_lane!(0.0, i => self.0[i] $operator other.0[i]))
            }
        }
    };
}
lane_operator!(Add, add, +);
lane_operator!(Sub, sub, -);
lane_operator!(Mul, mul, *);
lane_operator!(Div, div, /);

impl Neg for Lanes {
    type Output = Self;
    #[inline(always)]
    fn neg(self) -> Self {
        Self(each_lane!(0.0, i => -self.0[i]))
    }
}

impl Real for Lanes {
    type Mask = LaneMask;
    #[inline(always)]
    fn splat(value: f64) -> Self {
        Self([value; LANES])
    }
    #[inline(always)]
    fn less(self, other: Self) -> LaneMask {
        LaneMask(each_lane!(0, i => if self.0[i] < other.0[i] { u64::MAX } else { 0 }))
    }
    #[inline(always)]
    fn select(mask: LaneMask, a: Self, b: Self) -> Self {
        Self(each_lane!(0.0, i => f64::from_bits((a.0[i].to_bits() & mask.0[i]) | (b.0[i].to_bits() & !mask.0[i]))))
    }
    #[inline(always)]
    fn any(mask: LaneMask) -> bool {
        mask.0.iter().fold(0, |any, &lane| any | lane) != 0
    }
    #[inline(always)]
    fn ceil(self) -> Self {
        Self(each_lane!(0.0, i => ceil_f64(self.0[i])))
    }
    #[inline(always)]
    fn exp(self) -> Self {
        Self(each_lane!(0.0, i => exp_f64(self.0[i])))
    }
    #[inline(always)]
    fn ln(self) -> Self {
        Self(each_lane!(0.0, i => ln_f64(self.0[i])))
    }
    #[inline(always)]
    fn rounded_ridges<const N: usize>(xs: [Self; N], q: Self, inverse_q: Self) -> [Self; N] {
        let wholes = add_one(powers(xs, q));
        powers(wholes, inverse_q)
    }
}

/// A number and its derivative with respect to the number decoding, B.
#[derive(Clone, Copy, Debug)]
pub struct Dual<R> {
    /// The number.
    pub value: R,
    /// d value / dB.
    pub slope: R,
}

impl<R: Real> Dual<R> {
    /// B itself: slope one.
    #[inline(always)]
    pub fn variable(value: R) -> Self {
        Self { value, slope: R::splat(1.0) }
    }
    /// A number that does not depend on B.
    #[inline(always)]
    pub fn constant(value: R) -> Self {
        Self { value, slope: R::splat(0.0) }
    }
    /// Times a number that does not depend on B.
    #[inline(always)]
    pub fn scale(self, factor: R) -> Self {
        Self { value: self.value * factor, slope: self.slope * factor }
    }
    /// Plus a number that does not depend on B.
    #[inline(always)]
    pub fn offset(self, constant: R) -> Self {
        Self { value: self.value + constant, slope: self.slope }
    }
}

impl Dual<Lanes> {
    /// Zero.
    pub const ZERO: Self = Self { value: Lanes::ZERO, slope: Lanes::ZERO };

    /// Square root of a positive number.
    #[inline(always)]
    pub fn sqrt(self) -> Self {
        let value = self.value.sqrt();
        Self { value, slope: Lanes::splat(0.5) * self.slope / value }
    }
}

impl<R: Real> Neg for Dual<R> {
    type Output = Self;
    #[inline(always)]
    fn neg(self) -> Self {
        Self { value: -self.value, slope: -self.slope }
    }
}
impl<R: Real> Add for Dual<R> {
    type Output = Self;
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        Self { value: self.value + other.value, slope: self.slope + other.slope }
    }
}
impl<R: Real> Sub for Dual<R> {
    type Output = Self;
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        Self { value: self.value - other.value, slope: self.slope - other.slope }
    }
}
impl<R: Real> Mul for Dual<R> {
    type Output = Self;
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        Self { value: self.value * other.value, slope: self.slope * other.value + self.value * other.slope }
    }
}
impl<R: Real> Div for Dual<R> {
    type Output = Self;
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        let value = self.value / other.value;
        Self { value, slope: (self.slope - value * other.slope) / other.value }
    }
}

impl<R: Real> Real for Dual<R> {
    type Mask = R::Mask;
    #[inline(always)]
    fn splat(value: f64) -> Self {
        Self::constant(R::splat(value))
    }
    #[inline(always)]
    fn less(self, other: Self) -> R::Mask {
        self.value.less(other.value)
    }
    #[inline(always)]
    fn select(mask: R::Mask, a: Self, b: Self) -> Self {
        Self { value: R::select(mask, a.value, b.value), slope: R::select(mask, a.slope, b.slope) }
    }
    #[inline(always)]
    fn any(mask: R::Mask) -> bool {
        R::any(mask)
    }
    #[inline(always)]
    fn ceil(self) -> Self {
        Self::constant(self.value.ceil())
    }
    #[inline(always)]
    fn exp(self) -> Self {
        let value = self.value.exp();
        Self { value, slope: value * self.slope }
    }
    #[inline(always)]
    fn ln(self) -> Self {
        Self { value: self.value.ln(), slope: self.slope / self.value }
    }
    /// The slope is value·x^(q−1)/(1 + x^q); the exponent must not depend on B.
    #[inline(always)]
    fn rounded_ridges<const N: usize>(xs: [Self; N], q: Self, inverse_q: Self) -> [Self; N] {
        let mut values = [R::splat(0.0); N];
        let mut i = 0;
        while i < N {
            values[i] = xs[i].value;
            i += 1;
        }
        let power = powers(values, q.value);
        let whole = add_one(power);
        let ridge = powers(whole, inverse_q.value);
        let mut out = xs;
        i = 0;
        while i < N {
            let slope = ridge[i] * power[i] / (whole[i] * values[i]) * xs[i].slope;
            out[i] = Self { value: ridge[i], slope };
            i += 1;
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn exp_is_within_two_ulp_of_libm(x in -700.0..700.0f64) {
            prop_assert!((exp_f64(x) / x.exp() - 1.0).abs() < 4.5e-16);
        }

        #[test]
        fn ln_is_close_to_libm(x in 1e-300..1e300f64, y in 0.5..2.0f64) {
            for v in [x, y, 1.0 / x] {
                prop_assert!((ln_f64(v) - v.ln()).abs() <= 4e-16 * v.ln().abs().max(0.5));
            }
        }

        #[test]
        fn inverse_cube_roots_are_close_to_libm(x in 1e-300..1e300f64, y in 1e-3..1e3f64) {
            for v in [x, y, 1.0 / x] {
                prop_assert!((inverse_cube_root_f64(v) * v.cbrt() - 1.0).abs() < 1e-15);
            }
        }

        #[test]
        fn lanes_and_scalars_give_the_same_bits(x in 1e-12..1e12f64, y in -50.0..50.0f64) {
            let lanes = Lanes::splat(x).ln() * Lanes::splat(y).exp();
            prop_assert_eq!(lanes.0[3].to_bits(), (Real::ln(x) * Real::exp(y)).to_bits());
        }

        #[test]
        fn dual_slopes_match_differences(x in 0.5..5.0f64) {
            let f = |b: Dual<f64>| (b * b).offset(3.0) / b.scale(2.0).offset(1.0) - b;
            let (up, down) = (f(Dual::variable(x + 1e-6)).value, f(Dual::variable(x - 1e-6)).value);
            prop_assert!((f(Dual::variable(x)).slope - (up - down) / 2e-6).abs() < 1e-7);
        }
    }
}
