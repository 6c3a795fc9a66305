//! Division of socket buffer memory among connections: the options of Jeong et al., "A Study on TCP Buffer Management
//! Algorithm for Improvement of Network Performance in Grid Environment", and the *current share* of Semke, Mahdavi and
//! Mathis, "Automatic TCP Buffer Tuning" (SIGCOMM 1998), on which they build.
//!
//! Amounts are bytes. Shares are exact fractions inside and are rounded once, at the end: each down, then one byte more
//! to the largest fractions, among equals to the larger demand, then to the first. Whatever the policy but
//! [`Policy::None`]: the sum is the smaller of budget and demands, nobody gets more than it asked for, and who asked for
//! nothing is not counted.
//!
//! [`advise`] is about one connection: whether its buffer needs setting at all.

mod advice;
mod current_share;
mod fraction;
mod policy;
mod threshold;

pub use advice::{Advice, HeldBy, Kernel, Leave, Path, Set, Side, advise};
pub use current_share::CurrentShare;
pub use policy::{Policy, PolicyName, exact_shares, negotiate};
