//! Division of socket buffer memory among connections: the options of Jeong et al., "A Study on TCP
//! Buffer Management Algorithm for Improvement of Network Performance in Grid Environment", and the
//! *current share* of Semke, Mahdavi and Mathis, "Automatic TCP Buffer Tuning" (SIGCOMM 1998), on
//! which they build.
//!
//! Amounts are bytes. Shares are exact fractions internally and are rounded once, at the end: each
//! share is rounded down, then the largest fractions get one byte more; of equal fractions that
//! with the larger demand comes first, then the one earlier in the list. Every policy except
//! [`Policy::None`] guarantees that the sum is the smaller of budget and sum of demands, that no
//! connection gets more than its demand, and that connections without demand are not counted.
//!
//! [`advise`] decides for one connection whether its buffer has to be set at all.

mod advice;
mod current_share;
mod fraction;
mod policy;
mod threshold;

pub use advice::{Advice, HeldBy, Kernel, Leave, Path, Set, Side, advise};
pub use current_share::CurrentShare;
pub use policy::{Policy, PolicyName, exact_shares, negotiate};
