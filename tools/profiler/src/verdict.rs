//! Finds the causes of the rate that a transfer reached, or the reason why it failed.
//!
//! [`Evidence`] reduces a profile to a few figures for each end and the path. Each rule
//! ([`rules::all`]) looks for one cause in them and returns nothing if figures are missing.
//! [`Verdict::of`] ranks the causes. The file of each rule documents which signs it uses, and why.

mod doubts;
mod evidence;
mod failures;
mod figures;
mod losses;
mod pace;
pub mod rules;
mod span;
pub(crate) mod text;

use serde::{Deserialize, Serialize};

#[cfg(feature = "report")]
pub(crate) use evidence::moving;
pub use evidence::{End, Evidence, Path};
pub use failures::{Failed, Failure, Silence};
pub use losses::Losses;
pub(crate) use rules::kind_of as function_kind;

use crate::profile::Profile;

/// The cause that limited a transfer, or would limit it if no other cause did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum CauseKind {
    SourceDisk,
    DestinationDisk,
    /// Copying memory, and the kernel's other work for a program.
    CpuCopy,
    CpuChecksum,
    CpuEncryption,
    CpuInterrupt,
    /// Other programs on the same processors.
    CpuCompeting,
    /// Other guests of the machine on which this one is a guest.
    CpuSteal,
    /// The programs themselves, in none of the kinds above.
    CpuProgram,
    SenderBuffer,
    ReceiverWindow,
    /// A limit of the kernel on the size of a buffer, on either side.
    KernelCeiling,
    CongestionLoss,
    NonCongestiveLoss,
    /// The path is full: nothing is wrong.
    PathCapacity,
    PeerServer,
    SmallFiles,
    TooManyStreams,
    AsymmetricPath,
}

impl CauseKind {
    /// Whether the cause can slow a transfer down only while data moves.
    fn is_of_moving(self) -> bool {
        !matches!(
            self,
            Self::CpuCopy
                | Self::CpuChecksum
                | Self::CpuEncryption
                | Self::CpuInterrupt
                | Self::CpuCompeting
                | Self::CpuSteal
                | Self::CpuProgram
                | Self::PeerServer
                | Self::SmallFiles
        )
    }
}

/// One cause, with its evidence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Cause {
    pub kind: CauseKind,
    /// The host that has the cause; absent for the path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// From 0 to 1. It is not a probability, but causes are ranked by it.
    pub confidence: f64,
    /// The evidence in words, with numbers.
    pub evidence: String,
    /// The recommended change.
    pub advice: String,
}

/// A rule, which looks for one cause.
pub trait Rule: Sync {
    /// Returns the cause if the evidence shows it.
    fn judge(&self, evidence: &Evidence) -> Option<Cause>;
}

/// The result for a transfer: the reason of its failure, if it failed, and all causes of its rate,
/// the most likely first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Verdict {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// Reasons why there is not enough data for a sure result. The confidence of the causes is
    /// reduced then.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub doubts: Vec<String>,
    pub causes: Vec<Cause>,
}

/// Causes with a lower confidence are not reported.
const LEAST: f64 = 0.2;

impl Verdict {
    /// Judges a profile.
    pub fn of(profile: &Profile) -> Self {
        Self::from_evidence(&Evidence::of(profile))
    }

    /// Judges the evidence. The verdict is empty if no rule finds enough.
    pub fn from_evidence(evidence: &Evidence) -> Self {
        let failure = failures::judge(evidence);
        if doubts::nothing_moved(evidence) {
            return Self { failure, ..Self::default() };
        }
        let (sound, doubts) = doubts::sound(evidence);
        let length = doubts::length(evidence);
        let evidence = &sound;
        let mut causes: Vec<Cause> = rules::all().iter().filter_map(|rule| rule.judge(evidence)).collect();
        // A cause that limits moving data explains at most the time in which data moved. It counts
        // in full if that is half of the time.
        if let Some(moving) = evidence.moving.filter(|_| evidence.seconds > 0.0) {
            let of_moving = causes.iter_mut().filter(|cause| cause.kind.is_of_moving());
            of_moving.for_each(|cause| cause.confidence *= figures::ramp(moving, 0.1, 0.5));
        }
        causes.iter_mut().for_each(|cause| cause.confidence *= length);
        causes.retain(|cause| cause.confidence >= LEAST);
        // The sort is stable: causes with equal confidence stay in the order of the rules.
        causes.sort_by(|a, b| b.confidence.total_cmp(&a.confidence));
        Self { failure, doubts, causes }
    }
}
