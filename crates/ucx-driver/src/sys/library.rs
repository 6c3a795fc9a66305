//! `libucp.so.0`, loaded at run time, and the C types and constants of its API (1.12 and later).

use std::error::Error;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::io;
use std::path::Path;

use socket2::SockAddrStorage;

use super::hooks;

/// `ucs_status_t`, a packed enumeration.
pub(super) type Status = i8;
pub(super) const OK: Status = 0;
pub(super) const IN_PROGRESS: Status = 1;
pub(super) const INVALID_PARAMETER: Status = -5;
const UNREACHABLE: Status = -6;
const INVALID_ADDRESS: Status = -7;
pub(super) const BUSY: Status = -15;
const CANCELED: Status = -16;
const TIMED_OUT: Status = -20;
const REJECTED: Status = -23;
const CONNECTION_RESET: Status = -25;
const ENDPOINT_TIMEOUT: Status = -80;
/// The lowest status. Pointers from here on are errors.
const LAST_STATUS: isize = -100;

pub(super) const API_MAJOR: c_uint = 1;
/// The first version with `ucp_ep_query`.
pub(super) const API_MINOR: c_uint = 12;

pub(super) type Handle = *mut c_void;

/// `ucp_params_t`.
#[repr(C)]
pub(super) struct ContextParameters {
    pub(super) fields: u64,
    pub(super) features: u64,
    pub(super) request_size: usize,
    pub(super) request_init: *const c_void,
    pub(super) request_cleanup: *const c_void,
    pub(super) tag_sender_mask: u64,
    pub(super) mt_workers_shared: c_int,
    pub(super) estimated_endpoints: usize,
    pub(super) estimated_processes: usize,
    pub(super) name: *const c_char,
}

pub(super) const CONTEXT_FEATURES: u64 = 1;
pub(super) const CONTEXT_MT_WORKERS_SHARED: u64 = 1 << 5;
pub(super) const FEATURE_RMA: u64 = 1 << 1;
pub(super) const FEATURE_WAKEUP: u64 = 1 << 4;
pub(super) const FEATURE_STREAM: u64 = 1 << 5;

/// `ucp_worker_params_t`.
#[repr(C)]
pub(super) struct WorkerParameters {
    pub(super) fields: u64,
    pub(super) thread_mode: c_uint,
    pub(super) cpu_mask: [u64; 16],
    pub(super) events: c_uint,
    pub(super) user_data: *mut c_void,
    pub(super) event_fd: c_int,
    pub(super) flags: u64,
    pub(super) name: *const c_char,
    pub(super) am_alignment: usize,
    pub(super) client_id: u64,
}

pub(super) const WORKER_THREAD_MODE: u64 = 1;
pub(super) const THREAD_MODE_SERIALIZED: c_uint = 1;

/// `ucs_sock_addr_t`.
#[repr(C)]
pub(super) struct Address {
    pub(super) address: *const SockAddrStorage,
    pub(super) length: u32,
}

pub(super) type ConnectionCallback = unsafe extern "C" fn(request: Handle, arg: *mut c_void);

/// `ucp_listener_params_t`.
#[repr(C)]
pub(super) struct ListenerParameters {
    pub(super) fields: u64,
    pub(super) address: Address,
    pub(super) accept_callback: *const c_void,
    pub(super) accept_arg: *mut c_void,
    pub(super) connection_callback: ConnectionCallback,
    pub(super) connection_arg: *mut c_void,
}

pub(super) const LISTENER_ADDRESS: u64 = 1;
pub(super) const LISTENER_CONNECTION_HANDLER: u64 = 1 << 2;

/// `ucp_listener_attr_t`.
#[repr(C)]
pub(super) struct ListenerAttributes {
    pub(super) fields: u64,
    pub(super) address: SockAddrStorage,
}

pub(super) const LISTENER_ATTRIBUTE_ADDRESS: u64 = 1;

pub(super) type ErrorCallback = unsafe extern "C" fn(arg: *mut c_void, endpoint: Handle, status: Status);

/// `ucp_ep_params_t` up to 1.12; later fields follow.
#[repr(C)]
pub(super) struct EndpointParameters {
    pub(super) fields: u64,
    pub(super) remote: *const c_void,
    pub(super) error_mode: c_uint,
    pub(super) error_callback: ErrorCallback,
    pub(super) error_arg: *mut c_void,
    pub(super) user_data: *mut c_void,
    pub(super) flags: c_uint,
    pub(super) address: Address,
    pub(super) request: Handle,
}

pub(super) const ENDPOINT_ERROR_MODE: u64 = 1 << 1;
pub(super) const ENDPOINT_ERROR_HANDLER: u64 = 1 << 2;
pub(super) const ENDPOINT_ADDRESS: u64 = 1 << 4;
pub(super) const ENDPOINT_FLAGS: u64 = 1 << 5;
pub(super) const ENDPOINT_REQUEST: u64 = 1 << 6;
pub(super) const ERROR_MODE_PEER: c_uint = 1;
pub(super) const FLAG_CLIENT_SERVER: c_uint = 1;

/// `ucp_ep_attr_t`.
#[repr(C)]
pub(super) struct EndpointAttributes {
    pub(super) fields: u64,
    pub(super) name: [c_char; 32],
    pub(super) local: SockAddrStorage,
    pub(super) remote: SockAddrStorage,
}

pub(super) const ENDPOINT_ATTRIBUTE_LOCAL: u64 = 1 << 1;
pub(super) const ENDPOINT_ATTRIBUTE_REMOTE: u64 = 1 << 2;

pub(super) type SendCallback = unsafe extern "C" fn(request: Handle, status: Status, data: *mut c_void);
pub(super) type ReceiveCallback =
    unsafe extern "C" fn(request: Handle, status: Status, length: usize, data: *mut c_void);

#[repr(C)]
pub(super) union Callback {
    pub(super) send: SendCallback,
    pub(super) receive: ReceiveCallback,
}

/// `ucp_request_param_t`.
#[repr(C)]
pub(super) struct RequestParameters {
    pub(super) fields: u32,
    pub(super) flags: u32,
    pub(super) request: Handle,
    pub(super) callback: Callback,
    pub(super) datatype: u64,
    pub(super) user_data: *mut c_void,
    pub(super) reply_buffer: *mut c_void,
    pub(super) memory_type: c_int,
    pub(super) received: *mut c_void,
    pub(super) memory: Handle,
}

const REQUEST_CALLBACK: u32 = 1 << 1;
const REQUEST_USER_DATA: u32 = 1 << 2;
const REQUEST_FLAGS: u32 = 1 << 4;
pub(super) const CLOSE_FORCE: u32 = 1;
/// `UCP_STREAM_RECV_FLAG_WAITALL`.
pub(super) const RECEIVE_ALL: u32 = 1;

impl RequestParameters {
    pub(super) fn new(callback: Callback, user_data: *mut c_void, flags: u32) -> Self {
        Self {
            fields: REQUEST_CALLBACK | REQUEST_USER_DATA | REQUEST_FLAGS,
            flags,
            request: std::ptr::null_mut(),
            callback,
            datatype: 0,
            user_data,
            reply_buffer: std::ptr::null_mut(),
            memory_type: 0,
            received: std::ptr::null_mut(),
            memory: std::ptr::null_mut(),
        }
    }
}

/// `ucp_mem_map_params_t`.
#[repr(C)]
pub(super) struct MemoryParameters {
    pub(super) fields: u64,
    pub(super) address: *mut c_void,
    pub(super) length: usize,
    pub(super) flags: c_uint,
    pub(super) protection: c_uint,
    pub(super) memory_type: c_int,
}

pub(super) const MEMORY_ADDRESS: u64 = 1;
pub(super) const MEMORY_LENGTH: u64 = 1 << 1;
pub(super) const MEMORY_FLAGS: u64 = 1 << 2;
pub(super) const MEMORY_ALLOCATE: c_uint = 1 << 1;

/// `ucp_mem_attr_t` up to 1.12; a later field follows.
#[repr(C)]
pub(super) struct MemoryAttributes {
    pub(super) fields: u64,
    pub(super) address: *mut c_void,
    pub(super) length: usize,
}

pub(super) const MEMORY_ATTRIBUTE_ADDRESS: u64 = 1;

/// The result of an operation that may go on (`ucs_status_ptr_t`).
pub(super) enum Started {
    /// The callback will not be called.
    Over(Status),
    /// The callback will be called.
    Pending,
}

impl Started {
    pub(super) fn new(pointer: Handle) -> Self {
        let number = pointer as isize;
        if (LAST_STATUS..=0).contains(&number) { Self::Over(number as Status) } else { Self::Pending }
    }
}

/// `ucs_log_func_t`. The last argument is a `va_list`, which nothing here looks at.
pub(super) type LogFunction = unsafe extern "C" fn(
    file: *const c_char,
    line: c_uint,
    function: *const c_char,
    level: c_int,
    component: *const c_void,
    format: *const c_char,
    arguments: *mut c_void,
) -> c_int;

macro_rules! functions {
    ($($name:ident($($argument:ty),* $(,)?) $(-> $result:ty)?;)*) => {
        /// The functions in use.
        pub(super) struct Library {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            /// As `ucp_get_version` reports it.
            pub(super) version: [c_uint; 3],
            /// Keeps the functions loaded.
            _library: libloading::Library,
        }

        impl Library {
            fn find_functions(library: libloading::Library) -> Result<Self, libloading::Error> {
                Ok(Self {
                    // SAFETY: the types are those of the C declarations; the library stays loaded
                    // as long as the function pointers exist.
                    $($name: *unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) }?,)*
                    version: [0; 3],
                    _library: library,
                })
            }
        }
    };
}

functions! {
    ucp_config_modify(Handle, *const c_char, *const c_char) -> Status;
    ucp_config_read(*const c_char, *const c_char, *mut Handle) -> Status;
    ucp_config_release(Handle);
    ucp_context_print_info(Handle, *mut libc::FILE);
    ucp_ep_close_nbx(Handle, *const RequestParameters) -> Handle;
    ucp_ep_create(Handle, *const EndpointParameters, *mut Handle) -> Status;
    ucp_ep_print_info(Handle, *mut libc::FILE);
    ucp_ep_query(Handle, *mut EndpointAttributes) -> Status;
    ucp_ep_rkey_unpack(Handle, *const c_void, *mut Handle) -> Status;
    ucp_get_version(*mut c_uint, *mut c_uint, *mut c_uint);
    ucp_init_version(c_uint, c_uint, *const ContextParameters, *const c_void, *mut Handle) -> Status;
    ucp_listener_create(Handle, *const ListenerParameters, *mut Handle) -> Status;
    ucp_listener_destroy(Handle);
    ucp_listener_query(Handle, *mut ListenerAttributes) -> Status;
    ucp_listener_reject(Handle, Handle) -> Status;
    ucp_mem_map(Handle, *const MemoryParameters, *mut Handle) -> Status;
    ucp_mem_query(Handle, *mut MemoryAttributes) -> Status;
    ucp_mem_unmap(Handle, Handle) -> Status;
    ucp_request_free(Handle);
    ucp_rkey_buffer_release(*mut c_void);
    ucp_rkey_destroy(Handle);
    ucp_rkey_pack(Handle, Handle, *mut *mut c_void, *mut usize) -> Status;
    ucp_rkey_ptr(Handle, u64, *mut *mut c_void) -> Status;
    ucp_stream_recv_nbx(Handle, *mut c_void, usize, *mut usize, *const RequestParameters) -> Handle;
    ucp_stream_send_nbx(Handle, *const c_void, usize, *const RequestParameters) -> Handle;
    ucp_worker_arm(Handle) -> Status;
    ucp_worker_create(Handle, *const WorkerParameters, *mut Handle) -> Status;
    ucp_worker_destroy(Handle);
    ucp_worker_get_efd(Handle, *mut c_int) -> Status;
    ucp_worker_progress(Handle) -> c_uint;
    ucs_log_push_handler(LogFunction);
    ucs_status_string(Status) -> *const c_char;
}

/// The signals for which UCX installs handlers when it is loaded.
const SIGNALS: [c_int; 6] =
    [libc::SIGHUP, libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGABRT];

impl Library {
    /// # Errors
    /// `Unsupported`: there is no such library, it lacks functions, or has another version.
    pub(super) fn load(file: &Path) -> io::Result<Self> {
        let unsupported = |text| io::Error::new(io::ErrorKind::Unsupported, text);
        let missing = |error: libloading::Error| {
            let reason = error.source().map_or_else(|| error.to_string(), ToString::to_string);
            unsupported(format!(
                "UCX cannot be loaded: {reason}; the package is libucx0 (Debian, Ubuntu) or ucx (Red Hat)"
            ))
        };
        hooks::link();
        let library = keeping_signals(|| {
            // SAFETY: the library's initialisers set up its own tables and handlers of signals,
            // which are restored.
            unsafe { libloading::Library::new(file) }
        })
        .map_err(missing)?;
        let mut library = Self::find_functions(library).map_err(missing)?;
        let (mut major, mut minor, mut release) = (0, 0, 0);
        // SAFETY: the pointers are valid for writes.
        unsafe { (library.ucp_get_version)(&raw mut major, &raw mut minor, &raw mut release) };
        library.version = [major, minor, release];
        if major != API_MAJOR || minor < API_MINOR {
            return Err(unsupported(format!(
                "{} is UCX {major}.{minor}.{release}; version {API_MAJOR}.{API_MINOR} or a later \
                 {API_MAJOR}.x is needed",
                file.display()
            )));
        }
        tracing::debug!(file = %file.display(), "loaded UCX {major}.{minor}.{release}");
        // SAFETY: the function has the type of the C declaration and lives forever.
        unsafe { (library.ucs_log_push_handler)(log) };
        Ok(library)
    }

    /// # Errors
    /// The status is an error.
    pub(super) fn check(&self, what: &str, status: Status) -> io::Result<()> {
        if status >= OK { Ok(()) } else { Err(self.error(what, status)) }
    }

    pub(super) fn error(&self, what: &str, status: Status) -> io::Error {
        // SAFETY: the function returns a static string for each status.
        let text = unsafe { CStr::from_ptr((self.ucs_status_string)(status)) }.to_string_lossy();
        let kind = match status {
            UNREACHABLE | REJECTED => io::ErrorKind::ConnectionRefused,
            INVALID_ADDRESS => io::ErrorKind::AddrNotAvailable,
            BUSY => io::ErrorKind::AddrInUse,
            CANCELED => io::ErrorKind::ConnectionAborted,
            TIMED_OUT | ENDPOINT_TIMEOUT => io::ErrorKind::TimedOut,
            CONNECTION_RESET => io::ErrorKind::ConnectionReset,
            _ => io::ErrorKind::Other,
        };
        io::Error::new(kind, format!("{what}: {text}"))
    }
}

/// UCX logs to standard output, which belongs to the program's data. Its messages are formatted in
/// C, so that only their format is known here.
unsafe extern "C" fn log(
    _: *const c_char,
    _: c_uint,
    _: *const c_char,
    _: c_int,
    _: *const c_void,
    format: *const c_char,
    _: *mut c_void,
) -> c_int {
    const STOP: c_int = 0;
    if !format.is_null() {
        // SAFETY: UCX passes a string that lives as long as this call.
        let format = unsafe { CStr::from_ptr(format) }.to_string_lossy();
        tracing::debug!(%format, "message of UCX");
    }
    STOP
}

/// UCX replaces the handlers of this program and of Rust when it is loaded.
fn keeping_signals<T>(load: impl FnOnce() -> T) -> T {
    let saved = SIGNALS.map(|signal| {
        // SAFETY: an action of zeroes is valid; a null pointer for the new action only reads.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: the pointer is valid for writes.
        let read = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) };
        (read == 0).then_some(action)
    });
    let result = load();
    for (signal, action) in SIGNALS.into_iter().zip(saved) {
        if let Some(action) = action {
            // SAFETY: the action was valid for this signal before.
            unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
        }
    }
    result
}
