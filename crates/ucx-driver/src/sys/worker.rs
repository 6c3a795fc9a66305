//! A worker of UCP, its listener, and its wake-ups.

use std::ffi::c_void;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::ptr;
use std::rc::Rc;

use parking_lot::Mutex;
use socket2::{SockAddr, SockAddrStorage};

use super::context::Context;
use super::endpoint::{Endpoint, To};
use super::library::{
    Address, BUSY, Handle, LISTENER_ADDRESS, LISTENER_ATTRIBUTE_ADDRESS, LISTENER_CONNECTION_HANDLER,
    ListenerAttributes, ListenerParameters, THREAD_MODE_SERIALIZED, WORKER_THREAD_MODE, WorkerParameters,
};

/// A worker that has no endpoints yet, and can move to the thread that will use it.
pub(crate) struct NewWorker(Inner);

// SAFETY: the worker was made for one thread at a time, and this value is the only reference to it.
unsafe impl Send for NewWorker {}

/// A worker on its thread.
pub(crate) struct Worker(Rc<Inner>);

pub(super) struct Inner {
    pub(super) context: &'static Context,
    pub(super) handle: Handle,
    descriptor: i32,
    listener: Mutex<Option<Listener>>,
}

struct Listener {
    handle: Handle,
    /// Connection requests that wait for an answer. The callback has the address of the box.
    requests: Box<Mutex<Vec<Handle>>>,
}

/// A peer that wants to connect. It must be accepted or rejected.
pub(crate) struct Request(Handle);

impl NewWorker {
    /// # Errors
    /// UCX has no memory or descriptor left.
    pub(crate) fn new(context: &'static Context) -> io::Result<Self> {
        let library = &context.library;
        let parameters = WorkerParameters {
            fields: WORKER_THREAD_MODE,
            thread_mode: THREAD_MODE_SERIALIZED,
            cpu_mask: [0; 16],
            events: 0,
            user_data: ptr::null_mut(),
            event_fd: -1,
            flags: 0,
            name: ptr::null(),
            am_alignment: 0,
            client_id: 0,
        };
        let mut handle = ptr::null_mut();
        // SAFETY: the context is valid forever; the mask names the fields that are set.
        let status =
            unsafe { (library.ucp_worker_create)(context.handle, &raw const parameters, &raw mut handle) };
        library.check("UCX cannot make a worker", status)?;
        let mut inner = Inner { context, handle, descriptor: -1, listener: Mutex::new(None) };
        // SAFETY: the worker is valid, and the pointer is valid for writes.
        let status = unsafe { (library.ucp_worker_get_efd)(inner.handle, &raw mut inner.descriptor) };
        library.check("UCX cannot wake up its worker", status)?;
        Ok(Self(inner))
    }

    /// Listens at `address`, and returns the address with its port.
    ///
    /// # Errors
    /// The port is taken (`AddrInUse`), or UCX cannot listen at the address.
    pub(crate) fn listen(&mut self, address: SocketAddr) -> io::Result<SocketAddr> {
        let Inner { context, handle, listener: place, .. } = &mut self.0;
        let library = &context.library;
        let requests = Box::new(Mutex::new(Vec::new()));
        let at = SockAddr::from(address);
        let parameters = ListenerParameters {
            fields: LISTENER_ADDRESS | LISTENER_CONNECTION_HANDLER,
            address: Address { address: at.as_ptr(), length: at.len() },
            accept_callback: ptr::null(),
            accept_arg: ptr::null_mut(),
            connection_callback: on_request,
            connection_arg: (&raw const *requests).cast_mut().cast(),
        };
        let mut listener = ptr::null_mut();
        // SAFETY: the addresses live as long as the call, and the box as long as the listener.
        let status =
            unsafe { (library.ucp_listener_create)(*handle, &raw const parameters, &raw mut listener) };
        library.check("UCX cannot listen", status)?;
        *place.get_mut() = Some(Listener { handle: listener, requests });
        let mut attributes =
            ListenerAttributes { fields: LISTENER_ATTRIBUTE_ADDRESS, address: SockAddrStorage::zeroed() };
        // SAFETY: the listener is valid, and the pointer is valid for writes.
        let status = unsafe { (library.ucp_listener_query)(listener, &raw mut attributes) };
        library.check("UCX has no address for its listener", status)?;
        socket_address(attributes.address)
    }

    /// Gives the worker to the calling thread.
    pub(crate) fn start(self) -> Worker {
        Worker(Rc::new(self.0))
    }
}

impl Worker {
    pub(crate) fn context(&self) -> &'static Context {
        self.0.context
    }

    /// Moves data and calls back. Returns whether there was anything to do.
    pub(crate) fn progress(&self) -> bool {
        // SAFETY: the worker is valid, and this is its only thread.
        unsafe { (self.0.context.library.ucp_worker_progress)(self.0.handle) > 0 }
    }

    /// Prepares the descriptor for a wait. Returns false if there is more to do before.
    ///
    /// # Errors
    /// A device has failed.
    pub(crate) fn arm(&self) -> io::Result<bool> {
        let library = &self.0.context.library;
        // SAFETY: as for `progress`.
        match unsafe { (library.ucp_worker_arm)(self.0.handle) } {
            BUSY => Ok(false),
            status => library.check("UCX cannot wait", status).map(|()| true),
        }
    }

    /// The descriptor that becomes readable when an armed worker has something to do.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: UCX keeps the descriptor open as long as the worker lives.
        unsafe { BorrowedFd::borrow_raw(self.0.descriptor) }
    }

    /// # Errors
    /// UCX has no transport to the address, or no memory left.
    pub(crate) fn connect(&self, peer: SocketAddr) -> io::Result<Endpoint> {
        Endpoint::new(&self.0, &To::Peer(peer.into()))
    }

    /// The peers that want to connect.
    pub(crate) fn take_requests(&self) -> Vec<Request> {
        let listener = self.0.listener.lock();
        let Some(listener) = &*listener else { return Vec::new() };
        std::mem::take(&mut *listener.requests.lock()).into_iter().map(Request).collect()
    }

    /// # Errors
    /// The peer has gone meanwhile, or UCX has no memory left.
    pub(crate) fn accept(&self, request: Request) -> io::Result<Endpoint> {
        Endpoint::new(&self.0, &To::Request(request.0))
    }

    pub(crate) fn reject(&self, request: Request) {
        if let Some(listener) = &*self.0.listener.lock() {
            self.0.reject(listener, request.0);
        }
    }

    pub(crate) fn stop_listening(&self) {
        self.0.stop_listening();
    }
}

impl Inner {
    fn reject(&self, listener: &Listener, request: Handle) {
        // SAFETY: the listener is valid, and the request was neither accepted nor rejected.
        let status = unsafe { (self.context.library.ucp_listener_reject)(listener.handle, request) };
        if let Err(error) = self.context.library.check("cannot refuse a UCX connection", status) {
            tracing::debug!(%error, "a connection stays without an answer");
        }
    }

    fn stop_listening(&self) {
        let Some(listener) = self.listener.lock().take() else { return };
        for request in std::mem::take(&mut *listener.requests.lock()) {
            self.reject(&listener, request);
        }
        // SAFETY: the listener is valid and not used any more; its callback is not called again.
        unsafe { (self.context.library.ucp_listener_destroy)(listener.handle) };
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.stop_listening();
        // SAFETY: no endpoint is left, because endpoints hold the worker.
        unsafe { (self.context.library.ucp_worker_destroy)(self.handle) };
    }
}

/// # Safety
/// `arg` is the list of the listener.
unsafe extern "C" fn on_request(request: Handle, arg: *mut c_void) {
    // SAFETY: the listener's box lives longer than the listener.
    let requests = unsafe { &*arg.cast::<Mutex<Vec<Handle>>>() };
    requests.lock().push(request);
}

/// # Errors
/// UCX has given no internet address.
pub(super) fn socket_address(storage: SockAddrStorage) -> io::Result<SocketAddr> {
    // SAFETY: UCX fills in an address of an internet family; zeroes are of no family.
    let address = unsafe { SockAddr::new(storage, size_of::<SockAddrStorage>().try_into().unwrap_or(0)) };
    let none = || io::Error::other("UCX has given no internet address");
    address.as_socket().ok_or_else(none)
}
