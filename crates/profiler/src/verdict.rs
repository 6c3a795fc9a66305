//! Causes of the rate that a transfer reached.
//!
//! [`Evidence`] distils a profile to a few figures for each end and the path; each rule ([`rules::all`]) looks for
//! one cause in them and says nothing where figures are missing; [`Verdict::of`] ranks what they say. What a rule
//! takes for a sign, and why, stands in its file.

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

/// What held a transfer back, or would if nothing else did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum CauseKind {
    SourceDisk,
    DestinationDisk,
    /// Copying memory and the kernel's other work for a program.
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
    /// A limit of the kernel under a buffer, on either side.
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
    /// Whether it holds a transfer back only while data moves.
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

/// One cause, and why it is thought to be one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Cause {
    pub kind: CauseKind,
    /// The host that it is at; absent for the path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// 0 to 1; not a probability, but causes are ranked by it.
    pub confidence: f64,
    /// With numbers.
    pub evidence: String,
    /// What to change.
    pub advice: String,
}

/// A rule: looks for one cause.
pub trait Rule: Sync {
    /// The cause, if the evidence shows it.
    fn judge(&self, evidence: &Evidence) -> Option<Cause>;
}

/// What came of a transfer: why it failed, if it did, and all causes of its rate, the likeliest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Verdict {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// Why there is too little to tell what held it back; causes are faint then.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub doubts: Vec<String>,
    pub causes: Vec<Cause>,
}

/// Below this nothing is said.
const LEAST: f64 = 0.2;

impl Verdict {
    /// What a profile shows.
    pub fn of(profile: &Profile) -> Self {
        Self::from_evidence(&Evidence::of(profile))
    }

    /// What the evidence shows. Empty where no rule finds enough.
    pub fn from_evidence(evidence: &Evidence) -> Self {
        let failure = failures::judge(evidence);
        if doubts::nothing_moved(evidence) {
            return Self { failure, ..Self::default() };
        }
        let (sound, doubts) = doubts::sound(evidence);
        let length = doubts::length(evidence);
        let evidence = &sound;
        let mut causes: Vec<Cause> = rules::all().iter().filter_map(|rule| rule.judge(evidence)).collect();
        // What holds data back explains no more of the time than that in which it moved: half of it is enough.
        if let Some(moving) = evidence.moving.filter(|_| evidence.seconds > 0.0) {
            let of_moving = causes.iter_mut().filter(|cause| cause.kind.is_of_moving());
            of_moving.for_each(|cause| cause.confidence *= figures::ramp(moving, 0.1, 0.5));
        }
        causes.iter_mut().for_each(|cause| cause.confidence *= length);
        causes.retain(|cause| cause.confidence >= LEAST);
        // Equal ones stay in the order of the rules.
        causes.sort_by(|a, b| b.confidence.total_cmp(&a.confidence));
        Self { failure, doubts, causes }
    }
}
