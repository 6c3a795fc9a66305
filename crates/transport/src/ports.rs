//! The local ports of a driver, within the range that an administrator allows.

use std::io;
use std::sync::atomic::{AtomicU16, Ordering};

/// The ports to try in turn: the wanted one, any port, or each port of a range once. In a range,
/// each call begins with another port, so that concurrent transfers do not all try the same port
/// first.
pub fn ports(wanted: u16, range: Option<(u16, u16)>) -> impl Iterator<Item = u16> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let (low, high) = match range {
        Some((low, high)) if wanted == 0 && low <= high => (low, high),
        _ => (wanted, wanted),
    };
    let count = u32::from(high - low) + 1;
    let start = if count > 1 { u32::from(NEXT.fetch_add(1, Ordering::Relaxed)) } else { 0 };
    (0..count).map(move |i| low + ((start + i) % count) as u16)
}

/// Whether another socket has the port.
pub fn is_port_taken(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable)
}
