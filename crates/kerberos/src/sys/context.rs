//! Security contexts.

use std::ffi::c_int;
use std::ptr;
use std::time::SystemTime;

use super::buffer::{Buffer, give, lend};
use super::credential::{Credential, end};
use super::library::{self, CONTINUE_NEEDED, Handle, KRB5, Library};
use super::name::Name;
use super::status::{GssError, check};
use crate::KerberosError;

/// `GSS_C_*_FLAG` of RFC 2744.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flags(pub(crate) u32);

impl Flags {
    pub(crate) const DELEGATE: Self = Self(1);
    pub(crate) const MUTUAL: Self = Self(2);
    pub(crate) const REPLAY: Self = Self(4);
    pub(crate) const CONFIDENTIAL: Self = Self(16);
    pub(crate) const INTEGRITY: Self = Self(32);

    pub(crate) const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Result of one step of the token exchange.
pub(crate) struct Stepped {
    pub(crate) out: Vec<u8>,
    pub(crate) done: bool,
    pub(crate) delegated: Option<Credential>,
}

/// Attributes of an established context.
pub(crate) struct Facts {
    pub(crate) initiator: String,
    pub(crate) acceptor: String,
    pub(crate) expires: Option<SystemTime>,
    pub(crate) flags: Flags,
}

pub(crate) struct Context {
    handle: Handle,
    library: &'static Library,
}

// SAFETY: a context may move to another thread; `&mut` ensures that only one uses it at a time.
unsafe impl Send for Context {}

impl Context {
    pub(crate) fn new() -> Result<Self, KerberosError> {
        Ok(Self { handle: ptr::null_mut(), library: library::get()? })
    }

    /// Runs the initiator's next step.
    pub(crate) fn initiate(
        &mut self,
        credential: &Credential,
        target: &Name,
        flags: Flags,
        token: &mut [u8],
    ) -> Result<Stepped, GssError> {
        let mut out = Buffer::empty(self.library);
        let mut minor = 0;
        let input = give(token);
        // SAFETY: the handles are valid; each pointer is null where that is allowed, or points to a
        // variable that outlives the call. The library writes the handle of the context.
        let major = unsafe {
            (self.library.gss_init_sec_context)(
                &raw mut minor,
                credential.handle,
                &raw mut self.handle,
                target.handle,
                &raw const KRB5,
                flags.0,
                0,
                ptr::null(),
                &raw const input,
                ptr::null_mut(),
                out.as_mut(),
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        check(self.library, "Kerberos", major, minor)?;
        Ok(Stepped { out: out.bytes().to_vec(), done: major & CONTINUE_NEEDED == 0, delegated: None })
    }

    /// Runs the acceptor's next step.
    pub(crate) fn accept(&mut self, credential: &Credential, token: &mut [u8]) -> Result<Stepped, GssError> {
        let mut out = Buffer::empty(self.library);
        let (mut minor, mut delegated) = (0, ptr::null_mut());
        let input = give(token);
        // SAFETY: as in `initiate`. There are no channel bindings: a client behind NAT has other
        // addresses than we see. The library ignores the bindings of a client that sends some.
        let major = unsafe {
            (self.library.gss_accept_sec_context)(
                &raw mut minor,
                &raw mut self.handle,
                credential.handle,
                &raw const input,
                ptr::null(),
                ptr::null_mut(),
                ptr::null_mut(),
                out.as_mut(),
                ptr::null_mut(),
                ptr::null_mut(),
                &raw mut delegated,
            )
        };
        let delegated = Credential::adopt(self.library, delegated);
        check(self.library, "Kerberos", major, minor)?;
        Ok(Stepped { out: out.bytes().to_vec(), done: major & CONTINUE_NEEDED == 0, delegated })
    }

    /// The attributes of an established context.
    pub(crate) fn facts(&self) -> Result<Facts, GssError> {
        let (mut minor, mut lifetime, mut flags) = (0, 0, 0);
        let (mut initiator, mut acceptor) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the handle is ours; each pointer is null where that is allowed, or points to a
        // variable that outlives the call.
        let major = unsafe {
            (self.library.gss_inquire_context)(
                &raw mut minor,
                self.handle,
                &raw mut initiator,
                &raw mut acceptor,
                &raw mut lifetime,
                ptr::null_mut(),
                &raw mut flags,
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        let initiator = Name::adopt(self.library, initiator);
        let acceptor = Name::adopt(self.library, acceptor);
        check(self.library, "Kerberos", major, minor)?;
        let text = |name: Option<Name>| name.map_or(Ok(String::new()), |name| name.display());
        Ok(Facts {
            initiator: text(initiator)?,
            acceptor: text(acceptor)?,
            expires: end(lifetime),
            flags: Flags(flags),
        })
    }

    /// Appends a token with `plain` to `out`. Returns whether it is encrypted, which is not certain
    /// even if `encrypt` is set.
    pub(crate) fn wrap(&mut self, plain: &[u8], encrypt: bool, out: &mut Vec<u8>) -> Result<bool, GssError> {
        let mut token = Buffer::empty(self.library);
        let (mut minor, mut encrypted) = (0, 0);
        let input = lend(plain);
        // SAFETY: the handle is ours; the pointers are to variables that outlive the call.
        let major = unsafe {
            (self.library.gss_wrap)(
                &raw mut minor,
                self.handle,
                c_int::from(encrypt),
                0,
                &raw const input,
                &raw mut encrypted,
                token.as_mut(),
            )
        };
        check(self.library, "protecting a message", major, minor)?;
        out.extend_from_slice(token.bytes());
        Ok(encrypted != 0)
    }

    /// Appends the content of a token to `plain`. Returns whether it was encrypted. The library's
    /// opinion on the order of messages is ignored: see [`crate::sequence`]. The bytes of the token
    /// are useless afterwards.
    pub(crate) fn unwrap(&mut self, token: &mut [u8], plain: &mut Vec<u8>) -> Result<bool, GssError> {
        let mut opened = Buffer::empty(self.library);
        let (mut minor, mut encrypted) = (0, 0);
        let input = give(token);
        // SAFETY: the handle is ours; each pointer is null where that is allowed, or points to a
        // variable that outlives the call.
        let major = unsafe {
            (self.library.gss_unwrap)(
                &raw mut minor,
                self.handle,
                &raw const input,
                opened.as_mut(),
                &raw mut encrypted,
                ptr::null_mut(),
            )
        };
        check(self.library, "a message of the peer", major, minor)?;
        plain.extend_from_slice(opened.bytes());
        Ok(encrypted != 0)
    }

    /// The largest number of plain bytes whose token is at most `token` bytes long.
    pub(crate) fn plain_limit(&mut self, token: u32, encrypt: bool) -> Result<u32, GssError> {
        let (mut minor, mut most) = (0, 0);
        // SAFETY: the handle is ours; the pointers are to variables that outlive the call.
        let major = unsafe {
            (self.library.gss_wrap_size_limit)(
                &raw mut minor,
                self.handle,
                c_int::from(encrypt),
                0,
                token,
                &raw mut most,
            )
        };
        check(self.library, "the size of protected messages", major, minor)?;
        Ok(most)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.handle.is_null() {
            return;
        }
        let mut minor = 0;
        // SAFETY: the handle has no other owner; no token is requested.
        unsafe {
            (self.library.gss_delete_sec_context)(&raw mut minor, &raw mut self.handle, ptr::null_mut())
        };
    }
}
