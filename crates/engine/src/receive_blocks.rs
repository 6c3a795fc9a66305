//! Receiving in MODE E: any number of connections, blocks in any order.

use crate::connect::Core;
use crate::error::Result;
use crate::job::{ReceiveJob, Received};
use crate::receive_coordinator::Coordinator;
use crate::receive_shared::Shared;
use crate::watch::Watch;
use crate::wire::Wire;

pub(crate) fn receive(
    core: &Core,
    cache: &mut Vec<Wire>,
    job: &ReceiveJob<'_>,
    watch: &mut Watch<'_>,
) -> Result<Received> {
    let reused = !cache.is_empty();
    let fresh = if reused { None } else { Some(core.open(watch)?) };
    watch.begun(reused)?;
    let shared = Shared::new(core, job, watch.progress);
    core.pool.scope(|scope| {
        let mut coordinator = Coordinator::new(&shared, scope, reused);
        let result = coordinator.run(cache.drain(..).chain(fresh), reused, watch);
        if result.is_err() {
            core.control.stop();
            coordinator.settle();
        } else if coordinator.is_connecting() {
            // They would be of no use any more.
            core.control.stop();
        }
        result.map(|()| coordinator.finish(cache))
    })
}
