//! Tickets of a client and keys of a server.

use std::ffi::{CString, c_int};
use std::path::Path;
use std::ptr;
use std::time::{Duration, SystemTime};

use super::library::{self, Handle, INDEFINITE, KRB5_ONLY, Library, RawKeyValue, RawKeyValues};
use super::name::{Name, NameKind};
use super::status::check;
use crate::KerberosError;

const INITIATE: c_int = 1;
const ACCEPT: c_int = 2;

/// The credential of one side: a client's tickets or a server's keys. Several threads may use it at
/// once.
pub struct Credential {
    pub(super) handle: Handle,
    library: &'static Library,
}

// SAFETY: MIT's library guards the mutable state of a credential with its own mutex.
unsafe impl Send for Credential {}
// SAFETY: as above.
unsafe impl Sync for Credential {}

impl std::fmt::Debug for Credential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credential").finish_non_exhaustive()
    }
}

impl Credential {
    /// The client's tickets: those of the credential cache `cache` (`FILE:/tmp/krb5cc_1000`), or of
    /// the cache that the environment names (`KRB5CCNAME`, krb5.conf).
    ///
    /// # Errors
    /// The library cannot be loaded, or there is no cache or no ticket that is valid now.
    pub fn client(cache: Option<&str>) -> Result<Self, KerberosError> {
        Self::acquire("your Kerberos tickets", INITIATE, None, cache.map(|cache| ("ccache", cache)))
    }

    /// A server's keys: those of `keytab`, or of the keytab that the environment names
    /// (`KRB5_KTNAME`, krb5.conf, `/etc/krb5.keytab`); only the key of `principal`
    /// (`host/data.example@EXAMPLE`) if one is named. The library reads the file again at each
    /// log-in.
    ///
    /// # Errors
    /// The library cannot be loaded, or there is no keytab or no such key in it.
    pub fn server(keytab: Option<&Path>, principal: Option<&str>) -> Result<Self, KerberosError> {
        let path = keytab.map(|path| {
            let text =
                path.to_str().ok_or_else(|| KerberosError::Name { text: path.display().to_string() })?;
            Ok::<_, KerberosError>(format!("FILE:{text}"))
        });
        let path = path.transpose()?;
        let name = principal.map(|text| Name::import(text, NameKind::Principal)).transpose()?;
        Self::acquire(
            "the server's keytab",
            ACCEPT,
            name.as_ref(),
            path.as_deref().map(|path| ("keytab", path)),
        )
    }

    fn acquire(
        doing: &'static str,
        usage: c_int,
        name: Option<&Name>,
        place: Option<(&str, &str)>,
    ) -> Result<Self, KerberosError> {
        let library = library::get()?;
        let c = |text: &str| CString::new(text).map_err(|_| KerberosError::Name { text: text.to_owned() });
        let place = place.map(|(key, value)| Ok::<_, KerberosError>((c(key)?, c(value)?))).transpose()?;
        let element =
            place.as_ref().map(|(key, value)| RawKeyValue { key: key.as_ptr(), value: value.as_ptr() });
        let store = element.as_ref().map(|element| RawKeyValues { count: 1, elements: &raw const *element });
        let (mut minor, mut handle) = (0, ptr::null_mut());
        // SAFETY: each pointer is null where that is allowed, or points to a variable that outlives
        // the call.
        let major = unsafe {
            (library.gss_acquire_cred_from)(
                &raw mut minor,
                name.map_or(ptr::null_mut(), |name| name.handle),
                INDEFINITE,
                &raw const KRB5_ONLY,
                usage,
                store.as_ref().map_or(ptr::null(), |store| &raw const *store),
                &raw mut handle,
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        check(library, doing, major, minor)?;
        Ok(Self { handle, library })
    }

    /// Takes ownership of a handle from the library; `None` if it is null.
    pub(super) fn adopt(library: &'static Library, handle: Handle) -> Option<Self> {
        (!handle.is_null()).then_some(Self { handle, library })
    }

    /// The principal (`ada@EXAMPLE`; `None` if any key of a keytab may be used), and when the
    /// credential expires (`None` for a keytab: never).
    ///
    /// # Errors
    /// The cache cannot be read, or its tickets have expired.
    pub fn inquire(&self) -> Result<(Option<String>, Option<SystemTime>), KerberosError> {
        let (mut minor, mut name, mut lifetime) = (0, ptr::null_mut(), 0);
        // SAFETY: the handle is ours; each pointer is null where that is allowed, or points to a
        // variable that outlives the call.
        let major = unsafe {
            (self.library.gss_inquire_cred)(
                &raw mut minor,
                self.handle,
                &raw mut name,
                &raw mut lifetime,
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        let name = Name::adopt(self.library, name);
        check(self.library, "your Kerberos tickets", major, minor)?;
        let name = name.map(|name| name.display()).transpose()?;
        Ok((name, end(lifetime)))
    }
}

impl Drop for Credential {
    fn drop(&mut self) {
        let mut minor = 0;
        // SAFETY: the handle has no other owner.
        unsafe { (self.library.gss_release_cred)(&raw mut minor, &raw mut self.handle) };
    }
}

/// The time `lifetime` seconds from now; `None` if it is indefinite.
pub(super) fn end(lifetime: u32) -> Option<SystemTime> {
    if lifetime == INDEFINITE {
        return None;
    }
    SystemTime::now().checked_add(Duration::from_secs(lifetime.into()))
}
