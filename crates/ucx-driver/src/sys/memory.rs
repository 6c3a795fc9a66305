//! Memory that UCX has registered: of this process, and of a peer.

use std::ffi::c_void;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::context::Context;
use super::exit::permission;
use super::library::{
    Handle, Library, MEMORY_ADDRESS, MEMORY_ALLOCATE, MEMORY_ATTRIBUTE_ADDRESS, MEMORY_FLAGS, MEMORY_LENGTH,
    MemoryAttributes, MemoryParameters, OK,
};

/// Memory of this process that UCX has registered, so that a peer may write to it and devices may
/// read it.
pub(crate) struct Memory {
    context: &'static Context,
    handle: Handle,
    address: NonNull<u8>,
    length: usize,
    /// Released after the registration.
    _pages: Option<Pages>,
}

// SAFETY: UCX takes the handle from any thread; the address is only a number here.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Has UCX allocate `length` bytes, of which the first `zeroes` are zero. They are shared
    /// memory if UCX has a transport over it. UCX 1.13 crashes at a peer that cannot map them.
    ///
    /// # Errors
    /// The system has no memory left that may be registered.
    pub(crate) fn shared(context: &'static Context, length: usize, zeroes: usize) -> io::Result<Self> {
        let memory = Self::map(context, length, None)?;
        // SAFETY: UCX has allocated so many bytes, and nothing else knows them yet.
        unsafe { memory.address.write_bytes(0, zeroes.min(length)) };
        Ok(memory)
    }

    /// Allocates and registers `length` bytes, which are zero. No other process can map them.
    ///
    /// # Errors
    /// As for [`Memory::shared`].
    pub(crate) fn private(context: &'static Context, length: usize) -> io::Result<Self> {
        Self::map(context, length, Some(Pages::new(length)?))
    }

    fn map(context: &'static Context, length: usize, pages: Option<Pages>) -> io::Result<Self> {
        let _permission = permission();
        let library = &context.library;
        let (fields, flags) =
            if pages.is_some() { (MEMORY_ADDRESS, 0) } else { (MEMORY_FLAGS, MEMORY_ALLOCATE) };
        let parameters = MemoryParameters {
            fields: fields | MEMORY_LENGTH,
            address: pages.as_ref().map_or(ptr::null_mut(), |pages| pages.address.as_ptr().cast()),
            length,
            flags,
            protection: 0,
            memory_type: 0,
        };
        let mut handle = ptr::null_mut();
        // SAFETY: the context is valid forever; the mask names the fields that are set.
        let status = unsafe { (library.ucp_mem_map)(context.handle, &raw const parameters, &raw mut handle) };
        library.check("UCX cannot register memory", status)?;
        let mut attributes =
            MemoryAttributes { fields: MEMORY_ATTRIBUTE_ADDRESS, address: ptr::null_mut(), length: 0 };
        // SAFETY: the handle is valid, and the pointer is valid for writes.
        let status = unsafe { (library.ucp_mem_query)(handle, &raw mut attributes) };
        let address = NonNull::new(attributes.address.cast::<u8>()).filter(|_| status == OK);
        let Some(address) = address else {
            // SAFETY: the handle is valid and not used any more.
            unsafe { (library.ucp_mem_unmap)(context.handle, handle) };
            return Err(library.error("UCX has no address for its memory", status));
        };
        Ok(Self { context, handle, address, length, _pages: pages })
    }

    pub(crate) fn address(&self) -> NonNull<u8> {
        self.address
    }

    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// The key with which a peer may write to the memory.
    ///
    /// # Errors
    /// UCX has no memory left.
    pub(crate) fn key(&self) -> io::Result<Vec<u8>> {
        let library = &self.context.library;
        let (mut key, mut length) = (ptr::null_mut(), 0);
        // SAFETY: context and memory are valid, and the pointers are valid for writes.
        let status = unsafe {
            (library.ucp_rkey_pack)(self.context.handle, self.handle, &raw mut key, &raw mut length)
        };
        library.check("UCX has no key for its memory", status)?;
        // SAFETY: UCX has returned a buffer of so many bytes.
        let bytes = unsafe { std::slice::from_raw_parts(key.cast::<u8>(), length) }.to_vec();
        // SAFETY: the buffer came from UCX and is not used any more.
        unsafe { (library.ucp_rkey_buffer_release)(key) };
        Ok(bytes)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let _permission = permission();
        // SAFETY: the handle is valid, and nothing refers to the memory any more.
        let status = unsafe { (self.context.library.ucp_mem_unmap)(self.context.handle, self.handle) };
        if let Err(error) = self.context.library.check("UCX cannot free memory", status) {
            tracing::debug!(%error, "memory stays allocated");
        }
    }
}

/// Pages of zeroes.
struct Pages {
    address: NonNull<u8>,
    length: usize,
}

impl Pages {
    fn new(length: usize) -> io::Result<Self> {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: new pages do not touch what exists.
        let address = unsafe { libc::mmap(ptr::null_mut(), length, rights, flags, -1, 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let address = NonNull::new(address.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { address, length })
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the pages were mapped with this length, and nothing refers to them any more.
        unsafe { libc::munmap(self.address.as_ptr().cast(), self.length) };
    }
}

/// Memory of a peer, for the thread of the worker.
pub(crate) struct PeerMemory(Option<Arc<Key>>);

/// The right to write to memory of a peer, and to use it as memory of this process if it is
/// mapped. Only [`PeerMemory`] releases it.
pub(super) struct Key {
    pub(super) library: &'static Library,
    pub(super) handle: Handle,
    pub(super) address: u64,
    pub(super) length: usize,
}

// SAFETY: other threads than that of the worker only keep the key.
unsafe impl Send for Key {}
// SAFETY: as above.
unsafe impl Sync for Key {}

/// Memory of a peer that is mapped into this process.
pub(crate) struct Mapped {
    pub(super) address: NonNull<u8>,
    pub(super) key: Arc<Key>,
}

impl PeerMemory {
    /// Uses `key` for `length` bytes from `address` on, at the peer of `endpoint`.
    pub(super) fn new(
        library: &'static Library,
        endpoint: Handle,
        key: &[u8],
        (address, length): (u64, usize),
    ) -> io::Result<Self> {
        let mut handle = ptr::null_mut();
        // SAFETY: the endpoint is valid, and the pointer is valid for writes. UCX reads a key
        // without its length: the caller has padded it with zeroes.
        let status =
            unsafe { (library.ucp_ep_rkey_unpack)(endpoint, key.as_ptr().cast::<c_void>(), &raw mut handle) };
        library.check("UCX cannot use the key of the peer's memory", status)?;
        Ok(Self(Some(Arc::new(Key { library, handle, address, length }))))
    }

    /// The memory itself, if UCX can map it: it is shared memory of this host.
    pub(crate) fn map(&self) -> Option<Mapped> {
        let key = self.0.as_ref()?;
        let mut address = ptr::null_mut();
        // SAFETY: the key is valid, and the pointer is valid for writes.
        let status = unsafe { (key.library.ucp_rkey_ptr)(key.handle, key.address, &raw mut address) };
        let address = NonNull::new(address.cast::<u8>()).filter(|_| status == OK)?;
        Some(Mapped { address, key: Arc::clone(key) })
    }
}

impl Drop for PeerMemory {
    fn drop(&mut self) {
        match self.0.take().map(Arc::try_unwrap) {
            // SAFETY: nothing else refers to the key, and this is the thread of its worker,
            // because a `PeerMemory` stays beside an endpoint.
            Some(Ok(key)) => unsafe { (key.library.ucp_rkey_destroy)(key.handle) },
            Some(Err(_)) => tracing::debug!("memory of a peer stays mapped"),
            None => {}
        }
    }
}
