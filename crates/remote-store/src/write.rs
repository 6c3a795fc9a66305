//! A file at a far server that is open for writing under its own name.

use std::sync::Arc;

use ropewalk_client::far::Far;
use ropewalk_protocol::path::VirtualPath;
use ropewalk_storage::{Lock, Metadata, Result, WriteHandle};

use crate::metadata::metadata;
use crate::pump::Pump;

/// Every operation except a write first waits until the server has all written bytes.
pub(crate) struct RemoteWriter {
    pub(crate) far: Arc<Far>,
    pub(crate) path: VirtualPath,
    pub(crate) pump: Arc<Pump>,
}

impl Lock for RemoteWriter {}

impl WriteHandle for RemoteWriter {
    fn metadata(&self) -> Result<Metadata> {
        self.pump.flush()?;
        let path = self.path.as_bytes();
        self.far.stat(path).map(|entry| metadata(&entry)).map_err(|error| error.into_storage("stat", path))
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        self.pump.write(data, offset)
    }

    fn set_len(&self, length: u64) -> Result<()> {
        self.pump.flush()?;
        let path = self.path.as_bytes();
        self.far.truncate(path, length).map_err(|error| error.into_storage("truncate", path))
    }

    fn sync(&self) -> Result<()> {
        self.pump.flush()
    }

    fn confirm(&self, _metadata: &Metadata) -> Result<()> {
        self.pump.flush()
    }

    fn set_modified(&self, seconds: i64, _nanoseconds: u32) -> Result<()> {
        self.pump.flush()?;
        let path = self.path.as_bytes();
        let set = self.far.set_attributes(path, Some(seconds), None);
        set.map_err(|error| error.into_storage("utime", path))
    }

    fn set_mode(&self, mode: u32) -> Result<()> {
        self.pump.flush()?;
        let path = self.path.as_bytes();
        self.far.set_attributes(path, None, Some(mode)).map_err(|error| error.into_storage("chmod", path))
    }
}

impl Drop for RemoteWriter {
    fn drop(&mut self) {
        if let Err(error) = self.pump.flush() {
            tracing::warn!(path = %self.path, %error, "bytes that were written are lost");
        }
    }
}
