//! `libgssapi_krb5.so.2`, loaded at run time, and the C types and constants of its API.

use std::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;

use crate::KerberosError;

const FILE: &str = "libgssapi_krb5.so.2";

pub(super) const COMPLETE: u32 = 0;
pub(super) const CONTINUE_NEEDED: u32 = 1;
/// `GSS_C_INDEFINITE`.
pub(super) const INDEFINITE: u32 = u32::MAX;

/// `gss_ctx_id_t`, `gss_cred_id_t`, `gss_name_t`.
pub(super) type Handle = *mut c_void;

/// `gss_buffer_desc`.
#[repr(C)]
pub(super) struct RawBuffer {
    pub(super) length: usize,
    pub(super) value: *mut c_void,
}

/// `gss_OID_desc`.
#[repr(C)]
pub(super) struct RawOid {
    length: u32,
    elements: *const c_void,
}

/// `gss_OID_set_desc`.
#[repr(C)]
pub(super) struct RawOidSet {
    count: usize,
    elements: *const RawOid,
}

/// `gss_key_value_element_desc`.
#[repr(C)]
pub(super) struct RawKeyValue {
    pub(super) key: *const c_char,
    pub(super) value: *const c_char,
}

/// `gss_key_value_set_desc`.
#[repr(C)]
pub(super) struct RawKeyValues {
    pub(super) count: u32,
    pub(super) elements: *const RawKeyValue,
}

// SAFETY: the pointers refer to static data that never changes.
unsafe impl Sync for RawOid {}
// SAFETY: as above.
unsafe impl Sync for RawOidSet {}

const fn oid(bytes: &'static [u8]) -> RawOid {
    RawOid { length: bytes.len() as u32, elements: bytes.as_ptr().cast() }
}

/// 1.2.840.113554.1.2.2, Kerberos 5 (RFC 4121).
pub(super) static KRB5: RawOid = oid(crate::framing::KRB5);
/// The mechanisms that this crate accepts.
pub(super) static KRB5_ONLY: RawOidSet = RawOidSet { count: 1, elements: &raw const KRB5 };
/// `GSS_C_NT_HOSTBASED_SERVICE` (RFC 2743 section 4.1).
pub(super) static HOST_BASED: RawOid = oid(&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x12, 0x01, 0x02, 0x01, 0x04]);
/// `GSS_KRB5_NT_PRINCIPAL_NAME` (RFC 1964 section 2.1.1).
pub(super) static PRINCIPAL: RawOid = oid(&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x12, 0x01, 0x02, 0x02, 0x01]);

macro_rules! functions {
    ($($name:ident($($argument:ty),* $(,)?);)*) => {
        /// The functions in use, as declared by RFC 2744 (`gss_acquire_cred_from`: by MIT's
        /// `gssapi_ext.h`).
        pub(super) struct Library {
            $(pub(super) $name: unsafe extern "C" fn(*mut u32, $($argument),*) -> u32,)*
            /// Keeps the functions loaded.
            _library: libloading::Library,
        }

        impl Library {
            fn load() -> Result<Self, libloading::Error> {
                // SAFETY: the library's initialisers only set up its own tables.
                let library = unsafe { libloading::Library::new(FILE) }?;
                Ok(Self {
                    // SAFETY: the types are those of the C declarations; the library stays loaded
                    // as long as the function pointers exist.
                    $($name: *unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) }?,)*
                    _library: library,
                })
            }
        }
    };
}

functions! {
    gss_accept_sec_context(
        *mut Handle, Handle, *const RawBuffer, *const c_void, *mut Handle, *mut *const RawOid, *mut RawBuffer, *mut u32,
        *mut u32, *mut Handle,
    );
    gss_acquire_cred_from(
        Handle, u32, *const RawOidSet, c_int, *const RawKeyValues, *mut Handle, *mut *const RawOidSet, *mut u32,
    );
    gss_delete_sec_context(*mut Handle, *mut RawBuffer);
    gss_display_name(Handle, *mut RawBuffer, *mut *const RawOid);
    gss_display_status(u32, c_int, *const RawOid, *mut u32, *mut RawBuffer);
    gss_import_name(*const RawBuffer, *const RawOid, *mut Handle);
    gss_init_sec_context(
        Handle, *mut Handle, Handle, *const RawOid, u32, u32, *const c_void, *const RawBuffer, *mut *const RawOid,
        *mut RawBuffer, *mut u32, *mut u32,
    );
    gss_inquire_context(
        Handle, *mut Handle, *mut Handle, *mut u32, *mut *const RawOid, *mut u32, *mut c_int, *mut c_int,
    );
    gss_inquire_cred(Handle, *mut Handle, *mut u32, *mut c_int, *mut *const RawOidSet);
    gss_release_buffer(*mut RawBuffer);
    gss_release_cred(*mut Handle);
    gss_release_name(*mut Handle);
    gss_unwrap(Handle, *const RawBuffer, *mut RawBuffer, *mut c_int, *mut u32);
    gss_wrap(Handle, c_int, u32, *const RawBuffer, *mut c_int, *mut RawBuffer);
    gss_wrap_size_limit(Handle, c_int, u32, u32, *mut u32);
}

/// The library; the first call loads it.
pub(super) fn get() -> Result<&'static Library, KerberosError> {
    static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
    match LIBRARY.get_or_init(|| Library::load().map_err(|e| e.to_string())) {
        Ok(library) => Ok(library),
        Err(reason) => Err(KerberosError::Unavailable { reason: reason.clone() }),
    }
}
