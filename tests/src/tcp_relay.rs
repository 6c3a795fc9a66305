//! A relay for TCP connections that can be frozen, and that can get another target.
//!
//! While it is frozen, connections stay open and nothing passes, as on a network that is split.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::Result;
use parking_lot::{Condvar, Mutex};

/// A running relay. Dropping it closes every connection.
#[derive(Debug)]
pub struct TcpRelay {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    target: Mutex<SocketAddr>,
    frozen: Mutex<bool>,
    thawed: Condvar,
    open: Mutex<Vec<TcpStream>>,
    over: AtomicBool,
}

impl TcpRelay {
    pub fn start(target: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind((target.ip(), 0))?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            target: Mutex::new(target),
            frozen: Mutex::new(false),
            thawed: Condvar::new(),
            open: Mutex::default(),
            over: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming() {
                if accepting.over.load(Ordering::SeqCst) {
                    return;
                }
                accepting.wait();
                let target = *accepting.target.lock();
                // If the target is down, the client's connection is closed.
                if let (Ok(client), Ok(server)) = (client, TcpStream::connect(target)) {
                    // A connection that cannot be relayed is closed.
                    let _ = relay(&accepting, client, server);
                }
            }
        });
        Ok(Self { address, shared })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the target of new connections.
    pub fn set_target(&self, target: SocketAddr) {
        *self.shared.target.lock() = target;
    }

    /// Lets nothing pass from now on, or lets everything pass again.
    pub fn freeze(&self, frozen: bool) {
        *self.shared.frozen.lock() = frozen;
        self.shared.thawed.notify_all();
    }
}

impl Drop for TcpRelay {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
        self.freeze(false);
        for stream in self.shared.open.lock().drain(..) {
            // The connection may have ended.
            let _ = stream.shutdown(Shutdown::Both);
        }
        // Wakes the thread that accepts.
        drop(TcpStream::connect(self.address));
    }
}

impl Shared {
    fn wait(&self) {
        let mut frozen = self.frozen.lock();
        while *frozen {
            self.thawed.wait(&mut frozen);
        }
    }
}

fn relay(shared: &Arc<Shared>, client: TcpStream, server: TcpStream) -> Result<()> {
    for (from, to) in [(&client, &server), (&server, &client)] {
        from.set_nodelay(true)?;
        shared.open.lock().push(from.try_clone()?);
        let (mut from, mut to, shared) = (from.try_clone()?, to.try_clone()?, Arc::clone(shared));
        thread::spawn(move || {
            let mut buffer = vec![0; 64 << 10];
            loop {
                let count = from.read(&mut buffer).unwrap_or(0);
                shared.wait();
                if count == 0 || to.write_all(&buffer[..count]).is_err() {
                    break;
                }
            }
            // The other direction ends, too: a link has no half.
            let _ = from.shutdown(Shutdown::Both);
            let _ = to.shutdown(Shutdown::Both);
        });
    }
    Ok(())
}
