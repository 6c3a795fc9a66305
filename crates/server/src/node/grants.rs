//! The grants of the front end for a data channel.
//!
//! The channel's streams take bytes from the [`GrantedRate`]; the thread of the membership brings
//! the grants and sends the reports.

use std::sync::Arc;

use ropewalk_engine::GrantedRate;
use ropewalk_limits::{Grant, Spent};
use ropewalk_nodes::{Registered, SessionLease, Spender};

pub(super) struct Grants {
    rate: Arc<GrantedRate>,
    registered: Registered,
}

impl Grants {
    pub(super) fn new(lease: &SessionLease, account: u64) -> Self {
        let rate = Arc::new(GrantedRate::new(lease.waking()));
        let registered = lease.register(account, Arc::new(OfAccount(Arc::clone(&rate))));
        Self { rate, registered }
    }

    pub(super) fn rate(&self) -> Arc<GrantedRate> {
        Arc::clone(&self.rate)
    }

    /// A transfer begins with this grant.
    pub(super) fn begin(&self, grant: &Grant) {
        self.rate.grant(grant);
    }

    /// A transfer has ended.
    pub(super) fn end(&self) {
        if let Some(report) = self.rate.end_transfer() {
            self.registered.report(report);
        }
    }
}

struct OfAccount(Arc<GrantedRate>);

impl Spender for OfAccount {
    fn grant(&self, grant: &Grant) {
        self.0.grant(grant);
    }

    fn report(&self) -> Option<Spent> {
        self.0.report()
    }

    fn look(&self) -> Option<Spent> {
        self.0.look()
    }

    fn close(&self) {
        self.0.close();
    }
}
