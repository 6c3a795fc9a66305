//! The UCX driver keeps the contract of drivers over the TCP of UCX and over its shared memory.

#![allow(clippy::unwrap_used)]

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use ropewalk_tests::peers;
use ropewalk_transport::{Connection, Driver, Options, Tuning, testing};
use ropewalk_ucx_driver::Ucx;

const V4: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
const PATIENCE: Duration = Duration::from_secs(30);

/// UCX connects by TCP, and then moves data over shared memory if it may.
const SHARED: &str = "posix,cma,tcp,self";
/// Lets UCX use shared memory for connections that notice a dead peer. UCX reads it from the
/// environment alone.
const NOTICES: &str = "UCX_POSIX_ERROR_HANDLING";

/// `None` if UCX is not installed.
fn ucx() -> Option<Ucx> {
    ucx_over("tcp,self")
}

fn ucx_over(transports: &str) -> Option<Ucx> {
    let ucx = Ucx::default().with_transports(transports);
    match ucx.listen(V4.into(), &Options::default()) {
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            peers::skip(&error.to_string());
            None
        }
        result => result.map(|_| Some(ucx)).unwrap(),
    }
}

#[test]
fn ucx_over_tcp_keeps_the_contract() {
    let Some(ucx) = ucx() else { return };
    testing::contract(&ucx, V4);
}

#[test]
fn ucx_over_shared_memory_keeps_the_contract() {
    in_shared_memory("ucx_over_shared_memory_keeps_the_contract", &[], |ucx| testing::contract(ucx, V4));
}

/// UCX may map shared memory even if a connection over it would not notice a dead peer.
#[test]
fn ucx_with_shared_memory_that_it_may_not_use_keeps_the_contract() {
    if ucx().is_some() {
        testing::contract(&ucx_over("posix,sysv,tcp,self").unwrap(), V4);
    }
}

/// A network of its own counts the bytes of this test alone.
#[test]
fn data_over_shared_memory_does_not_pass_the_network() {
    const MEBIBYTE: usize = 1 << 20;
    let root = rustix::process::geteuid().is_root();
    if !root && peers::skip("network namespaces need root") || !peers::available(&["unshare", "ip"]) {
        return;
    }
    let network = ["unshare", "--net", "sh", "-c", "ip link set lo up && exec \"$0\" \"$@\""];
    in_shared_memory("data_over_shared_memory_does_not_pass_the_network", &network, |ucx| {
        let (mut near, mut far) = pair(ucx);
        let sender = thread::spawn(move || {
            for _ in 0..16 {
                near.write_all(&vec![7; MEBIBYTE]).unwrap();
            }
            near.finish().unwrap();
            near
        });
        let mut received = Vec::new();
        far.read_to_end(&mut received).unwrap();
        drop(sender.join().unwrap());
        assert!(received.len() == 16 * MEBIBYTE && received.iter().all(|&byte| byte == 7));
        let devices = std::fs::read_to_string("/proc/self/net/dev").unwrap();
        let counts = devices.lines().find_map(|line| line.trim().strip_prefix("lo:")).unwrap();
        let bytes: usize = counts.split_whitespace().next().unwrap().parse().unwrap();
        assert!(bytes < 4 * MEBIBYTE, "{bytes} bytes have passed the loopback interface");
    });
}

/// A directory of its own for shared memory shows the files of this test alone.
#[test]
fn process_that_ends_after_its_last_connection_leaves_no_shared_memory() {
    let root = rustix::process::geteuid().is_root();
    if !root && peers::skip("mount namespaces need root") || !peers::available(&["unshare", "mount"]) {
        return;
    }
    let script = "mount -t tmpfs none /dev/shm && UCX_POSIX_USE_PROC_LINK=n \"$0\" \"$@\" && \
                  [ -z \"$(ls /dev/shm)\" ]";
    let test = "process_that_ends_after_its_last_connection_leaves_no_shared_memory";
    in_shared_memory(test, &["unshare", "--mount", "sh", "-c", script], |ucx| {
        let (mut near, mut far) = pair(ucx);
        near.write_all(b"the last").unwrap();
        drop(near);
        assert_eq!(far.read_to_end(&mut Vec::new()).unwrap(), 8);
    });
}

/// Runs a body in a process of its own, which `wrapper` starts: the test named `test` there. Its
/// connections go over shared memory.
fn in_shared_memory(test: &str, wrapper: &[&str], body: impl FnOnce(&Ucx)) {
    if std::env::var_os(NOTICES).is_some() {
        return body(&ucx_over(SHARED).unwrap());
    }
    if ucx().is_none() {
        return;
    }
    let program = std::env::current_exe().unwrap();
    let words = wrapper.iter().map(Into::into).chain([program.into_os_string()]).collect::<Vec<_>>();
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).args(["--exact", test, "--nocapture"]).env(NOTICES, "y");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn pair(ucx: &Ucx) -> (Box<dyn Connection>, Box<dyn Connection>) {
    let listener = ucx.listen(V4.into(), &Options::default()).unwrap();
    let near = ucx.connect(listener.local_addr().unwrap(), &Options::default(), PATIENCE).unwrap();
    let far = listener.accept(Instant::now() + PATIENCE).unwrap().unwrap();
    (near, far)
}

#[test]
fn listener_with_many_connections_keeps_them_apart() {
    const CONNECTIONS: u8 = 40;
    let Some(ucx) = &ucx() else { return };
    let listener = ucx.listen(V4.into(), &Options::default()).unwrap();
    let to = listener.local_addr().unwrap();
    thread::scope(|scope| {
        for number in 0..CONNECTIONS {
            let to = to.clone();
            scope.spawn(move || {
                let mut near = ucx.connect(to, &Options::default(), PATIENCE).unwrap();
                near.set_time_limit(PATIENCE).unwrap();
                near.write_all(&[number; 10_000]).unwrap();
                near.finish().unwrap();
                let mut back = Vec::new();
                near.read_to_end(&mut back).unwrap();
                assert_eq!(back, [number; 10_000]);
            });
        }
        for _ in 0..CONNECTIONS {
            let mut far = listener.accept(Instant::now() + PATIENCE).unwrap().unwrap();
            scope.spawn(move || {
                far.set_time_limit(PATIENCE).unwrap();
                let mut all = Vec::new();
                far.read_to_end(&mut all).unwrap();
                far.write_all(&all).unwrap();
            });
        }
    });
}

#[test]
fn writer_waits_when_the_peer_stops_reading() {
    const WINDOW: usize = 1 << 20;
    let Some(ucx) = ucx() else { return };
    let tuning = Tuning { receive_buffer: Some(WINDOW), ..Tuning::default() };
    let options = Options { tuning, ..Options::default() };
    let listener = ucx.listen(V4.into(), &options).unwrap();
    let mut near = ucx.connect(listener.local_addr().unwrap(), &options, PATIENCE).unwrap();
    let mut far = listener.accept(Instant::now() + PATIENCE).unwrap().unwrap();
    near.set_time_limit(Duration::from_millis(500)).unwrap();
    let block: Vec<u8> = (0..1_000_003_u32).map(|i| (i % 251) as u8).collect();
    let mut sent = Vec::new();
    let error = loop {
        match near.write(&block) {
            Ok(count) => sent.extend_from_slice(&block[..count]),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    // The window of the peer and the queue of this end.
    assert!((WINDOW..8 << 20).contains(&sent.len()), "{}", sent.len());
    assert!(near.stats().unwrap().not_sent > 0);
    // The rest arrives once the peer reads again, even after this end was dropped.
    near.finish().unwrap();
    drop(near);
    far.set_time_limit(PATIENCE).unwrap();
    let mut all = Vec::new();
    far.read_to_end(&mut all).unwrap();
    assert!(all == sent);
}

/// Runs in a process of its own, which the test below kills.
#[test]
fn peer_to_be_killed() {
    let Ok(to) = std::env::var("ROPEWALK_TEST_CONNECT_TO") else { return };
    let to: SocketAddr = to.parse().unwrap();
    let transports = std::env::var("ROPEWALK_TEST_TRANSPORTS").unwrap();
    let mut near = ucx_over(&transports).unwrap().connect(to.into(), &Options::default(), PATIENCE).unwrap();
    near.write_all(b"alive").unwrap();
    thread::sleep(2 * PATIENCE);
}

#[test]
fn connection_fails_when_the_peer_is_killed() {
    fails_when_the_peer_is_killed("tcp,self");
}

#[test]
fn connection_over_shared_memory_fails_when_the_peer_is_killed() {
    in_shared_memory("connection_over_shared_memory_fails_when_the_peer_is_killed", &[], |_| {
        fails_when_the_peer_is_killed(SHARED);
    });
}

/// A directory of its own for shared memory shows the files of this test alone.
#[test]
fn shared_memory_of_a_killed_process_is_removed_and_that_of_others_stays() {
    let root = rustix::process::geteuid().is_root();
    if !root && peers::skip("mount namespaces need root") || !peers::available(&["unshare", "mount"]) {
        return;
    }
    let script = "mount -t tmpfs none /dev/shm && UCX_POSIX_USE_PROC_LINK=n exec \"$0\" \"$@\"";
    let test = "shared_memory_of_a_killed_process_is_removed_and_that_of_others_stays";
    in_shared_memory(test, &["unshare", "--mount", "sh", "-c", script], |ucx| {
        let (mut near, mut far) = pair(ucx);
        let files = || -> Vec<_> {
            Path::new("/dev/shm").read_dir().unwrap().map(|entry| entry.unwrap().path()).collect()
        };
        let mapped = || -> Vec<_> {
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            files().into_iter().filter(|path| maps.contains(path.to_str().unwrap())).collect()
        };
        let used = mapped();
        fails_when_the_peer_is_killed(SHARED);
        // The thread of that connection lets go of the peer's memory a little later.
        let deadline = Instant::now() + PATIENCE;
        while mapped() != used {
            assert!(Instant::now() < deadline, "{:?} {used:?}", mapped());
            thread::yield_now();
        }
        let before = files();
        let old = SystemTime::now() - Duration::from_secs(3600);
        before.iter().for_each(|path| std::fs::File::open(path).unwrap().set_modified(old).unwrap());
        // Other transports need another context.
        ucx_over("tcp,self").unwrap();
        assert!(!used.is_empty() && used.len() < before.len(), "{before:?} {used:?}");
        assert_eq!(files(), used);
        near.write_all(b"alive").unwrap();
        far.read_exact(&mut [0; 5]).unwrap();
    });
}

/// UCX connects by an address of TCP, so that it needs TCP beside shared memory.
#[test]
fn connection_over_shared_memory_alone_is_refused() {
    let Some(ucx) = ucx_over("posix,cma,self") else { return };
    let listener = ucx.listen(V4.into(), &Options::default()).unwrap();
    let began = Instant::now();
    let result = ucx.connect(listener.local_addr().unwrap(), &Options::default(), PATIENCE);
    let error = result.err().unwrap();
    assert!(began.elapsed() < PATIENCE / 2, "{error}");
    assert!(error.to_string().contains("UCX"), "{error}");
}

fn fails_when_the_peer_is_killed(transports: &str) {
    let Some(ucx) = ucx_over(transports) else { return };
    let listener = ucx.listen(V4.into(), &Options::default()).unwrap();
    let to = listener.local_addr().unwrap().socket().unwrap();
    let mut peer = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "peer_to_be_killed"])
        .env("ROPEWALK_TEST_CONNECT_TO", to.to_string())
        .env("ROPEWALK_TEST_TRANSPORTS", transports)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut far = listener.accept(Instant::now() + PATIENCE).unwrap().unwrap();
    far.set_time_limit(PATIENCE).unwrap();
    far.read_exact(&mut [0; 5]).unwrap();
    peer.kill().unwrap();
    peer.wait().unwrap();
    let error = far.read(&mut [0; 5]).unwrap_err();
    assert_ne!(error.kind(), ErrorKind::WouldBlock, "{error}");
    assert!(far.write(&[0; 5]).is_err() && far.peer_closed());
}

#[test]
fn connection_to_a_port_without_a_program_is_refused() {
    let Some(ucx) = ucx() else { return };
    let gone = std::net::TcpListener::bind(V4).unwrap().local_addr().unwrap();
    let began = Instant::now();
    let error = ucx.connect(gone.into(), &Options::default(), PATIENCE).err().unwrap();
    assert!(began.elapsed() < PATIENCE / 2, "{error}");
}

#[test]
fn library_that_is_missing_or_not_ucx_is_an_error_that_names_it() {
    let fails = |library: &Path| {
        let error = Ucx::default().with_library(library).listen(V4.into(), &Options::default());
        let error = error.err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        error.to_string()
    };
    let missing = fails(Path::new("/nowhere/libucp.so.0"));
    assert!(missing.contains("/nowhere/libucp.so.0") && missing.contains("libucx0"), "{missing}");
    let other = fails(Path::new("libc.so.6"));
    assert!(other.contains("undefined symbol: ucp_"), "{other}");
}

#[test]
fn inspection_reports_version_and_transports_of_the_host() {
    let Some(ucx) = ucx() else { return };
    let inspection = ucx.inspect().unwrap();
    assert!(inspection.version.starts_with("1."), "{inspection:?}");
    let has = |transport: &str| inspection.resources.iter().any(|one| one.transport == transport);
    assert!(has("tcp") && has("self") && !has("posix"), "{inspection:?}");
}

/// Threads that run these functions would crash. UCX is loaded once in a process, so that the test
/// needs one of its own.
#[test]
fn loading_ucx_does_not_change_the_code_of_the_c_library() {
    const LENGTH: usize = 16;
    if std::env::var_os("ROPEWALK_TEST_OWN_PROCESS").is_none() {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "loading_ucx_does_not_change_the_code_of_the_c_library"]);
        command.env("ROPEWALK_TEST_OWN_PROCESS", "y").env_remove("UCX_MEM_MMAP_HOOK_MODE");
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        return;
    }
    let functions = [libc::mmap as *const (), libc::munmap as *const (), libc::madvise as *const ()];
    let memory = std::fs::File::open("/proc/self/mem").unwrap();
    let code = || {
        functions.map(|start| {
            let mut first = [0; LENGTH];
            memory.read_exact_at(&mut first, start as u64).unwrap();
            first
        })
    };
    let before = code();
    if ucx().is_some() {
        assert_eq!(code(), before);
    }
}

#[test]
fn handlers_of_signals_stay_those_of_the_program() {
    let Some(_) = ucx() else { return };
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    let caught = u64::from_str_radix(caught.trim(), 16).unwrap();
    const SIGHUP: u32 = 1;
    assert_eq!(caught >> (SIGHUP - 1) & 1, 0, "{caught:x}");
}

#[test]
fn read_option_takes_only_the_receive_buffer() {
    let read = |key: &str, value: &[u8]| Ucx::default().read_option(key, value, &mut Options::default());
    assert!(read("rcvbuf", b"8388608"));
    assert!(!read("rcvbuf", b"much") && !read("sndbuf", b"8388608") && !read("congestion", b"bbr"));
}
