//! Jobs that workers take from the queue.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;

use crate::download::Download;
use crate::place::{Endpoint, Place, parent};
use crate::relay::Relay;
use crate::task::Task;
use crate::upload::Upload;

/// The reason why a file is not copied.
pub(crate) const SAME_SUM: &str = "same checksum";

/// A unit of work.
pub(crate) enum Job {
    File(Task),
    Get(Arc<Download>, Range<u64>),
    /// The checksum of a download's source, computed by the server while others move its data.
    Sum(Arc<Download>),
    Put(Arc<Upload>, Range<u64>),
    Third(Arc<Relay>, Range<u64>),
}

/// The sessions that a job needs. Jobs of one route are pipelined.
#[derive(Clone)]
pub(crate) enum Route {
    Get(Arc<Endpoint>),
    Put(Arc<Endpoint>),
    Third(Arc<Endpoint>, Arc<Endpoint>),
    Local,
}

impl Route {
    pub(crate) fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Get(a), Self::Get(b)) | (Self::Put(a), Self::Put(b)) => Arc::ptr_eq(a, b),
            (Self::Third(a, b), Self::Third(c, d)) => Arc::ptr_eq(a, c) && Arc::ptr_eq(b, d),
            (Self::Local, Self::Local) => true,
            _ => false,
        }
    }
}

impl Job {
    pub(crate) fn task(&self) -> &Task {
        match self {
            Self::File(task) => task,
            Self::Get(download, _) | Self::Sum(download) => &download.task,
            Self::Put(upload, _) => &upload.task,
            Self::Third(relay, _) => &relay.task,
        }
    }

    /// A number that is the same for all files of one destination directory.
    pub(crate) fn group(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        match &self.task().destination {
            Place::Local(path) => parent(path.as_bytes()).hash(&mut hasher),
            Place::Remote(_, path) => parent(path).hash(&mut hasher),
            Place::Standard | Place::Measure(_) => {}
        }
        hasher.finish()
    }

    pub(crate) fn route(&self) -> Route {
        let task = self.task();
        match (&task.source, &task.destination) {
            (Place::Remote(a, _), Place::Remote(b, _)) => Route::Third(a.clone(), b.clone()),
            (Place::Remote(a, _), _) => Route::Get(a.clone()),
            (_, Place::Remote(b, _)) => Route::Put(b.clone()),
            _ => Route::Local,
        }
    }
}
