//! Sending in MODE E: blocks are dealt out to the streams that ask for them.

use crate::connect::Core;
use crate::error::Result;
use crate::job::{SendJob, Sent};
use crate::send_coordinator::Coordinator;
use crate::send_shared::Shared;
use crate::watch::Watch;
use crate::wire::Wire;

pub(crate) fn send(core: &Core, cache: &mut Vec<Wire>, job: &SendJob, watch: &mut Watch<'_>) -> Result<Sent> {
    let shared = Shared::new(core, job, watch.progress)?;
    let reused = !cache.is_empty();
    let mut wires = std::mem::take(cache);
    if !reused {
        let mut wire = core.open(watch)?;
        // A peer may have closed it: it is left over from an earlier transfer.
        while core.listener().is_some() && wire.connection.peer_closed() {
            wire = core.open(watch)?;
        }
        wires.push(wire);
    }
    watch.begun(reused)?;
    core.reach_all(&mut wires, watch)?;
    let (sent, done) = core.pool.scope(|scope| {
        let mut coordinator = Coordinator::new(&shared, scope, watch);
        let result = coordinator.run(wires, reused);
        if result.is_err() {
            core.control.stop();
        }
        result.map(|()| coordinator.finish())
    })?;
    cache.extend(done);
    Ok(sent)
}
