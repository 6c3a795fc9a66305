//! A store that reports the files that it changes to their accounts, and refuses what does not fit.
//!
//! Paths resolve to the directory on this host that has the entry, since accounts belong to places
//! there. Names in a directory change one at a time, so that the file that was reported is the one
//! that changes. Part files count as files, journals do not. Bookkeeping uses the store without its
//! access rules: these decide whether the operation itself is done.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bstr::BStr;
use ropewalk_protocol::path::VirtualPath;
use ropewalk_space::{Accounts, Inode, Refusal};
use ropewalk_storage::{
    Capabilities, DiskFile, Error, ErrorKind, Guard, Impersonation, Interrupted, Kind, ListSink, Metadata,
    PartFile, ReadHandle, Result, Store, Upload, UploadSpec, WriteHandle, WriteOptions, is_temporary_name,
    journal_of_part,
};
use rustix::fs::XattrFlags;

use super::metered_file::MeteredFile;
use super::{Drawing, OWNER_MARK, Space, Spot, inode, now, refused};

/// If a file appears and disappears meanwhile, it is opened again this many times.
const ATTEMPTS: u32 = 8;

#[derive(Clone)]
pub(super) struct MeteredStore {
    inner: Arc<dyn Store>,
    /// The store without access rules.
    plain: Arc<dyn Store>,
    space: Arc<Space>,
    /// The root of the store on this host.
    root: PathBuf,
    /// The user that is written down on new files.
    mark: Option<String>,
    /// Whether names may be replaced.
    replaces: bool,
    /// The reservation of the session.
    drawing: Drawing,
}

/// Whether the file at the path counts: journals of uploads do not.
pub(super) fn counts(path: &VirtualPath) -> bool {
    !path.file_name().is_some_and(is_temporary_name) || journal_of_part(path).is_some()
}

/// The path on this host.
pub(crate) fn on_host(root: &Path, path: &VirtualPath) -> PathBuf {
    let relative = path.as_bytes().strip_prefix(b"/").unwrap_or(path.as_bytes());
    if relative.is_empty() { root.to_owned() } else { root.join(OsStr::from_bytes(relative)) }
}

/// Why a file was not opened.
enum Unopened {
    /// It is one file too many.
    Refused(Refusal),
    Failed(Error),
}

impl From<Error> for Unopened {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// A file that is open in the accounts for one change of its name.
struct Held {
    file: Inode,
    accounts: Accounts,
}

impl MeteredStore {
    pub(super) fn over(
        inner: Arc<dyn Store>,
        space: Arc<Space>,
        root: PathBuf,
        mark: Option<String>,
        drawing: &Drawing,
    ) -> Arc<dyn Store> {
        let plain = Arc::clone(&inner);
        Arc::new(Self { inner, plain, space, root, mark, replaces: true, drawing: Arc::clone(drawing) })
    }

    fn with(&self, inner: Arc<dyn Store>) -> Arc<dyn Store> {
        Arc::new(Self { inner, ..self.clone() })
    }

    /// The directory of an entry, if files there count.
    fn spot(&self, path: &VirtualPath, action: &'static str) -> Result<Option<Spot>> {
        let parent = path.parent().unwrap_or_else(VirtualPath::root);
        let named = |error: Error| match error.errno() {
            Some(errno) => Error::from_errno(errno, action, path.as_bytes()),
            None => Error::new(error.kind(), action, path.as_bytes()),
        };
        let real = on_host(&self.root, &self.plain.real_path(&parent).map_err(named)?);
        if !self.space.rules.concern(&real) {
            return Ok(None);
        }
        let metadata = self.plain.stat(&parent, true).map_err(named)?;
        Ok(Some(Spot { inode: inode(&metadata), path: real }))
    }

    /// The file behind a path, of which the last component may be a link.
    fn followed(&self, path: &VirtualPath) -> VirtualPath {
        match self.plain.stat(path, false) {
            Ok(metadata) if metadata.kind == Kind::Symlink => {
                self.plain.real_path(path).unwrap_or_else(|_| path.clone())
            }
            _ => path.clone(),
        }
    }

    fn accounts(&self, spot: &Spot, path: &VirtualPath, metadata: &Metadata) -> Accounts {
        self.space.accounts_of(&spot.path, path.file_name().unwrap_or_default(), metadata)
    }

    /// Opens the file, or creates it, without room being made for it.
    fn open_or_create(
        &self,
        path: &VirtualPath,
        options: WriteOptions,
    ) -> Result<Arc<dyn WriteHandle>, Unopened> {
        let place = self.followed(path);
        let spot = self.spot(&place, "open")?.filter(|_| counts(&place));
        let Some(spot) = spot else { return Ok(self.inner.open_write(path, options)?) };
        let _names = self.space.lock_names(&[spot.inode]);
        let new = options.exclusive || options.create && options.truncate && !self.replaces;
        let existing = WriteOptions { create: false, truncate: false, exclusive: false, ..options };
        let exclusive = WriteOptions { create: true, truncate: false, exclusive: true, ..options };
        for _ in 0..ATTEMPTS {
            if !new {
                match self.inner.open_write(path, existing) {
                    Err(error) if error.is_not_found() && options.create => {}
                    opened => {
                        let file = self.opened(opened?, &place, &spot)?;
                        if options.truncate && file.metadata()?.kind == Kind::File {
                            file.set_len(0)?;
                        }
                        return Ok(file);
                    }
                }
            }
            match self.inner.open_write(path, exclusive) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists && !new => {}
                created => return self.created(created?, path, &spot),
            }
        }
        Err(Error::new(ErrorKind::AlreadyExists, "create", path.as_bytes())
            .with_detail("a symbolic link that leads nowhere")
            .into())
    }

    /// A handle of a file that existed.
    fn opened(
        &self,
        handle: Arc<dyn WriteHandle>,
        path: &VirtualPath,
        spot: &Spot,
    ) -> Result<Arc<dyn WriteHandle>> {
        let metadata = handle.metadata()?;
        if metadata.kind != Kind::File {
            return Ok(handle);
        }
        let (file, accounts) = (inode(&metadata), self.accounts(spot, path, &metadata));
        self.space.book().open(file, spot.inode, metadata.size, &accounts);
        self.draw(file);
        Ok(Arc::new(MeteredFile::new(handle, &self.space, file, path.as_bytes())))
    }

    /// A handle of a file that was created just now.
    fn created(
        &self,
        handle: Arc<dyn WriteHandle>,
        path: &VirtualPath,
        spot: &Spot,
    ) -> Result<Arc<dyn WriteHandle>, Unopened> {
        let enter = || {
            if let (Some(user), Some(descriptor)) =
                (&self.mark, handle.disk().and_then(DiskFile::named_descriptor))
            {
                let marked =
                    rustix::fs::fsetxattr(descriptor, OWNER_MARK, user.as_bytes(), XattrFlags::empty());
                marked.map_err(|errno| {
                    let error = Error::from_errno(errno.raw_os_error(), "mark", path.as_bytes());
                    error.with_detail(
                        "the file system cannot keep the owner of the file, which its quota needs",
                    )
                })?;
            }
            let metadata = handle.metadata()?;
            let (file, accounts) = (inode(&metadata), self.accounts(spot, path, &metadata));
            let made = self.space.book().create(file, spot.inode, &accounts, now());
            made.map_err(Unopened::Refused)?;
            Ok::<_, Unopened>(file)
        };
        let file = enter().inspect_err(|_| {
            // The error that was first is returned.
            let _ = self.inner.remove_file(path);
        })?;
        self.draw(file);
        Ok(Arc::new(MeteredFile::new(handle, &self.space, file, path.as_bytes())))
    }

    /// Lets an open file draw on the reservation of the session.
    fn draw(&self, file: Inode) {
        let token = self.drawing.lock().clone();
        if let Some(token) = token {
            self.space.book().draw_on(file, &token);
        }
    }

    /// Opens the file with this name in the accounts; `None` if it does not count.
    fn hold(&self, path: &VirtualPath, spot: Option<&Spot>) -> Option<Held> {
        let spot = spot.filter(|_| counts(path))?;
        let metadata = self.plain.stat(path, false).ok().filter(|metadata| metadata.kind == Kind::File)?;
        let (file, accounts) = (inode(&metadata), self.accounts(spot, path, &metadata));
        self.space.book().open(file, spot.inode, metadata.size, &accounts);
        Some(Held { file, accounts })
    }

    /// Releases a file that has the name `path` now.
    fn release(&self, held: &Held, path: &VirtualPath) {
        let named = self.plain.stat(path, false).ok().filter(|metadata| inode(metadata) == held.file);
        let mut book = self.space.book();
        let size = named.map_or_else(|| book.charged(held.file).unwrap_or(0), |metadata| metadata.size);
        book.close(held.file, size, now());
    }

    /// Releases a file that has lost its name.
    fn release_removed(&self, held: &Held) {
        let mut book = self.space.book();
        book.remove(held.file, now());
        book.close(held.file, 0, now());
    }

    fn renaming(&self, from: &VirtualPath, to: &VirtualPath, rename: &dyn Fn() -> Result<()>) -> Result<()> {
        if from.is_root() || to.is_root() {
            return rename();
        }
        let old = self.spot(from, "rename")?;
        let new = self.spot(to, "rename to")?;
        let kind = self.plain.stat(from, false).map(|metadata| metadata.kind);
        if matches!(kind, Ok(Kind::Directory)) {
            return self.renaming_directory(from, to, rename);
        }
        if old.is_none() && new.is_none() {
            return rename();
        }
        let places: Vec<_> = [&old, &new].into_iter().flatten().map(|spot| spot.inode).collect();
        let _names = self.space.lock_names(&places);
        let moved = self.moving(from, to, old.as_ref(), new.as_ref())?;
        let same = moved.as_ref().map(|held| held.file);
        let replaced = self.hold(to, new.as_ref());
        let renamed = rename();
        if let Some(replaced) = replaced {
            // Two names of one file: both of them stay.
            if renamed.is_ok() && same != Some(replaced.file) {
                self.release_removed(&replaced);
            } else {
                self.release(&replaced, to);
            }
        }
        match (moved, &renamed) {
            (Some(moved), Ok(())) if new.is_none() || !counts(to) => self.release_removed(&moved),
            (Some(moved), Ok(())) => self.release(&moved, to),
            (Some(moved), Err(_)) => match &old {
                Some(old) => {
                    self.space.book().relocate_back(moved.file, old.inode, &moved.accounts, now());
                    self.release(&moved, from);
                }
                // It was charged for the new place alone.
                None => self.release_removed(&moved),
            },
            (None, _) => {}
        }
        renamed
    }

    /// Charges a file for its new place before it is moved there.
    fn moving(
        &self,
        from: &VirtualPath,
        to: &VirtualPath,
        old: Option<&Spot>,
        new: Option<&Spot>,
    ) -> Result<Option<Held>> {
        let exceeds = |refusal| refused(&refusal, "rename to", to.as_bytes());
        let Some(new) = new.filter(|_| counts(to)) else { return Ok(self.hold(from, old)) };
        let Ok(metadata) = self.plain.stat(from, false) else { return Ok(None) };
        if metadata.kind != Kind::File {
            return Ok(None);
        }
        let name = from.file_name().unwrap_or_default();
        let at = |spot: &Spot| self.space.rules.owner(&spot.path, name, &metadata);
        let file = inode(&metadata);
        match self.hold(from, old) {
            Some(held) => {
                let accounts = self.space.accounts(&new.path, &old.map(at).unwrap_or_default());
                let moved = self.space.book().relocate(file, new.inode, &accounts, now());
                moved.map_err(exceeds).inspect_err(|_| self.release(&held, from))?;
                Ok(Some(held))
            }
            None => {
                let accounts = self.accounts(new, from, &metadata);
                let mut book = self.space.book();
                book.create(file, new.inode, &accounts, now()).map_err(exceeds)?;
                let grown = book.grow(file, metadata.size, now());
                grown.map_err(exceeds).inspect_err(|_| {
                    book.remove(file, now());
                    book.close(file, 0, now());
                })?;
                Ok(Some(Held { file, accounts }))
            }
        }
    }

    fn renaming_directory(
        &self,
        from: &VirtualPath,
        to: &VirtualPath,
        rename: &dyn Fn() -> Result<()>,
    ) -> Result<()> {
        let place = |path: &VirtualPath| {
            let parent = self.plain.real_path(&path.parent().unwrap_or_else(VirtualPath::root))?;
            let name = OsStr::from_bytes(path.file_name().unwrap_or_default());
            Ok::<_, Error>(on_host(&self.root, &parent).join(name))
        };
        if !self.space.rules.may_move(&place(from)?, &place(to)?) {
            let detail = "A directory cannot be moved into or out of the directory of a quota: copy it.";
            return Err(Error::new(ErrorKind::Unsupported, "rename", from.as_bytes()).with_detail(detail));
        }
        let renamed = rename();
        self.space.book().moved_directory();
        renamed
    }

    /// Opens all files beneath a directory in the accounts.
    fn hold_tree(
        &self,
        path: &VirtualPath,
        go_on: &mut dyn FnMut() -> Result<()>,
        held: &mut Vec<(VirtualPath, Held)>,
    ) -> Result<()> {
        let mut directories = vec![path.clone()];
        while let Some(directory) = directories.pop() {
            let mut names = Vec::new();
            self.plain.list(&directory, &mut |name, metadata| {
                let Ok(child) = directory.child(name) else { return Ok(()) };
                match metadata.kind {
                    Kind::Directory => directories.push(child),
                    Kind::File => names.push(child),
                    _ => {}
                }
                Ok(())
            })?;
            for name in names {
                go_on()?;
                let spot = self.spot(&name, "remove")?;
                held.extend(self.hold(&name, spot.as_ref()).map(|file| (name, file)));
            }
        }
        Ok(())
    }
}

impl Store for MeteredStore {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn guarded(&self, guard: Guard) -> Option<Arc<dyn Store>> {
        self.inner.guarded(guard).map(|inner| self.with(inner))
    }

    fn without_replacing(&self) -> Option<Arc<dyn Store>> {
        let inner = self.inner.without_replacing()?;
        Some(Arc::new(Self { inner, replaces: false, ..self.clone() }))
    }

    fn near(&self, directory: &VirtualPath) -> Option<Arc<dyn Store>> {
        self.inner.near(directory).map(|inner| self.with(inner))
    }

    fn acting(&self) -> Result<Impersonation> {
        self.inner.acting()
    }

    fn acting_uid(&self) -> Option<u32> {
        self.inner.acting_uid()
    }

    fn own_uid(&self) -> Option<u32> {
        self.inner.own_uid()
    }

    fn stat(&self, path: &VirtualPath, follow: bool) -> Result<Metadata> {
        self.inner.stat(path, follow)
    }

    fn list(&self, path: &VirtualPath, sink: &mut ListSink<'_>) -> Result<()> {
        self.inner.list(path, sink)
    }

    fn open_read(&self, path: &VirtualPath) -> Result<Arc<dyn ReadHandle>> {
        self.inner.open_read(path)
    }

    fn open_write(&self, path: &VirtualPath, options: WriteOptions) -> Result<Arc<dyn WriteHandle>> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            match self.open_or_create(path, options) {
                // Not while the names are locked: part files there may have to be removed.
                Err(Unopened::Refused(refusal)) if attempts < ATTEMPTS && self.space.make_room(&refusal) => {}
                Err(Unopened::Refused(refusal)) => return Err(refused(&refusal, "create", path.as_bytes())),
                Err(Unopened::Failed(error)) => return Err(error),
                Ok(file) => return Ok(file),
            }
        }
    }

    fn begin_upload(&self, path: &VirtualPath, spec: UploadSpec) -> Result<Arc<dyn Upload>> {
        let store: Arc<dyn Store> = Arc::new(self.clone());
        Ok(Arc::new(PartFile::begin(&store, path, spec.key, spec.options)?))
    }

    fn interrupted_upload(
        &self,
        path: &VirtualPath,
        progress: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<Option<Interrupted>> {
        // After a crash this may remove a file, so it has to be seen.
        PartFile::interrupted(self, path, progress)
    }

    fn uploaded_prefix(&self, path: &VirtualPath) -> Result<Option<u64>> {
        PartFile::sequential_prefix(self, path)
    }

    fn upload_space(&self, path: &VirtualPath) -> u64 {
        self.inner.upload_space(path)
    }

    fn make_directory(&self, path: &VirtualPath, mode: u32) -> Result<()> {
        self.inner.make_directory(path, mode)?;
        if self.space.book().is_scanning() {
            let parent = self.plain.stat(&path.parent().unwrap_or_else(VirtualPath::root), true);
            if let (Ok(parent), Ok(made)) = (parent, self.plain.stat(path, false)) {
                self.space.book().made_directory(inode(&parent), inode(&made));
            }
        }
        Ok(())
    }

    fn remove_directory(&self, path: &VirtualPath) -> Result<()> {
        self.inner.remove_directory(path)
    }

    fn remove_file(&self, path: &VirtualPath) -> Result<()> {
        let Some(spot) = self.spot(path, "unlink")? else { return self.inner.remove_file(path) };
        let _names = self.space.lock_names(&[spot.inode]);
        let held = self.hold(path, Some(&spot));
        let removed = self.inner.remove_file(path);
        if let Some(held) = held {
            match removed {
                Ok(()) => self.release_removed(&held),
                Err(_) => self.release(&held, path),
            }
        }
        removed
    }

    fn rename(&self, from: &VirtualPath, to: &VirtualPath) -> Result<()> {
        self.renaming(from, to, &|| self.inner.rename(from, to))
    }

    fn rename_file(&self, from: &VirtualPath, to: &VirtualPath) -> Result<()> {
        self.renaming(from, to, &|| self.inner.rename_file(from, to))
    }

    fn symlink(&self, target: &BStr, link: &VirtualPath) -> Result<()> {
        self.inner.symlink(target, link)
    }

    fn set_modified(&self, path: &VirtualPath, seconds: i64, nanoseconds: u32) -> Result<()> {
        self.inner.set_modified(path, seconds, nanoseconds)
    }

    fn set_mode(&self, path: &VirtualPath, mode: u32) -> Result<()> {
        self.inner.set_mode(path, mode)
    }

    fn set_group(&self, path: &VirtualPath, gid: u32) -> Result<()> {
        let place = self.followed(path);
        let Some(spot) = self.spot(&place, "chgrp")? else { return self.inner.set_group(path, gid) };
        let _names = self.space.lock_names(&[spot.inode]);
        let held = self.hold(&place, Some(&spot));
        let changed = self.inner.set_group(path, gid);
        if let Some(held) = held {
            // The bytes are there: the new group has them, even if they are too many.
            if let Ok(metadata) = self.plain.stat(&place, false) {
                let accounts = self.accounts(&spot, &place, &metadata);
                self.space.book().relocate_back(held.file, spot.inode, &accounts, now());
            }
            self.release(&held, &place);
        }
        changed
    }

    fn truncate(&self, path: &VirtualPath, length: u64) -> Result<()> {
        let options = WriteOptions { create: false, truncate: false, exclusive: false, mode: 0 };
        // A file that cannot be opened has an error of its own for this operation.
        let Ok(file) = self.open_write(path, options) else { return self.inner.truncate(path, length) };
        match file.metadata()?.kind {
            Kind::File => file.set_len(length),
            _ => self.inner.truncate(path, length),
        }
    }

    fn real_path(&self, path: &VirtualPath) -> Result<VirtualPath> {
        self.inner.real_path(path)
    }

    fn sync_directory(&self, path: &VirtualPath) -> Result<()> {
        self.inner.sync_directory(path)
    }

    fn free_space(&self, path: &VirtualPath) -> Result<Option<u64>> {
        self.inner.free_space(path)
    }

    fn total_space(&self, path: &VirtualPath) -> Result<Option<u64>> {
        self.inner.total_space(path)
    }

    fn remove_tree_while(&self, path: &VirtualPath, go_on: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        if self.plain.stat(path, false)?.kind != Kind::Directory {
            go_on()?;
            return self.remove_file(path);
        }
        let mut held = Vec::new();
        let result = self.hold_tree(path, go_on, &mut held);
        let result = result.and_then(|()| self.inner.remove_tree_while(path, go_on));
        for (name, file) in held {
            let there = self.plain.stat(&name, false);
            match there {
                Ok(metadata) if inode(&metadata) == file.file => self.release(&file, &name),
                _ => self.release_removed(&file),
            }
        }
        result
    }
}
