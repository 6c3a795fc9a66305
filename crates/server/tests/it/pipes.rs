//! Pipes among the files, with a silent process at the other end.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::blocks::{EOD, EOF, block, mode_e};
use crate::fixture::Fixture;

/// Opens both ends of a new pipe, so that neither the server nor the test waits for another process
/// to open it.
fn pipe(server: &Fixture, name: &str) -> File {
    let path = server.root().join(name);
    mknodat(CWD, &path, FileType::Fifo, Mode::from(0o600), 0).unwrap();
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

#[test]
fn download_of_pipe_sends_data_at_once_and_can_be_aborted() {
    let server = Fixture::new();
    let mut pipe = pipe(&server, "pipe");
    let mut client = server.login();
    let mut data = client.data();
    client.command("RETR /pipe", 150);
    for part in [b"abc", b"def"] {
        pipe.write_all(part).unwrap();
        let mut found = [0; 3];
        data.read_exact(&mut found).unwrap();
        assert_eq!(found, *part);
    }
    client.send("ABOR");
    client.expect(426);
    client.expect(226);
    // To the end of the range, if it has one.
    let mut data = client.data();
    client.command("RETR /pipe", 150);
    pipe.write_all(b"last").unwrap();
    let mut found = [0; 4];
    data.read_exact(&mut found).unwrap();
    drop(pipe);
    assert_eq!(data.read(&mut found).unwrap(), 0);
    client.expect(226);
}

#[test]
fn upload_into_full_pipe_can_be_aborted() {
    for extended in [false, true] {
        let server = Fixture::new();
        let mut pipe = pipe(&server, "pipe");
        let mut client = server.login();
        if extended {
            mode_e(&mut client);
        }
        let mut data = client.data();
        client.command("STOR /pipe", 150);
        let much = vec![b'x'; 200 << 10];
        data.write_all(&if extended { block(0, 0, &much) } else { much.clone() }).unwrap();
        // More data is in transit than the pipe takes.
        let mut first = [0; 1];
        pipe.read_exact(&mut first).unwrap();
        client.send("ABOR");
        let reply = loop {
            let reply = client.reply();
            if reply.code >= 200 {
                break reply;
            }
        };
        assert_eq!(reply.code, 426, "{}", reply.text);
        client.expect(226);
        client.command("NOOP", 200);
    }
}

#[test]
fn upload_over_several_streams_into_pipe_is_in_order() {
    let server = Fixture::new();
    let mut pipe = pipe(&server, "pipe");
    let mut client = server.login();
    mode_e(&mut client);
    let address = client.pasv();
    let (mut a, mut b) = (crate::client::connect(address), crate::client::connect(address));
    client.send("STOR /pipe");
    b.write_all(&[block(0, 3, b"def"), block(EOD, 0, b"")].concat()).unwrap();
    a.write_all(&[block(0, 0, b"abc"), block(EOD | EOF, 2, b"")].concat()).unwrap();
    let mut found = [0; 6];
    pipe.read_exact(&mut found).unwrap();
    assert_eq!(&found, b"abcdef");
    while client.reply().code != 226 {}
}

#[test]
fn transfer_of_idle_pipe_releases_permit() {
    let server = Fixture::with(|config, _| config.data.stall_timeout = Duration::from_millis(300));
    let _ends = (pipe(&server, "in"), pipe(&server, "out"));
    let mut client = server.login();
    let _data = client.data();
    client.command("RETR /in", 150);
    client.expect(426);
    let mut data = client.data();
    client.command("STOR /out", 150);
    data.write_all(&vec![b'x'; 200 << 10]).unwrap();
    client.expect(426);
}

#[test]
fn checksum_of_pipe_or_device_is_refused() {
    let server = Fixture::new();
    let mut pipe = pipe(&server, "pipe");
    pipe.write_all(b"abc").unwrap();
    let mut client = server.login();
    let text = client.command("CKSM MD5 0 -1 /pipe", 550);
    assert!(text.contains("no regular file"), "{text}");
    // Data that a pipe has taken cannot be read again.
    client.command("SCKS MD5 900150983cd24fb0d6963f7d28e17f72", 200);
    let reply = client.put("STOR /pipe", b"abc");
    assert!(reply.code >= 400, "{reply:?}");
    let mut found = [0; 6];
    pipe.read_exact(&mut found).unwrap();
    assert_eq!(&found, b"abcabc");
}

#[test]
fn download_of_pipe_waits_for_writer() {
    let server = Fixture::new();
    let name = server.root().join("pipe");
    drop(pipe(&server, "pipe"));
    let mut client = server.login();
    let mut data = client.data();
    client.command("RETR /pipe", 150);
    // This waits until the server has opened it.
    let mut writer = OpenOptions::new().write(true).open(&name).unwrap();
    writer.write_all(b"late").unwrap();
    drop(writer);
    let mut found = Vec::new();
    data.read_to_end(&mut found).unwrap();
    assert_eq!(found, b"late");
    client.expect(226);
    // A client for which no data comes can abort.
    let data = client.data();
    client.command("RETR /pipe", 150);
    client.send("ABOR");
    client.expect(426);
    client.expect(226);
    drop(data);
}

/// The system reports a size of 0 for such files.
#[test]
fn generated_file_with_size_0_is_sent() {
    let server = Fixture::with(|config, _| {
        config.anonymous.as_mut().unwrap().root = Some("/proc".into());
    });
    let mut client = server.login();
    let found = client.get("RETR /version");
    assert_eq!(found, std::fs::read("/proc/version").unwrap());
}
