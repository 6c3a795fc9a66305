//! Functions of OpenSSL that the `openssl` crate does not have or marks as unsafe. This is the only
//! module of the crate with unsafe code, except for tests.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_long, c_uchar, c_uint};
use std::mem::MaybeUninit;

use foreign_types::{ForeignType, ForeignTypeRef};
use openssl::error::ErrorStack;
use openssl::ssl::{SslContextRef, SslRef, SslSession, SslSessionRef};
use openssl::stack::Stack;
use openssl::x509::{X509, X509NameRef, X509StoreContextRef, X509VerifyResult};
use openssl_sys::{SSL, SSL_CTX, SSL_SESSION, X509_NAME, X509_STORE_CTX, stack_st_X509};

/// SSL_CTRL_GET_TLSEXT_TICKET_KEYS and SSL_CTRL_SET_TLSEXT_TICKET_KEYS (ssl.h).
const GET_TICKET_KEYS: c_int = 58;
const SET_TICKET_KEYS: c_int = 59;

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

/// Sets the context of sessions: a session is resumed only by a connection with the same context.
pub(crate) fn set_session_id_context(ssl: &mut SslRef, context: &[u8; 32]) -> Result<(), ErrorStack> {
    // SAFETY: `ssl` is a live SSL that is borrowed exclusively; OpenSSL copies the 32 bytes, which
    // is the most that it takes (SSL_MAX_SID_CTX_LENGTH).
    match unsafe { SSL_set_session_id_context(ssl.as_ptr(), context.as_ptr(), context.len() as c_uint) } {
        1 => Ok(()),
        _ => Err(ErrorStack::get()),
    }
}

/// Makes the session of a server's current handshake unusable for resumption, by giving it a
/// context that no connection has. For use between the steps of a handshake.
pub(crate) fn spoil_new_session(ssl: &SslRef) -> Result<(), ErrorStack> {
    const NOBODYS: [u8; 32] = [0; 32];
    // SAFETY: `ssl` is a live SSL, and its only owner calls this.
    let session = unsafe { openssl_sys::SSL_get_session(ssl.as_ptr()) };
    if session.is_null() || ssl.session_reused() {
        return Ok(());
    }
    // SAFETY: the session belongs to `ssl`, which started it in this handshake and shares it with
    // no other connection before the end of the handshake; OpenSSL copies the 32 bytes.
    match unsafe { SSL_SESSION_set1_id_context(session, NOBODYS.as_ptr(), NOBODYS.len() as c_uint) } {
        1 => Ok(()),
        _ => Err(ErrorStack::get()),
    }
}

/// Makes a server send another ticket with the next bytes. Returns `false` if there are no tickets
/// (TLS 1.2, whose sessions can be resumed any number of times).
pub(crate) fn new_ticket(ssl: &SslRef) -> bool {
    // SAFETY: `ssl` is a live SSL, and its only owner calls this. OpenSSL only increments a counter
    // of tickets.
    unsafe { SSL_new_session_ticket(ssl.as_ptr()) == 1 }
}

/// The verification result for a revoked certificate; it selects the alert that the peer gets.
pub(crate) fn revoked() -> X509VerifyResult {
    // SAFETY: the value is one of OpenSSL's constants (x509_vfy.h), as the function requires.
    unsafe { X509VerifyResult::from_raw(openssl_sys::X509_V_ERR_CERT_REVOKED) }
}

/// The certificates with this name that the current verification trusts.
pub(crate) fn trusted_called(context: &X509StoreContextRef, name: &X509NameRef) -> Vec<X509> {
    // SAFETY: both are live; OpenSSL locks the store, into which it may read more certificates, and
    // returns a stack with references of its own, which the caller must drop.
    let found = unsafe {
        let found = X509_STORE_CTX_get1_certs(context.as_ptr(), name.as_ptr());
        (!found.is_null()).then(|| Stack::<X509>::from_ptr(found))
    };
    // If no certificate is found, OpenSSL may leave errors in its queue.
    drop(ErrorStack::get());
    found.into_iter().flatten().collect()
}

/// Sets how long sessions that are made from now on can be resumed, in seconds.
pub(crate) fn set_session_timeout(context: &SslContextRef, seconds: u32) {
    // SAFETY: the context is live; it was just built, so no other thread has it yet.
    unsafe { SSL_CTX_set_timeout(context.as_ptr(), c_long::from(seconds)) };
}

/// Returns the keys with which a server encrypts session tickets.
pub(crate) fn ticket_keys(context: &SslContextRef) -> Result<Vec<u8>, ErrorStack> {
    // SAFETY: the context is live. Without a buffer OpenSSL returns the length of the keys and
    // changes nothing.
    let length =
        unsafe { openssl_sys::SSL_CTX_ctrl(context.as_ptr(), GET_TICKET_KEYS, 0, std::ptr::null_mut()) };
    let mut keys = vec![0; usize::try_from(length).unwrap_or(0)];
    // SAFETY: the context is live, and OpenSSL writes as many bytes as the buffer has, or none.
    match unsafe {
        openssl_sys::SSL_CTX_ctrl(context.as_ptr(), GET_TICKET_KEYS, length, keys.as_mut_ptr().cast())
    } {
        1 => Ok(keys),
        _ => Err(ErrorStack::get()),
    }
}

/// Sets the keys with which a server encrypts session tickets. Fails if their length is not that of
/// this version of OpenSSL.
pub(crate) fn set_ticket_keys(context: &SslContextRef, keys: &[u8]) -> Result<(), ErrorStack> {
    let mut keys = zeroize::Zeroizing::new(keys.to_vec());
    let length = c_long::try_from(keys.len()).unwrap_or(0);
    // SAFETY: the context was just built, so no other thread has it yet. OpenSSL compares the
    // length with its own, and copies so many bytes from the buffer.
    match unsafe {
        openssl_sys::SSL_CTX_ctrl(context.as_ptr(), SET_TICKET_KEYS, length, keys.as_mut_ptr().cast())
    } {
        1 => Ok(()),
        _ => Err(ErrorStack::get()),
    }
}

/// Adds a session, in encoded form, to those that a server remembers.
pub(crate) fn remember_session(context: &SslContextRef, session: &[u8]) -> Result<(), ErrorStack> {
    let session = SslSession::from_der(session)?;
    // SAFETY: the session was just decoded from its encoding, so no other context has it.
    unsafe { context.add_session(&session) };
    Ok(())
}

/// Offers to resume a session.
pub(crate) fn resume(ssl: &mut SslRef, session: &SslSessionRef) -> Result<(), ErrorStack> {
    // SAFETY: a session may be set only on connections of the context that it was made with. This
    // session was decoded from its encoding, so no other connection or context has it. It comes
    // from a `Ticket`, from whose context the only caller makes `ssl`.
    unsafe { ssl.set_session(session) }
}

/// Whether OpenSSL has read bytes of records that it has not returned yet.
pub(crate) fn has_pending(ssl: &SslRef) -> bool {
    // SAFETY: `ssl` is a live SSL, which is not changed.
    unsafe { SSL_has_pending(ssl.as_ptr()) != 0 }
}

/// Whether the peers have negotiated records shorter than the maximum (RFC 6066 section 4).
pub(crate) fn has_short_records(ssl: &SslRef) -> bool {
    // SAFETY: `ssl` is a live SSL. Its session, if there is one, lives at least until the next
    // operation on `ssl`.
    unsafe {
        let session = openssl_sys::SSL_get_session(ssl.as_ptr());
        !session.is_null() && matches!(SSL_SESSION_get_max_fragment_length(session), 1..=4)
    }
}

/// A boxed value without pointers to other memory. Its memory is cleared when it is dropped.
pub(crate) struct Cleared<T>(Box<MaybeUninit<T>>);

impl<T> Cleared<T> {
    const PLAIN: () = assert!(!std::mem::needs_drop::<T>(), "what it points to would not be cleared");

    pub(crate) fn new(value: T) -> Self {
        let () = Self::PLAIN;
        Self(Box::new(MaybeUninit::new(value)))
    }

    pub(crate) fn get(&self) -> &T {
        // SAFETY: the value is initialised on creation, and only `drop` clears it.
        unsafe { self.0.assume_init_ref() }
    }
}

impl<T> Drop for Cleared<T> {
    fn drop(&mut self) {
        let value: *mut MaybeUninit<T> = &raw mut *self.0;
        // SAFETY: the box owns its memory exclusively, and the memory is as large as the type;
        // zeros are valid for memory that need not be initialised.
        unsafe { zeroize::zeroize_flat_type(value) };
    }
}
