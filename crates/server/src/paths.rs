//! Which paths a session may use. Rules are checked on a path as it is written and again with its symbolic links
//! resolved, so that no link leads out of what is open.

use bstr::ByteSlice as _;
use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::server::Failure;
use ropewalk_security::Access;
use ropewalk_storage::Kind;
use rustix::io::Errno;

use crate::accounts::Login;
use crate::operations::failure;

impl Login {
    /// The place in the store of a path of the session.
    pub(crate) fn locate(&self, path: &VirtualPath) -> VirtualPath {
        path.beneath(&self.root)
    }

    /// Whether rules permit this place in the store, symbolic links aside.
    pub(crate) fn allows(&self, place: &VirtualPath, access: Access) -> bool {
        let Some(seen) = place.relative_to(&self.root) else {
            return false;
        };
        if access == Access::Write && self.account.read_only {
            return false;
        }
        self.account.rules.iter().all(|rules| rules.allow(place, access))
            && self.restriction.allow(&seen, access)
    }

    /// Nothing within the store is closed to the session, so links need not be looked at: the store itself keeps
    /// them inside.
    pub(crate) fn unrestricted(&self) -> bool {
        self.root.is_root()
            && self.restriction.is_empty()
            && self.account.rules.iter().all(ropewalk_security::Rules::is_empty)
    }

    /// The place of something that exists; symbolic links are followed.
    pub(crate) fn existing(&self, path: &VirtualPath, access: Access) -> Result<VirtualPath, Failure> {
        let place = self.written(path, access)?;
        if self.unrestricted() {
            return Ok(place);
        }
        let real = self.store.real_path(&place).map_err(failure)?;
        self.permit(real, access)
    }

    /// The place of an entry itself, which need not exist and is not followed where it is a link; its directory must
    /// exist.
    pub(crate) fn entry(&self, path: &VirtualPath, access: Access) -> Result<VirtualPath, Failure> {
        let place = self.written(path, access)?;
        if self.unrestricted() {
            return Ok(place);
        }
        let (Some(parent), Some(name)) = (place.parent(), place.file_name()) else {
            return Ok(place);
        };
        let real = self.store.real_path(&parent).map_err(failure)?;
        let real = real.child(name).map_err(|_| Failure::NotAllowed)?;
        self.permit(real, access)
    }

    /// The place of a file to be written, which need not exist; what exists is followed.
    pub(crate) fn target(&self, path: &VirtualPath) -> Result<VirtualPath, Failure> {
        let entry = self.entry(path, Access::Write)?;
        match self.store.stat(&entry, false) {
            Ok(metadata) if metadata.kind == Kind::Symlink => match self.store.real_path(&entry) {
                Ok(real) => self.permit(real, Access::Write),
                // Through a link that leads nowhere a file would appear in a place that nobody has checked.
                Err(error) if error.is_not_found() && self.unrestricted() => Ok(entry),
                Err(error) if error.is_not_found() => Err(Failure::NotAllowed),
                Err(error) => Err(failure(error)),
            },
            _ => Ok(entry),
        }
    }

    /// The place of an entry that is moved or removed with all that is beneath.
    pub(crate) fn tree(&self, path: &VirtualPath) -> Result<VirtualPath, Failure> {
        let entry = self.entry(path, Access::Write)?;
        let seen = entry.relative_to(&self.root).ok_or(Failure::NotAllowed)?;
        let whole = self.account.rules.iter().all(|rules| rules.allow_tree(&entry))
            && self.restriction.allow_tree(&seen);
        if whole { Ok(entry) } else { Err(Failure::NotAllowed) }
    }

    /// Whether an entry of a directory is shown.
    pub(crate) fn shows(&self, place: &VirtualPath) -> bool {
        self.allows(place, Access::List)
    }

    /// Where a symbolic link in `directory` (a place) would lead, as far as rules go: `None` where they forbid it.
    pub(crate) fn link_target(&self, directory: &VirtualPath, target: &[u8]) -> Option<VirtualPath> {
        // An absolute link counts from the root of the store, as the store resolves it.
        let place = directory.join(target).ok()?;
        let real = self.store.real_path(&place).unwrap_or(place);
        self.allows(&real, Access::List).then_some(real)
    }

    fn written(&self, path: &VirtualPath, access: Access) -> Result<VirtualPath, Failure> {
        if access == Access::Write && self.account.read_only {
            return Err(Failure::System {
                errno: Errno::ACCESS.raw_os_error(),
                action: "write: read-only account".into(),
            });
        }
        self.permit(self.locate(path), access)
    }

    fn permit(&self, place: VirtualPath, access: Access) -> Result<VirtualPath, Failure> {
        if self.allows(&place, access) {
            return Ok(place);
        }
        tracing::debug!(user = self.account.name, path = ?place.as_bytes().as_bstr(), ?access, "path not allowed");
        Err(Failure::NotAllowed)
    }
}
