//! The SciTags of a node's data connections. The front end names tag and destinations with each
//! transfer; the node sets the labels and sends the fireflies, since it has the connections.

use std::time::Duration;

use parking_lot::Mutex;
use ropewalk_nodes::MarkOrder;
use ropewalk_protocol::scitag::SciTag;
use ropewalk_scitags::{Collector, FlowTransport, Reporter, marking};
use ropewalk_transport::FlowMarking;

/// The reporter of fireflies, which all sessions share. It is replaced when the settings of the
/// front end change; connections that began before keep the old one.
#[derive(Default)]
pub(super) struct Marks(Mutex<Option<(Destinations, Reporter)>>);

#[derive(PartialEq, Eq)]
struct Destinations {
    fireflies: Vec<String>,
    interval_ms: u64,
}

impl Marks {
    /// The marks of the connections that a transfer makes. They get none if the node cannot make
    /// them: a mark is never a reason to fail.
    pub(super) fn of(&self, order: Option<&MarkOrder>) -> FlowMarking {
        let Some(order) = order else { return FlowMarking::default() };
        let Ok(tag) = SciTag::new(order.tag) else {
            tracing::warn!(tag = order.tag, "the front end names a tag that cannot be one");
            return FlowMarking::default();
        };
        let transport = if order.udp { FlowTransport::Udp } else { FlowTransport::Tcp };
        // Its last messages may take a moment: it is dropped when others can go on.
        let _replaced;
        let mut current = self.0.lock();
        if order.fireflies.is_empty() {
            return marking(Some(tag), order.flow_label, transport, None);
        }
        let wanted = Destinations { fireflies: order.fireflies.clone(), interval_ms: order.interval_ms };
        if current.as_ref().is_none_or(|(destinations, _)| *destinations != wanted) {
            let new = match start(&wanted) {
                Ok(reporter) => Some((wanted, reporter)),
                Err(error) => {
                    tracing::warn!(error, "no fireflies are sent");
                    None
                }
            };
            _replaced = std::mem::replace(&mut *current, new);
        }
        let reporter = current.as_ref().map(|(_, reporter)| reporter);
        marking(Some(tag), order.flow_label, transport, reporter)
    }
}

fn start(wanted: &Destinations) -> Result<Reporter, String> {
    let collectors: Result<Vec<Collector>, _> = wanted.fireflies.iter().map(|text| text.parse()).collect();
    let collectors = collectors.map_err(|error| error.to_string())?;
    Reporter::start(collectors, Duration::from_millis(wanted.interval_ms)).map_err(|error| error.to_string())
}
