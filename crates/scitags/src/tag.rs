//! The marks that the data connections of a session get for its SciTag.

use ropewalk_protocol::scitag::SciTag;
use ropewalk_transport::FlowMarking;

use crate::{FlowTransport, Reporter, flow_label};

/// The marks of connections over this transport protocol. `reporter` sends fireflies.
pub fn marking(
    tag: Option<SciTag>,
    with_label: bool,
    transport: FlowTransport,
    reporter: Option<&Reporter>,
) -> FlowMarking {
    let Some(tag) = tag else { return FlowMarking::default() };
    FlowMarking {
        label: flow_label(tag).filter(|_| with_label),
        observer: reporter.map(|reporter| reporter.observer(tag, transport)),
    }
}
