//! Error messages of the library.

use std::ffi::c_int;

use super::buffer::Buffer;
use super::library::{COMPLETE, KRB5, Library};

const GSS_CODE: c_int = 1;
const MECHANISM_CODE: c_int = 2;
/// Calling and routine errors; the rest is supplementary.
const ERRORS: u32 = 0xffff_0000;
/// `GSS_S_FAILURE`: the mechanism's own code says more.
const FAILURE: u32 = 13 << 16;

/// A failed call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{doing}: {text}{}", hint(*.minor as i32))]
pub struct GssError {
    doing: &'static str,
    minor: u32,
    text: String,
}

impl GssError {
    /// Must be called on the thread whose call failed, before that thread makes another one.
    pub(super) fn new(library: &'static Library, doing: &'static str, major: u32, minor: u32) -> Self {
        let mut parts = Vec::new();
        if major & ERRORS != FAILURE || minor == 0 {
            parts.extend(messages(library, major, GSS_CODE));
        }
        if minor != 0 {
            parts.extend(messages(library, minor, MECHANISM_CODE));
        }
        Self { doing, minor, text: parts.join(": ") }
    }

    /// Whether the key distribution centre does not know the service.
    pub(crate) fn is_unknown_service(&self) -> bool {
        self.minor as i32 == UNKNOWN_SERVICE
    }
}

pub(super) fn check(
    library: &'static Library,
    doing: &'static str,
    major: u32,
    minor: u32,
) -> Result<(), GssError> {
    if major & ERRORS == 0 { Ok(()) } else { Err(GssError::new(library, doing, major, minor)) }
}

fn messages(library: &'static Library, code: u32, kind: c_int) -> Vec<String> {
    let mut found = Vec::new();
    let mut context = 0;
    // A chain of messages should end by itself; this limit stops one that does not.
    for _ in 0..8 {
        let mut buffer = Buffer::empty(library);
        let mut minor = 0;
        // SAFETY: all pointers are to variables that outlive the call.
        let major = unsafe {
            (library.gss_display_status)(
                &raw mut minor,
                code,
                kind,
                &raw const KRB5,
                &raw mut context,
                buffer.as_mut(),
            )
        };
        if major != COMPLETE {
            break;
        }
        found.push(buffer.text());
        if context == 0 {
            break;
        }
    }
    found
}

// Codes of MIT's krb5.h; those up to 127 above the base are from RFC 4120 section 7.5.9.
const BASE: i32 = -1_765_328_384;
const UNKNOWN_SERVICE: i32 = BASE + 7;
const BAD_INTEGRITY: i32 = BASE + 31;
const EXPIRED: i32 = BASE + 32;
const NOT_YET_VALID: i32 = BASE + 33;
const REPEATED: i32 = BASE + 34;
const SKEW: i32 = BASE + 37;
const MODIFIED: i32 = BASE + 41;
const KEY_VERSION: i32 = BASE + 44;
const NO_KEY: i32 = BASE + 45;
const NO_CACHE_ENTRY: i32 = -1_765_328_243;
const NO_REALM: i32 = -1_765_328_230;
const NO_CENTRE: i32 = -1_765_328_228;
const NO_KEYTAB_ENTRY: i32 = -1_765_328_203;
const NO_CACHE: i32 = -1_765_328_189;
const NO_KEY_OF_VERSION: i32 = -1_765_328_154;

/// A hint for the user, appended to the error.
fn hint(code: i32) -> &'static str {
    match code {
        EXPIRED => " (get a new ticket with kinit)",
        NO_CACHE | NO_CACHE_ENTRY => " (get a ticket with kinit)",
        NOT_YET_VALID | SKEW => {
            " (the clocks of client, server and key distribution centre have to agree within five minutes)"
        }
        REPEATED => " (the same token came before; log in anew)",
        UNKNOWN_SERVICE => {
            " (the server's principal is to be made on the key distribution centre, or another one to be named)"
        }
        BAD_INTEGRITY | MODIFIED => {
            " (the keytab's key is not the one of the key distribution centre: export it again)"
        }
        NO_KEYTAB_ENTRY | NO_KEY | KEY_VERSION | NO_KEY_OF_VERSION => {
            " (the server's keytab lacks this principal or the present version of its key: export it again)"
        }
        NO_REALM | NO_CENTRE => " (see krb5.conf: the realm and its key distribution centres)",
        _ => "",
    }
}
