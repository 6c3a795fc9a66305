//! The store itself: names, attributes, and opening files.
//!
//! Any thread may use a [`RemoteStore`]; each operation takes a session for itself and blocks.
//! Before an operation, the data that was written to open files is sent, so that the far server
//! shows it.

use std::collections::HashSet;
use std::sync::{Arc, Weak};

use bstr::BStr;
use parking_lot::Mutex;
use ropewalk_client::Entry;
use ropewalk_client::Window as Part;
use ropewalk_client::far::Far;
use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::url::Url;
use ropewalk_storage::checksum::Algorithm;
use ropewalk_storage::{
    Capabilities, Error, ErrorKind, Interrupted, Journaling, Kind, ListSink, Metadata, ReadHandle, Result,
    Store, Upload, UploadSpec, WriteHandle, WriteOptions,
};

use crate::checksum::far_checksum;
use crate::metadata::{metadata, synthetic};
use crate::pump::{Pump, Target};
use crate::read::RemoteFile;
use crate::upload::{Place, RemoteUpload, Writers};
use crate::window::Window;
use crate::write::RemoteWriter;
use crate::{RemoteClient, RemoteSettings};

/// See the description of the crate.
pub struct RemoteStore {
    client: Arc<RemoteClient>,
    far: Arc<Far>,
    uploads: Writers,
    /// Files that are open for writing. Their data is sent before other operations.
    open: Mutex<Vec<Weak<Pump>>>,
    /// Held by a thread that creates a file that must not exist, so that there is only one at a
    /// time.
    making: Mutex<()>,
    /// Paths of interrupted uploads that are sent in order.
    in_order: Mutex<HashSet<VirtualPath>>,
}

impl RemoteStore {
    /// A store of the server of `url`, whose path is not used. The first operation connects.
    pub fn new(client: &Arc<RemoteClient>, url: &Url, settings: RemoteSettings) -> Arc<Self> {
        let options = settings.options.with(|options| {
            options.tuning.max_streams = options.tuning.max_streams.min(client.memory.streams());
        });
        let far = Arc::new(client.client.far(url, &options, settings.behalf));
        Arc::new(Self {
            client: client.clone(),
            far,
            uploads: Arc::default(),
            open: Mutex::default(),
            making: Mutex::default(),
            in_order: Mutex::default(),
        })
    }

    /// `scheme://host:port` of the server.
    pub fn server(&self) -> &str {
        self.far.name()
    }

    /// Connects and logs in, unless there is an idle session.
    ///
    /// # Errors
    /// The server cannot be reached, is not permitted, or refuses the log-in.
    pub fn connect(&self) -> Result<(), ropewalk_client::Error> {
        self.far.connect()
    }

    fn at<T>(
        &self,
        action: &'static str,
        path: &VirtualPath,
        operation: impl FnOnce(&Far, &[u8]) -> Result<T, ropewalk_client::Error>,
    ) -> Result<T> {
        self.settle();
        operation(&self.far, path.as_bytes()).map_err(|error| error.into_storage(action, path.as_bytes()))
    }

    /// Sends the data that was written to open files.
    fn settle(&self) {
        let open: Vec<Arc<Pump>> = {
            let mut open = self.open.lock();
            open.retain(|pump| pump.strong_count() > 0);
            open.iter().filter_map(Weak::upgrade).collect()
        };
        for pump in open {
            // The writer gets the error at its next operation.
            let _ = pump.flush();
        }
    }

    fn found(&self, path: &VirtualPath) -> Result<Option<Metadata>> {
        match self.stat(path, true) {
            Ok(metadata) => Ok(Some(metadata)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn create(&self, path: &VirtualPath) -> Result<()> {
        self.at("open", path, |far, bytes| far.create(bytes))
    }
}

fn busy(action: &'static str, path: &VirtualPath) -> Error {
    Error::new(ErrorKind::Busy, action, path.as_bytes())
}

impl Store for RemoteStore {
    fn name(&self) -> &'static str {
        "remote"
    }

    /// The far server decides about names and symbolic links.
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            keeps: true,
            rename: true,
            symlinks: false,
            random_write: true,
            outlives_name: false,
            any_name: false,
        }
    }

    fn stat(&self, path: &VirtualPath, _follow: bool) -> Result<Metadata> {
        self.at("stat", path, |far, bytes| far.stat(bytes)).map(|entry| metadata(&entry))
    }

    fn list(&self, path: &VirtualPath, sink: &mut ListSink<'_>) -> Result<()> {
        let mut entries: Vec<Entry> = Vec::new();
        self.at("list", path, |far, bytes| far.list(bytes, &mut |entry| entries.push(entry)))?;
        // A server may list a file by itself.
        if let [only] = &*entries
            && path.file_name() == Some(only.name.as_ref())
            && self.stat(path, true)?.kind != Kind::Directory
        {
            return Err(Error::new(ErrorKind::NotDirectory, "list", path.as_bytes()));
        }
        entries.iter().try_for_each(|entry| sink(entry.name.as_ref(), metadata(entry)))
    }

    fn open_read(&self, path: &VirtualPath) -> Result<Arc<dyn ReadHandle>> {
        let metadata = self.at("open", path, |far, bytes| far.stat(bytes)).map(|entry| metadata(&entry))?;
        if metadata.kind == Kind::Directory {
            return Err(Error::new(ErrorKind::IsDirectory, "open", path.as_bytes()));
        }
        let window = Window::new(self.client.memory.share());
        Ok(Arc::new(RemoteFile::new(self.far.clone(), path.clone(), metadata, window)))
    }

    fn open_write(&self, path: &VirtualPath, options: WriteOptions) -> Result<Arc<dyn WriteHandle>> {
        let making = self.making.lock();
        let error = |kind| Error::new(kind, "open", path.as_bytes());
        match self.found(path)? {
            Some(there) if there.kind == Kind::Directory => return Err(error(ErrorKind::IsDirectory)),
            Some(_) if options.exclusive => return Err(error(ErrorKind::AlreadyExists)),
            Some(_) if options.truncate => self.truncate(path, 0)?,
            Some(_) => {}
            None if options.create => self.create(path)?,
            None => return Err(error(ErrorKind::NotFound)),
        }
        drop(making);
        let any_order = self.at("open", path, |far, _| far.takes_any_order())?;
        let window = Window::new(self.client.memory.share());
        let target = Target::File(self.far.clone(), path.as_bytes().into());
        let pump = Arc::new(Pump::new(path, target, any_order, None, window));
        self.open.lock().push(Arc::downgrade(&pump));
        Ok(Arc::new(RemoteWriter { far: self.far.clone(), path: path.clone(), pump }))
    }

    fn begin_upload(&self, path: &VirtualPath, spec: UploadSpec) -> Result<Arc<dyn Upload>> {
        self.settle();
        let in_order = spec.options.journal == Journaling::Sequential;
        let place = Place {
            far: self.far.clone(),
            memory: self.client.memory.clone(),
            writers: self.uploads.clone(),
        };
        let upload = RemoteUpload::begin(place, path, spec)?;
        let mut known = self.in_order.lock();
        if in_order {
            known.insert(path.clone())
        } else {
            known.remove(path)
        };
        Ok(Arc::new(upload))
    }

    fn interrupted_upload(
        &self,
        path: &VirtualPath,
        _progress: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<Option<Interrupted>> {
        if self.uploads.lock().contains(path) {
            return Err(busy("open", path));
        }
        let present = self.at("open", path, |far, bytes| far.interrupted(bytes))?;
        Ok((!present.is_empty()).then(|| {
            let unknown = synthetic(Kind::File, 0, 0);
            Interrupted { present, key: None, modified: unknown.modified, changed: unknown.changed }
        }))
    }

    fn uploaded_prefix(&self, path: &VirtualPath) -> Result<Option<u64>> {
        if !self.in_order.lock().contains(path) {
            return Ok(None);
        }
        let left = self.interrupted_upload(path, &mut |_| Ok(()))?;
        Ok(left.map(|left| left.present.prefix()))
    }

    fn make_directory(&self, path: &VirtualPath, _mode: u32) -> Result<()> {
        if path.is_root() {
            return Err(Error::new(ErrorKind::AlreadyExists, "mkdir", path.as_bytes()));
        }
        self.at("mkdir", path, Far::make_directory)
    }

    fn remove_directory(&self, path: &VirtualPath) -> Result<()> {
        if path.is_root() {
            return Err(busy("rmdir", path));
        }
        self.at("rmdir", path, Far::remove_directory)
    }

    fn remove_file(&self, path: &VirtualPath) -> Result<()> {
        self.at("unlink", path, Far::remove_file)
    }

    fn rename(&self, from: &VirtualPath, to: &VirtualPath) -> Result<()> {
        if from.is_root() || to.is_root() {
            return Err(busy("rename", from));
        }
        self.at("rename", from, |far, bytes| far.rename(bytes, to.as_bytes()))
    }

    fn rename_file(&self, from: &VirtualPath, to: &VirtualPath) -> Result<()> {
        // The far server applies its own rules.
        self.rename(from, to)
    }

    fn symlink(&self, target: &BStr, link: &VirtualPath) -> Result<()> {
        self.at("symlink", link, |far, bytes| far.symlink(target, bytes))
    }

    fn set_modified(&self, path: &VirtualPath, seconds: i64, _nanoseconds: u32) -> Result<()> {
        self.at("utime", path, |far, bytes| far.set_attributes(bytes, Some(seconds), None))
    }

    fn set_mode(&self, path: &VirtualPath, mode: u32) -> Result<()> {
        self.at("chmod", path, |far, bytes| far.set_attributes(bytes, None, Some(mode)))
    }

    fn set_group(&self, path: &VirtualPath, gid: u32) -> Result<()> {
        self.at("chgrp", path, |far, bytes| far.set_group(bytes, gid))
    }

    fn truncate(&self, path: &VirtualPath, length: u64) -> Result<()> {
        self.at("truncate", path, |far, bytes| far.truncate(bytes, length))
    }

    fn real_path(&self, path: &VirtualPath) -> Result<VirtualPath> {
        self.stat(path, true).map(|_| path.clone())
    }

    fn checksum(
        &self,
        path: &VirtualPath,
        algorithm: Algorithm,
        offset: u64,
        length: Option<u64>,
        progress: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Option<Result<String>> {
        self.settle();
        let result = far_checksum(&self.far, path.as_bytes(), algorithm, Part { offset, length }, progress);
        Some(result.and_then(|sum| sum.map_err(|error| error.into_storage("checksum", path.as_bytes()))))
    }
}
