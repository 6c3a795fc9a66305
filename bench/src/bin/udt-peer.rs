//! One end of a UDT connection, for measurements: `bench/udt` runs it beside the same program with
//! libudt (`rig/udt_peer.cpp`), which has the same arguments and the same output.
//!
//!     udt-peer receive PORT SECONDS     receives for this time after the first byte, then ends
//!     udt-peer send ADDRESS PORT        sends until the receiver ends the connection
//!
//! The receiver prints its goodput; both print the processor time of the process and the bytes. The
//! bytes are zeros and are not checked: `crates/udt-driver` has the tests.

#![forbid(unsafe_code)]

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ropewalk_transport::{Connection, Driver, Options};
use ropewalk_udt_driver::Udt;

const BUFFER: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["receive", port, seconds] => receive(port.parse()?, Duration::try_from_secs_f64(seconds.parse()?)?),
        ["send", address, port] => send(SocketAddr::new(address.parse()?, port.parse()?)),
        _ => bail!("usage: udt-peer receive PORT SECONDS | send ADDRESS PORT"),
    }
}

fn receive(port: u16, time: Duration) -> Result<()> {
    let any = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port);
    let listener = Udt.listen(any.into(), &Options::default())?;
    println!("ready");
    let accepted = listener.accept(Instant::now() + PATIENCE)?;
    let mut connection = accepted.context("no connection")?;
    let mut buffer = vec![0; BUFFER];
    let mut bytes = connection.read(&mut buffer).context("no first byte")? as u64;
    let start = Instant::now();
    while start.elapsed() < time {
        connection.set_time_limit(time.saturating_sub(start.elapsed()).max(Duration::from_millis(1)))?;
        match connection.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => bytes += count as u64,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) => return Err(error.into()),
        }
    }
    report(bytes, Some(start.elapsed()), connection.as_ref());
    connection.reset_on_drop()?;
    drop(connection);
    // The thread of the socket tells the sender of the end.
    std::thread::sleep(Duration::from_millis(200));
    Ok(())
}

fn send(address: SocketAddr) -> Result<()> {
    let mut connection = Udt.connect(address.into(), &Options::default(), PATIENCE)?;
    let buffer = vec![0; BUFFER];
    let mut bytes = 0;
    while let Ok(count) = connection.write(&buffer) {
        bytes += count as u64;
    }
    report(bytes, None, connection.as_ref());
    Ok(())
}

fn report(bytes: u64, elapsed: Option<Duration>, connection: &dyn Connection) {
    let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let cpu = cpu.tv_sec as f64 + cpu.tv_nsec as f64 * 1e-9;
    print!("{{\"bytes\": {bytes}, \"cpu\": {cpu:.3}");
    if let Some(elapsed) = elapsed {
        print!(", \"seconds\": {:.3}", elapsed.as_secs_f64());
    }
    if let Some(stats) = connection.handle().stats() {
        print!(", \"retransmitted\": {}, \"sent\": {}", stats.retransmitted, stats.sent);
    }
    println!("}}");
}
