//! Forwards the data connections of the proxy.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use anyhow::Result;
use rustix::net::sockopt;

use super::{BUFFER, CHUNK, Shared};

/// Listens for data connections on behalf of `target` and forwards each of them to it.
pub(super) fn listen_for(shared: &Arc<Shared>, target: SocketAddr) -> Result<SocketAddr> {
    let listener = TcpListener::bind((target.ip(), 0))?;
    sockopt::set_socket_recv_buffer_size(&listener, BUFFER)?;
    sockopt::set_socket_send_buffer_size(&listener, BUFFER)?;
    let address = listener.local_addr()?;
    let shared = shared.clone();
    thread::spawn(move || {
        while let Some(from) = shared.accept(&listener) {
            shared.data_connections.fetch_add(1, Ordering::SeqCst);
            let Ok(to) = connect(target) else { continue };
            let (from, to) = (shared.register(from), shared.register(to));
            pass_on(&shared, from.clone(), to.clone());
            pass_on(&shared, to, from);
        }
    });
    Ok(address)
}

fn connect(target: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect(target)?;
    sockopt::set_socket_recv_buffer_size(&stream, BUFFER)?;
    sockopt::set_socket_send_buffer_size(&stream, BUFFER)?;
    Ok(stream)
}

fn pass_on(shared: &Arc<Shared>, from: Arc<TcpStream>, to: Arc<TcpStream>) {
    let shared = shared.clone();
    thread::spawn(move || {
        let mut buffer = vec![0; CHUNK];
        let (mut reader, mut writer) = (&*from, &*to);
        while let Ok(count @ 1..) = reader.read(&mut buffer) {
            shared.pace(count);
            shared.wait_while_stalled();
            if shared.was_cut(&from) || writer.write_all(&buffer[..count]).is_err() {
                break;
            }
            let moved = shared.moved.fetch_add(count as u64, Ordering::SeqCst) + count as u64;
            let cut_at = shared.cut_at.load(Ordering::SeqCst);
            let next = match shared.cut_every.load(Ordering::SeqCst) {
                0 => u64::MAX,
                every => moved.saturating_add(every),
            };
            let due = moved >= cut_at
                && shared.cut_at.compare_exchange(cut_at, next, Ordering::SeqCst, Ordering::SeqCst).is_ok();
            if due {
                shared.cut();
            }
        }
        if !shared.was_cut(&to) {
            let _ = to.shutdown(Shutdown::Write);
        }
        if !shared.was_cut(&from) {
            let _ = from.shutdown(Shutdown::Read);
        }
    });
}
