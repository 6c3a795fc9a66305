//! What the `openssl` crate does not have, or leaves to its callers.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_long, c_uchar, c_uint};
use std::mem::MaybeUninit;

use foreign_types::{ForeignType, ForeignTypeRef};
use openssl::error::ErrorStack;
use openssl::ssl::{SslContextRef, SslRef, SslSessionRef};
use openssl::stack::Stack;
use openssl::x509::{X509, X509NameRef, X509StoreContextRef, X509VerifyResult};
use openssl_sys::{SSL, SSL_CTX, SSL_SESSION, X509_NAME, X509_STORE_CTX, stack_st_X509};

unsafe extern "C" {
    fn SSL_set_session_id_context(ssl: *mut SSL, context: *const c_uchar, length: c_uint) -> c_int;
    fn SSL_SESSION_set1_id_context(
        session: *mut SSL_SESSION,
        context: *const c_uchar,
        length: c_uint,
    ) -> c_int;
    fn SSL_new_session_ticket(ssl: *mut SSL) -> c_int;
    fn SSL_has_pending(ssl: *const SSL) -> c_int;
    fn SSL_SESSION_get_max_fragment_length(session: *const SSL_SESSION) -> u8;
    fn X509_STORE_CTX_get1_certs(context: *mut X509_STORE_CTX, name: *const X509_NAME) -> *mut stack_st_X509;
    fn SSL_CTX_set_timeout(context: *mut SSL_CTX, seconds: c_long) -> c_long;
}

/// A session is resumed only by a connection of the context in which it was made.
pub(crate) fn set_session_id_context(ssl: &mut SslRef, context: &[u8; 32]) -> Result<(), ErrorStack> {
    // SAFETY: `ssl` is a live SSL that we have for ourselves; OpenSSL copies the 32 bytes, which is the most that it takes
    // (SSL_MAX_SID_CTX_LENGTH).
    match unsafe { SSL_set_session_id_context(ssl.as_ptr(), context.as_ptr(), context.len() as c_uint) } {
        1 => Ok(()),
        _ => Err(ErrorStack::get()),
    }
}

/// Nobody can resume a session that a server's handshake is just beginning: it gets a context that no connection has. For use
/// between the steps of a handshake.
pub(crate) fn spoil_new_session(ssl: &SslRef) -> Result<(), ErrorStack> {
    const NOBODYS: [u8; 32] = [0; 32];
    // SAFETY: `ssl` is a live SSL, and its only owner calls this.
    let session = unsafe { openssl_sys::SSL_get_session(ssl.as_ptr()) };
    if session.is_null() || ssl.session_reused() {
        return Ok(());
    }
    // SAFETY: the session belongs to `ssl`, which began it in this handshake and shares it with nobody before its end; OpenSSL
    // copies the 32 bytes.
    match unsafe { SSL_SESSION_set1_id_context(session, NOBODYS.as_ptr(), NOBODYS.len() as c_uint) } {
        1 => Ok(()),
        _ => Err(ErrorStack::get()),
    }
}

/// Has a server send another ticket with the next bytes; `false` where there are none (TLS 1.2, whose sessions can be resumed
/// any number of times).
pub(crate) fn new_ticket(ssl: &SslRef) -> bool {
    // SAFETY: `ssl` is a live SSL, and its only owner calls this: OpenSSL counts a ticket more, and nothing else happens now.
    unsafe { SSL_new_session_ticket(ssl.as_ptr()) == 1 }
}

/// The result of a verification that found a certificate in a list of revoked ones; it chooses the alert that the peer gets.
pub(crate) fn revoked() -> X509VerifyResult {
    // SAFETY: it is one of OpenSSL's values (x509_vfy.h), which is all that is asked for.
    unsafe { X509VerifyResult::from_raw(openssl_sys::X509_V_ERR_CERT_REVOKED) }
}

/// The certificates of this name that a verification under way trusts.
pub(crate) fn trusted_called(context: &X509StoreContextRef, name: &X509NameRef) -> Vec<X509> {
    // SAFETY: both are live; OpenSSL locks the store, which it may read further certificates into, and gives a stack with
    // references of its own, which are the caller's to drop.
    let found = unsafe {
        let found = X509_STORE_CTX_get1_certs(context.as_ptr(), name.as_ptr());
        (!found.is_null()).then(|| Stack::<X509>::from_ptr(found))
    };
    // That there is none may have left word.
    drop(ErrorStack::get());
    found.into_iter().flatten().collect()
}

/// How long sessions made from now on can be resumed.
pub(crate) fn set_session_timeout(context: &SslContextRef, seconds: u32) {
    // SAFETY: the context is live; nobody else has it yet, since it was just built.
    unsafe { SSL_CTX_set_timeout(context.as_ptr(), c_long::from(seconds)) };
}

/// Offers to resume a session.
pub(crate) fn resume(ssl: &mut SslRef, session: &SslSessionRef) -> Result<(), ErrorStack> {
    // SAFETY: a session has to be set on connections of the context that it was made with. This one was made of its encoding,
    // so that no other connection or context has it; it comes from a `Ticket`, whose context the only caller makes `ssl` of.
    unsafe { ssl.set_session(session) }
}

/// It has read bytes of records that it has not given out.
pub(crate) fn has_pending(ssl: &SslRef) -> bool {
    // SAFETY: `ssl` is a live SSL, of which nothing is changed.
    unsafe { SSL_has_pending(ssl.as_ptr()) != 0 }
}

/// The peers have agreed on records that are shorter than all can be (RFC 6066 section 4).
pub(crate) fn has_short_records(ssl: &SslRef) -> bool {
    // SAFETY: `ssl` is a live SSL, whose session, where there is one, lives as long as nothing is done with it.
    unsafe {
        let session = openssl_sys::SSL_get_session(ssl.as_ptr());
        !session.is_null() && matches!(SSL_SESSION_get_max_fragment_length(session), 1..=4)
    }
}

/// A value that is all in one place, whose memory is cleared at its end.
pub(crate) struct Cleared<T>(Box<MaybeUninit<T>>);

impl<T> Cleared<T> {
    const PLAIN: () = assert!(!std::mem::needs_drop::<T>(), "what it points to would not be cleared");

    pub(crate) fn new(value: T) -> Self {
        let () = Self::PLAIN;
        Self(Box::new(MaybeUninit::new(value)))
    }

    pub(crate) fn get(&self) -> &T {
        // SAFETY: it is made with a value, which only `drop` clears.
        unsafe { self.0.assume_init_ref() }
    }
}

impl<T> Drop for Cleared<T> {
    fn drop(&mut self) {
        let value: *mut MaybeUninit<T> = &raw mut *self.0;
        // SAFETY: the box's memory is ours alone and as large as the type; zeros are as good as anything for what need not be
        // initialised.
        unsafe { zeroize::zeroize_flat_type(value) };
    }
}
