//! What operations work with.

use std::ops::ControlFlow;
use std::sync::Arc;

use ropewalk_protocol::server::Session;

use crate::host::Host;
use crate::host::transfer_log::Record;
use crate::session::context::Context;
use crate::session::control::Control;

/// The session and the host, lent to one operation.
pub(crate) struct Job<'a> {
    pub(crate) host: &'a Arc<Host>,
    pub(crate) session: &'a mut Session,
    pub(crate) control: &'a mut Control,
    pub(crate) context: &'a mut Context,
    pub(crate) record: &'a mut Option<Box<Record>>,
    /// Held by operations that can take long.
    pub(crate) permit: Option<&'a dyn Permit>,
}

/// The permit of an operation that can take long.
pub(crate) trait Permit {
    /// The client has taken or sent `bytes` bytes since the operation began. `Break`: other
    /// sessions wait for a permit and this operation is too slow to keep its own.
    fn moved(&self, bytes: u64) -> ControlFlow<()>;
}
