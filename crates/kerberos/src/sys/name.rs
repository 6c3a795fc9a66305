//! Principals.

use std::ptr;

use super::buffer::{Buffer, lend};
use super::library::{self, HOST_BASED, Handle, Library, PRINCIPAL};
use super::status::{GssError, check};
use crate::KerberosError;

/// The form of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NameKind {
    /// `service@host`; the library finds the realm.
    HostBased,
    /// `primary/instance@REALM`.
    Principal,
}

pub(crate) struct Name {
    pub(super) handle: Handle,
    library: &'static Library,
}

// SAFETY: a name is never changed, and the library keeps no thread-local state in it.
unsafe impl Send for Name {}

impl Name {
    pub(crate) fn import(text: &str, kind: NameKind) -> Result<Self, KerberosError> {
        let library = library::get()?;
        let kind = match kind {
            NameKind::HostBased => &raw const HOST_BASED,
            NameKind::Principal => &raw const PRINCIPAL,
        };
        let (mut minor, mut handle) = (0, ptr::null_mut());
        let text = lend(text.as_bytes());
        // SAFETY: all pointers are to variables that outlive the call; the library copies the text.
        let major =
            unsafe { (library.gss_import_name)(&raw mut minor, &raw const text, kind, &raw mut handle) };
        check(library, "the name of a Kerberos principal", major, minor)?;
        Ok(Self { handle, library })
    }

    /// Takes ownership of a handle from the library; `None` if it is null.
    pub(super) fn adopt(library: &'static Library, handle: Handle) -> Option<Self> {
        (!handle.is_null()).then_some(Self { handle, library })
    }

    /// `primary/instance@REALM`.
    pub(crate) fn display(&self) -> Result<String, GssError> {
        let mut text = Buffer::empty(self.library);
        let mut minor = 0;
        // SAFETY: the handle is ours, the pointers are to variables that outlive the call; the type
        // of the name is not requested.
        let major = unsafe {
            (self.library.gss_display_name)(&raw mut minor, self.handle, text.as_mut(), ptr::null_mut())
        };
        check(self.library, "the name of a Kerberos principal", major, minor)?;
        Ok(text.text())
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        let mut minor = 0;
        // SAFETY: the handle has no other owner.
        unsafe { (self.library.gss_release_name)(&raw mut minor, &raw mut self.handle) };
    }
}
