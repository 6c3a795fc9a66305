//! An endpoint: one end of a connection, with its operations.

use std::ffi::c_void;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::ptr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI8, Ordering};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use socket2::{SockAddr, SockAddrStorage};

use super::library::{
    Address, CLOSE_FORCE, Callback, ENDPOINT_ADDRESS, ENDPOINT_ATTRIBUTE_LOCAL, ENDPOINT_ATTRIBUTE_REMOTE,
    ENDPOINT_ERROR_HANDLER, ENDPOINT_ERROR_MODE, ENDPOINT_FLAGS, ENDPOINT_REQUEST, ERROR_MODE_PEER,
    EndpointAttributes, EndpointParameters, FLAG_CLIENT_SERVER, Handle, IN_PROGRESS, INVALID_PARAMETER,
    Library, OK, RECEIVE_ALL, RequestParameters, Started, Status,
};
use super::memory::{Memory, PeerMemory};
use super::text::printed;
use super::worker::{Inner, socket_address};

pub(crate) struct Endpoint {
    worker: Rc<Inner>,
    handle: Handle,
    /// The status with which the connection has failed, for the callback of UCX.
    failure: Arc<AtomicI8>,
}

/// The other end of a new endpoint.
pub(super) enum To {
    Peer(SockAddr),
    Request(Handle),
}

/// Bytes that UCX sends.
struct Outgoing {
    data: Bytes,
    library: &'static Library,
}

/// A place for received bytes.
pub(crate) enum Space {
    Buffer(BytesMut),
    /// A range of the memory, which nothing else uses meanwhile, and which is filled completely.
    Memory(Arc<Memory>, Range<usize>),
}

impl Space {
    /// Its address and length.
    fn place(&mut self) -> (*mut u8, usize) {
        match self {
            Self::Buffer(buffer) => (buffer.as_mut_ptr(), buffer.len()),
            Self::Memory(memory, range) => {
                let end = range.end.min(memory.length());
                let start = range.start.min(end);
                // SAFETY: the memory has so many bytes.
                (unsafe { memory.address().as_ptr().add(start) }, end - start)
            }
        }
    }
}

/// The space, and how many bytes were received into it.
pub(crate) type Received = (Space, io::Result<usize>);

/// An operation that receives.
pub(crate) enum Receive {
    Over(Received),
    Pending(Arc<ReceiveSlot>),
}

pub(crate) struct ReceiveSlot(Mutex<Option<(Space, Status, usize)>>, &'static Library);

impl ReceiveSlot {
    /// The result, once there is one.
    pub(crate) fn take(&self) -> Option<Received> {
        let (space, status, length) = self.0.lock().take()?;
        Some((space, self.1.check("cannot receive by UCX", status).map(|()| length)))
    }
}

struct Receiving {
    space: Space,
    slot: Arc<ReceiveSlot>,
}

/// The sending of bytes in memory.
pub(crate) struct Operation(Arc<AtomicI8>);

impl Operation {
    /// Whether it is over. A failure is one of the connection.
    pub(crate) fn is_over(&self) -> bool {
        self.0.load(Ordering::Relaxed) != IN_PROGRESS
    }
}

/// The state that the callback of an operation uses.
struct Completing {
    /// Gets the status.
    status: Arc<AtomicI8>,
    /// Gets a failure.
    failure: Arc<AtomicI8>,
    library: &'static Library,
    /// UCX reads it.
    _memory: Arc<Memory>,
}

/// An endpoint that is being closed.
pub(crate) struct Closing {
    /// Keeps the worker until UCX has released the endpoint.
    _memory: Option<PeerMemory>,
    _worker: Rc<Inner>,
    over: Arc<AtomicBool>,
    failure: *const AtomicI8,
}

impl Endpoint {
    pub(super) fn new(worker: &Rc<Inner>, to: &To) -> io::Result<Self> {
        let library = &worker.context.library;
        let failure = Arc::new(AtomicI8::new(OK));
        let nowhere = Address { address: ptr::null(), length: 0 };
        let (fields, flags, address, request) = match to {
            To::Peer(peer) => {
                let address = Address { address: peer.as_ptr(), length: peer.len() };
                (ENDPOINT_FLAGS | ENDPOINT_ADDRESS, FLAG_CLIENT_SERVER, address, ptr::null_mut())
            }
            To::Request(request) => (ENDPOINT_REQUEST, 0, nowhere, *request),
        };
        let parameters = EndpointParameters {
            fields: fields | ENDPOINT_ERROR_MODE | ENDPOINT_ERROR_HANDLER,
            remote: ptr::null(),
            error_mode: ERROR_MODE_PEER,
            error_callback: on_error,
            error_arg: Arc::into_raw(Arc::clone(&failure)).cast_mut().cast(),
            user_data: ptr::null_mut(),
            flags,
            address,
            request,
        };
        let mut handle = ptr::null_mut();
        // SAFETY: the worker and the addresses are valid; the callback's argument is released only
        // after UCX has released the endpoint.
        let status =
            unsafe { (library.ucp_ep_create)(worker.handle, &raw const parameters, &raw mut handle) };
        if status != OK {
            // SAFETY: there is no endpoint that could call back.
            unsafe { Arc::from_raw(parameters.error_arg.cast::<AtomicI8>()) };
        }
        library.check("UCX cannot connect", status)?;
        Ok(Self { worker: Rc::clone(worker), handle, failure })
    }

    fn library(&self) -> &'static Library {
        &self.worker.context.library
    }

    /// Why the connection has failed, if it has.
    pub(crate) fn failure(&self) -> Option<io::Error> {
        let status = self.failure.load(Ordering::Relaxed);
        (status != OK).then(|| self.library().error("the UCX connection has failed", status))
    }

    /// The addresses of this end and of the other one.
    ///
    /// # Errors
    /// The connection has failed.
    pub(crate) fn addresses(&self) -> io::Result<(SocketAddr, SocketAddr)> {
        let mut attributes = EndpointAttributes {
            fields: ENDPOINT_ATTRIBUTE_LOCAL | ENDPOINT_ATTRIBUTE_REMOTE,
            name: [0; 32],
            local: SockAddrStorage::zeroed(),
            remote: SockAddrStorage::zeroed(),
        };
        // SAFETY: the endpoint is valid, and the pointer is valid for writes.
        let status = unsafe { (self.library().ucp_ep_query)(self.handle, &raw mut attributes) };
        self.library().check("UCX has no address for a connection", status)?;
        Ok((socket_address(attributes.local)?, socket_address(attributes.remote)?))
    }

    /// Sends bytes behind all earlier ones. A failure is one of the connection.
    pub(crate) fn send(&self, data: Bytes) {
        let length = data.len();
        let send = Box::into_raw(Box::new(Outgoing { data, library: self.library() }));
        let parameters = RequestParameters::new(Callback { send: on_sent }, send.cast(), 0);
        // SAFETY: the endpoint is valid; the bytes live until UCX has called back, or has returned
        // that it will not.
        let started = unsafe {
            let data = (*send).data.as_ptr().cast();
            (self.library().ucp_stream_send_nbx)(self.handle, data, length, &raw const parameters)
        };
        if let Started::Over(status) = Started::new(started) {
            // SAFETY: UCX does not call back, so that this is the only reference.
            unsafe { Outgoing::over(send) };
            if status != OK {
                self.failure.store(status, Ordering::Relaxed);
            }
        }
    }

    /// Receives into a space that is not empty.
    pub(crate) fn receive(&self, space: Space) -> Receive {
        let slot = Arc::new(ReceiveSlot(Mutex::new(None), self.library()));
        let receiving = Box::into_raw(Box::new(Receiving { space, slot: Arc::clone(&slot) }));
        // SAFETY: nothing else uses the box yet.
        let flags = match unsafe { &(*receiving).space } {
            Space::Buffer(_) => 0,
            Space::Memory(..) => RECEIVE_ALL,
        };
        let parameters = RequestParameters::new(Callback { receive: on_received }, receiving.cast(), flags);
        let mut received = 0;
        // SAFETY: as for `send`; nothing else uses the space meanwhile.
        let started = unsafe {
            let (space, length) = (*receiving).space.place();
            let (received, parameters) = (&raw mut received, &raw const parameters);
            (self.library().ucp_stream_recv_nbx)(self.handle, space.cast(), length, received, parameters)
        };
        match Started::new(started) {
            Started::Pending => Receive::Pending(slot),
            Started::Over(status) => {
                // SAFETY: UCX does not call back, so that this is the only reference.
                let receiving = unsafe { Box::from_raw(receiving) };
                let result = self.library().check("cannot receive by UCX", status).map(|()| received);
                Receive::Over((receiving.space, result))
            }
        }
    }

    /// The text in which UCX lists the transports of the connection, for people. They are final
    /// once something was received.
    ///
    /// # Errors
    /// The system has no memory left.
    pub(crate) fn description(&self) -> io::Result<String> {
        // SAFETY: the endpoint and the file are valid.
        printed(|file| unsafe { (self.library().ucp_ep_print_info)(self.handle, file) })
    }

    /// Uses memory of the peer: `length` bytes from its `address` on. `key` must be followed by
    /// zeroes, because UCX reads as far as the key says itself.
    ///
    /// # Errors
    /// No transport of the connection can use the memory.
    pub(crate) fn peer_memory(&self, key: &[u8], address: u64, length: usize) -> io::Result<PeerMemory> {
        PeerMemory::new(self.library(), self.handle, key, (address, length))
    }

    /// Sends bytes of `memory` behind all earlier ones. They must not change until that is over. A
    /// failure is one of the connection.
    pub(crate) fn send_memory(&self, memory: &Arc<Memory>, bytes: Range<usize>) -> Operation {
        let status = Arc::new(AtomicI8::new(IN_PROGRESS));
        if bytes.start > bytes.end || bytes.end > memory.length() {
            self.failure.store(INVALID_PARAMETER, Ordering::Relaxed);
            return Operation(status);
        }
        self.begin(Arc::clone(&status), Arc::clone(memory), |parameters| {
            // SAFETY: the memory has the bytes, and stays until UCX has called back, or has
            // returned that it will not; the endpoint is valid.
            unsafe {
                let data = memory.address().as_ptr().add(bytes.start).cast();
                (self.library().ucp_stream_send_nbx)(self.handle, data, bytes.len(), parameters)
            }
        });
        Operation(status)
    }

    /// Starts an operation whose callback is [`on_complete`].
    fn begin(
        &self,
        status: Arc<AtomicI8>,
        memory: Arc<Memory>,
        start: impl FnOnce(*const RequestParameters) -> Handle,
    ) {
        let (failure, library) = (Arc::clone(&self.failure), self.library());
        let completing = Box::into_raw(Box::new(Completing { status, failure, library, _memory: memory }));
        let parameters = RequestParameters::new(Callback { send: on_complete }, completing.cast(), 0);
        if let Started::Over(status) = Started::new(start(&raw const parameters)) {
            // SAFETY: UCX does not call back, so that this is the only reference.
            unsafe { Box::from_raw(completing) }.complete(status);
        }
    }

    /// Closes the connection at once. The peer sees a failure, if it has not closed its end. The
    /// memory of the peer is released behind the endpoint.
    pub(crate) fn close(self, memory: Option<PeerMemory>) -> Closing {
        let over = Arc::new(AtomicBool::new(false));
        let argument: *mut (Arc<AtomicBool>, &Library) =
            Box::into_raw(Box::new((Arc::clone(&over), self.library())));
        let parameters = RequestParameters::new(Callback { send: on_closed }, argument.cast(), CLOSE_FORCE);
        // SAFETY: the endpoint is valid, and is not used after this call.
        let started = unsafe { (self.library().ucp_ep_close_nbx)(self.handle, &raw const parameters) };
        if let Started::Over(_) = Started::new(started) {
            over.store(true, Ordering::Relaxed);
            // SAFETY: UCX does not call back, so that this is the only reference.
            drop(unsafe { Box::from_raw(argument) });
        }
        Closing { _worker: self.worker, _memory: memory, over, failure: Arc::as_ptr(&self.failure) }
    }
}

impl Closing {
    /// Whether UCX has released the endpoint.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        if self.is_over() {
            // SAFETY: the reference for the callback was made with the endpoint, which is gone.
            unsafe { Arc::from_raw(self.failure) };
        }
    }
}

impl Completing {
    fn complete(&self, status: Status) {
        self.status.store(status, Ordering::Relaxed);
        if status != OK {
            self.failure.store(status, Ordering::Relaxed);
        }
    }
}

impl Outgoing {
    /// # Safety
    /// `send` came from a box, and nothing else refers to it.
    unsafe fn over(send: *mut Self) -> &'static Library {
        // SAFETY: by the contract of this function.
        unsafe { Box::from_raw(send) }.library
    }
}

/// # Safety
/// `arg` is the failure of an endpoint that UCX has not released.
unsafe extern "C" fn on_error(arg: *mut c_void, _: Handle, status: Status) {
    // SAFETY: by the contract of this function.
    unsafe { &*arg.cast::<AtomicI8>() }.store(status, Ordering::Relaxed);
}

/// # Safety
/// `data` came from `Endpoint::send`. UCX calls this once, for a valid request.
unsafe extern "C" fn on_sent(request: Handle, _: Status, data: *mut c_void) {
    // SAFETY: by the contract of this function.
    let library = unsafe { Outgoing::over(data.cast()) };
    // SAFETY: the request is over, and nothing else refers to it.
    unsafe { (library.ucp_request_free)(request) };
}

/// # Safety
/// `data` came from `Endpoint::begin`. UCX calls this once, for a valid request.
unsafe extern "C" fn on_complete(request: Handle, status: Status, data: *mut c_void) {
    // SAFETY: by the contract of this function.
    let completing = unsafe { Box::from_raw(data.cast::<Completing>()) };
    completing.complete(status);
    // SAFETY: the request is over, and nothing else refers to it.
    unsafe { (completing.library.ucp_request_free)(request) };
}

/// # Safety
/// `data` came from `Endpoint::receive`. UCX calls this once, for a valid request.
unsafe extern "C" fn on_received(request: Handle, status: Status, length: usize, data: *mut c_void) {
    // SAFETY: by the contract of this function.
    let Receiving { space, slot } = *unsafe { Box::from_raw(data.cast::<Receiving>()) };
    let library = slot.1;
    *slot.0.lock() = Some((space, status, length));
    // SAFETY: the request is over, and nothing else refers to it.
    unsafe { (library.ucp_request_free)(request) };
}

/// # Safety
/// `data` came from `Endpoint::close`. UCX calls this once, for a valid request.
unsafe extern "C" fn on_closed(request: Handle, _: Status, data: *mut c_void) {
    // SAFETY: by the contract of this function.
    let (over, library) = *unsafe { Box::from_raw(data.cast::<(Arc<AtomicBool>, &Library)>()) };
    over.store(true, Ordering::Relaxed);
    // SAFETY: the request is over, and nothing else refers to it.
    unsafe { (library.ucp_request_free)(request) };
}
