//! A link with a delay: joins two TUN devices, which are its standard input and standard output.
//!
//! `delay-link MILLISECONDS [QUEUE]`: each packet comes out this long after it went in, in either
//! direction. Up to QUEUE packets are in transit (default 20000); further ones are dropped, as a
//! router would do. `bench/run` creates the devices and moves them into two network namespaces.

#![forbid(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{self, SyncSender, TrySendError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Longer than any packet of a TUN device without offloads.
const PACKET: usize = 65_536;

fn main() -> Result<()> {
    let mut words = std::env::args().skip(1);
    let delay: f64 = words.next().context("usage: delay-link MILLISECONDS [QUEUE]")?.parse()?;
    let queue: usize = words.next().map_or(Ok(20_000), |word| word.parse())?;
    let delay = Duration::try_from_secs_f64(delay / 1000.0)?;
    let (left, right) = (std::io::stdin(), std::io::stdout());
    let (left, right) = (left.as_fd(), right.as_fd());
    thread::scope(|scope| {
        for (from, to) in [(left, right), (right, left)] {
            let (sender, receiver) = mpsc::sync_channel::<(Instant, Box<[u8]>)>(queue);
            scope.spawn(move || read(from, &sender, delay));
            scope.spawn(move || {
                for (due, packet) in receiver {
                    thread::sleep(due.saturating_duration_since(Instant::now()));
                    // A device that is down drops the packet.
                    let _ = rustix::io::write(to, &packet);
                }
            });
        }
    });
    Ok(())
}

fn read(from: BorrowedFd<'_>, to: &SyncSender<(Instant, Box<[u8]>)>, delay: Duration) {
    let mut buffer = vec![0; PACKET];
    loop {
        match rustix::io::read(from, &mut buffer) {
            Ok(count) => {
                let packet = (Instant::now() + delay, buffer[..count].into());
                if let Err(TrySendError::Disconnected(_)) = to.try_send(packet) {
                    return;
                }
            }
            Err(rustix::io::Errno::INTR) => {}
            // The device was removed.
            Err(_) => std::process::exit(0),
        }
    }
}
