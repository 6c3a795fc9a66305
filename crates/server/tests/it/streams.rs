//! Settings that a client may change during a download: streams, buffers, congestion control.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::thread;
use std::time::Duration;

use ropewalk_protocol::marker::{Marker, PathMarker};
use ropewalk_protocol::reply::Reply;
use rustix::net::sockopt;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

use crate::blocks::{mode_e, read_until_eod, sample};
use crate::client::{accept, connect};
use crate::fixture::Fixture;

/// Reads a file from these streams. Returns it with the number of streams that the sender
/// announced.
fn receive(streams: Vec<TcpStream>) -> (Vec<u8>, Option<u64>) {
    let readers: Vec<_> = streams
        .into_iter()
        .map(|mut stream| {
            thread::spawn(move || {
                let mut file = Vec::new();
                let count = read_until_eod(&mut stream, &mut file);
                (file, count)
            })
        })
        .collect();
    let (mut file, mut streams) = (Vec::new(), None);
    for reader in readers {
        let (part, count) = reader.join().unwrap();
        file.resize(file.len().max(part.len()), 0);
        // The bytes of other streams are 0 here.
        file.iter_mut().zip(part).for_each(|(to, from)| *to |= from);
        streams = streams.or(count);
    }
    (file, streams)
}

/// The server's data sockets, which are in this process too.
fn sockets_to(peer: SocketAddr) -> Vec<OwnedFd> {
    let process = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    let numbers = open.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    let all = numbers.filter_map(|n| pidfd_getfd(&process, n, PidfdGetfdFlags::empty()).ok());
    let leads_there = |fd: &OwnedFd| matches!(rustix::net::getpeername(fd), Ok(Some(address)) if SocketAddr::try_from(address.clone()) == Ok(peer));
    all.filter(leads_there).collect()
}

#[test]
fn site_streams_during_download_changes_streams() {
    let server = Fixture::new();
    let bytes = sample(16 << 20);
    server.write("f", &bytes);
    let mut client = server.login();
    mode_e(&mut client);
    let listener = client.port();
    client.send("RETR /f");
    let mut streams = vec![accept(&listener)];
    client.expect(150);
    // Data is not read yet, so the transfer cannot end. Commands in the pipeline wait.
    client.send("NOOP");
    assert_eq!(client.command("SITE STREAMS 4", 114), "114 Streams 4");
    streams.extend((0..3).map(|_| accept(&listener)));
    assert_eq!(client.command("SITE STREAMS 2", 114), "114 Streams 2");
    assert_eq!(
        client.command("site streams 1000000", 114),
        "114 Streams refused: expected a number from 1 to 128."
    );
    let (file, count) = receive(streams);
    assert!(file == bytes);
    assert_eq!(count, Some(4), "EODs, for everyone that ever was");
    client.expect(226);
    client.expect(200);
}

#[test]
fn site_streams_with_passive_sender_adds_streams() {
    let server = Fixture::new();
    let bytes = sample(8 << 20);
    server.write("f", &bytes);
    let mut client = server.login();
    mode_e(&mut client);
    let address = client.pasv();
    let mut streams = vec![connect(address)];
    client.command("RETR /f", 150);
    assert_eq!(client.command("SITE STREAMS 3", 114), "114 Streams 3");
    streams.extend((0..2).map(|_| connect(address)));
    let (file, _) = receive(streams);
    assert!(file == bytes);
    client.expect(226);
}

#[test]
fn site_streams_between_transfers_applies_to_next() {
    let server = Fixture::with(|config, _| config.data.max_streams = 3);
    let bytes = sample(5 << 20);
    server.write("f", &bytes);
    let mut client = server.login();
    mode_e(&mut client);
    // An existing channel, and channels made later.
    let listener = client.port();
    assert_eq!(client.command("SITE STREAMS 2", 114), "114 Streams 2");
    let fetch = |client: &mut crate::client::Client, listener: &TcpListener, n| {
        client.send("RETR /f");
        let streams = (0..n).map(|_| accept(listener)).collect();
        let (file, count) = receive(streams);
        assert!(file == bytes && count == Some(n));
        client.expect(150);
        client.expect(226);
    };
    fetch(&mut client, &listener, 2);
    assert_eq!(client.command("SITE STREAMS 64", 114), "114 Streams 3", "as many as the site allows");
    let listener = client.port();
    fetch(&mut client, &listener, 3);
}

#[test]
fn site_streams_during_upload_is_ignored() {
    let server = Fixture::new();
    let mut client = server.login();
    mode_e(&mut client);
    client.command("OPTS RETR Parallelism=5,5,5;", 200);
    let mut data = connect(client.pasv());
    client.command("STOR /f", 150);
    client.expect(112);
    assert_eq!(client.command("SITE STREAMS 9", 114), "114 Streams 5");
    std::io::Write::write_all(
        &mut data,
        &crate::blocks::block(crate::blocks::EOD | crate::blocks::EOF, 1, b""),
    )
    .unwrap();
    client.expect(112);
    client.expect(226);
}

#[test]
fn client_that_reads_nothing_is_not_read_from() {
    const COUNT: usize = 20_000;
    let server = Fixture::new();
    server.write("f", sample(16 << 20));
    let mut client = server.login();
    mode_e(&mut client);
    let listener = client.port();
    client.send("RETR /f");
    let stream = accept(&listener);
    client.expect(150);
    let mut to = client.writer();
    let writer = thread::spawn(move || {
        std::io::Write::write_all(&mut to, "SITE STREAMS 1\r\n".repeat(COUNT).as_bytes()).unwrap();
    });
    for _ in 0..COUNT {
        client.expect(114);
    }
    writer.join().unwrap();
    client.send("ABOR");
    client.expect(426);
    client.expect(226);
    drop(stream);
}

#[test]
fn client_that_never_reads_ends_its_transfer() {
    let server = Fixture::with(|config, _| {
        config.timeouts.write = std::time::Duration::from_millis(500);
        config.data.stall_timeout = std::time::Duration::from_secs(600);
    });
    server.write("f", sample(16 << 20));
    let mut client = server.login();
    mode_e(&mut client);
    let listener = client.port();
    client.send("RETR /f");
    let _stream = accept(&listener);
    client.expect(150);
    let mut to = client.writer();
    to.set_write_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
    // Until the server takes no more, and then ends the connection.
    while std::io::Write::write_all(&mut to, "SITE STREAMS 1\r\n".repeat(1000).as_bytes()).is_ok() {}
    crate::uploads::wait_for(|| server.handle.sessions() == 0);
}

#[test]
fn download_with_path_info_sends_path_markers() {
    let server = Fixture::new();
    server.write("f", sample(3 << 20));
    let mut client = server.login();
    mode_e(&mut client);
    client.command("OPTS RETR markers=1;PathInfo=1;Parallelism=2,2,2;", 200);
    let listener = client.port();
    client.send("RETR /f");
    let streams = (0..2).map(|_| accept(&listener)).collect();
    receive(streams);
    client.expect(150);
    let mut paths: Vec<PathMarker> = Vec::new();
    let mut waits: Vec<Duration> = Vec::new();
    loop {
        let reply = client.reply();
        match reply.code {
            112 => {}
            115 => match Marker::from_reply(&Reply::new(115, &reply.text[4..])) {
                Some(Ok(Marker::Path(marker))) => paths.push(marker),
                Some(Ok(Marker::Storage(wait))) => waits.push(wait),
                other => panic!("{other:?}: {}", reply.text),
            },
            code => {
                assert_eq!(code, 226, "{}", reply.text);
                break;
            }
        }
    }
    assert!(!waits.is_empty() && waits.is_sorted(), "{waits:?}");
    let last = paths.last().unwrap();
    // There are 46 segments or more; the kernel may still hold the last ones.
    assert!(last.sent > 10 && last.streams == 2 && last.rtt >= last.min_rtt, "{paths:?}");
    assert!(last.congestion_window > 0 && !last.min_rtt.is_zero(), "{paths:?}");
}

#[test]
fn congestion_control_of_client_is_used() {
    // An algorithm other than the one that connections within the host use by default, if there is
    // one.
    let allowed = ropewalk_transport::congestion::allowed();
    let asked = allowed.into_iter().find(|name| name != "reno").unwrap_or("reno".into());
    let choices = vec![asked.clone()];
    let server = Fixture::with(|config, _| config.data.congestion_choices = choices);
    server.write("f", sample(2 << 20));
    let mut client = server.login();
    assert!(client.command("FEAT", 211).contains(";Congestion;|"));
    let refused = client.command("OPTS RETR Congestion=vegas;", 501);
    assert_eq!(refused, format!("501 Congestion control vegas is not allowed here, only {asked}."));
    mode_e(&mut client);
    // A channel that existed before, and a new one.
    for _ in 0..2 {
        let listener = client.port();
        client.command(&format!("OPTS RETR Congestion={asked};"), 200);
        client.send("RETR /f");
        let stream = accept(&listener);
        client.expect(150);
        let sockets = sockets_to(listener.local_addr().unwrap());
        let names: Vec<_> = sockets.iter().map(|s| sockopt::tcp_congestion(s).unwrap()).collect();
        assert!(names.contains(&asked), "{names:?}");
        drop(sockets);
        receive(vec![stream]);
        client.expect(226);
    }
    let server = Fixture::new();
    let mut client = server.login();
    client.command("OPTS RETR Congestion=reno;", 501);
    assert!(!client.command("FEAT", 211).contains("Congestion"));
}

/// In MODE S the connection ends before its transfer does.
#[test]
fn automatic_buffers_use_short_transfers() {
    let server = Fixture::new();
    server.write("f", sample(2 << 20));
    let mut client = server.login();
    client.get("RETR /f");
    let told = client.command("ABUF 67108864", 200);
    assert!(told.contains("path needs"), "{told}");
}

#[test]
fn abuf_sets_and_reports_buffers() {
    let server = Fixture::new();
    server.write("f", sample(2 << 20));
    let mut client = server.login();
    mode_e(&mut client);
    let told = client.command("ABUF 67108864", 200);
    let within = "within this host set to 512 KiB, otherwise ";
    assert_eq!(
        told,
        format!("200 ABUF: {within}left to kernel autotuning, nothing is known of the path yet.")
    );
    let buffer = |client: &mut crate::client::Client| {
        let listener = client.port();
        client.send("RETR /f");
        let stream = accept(&listener);
        client.expect(150);
        let sockets = sockets_to(listener.local_addr().unwrap());
        // The client's end does not have this peer.
        let sizes: Vec<_> = sockets.iter().map(|s| sockopt::socket_send_buffer_size(s).unwrap()).collect();
        assert_eq!(sizes.len(), 1);
        drop(sockets);
        receive(vec![stream]);
        client.expect(226);
        sizes[0]
    };
    let free = buffer(&mut client);
    assert_eq!(free, 2 * (512 << 10));
    // Another session has this information, too.
    let mut other = server.login();
    let told = other.command("ABUF 67108864", 200);
    assert!(!told.contains("nothing is known") && told.contains("path needs"), "{told}");
    // A ceiling below all minima still limits the size.
    let told = client.command("ABUF 64", 200);
    assert!(
        told.starts_with("200 ABUF: send buffer set to ") && told.contains("the ceiling that was asked for;"),
        "{told}"
    );
    let held = buffer(&mut client);
    assert!(held <= 3 * 4096 && held < free, "{held}, {free}");
    // The reported size is the real one, which is larger than requested.
    let size = format!("send buffer set to {:.1} KiB, ", held as f64 / 2048.0);
    assert!(held > 2 * 64 && told.contains(&size), "{told}, {held}");
    client.command("SBUF 65536", 200);
    assert_eq!(buffer(&mut client), 2 * 65536);
    assert_eq!(
        client.command("ABUF 0", 200),
        format!("200 ABUF: off, {within}kernel autotuning sizes buffers.")
    );
    assert_eq!(client.command("ABUF x", 502), "502 Invalid Parameter.");
}
