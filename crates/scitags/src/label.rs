//! The encoding of a SciTag in the 20 bits of an IPv6 flow label
//! (draft-cc-v6ops-wlcg-flow-label-marking): `EE CCCCCCCCC E AAAAAA EE`.
//!
//! `C` is the experiment, its lowest bit first; `A` is the activity, its highest bit first. The
//! bits `E` are random in each connection.

use ropewalk_protocol::scitag::SciTag;
use ropewalk_transport::FlowLabel;

/// The bits that are random.
const RANDOM: u32 = 0xc_0103;
/// The label has room for this many bits of the experiment.
const EXPERIMENT_BITS: u32 = 9;

/// Returns `None` if the experiment does not fit in a label (above 511).
pub fn flow_label(tag: SciTag) -> Option<FlowLabel> {
    let experiment = u32::from(tag.experiment());
    if experiment >= 1 << EXPERIMENT_BITS {
        return None;
    }
    let bits = reversed(experiment) << 9 | u32::from(tag.activity()) << 2;
    Some(FlowLabel { bits, random: RANDOM })
}

/// The SciTag of a label, if it can be one.
pub fn read_flow_label(label: u32) -> Option<SciTag> {
    let (experiment, activity) = (reversed(label >> 9 & 0x1ff), label >> 2 & 0x3f);
    SciTag::new(u16::try_from(experiment << 6 | activity).ok()?).ok()
}

fn reversed(experiment: u32) -> u32 {
    experiment.reverse_bits() >> (u32::BITS - EXPERIMENT_BITS)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn label_has_the_bits_of_the_reference() {
        for (experiment, activity, least, most) in [
            (1, 1, 0x20004, 0xe0107),
            (2, 15, 0x1003c, 0xd013f),
            (3, 1, 0x30004, 0xf0107),
            (14, 1, 0x1c004, 0xdc107),
            (511, 63, 0x3fefc, 0xfffff),
        ] {
            let label = flow_label(SciTag::of(experiment, activity).unwrap()).unwrap();
            assert_eq!((label.bits, label.bits | label.random), (least, most), "{experiment} {activity}");
        }
    }

    #[test]
    fn label_of_an_experiment_above_511_does_not_exist() {
        assert_eq!(flow_label(SciTag::of(512, 1).unwrap()), None);
    }

    proptest! {
        #[test]
        fn label_when_read_returns_the_tag(number in 65u16..32768, random: u32) {
            let tag = SciTag::new(number).unwrap();
            let label = flow_label(tag).unwrap();
            prop_assert_eq!(read_flow_label(label.bits | random & label.random), Some(tag));
        }
    }
}
