//! Virtual files for measurements, visible to accounts that may take profiles.
//!
//! `/dev/ropewalk-zero-SIZE` is a file of SIZE zero bytes, and `/dev/ropewalk-null` discards what
//! is written. With them a transfer shows what the path carries without disks. All other names are
//! those of the store beneath. Rules apply to these names as to all others.

use std::sync::Arc;

use bstr::BStr;
use ropewalk_protocol::path::VirtualPath;
use ropewalk_storage::{
    Capabilities, Error, ErrorKind, Guard, Impersonation, Interrupted, Kind, ListSink, Metadata, NullStore,
    ReadHandle, Result, Store, Upload, UploadSpec, WriteHandle, WriteOptions,
};

const ZEROS: &[u8] = b"/dev/ropewalk-zero-";
const NULL: &[u8] = b"/dev/ropewalk-null";
/// The longest file of zeros: a day at 10 Gbit/s.
const LONGEST: u64 = 100 << 40;

pub(crate) struct VirtualDevices {
    inner: Arc<dyn Store>,
}

/// A virtual file.
enum Name {
    Zeros(u64),
    Null,
}

impl Name {
    fn of(path: &VirtualPath) -> Option<Self> {
        let path = path.as_bytes();
        if path == NULL {
            return Some(Self::Null);
        }
        let size = std::str::from_utf8(path.strip_prefix(ZEROS)?).ok()?;
        let size = size.parse().ok().filter(|size| *size <= LONGEST)?;
        Some(Self::Zeros(size))
    }
}

/// Whether the path is that of a virtual file.
pub(crate) fn is_name(path: &VirtualPath) -> bool {
    Name::of(path).is_some()
}

impl VirtualDevices {
    pub(crate) fn over(inner: Arc<dyn Store>) -> Arc<dyn Store> {
        Arc::new(Self { inner })
    }

    /// The store for operations that change names or attributes, which virtual files do not permit.
    fn real<'a>(&'a self, action: &'static str, path: &VirtualPath) -> Result<&'a dyn Store> {
        match Name::of(path) {
            None => Ok(&*self.inner),
            Some(_) => Err(Error::new(ErrorKind::PermissionDenied, action, path.as_bytes())),
        }
    }
}

impl Store for VirtualDevices {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn guarded(&self, guard: Guard) -> Option<Arc<dyn Store>> {
        // The path of a virtual file was checked as it is written: no link leads there.
        self.inner.guarded(guard).map(Self::over)
    }

    fn without_replacing(&self) -> Option<Arc<dyn Store>> {
        self.inner.without_replacing().map(Self::over)
    }

    fn own_uid(&self) -> Option<u32> {
        self.inner.own_uid()
    }

    fn acting(&self) -> Result<Impersonation> {
        self.inner.acting()
    }

    fn acting_uid(&self) -> Option<u32> {
        self.inner.acting_uid()
    }

    fn stat(&self, path: &VirtualPath, follow: bool) -> Result<Metadata> {
        match Name::of(path) {
            None => self.inner.stat(path, follow),
            Some(Name::Zeros(size)) => NullStore::new(size).stat(path, follow),
            // As a device, it is not replaced by a part file.
            Some(Name::Null) => {
                Ok(Metadata { kind: Kind::CharacterDevice, ..NullStore::new(0).stat(path, follow)? })
            }
        }
    }

    fn list(&self, path: &VirtualPath, sink: &mut ListSink<'_>) -> Result<()> {
        self.inner.list(path, sink)
    }

    fn open_read(&self, path: &VirtualPath) -> Result<Arc<dyn ReadHandle>> {
        match Name::of(path) {
            None => self.inner.open_read(path),
            Some(Name::Zeros(size)) => NullStore::new(size).open_read(path),
            Some(Name::Null) => NullStore::new(0).open_read(path),
        }
    }

    fn open_write(&self, path: &VirtualPath, options: WriteOptions) -> Result<Arc<dyn WriteHandle>> {
        match Name::of(path) {
            Some(Name::Null) => NullStore::new(0).open_write(path, options),
            _ => self.real("open", path)?.open_write(path, options),
        }
    }

    fn begin_upload(&self, path: &VirtualPath, spec: UploadSpec) -> Result<Arc<dyn Upload>> {
        self.real("open", path)?.begin_upload(path, spec)
    }

    fn interrupted_upload(
        &self,
        path: &VirtualPath,
        progress: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<Option<Interrupted>> {
        self.inner.interrupted_upload(path, progress)
    }

    fn uploaded_prefix(&self, path: &VirtualPath) -> Result<Option<u64>> {
        self.inner.uploaded_prefix(path)
    }

    fn upload_space(&self, path: &VirtualPath) -> u64 {
        self.inner.upload_space(path)
    }

    fn make_directory(&self, path: &VirtualPath, mode: u32) -> Result<()> {
        self.real("mkdir", path)?.make_directory(path, mode)
    }

    fn remove_directory(&self, path: &VirtualPath) -> Result<()> {
        self.real("rmdir", path)?.remove_directory(path)
    }

    fn remove_file(&self, path: &VirtualPath) -> Result<()> {
        self.real("unlink", path)?.remove_file(path)
    }

    fn rename(&self, from: &VirtualPath, to: &VirtualPath) -> Result<()> {
        self.real("rename", from)?;
        self.real("rename", to)?.rename(from, to)
    }

    fn rename_file(&self, from: &VirtualPath, to: &VirtualPath) -> Result<()> {
        self.real("rename", from)?;
        self.real("rename", to)?.rename_file(from, to)
    }

    fn symlink(&self, target: &BStr, link: &VirtualPath) -> Result<()> {
        self.real("symlink", link)?.symlink(target, link)
    }

    fn set_modified(&self, path: &VirtualPath, seconds: i64, nanoseconds: u32) -> Result<()> {
        self.real("utimes", path)?.set_modified(path, seconds, nanoseconds)
    }

    fn set_mode(&self, path: &VirtualPath, mode: u32) -> Result<()> {
        self.real("chmod", path)?.set_mode(path, mode)
    }

    fn set_group(&self, path: &VirtualPath, gid: u32) -> Result<()> {
        self.real("chown", path)?.set_group(path, gid)
    }

    fn truncate(&self, path: &VirtualPath, length: u64) -> Result<()> {
        self.real("truncate", path)?.truncate(path, length)
    }

    fn real_path(&self, path: &VirtualPath) -> Result<VirtualPath> {
        match Name::of(path) {
            None => self.inner.real_path(path),
            Some(_) => Ok(path.clone()),
        }
    }

    fn sync_directory(&self, path: &VirtualPath) -> Result<()> {
        self.inner.sync_directory(path)
    }

    fn free_space(&self, path: &VirtualPath) -> Result<Option<u64>> {
        match Name::of(path) {
            None => self.inner.free_space(path),
            Some(_) => Ok(None),
        }
    }

    fn total_space(&self, path: &VirtualPath) -> Result<Option<u64>> {
        self.inner.total_space(path)
    }

    fn remove_tree_while(&self, path: &VirtualPath, proceed: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        self.real("unlink", path)?.remove_tree_while(path, proceed)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use ropewalk_storage::MemoryStore;

    use super::*;

    fn path(text: &str) -> VirtualPath {
        VirtualPath::parse(text.as_bytes()).unwrap()
    }

    const WRITE: WriteOptions = WriteOptions { create: true, truncate: true, exclusive: false, mode: 0o644 };

    #[test]
    fn virtual_devices_leave_other_names_to_store() {
        let store = VirtualDevices::over(Arc::new(MemoryStore::new(1 << 20)));
        let zeros = store.stat(&path("/dev/ropewalk-zero-1000"), true).unwrap();
        assert_eq!((zeros.kind, zeros.size), (Kind::File, 1000));
        assert_eq!(store.stat(&path("/dev/ropewalk-null"), true).unwrap().kind, Kind::CharacterDevice);
        store.open_write(&path("/dev/ropewalk-null"), WRITE).unwrap().write_at(b"gone", 5).unwrap();
        let mut buffer = [7; 4];
        let read = store.open_read(&path("/dev/ropewalk-zero-3")).unwrap().read_at(&mut buffer, 0).unwrap();
        assert_eq!((read, buffer), (3, [0, 0, 0, 7]));
        for other in
            ["/dev/ropewalk-zero-", "/dev/ropewalk-zero--1", "/dev/ropewalk-zero-99999999999999999", "/x"]
        {
            assert!(store.stat(&path(other), true).unwrap_err().is_not_found(), "{other}");
        }
        assert!(store.open_write(&path("/dev/ropewalk-zero-5"), WRITE).is_err());
        assert!(store.remove_file(&path("/dev/ropewalk-null")).is_err());
        assert!(store.rename(&path("/dev/ropewalk-zero-5"), &path("/x")).is_err());
        store.open_write(&path("/x"), WRITE).unwrap().write_at(b"here", 0).unwrap();
        assert!(store.rename(&path("/x"), &path("/dev/ropewalk-null")).is_err());
        assert_eq!(store.stat(&path("/x"), true).unwrap().size, 4);
    }
}
