//! The accounts from which the front end pays for the bytes that nodes move.
//!
//! Each data channel of a node has one, from [`Accounts::open`] until the returned value is
//! dropped. The thread that holds the membership of the node takes the reports and sends the
//! grants; the thread of a session gets the first grant of a transfer with [`OpenAccount::begin`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use ropewalk_limits::{Account, Grant, Purse, Spent};

use crate::front_end::FrontEnd;
use crate::registry::NodeId;

/// Pays for the bytes of a data channel. Several threads use it.
pub type ChannelPurse = Arc<dyn Purse + Send + Sync>;

/// The accounts of all nodes.
#[derive(Default)]
pub(crate) struct Accounts(Mutex<State>);

#[derive(Default)]
struct State {
    last: u64,
    open: BTreeMap<(NodeId, u64), Entry>,
}

struct Entry {
    account: Account,
    purse: ChannelPurse,
}

impl Accounts {
    fn open(&self, node: NodeId, purse: ChannelPurse) -> u64 {
        let mut state = self.0.lock();
        state.last += 1;
        let number = state.last;
        state.open.insert((node, number), Entry { account: Account::new(), purse });
        number
    }

    fn close(&self, node: NodeId, number: u64) {
        if let Some(Entry { mut account, purse }) = self.0.lock().open.remove(&(node, number)) {
            account.close(&*purse);
        }
    }

    /// A node is no member any more.
    pub(crate) fn close_all(&self, node: NodeId) {
        let mut state = self.0.lock();
        for ((_, _), Entry { account, purse }) in state.open.range_mut(of(node)) {
            account.close(&**purse);
        }
        state.open.retain(|(of, _), _| *of != node);
    }

    /// Takes the reports of a node. Returns the numbers of accounts that are not open.
    pub(crate) fn report(&self, node: NodeId, reports: &[(u64, Spent)]) -> Vec<u64> {
        let mut state = self.0.lock();
        let mut unknown = Vec::new();
        for (number, spent) in reports {
            match state.open.get_mut(&(node, *number)) {
                Some(Entry { account, purse }) => account.report(spent, &**purse),
                None => unknown.push(*number),
            }
        }
        unknown
    }

    /// The grants for a node that are due, and the time after which there is more to do. `None`:
    /// the node has no accounts.
    pub(crate) fn settle(&self, node: NodeId) -> (Vec<(u64, Grant)>, Option<Duration>) {
        let (mut grants, mut next) = (Vec::new(), None);
        for ((_, number), Entry { account, purse }) in self.0.lock().open.range_mut(of(node)) {
            let (grant, due) = account.settle(&**purse);
            grants.extend(grant.map(|grant| (*number, grant)));
            next = Some(next.unwrap_or(Duration::MAX).min(due.unwrap_or(Duration::MAX)));
        }
        (grants, next)
    }
}

fn of(node: NodeId) -> std::ops::RangeInclusive<(NodeId, u64)> {
    (node, 0)..=(node, u64::MAX)
}

/// The account of a data channel. It is closed when this is dropped.
pub struct OpenAccount {
    front_end: Arc<FrontEnd>,
    node: NodeId,
    number: u64,
}

impl OpenAccount {
    pub(crate) fn new(front_end: &Arc<FrontEnd>, node: NodeId, purse: ChannelPurse) -> Self {
        let number = front_end.accounts.open(node, purse);
        Self { front_end: Arc::clone(front_end), node, number }
    }

    /// The number by which the node names it.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The grant with which the node may start a transfer. Nothing is granted if the node is no
    /// member any more.
    pub fn begin(&self) -> Grant {
        match self.front_end.accounts.0.lock().open.get_mut(&(self.node, self.number)) {
            Some(Entry { account, purse }) => account.begin(&**purse),
            None => Grant { epoch: 0, total: Some(0), window: 0 },
        }
    }
}

impl Drop for OpenAccount {
    fn drop(&mut self) {
        self.front_end.accounts.close(self.node, self.number);
    }
}
