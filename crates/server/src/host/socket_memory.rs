//! `data.socket_memory`: the memory that all socket buffers of the server may hold together.

use std::sync::{Arc, Weak};

use ropewalk_buffers::{Action, Division, Keeper, Kept, Round};

use crate::config::Data;
use crate::host::Host;

/// Divides the memory of the current settings among the server's connections until the result is
/// dropped.
pub(crate) fn keep(host: &Arc<Host>) -> Option<Keeper> {
    // The thread does not keep the host alive.
    let host: Weak<Host> = Arc::downgrade(host);
    let wanted = move || host.upgrade().and_then(|host| division(&host.settings().config.data));
    let keeper = Keeper::start(wanted, tell);
    keeper.inspect_err(|error| tracing::error!(%error, "no thread to divide socket memory")).ok()
}

fn division(data: &Data) -> Option<Division> {
    // The settings have been checked.
    Some(Division { budget: data.socket_memory?, rule: data.socket_policy.parse().ok()? })
}

fn tell(kept: Kept) {
    match kept {
        Kept::Divided(round) => divided(&round),
        Kept::GivenBack(connections) => {
            tracing::info!(connections = connections.len(), "socket memory is no longer divided");
        }
        Kept::Failed(error) => tracing::error!(%error, "socket memory cannot be divided"),
    }
}

fn divided(round: &Round) {
    let set = round.connections.iter().filter(|one| matches!(one.action, Action::Set(_))).count();
    tracing::debug!(
        connections = round.connections.len(),
        set,
        budget = round.budget_bytes,
        demand = round.demand_bytes,
        granted = round.granted_bytes,
        "socket memory divided"
    );
    for one in &round.connections {
        if let Action::Failed(error) = &one.action {
            tracing::warn!(peer = %one.flow.remote, %error, "a socket buffer could not be set to its share");
        }
    }
}
