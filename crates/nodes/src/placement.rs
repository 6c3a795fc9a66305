//! The nodes of a data channel, and the news that a new channel would have better ones.
//!
//! A session owns the [`Placement`] of its channel, and asks it while data moves. The question
//! costs one atomic load unless a node has joined or begun to leave. The answer is given once for a
//! channel; from then on the registry counts the channel as one that moves, until the placement is
//! dropped.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use crate::front_end::FrontEnd;
use crate::registry::{NodeId, Proposal};

/// Whether the peers of a channel can reach a node at this address.
pub type Suits = Box<dyn Fn(IpAddr) -> bool + Send + Sync>;

/// See the module.
pub struct Placement {
    front_end: Arc<FrontEnd>,
    suits: Suits,
    nodes: Vec<NodeId>,
    /// The number of changes when the nodes were looked at last.
    changes: u64,
    proposal: Option<Proposal>,
}

impl Placement {
    pub(crate) fn new(front_end: Arc<FrontEnd>, suits: Suits, nodes: Vec<NodeId>, changes: u64) -> Self {
        Self { front_end, suits, nodes, changes, proposal: None }
    }

    /// Returns the number of nodes of a channel over up to `most` nodes, if one that is made now
    /// would be better than this one because nodes have joined or leave. Returns it once.
    pub fn improves(&mut self, most: usize) -> Option<usize> {
        let changes = self.front_end.changes();
        if std::mem::replace(&mut self.changes, changes) == changes || self.proposal.is_some() {
            return None;
        }
        let mut registry = self.front_end.registry.lock();
        self.proposal = registry.propose(&*self.suits, &self.nodes, most, Instant::now());
        self.proposal.as_ref().map(|proposal| proposal.count)
    }
}

impl Drop for Placement {
    fn drop(&mut self) {
        if let Some(proposal) = &self.proposal {
            self.front_end.registry.lock().withdraw(proposal);
        }
    }
}
