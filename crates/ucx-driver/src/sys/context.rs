//! The context of UCP: which transports and devices the workers use.

use std::ffi::{CStr, CString};
use std::io;
use std::path::{Path, PathBuf};
use std::ptr;

use parking_lot::Mutex;

use super::exit::stop_threads_at_exit;
use super::leftovers;
use super::library::{
    API_MAJOR, API_MINOR, CONTEXT_FEATURES, CONTEXT_MT_WORKERS_SHARED, ContextParameters, FEATURE_RMA,
    FEATURE_STREAM, FEATURE_WAKEUP, Handle, Library,
};
use super::text::printed;

/// A context, which all workers with these settings share.
pub(crate) struct Context {
    pub(super) library: Library,
    pub(super) handle: Handle,
}

// SAFETY: the context was made for several threads (`mt_workers_shared`).
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

type Settings = (PathBuf, Option<String>);

impl Context {
    /// Returns the context for this file of the library and these transports, in the form of
    /// `UCX_TLS`; without them, UCX follows its environment.
    ///
    /// # Errors
    /// The library cannot be used (`Unsupported`), or has no such transport.
    pub(crate) fn get(file: &Path, transports: Option<&str>) -> io::Result<&'static Self> {
        static CONTEXTS: Mutex<Vec<(Settings, &'static Context)>> = Mutex::new(Vec::new());
        let mut contexts = CONTEXTS.lock();
        let settings = (file.to_owned(), transports.map(str::to_owned));
        if let Some((_, context)) = contexts.iter().find(|(known, _)| *known == settings) {
            return Ok(context);
        }
        let context: &'static Self = Box::leak(Box::new(Self::open(file, transports)?));
        contexts.push((settings, context));
        Ok(context)
    }

    /// The version of the library.
    pub(crate) fn version(&self) -> String {
        let [major, minor, release] = self.library.version;
        format!("{major}.{minor}.{release}")
    }

    /// The text in which UCX lists its transports and devices, for people.
    ///
    /// # Errors
    /// The system has no memory left.
    pub(crate) fn description(&self) -> io::Result<String> {
        // SAFETY: the context and the file are valid.
        printed(|file| unsafe { (self.library.ucp_context_print_info)(self.handle, file) })
    }

    fn open(file: &Path, transports: Option<&str>) -> io::Result<Self> {
        let library = Library::load(file)?;
        // Exit handlers run in reverse order: this one runs before the destructors of the library.
        stop_threads_at_exit()?;
        leftovers::remove();
        let mut config = ptr::null_mut();
        // SAFETY: null pointers stand for the defaults; the last one is valid for writes.
        let status = unsafe { (library.ucp_config_read)(ptr::null(), ptr::null(), &raw mut config) };
        library.check("cannot read the settings of UCX", status)?;
        let handle = Self::with_config(&library, config, transports);
        // SAFETY: the configuration was read above and is not used any more.
        unsafe { (library.ucp_config_release)(config) };
        Ok(Self { handle: handle?, library })
    }

    fn with_config(library: &Library, config: Handle, transports: Option<&str>) -> io::Result<Handle> {
        if let Some(transports) = transports {
            let name: &CStr = c"TLS";
            let value = CString::new(transports)?;
            // SAFETY: the configuration is valid, and the strings live as long as the call.
            let status = unsafe { (library.ucp_config_modify)(config, name.as_ptr(), value.as_ptr()) };
            library.check("cannot choose the transports of UCX", status)?;
        }
        let parameters = ContextParameters {
            fields: CONTEXT_FEATURES | CONTEXT_MT_WORKERS_SHARED,
            features: FEATURE_STREAM | FEATURE_RMA | FEATURE_WAKEUP,
            request_size: 0,
            request_init: ptr::null(),
            request_cleanup: ptr::null(),
            tag_sender_mask: 0,
            mt_workers_shared: 1,
            estimated_endpoints: 0,
            estimated_processes: 0,
            name: ptr::null(),
        };
        let mut handle = ptr::null_mut();
        // SAFETY: all pointers are valid for the call; the mask names the fields that are set.
        let status = unsafe {
            (library.ucp_init_version)(API_MAJOR, API_MINOR, &raw const parameters, config, &raw mut handle)
        };
        library.check("UCX cannot start", status)?;
        Ok(handle)
    }
}
