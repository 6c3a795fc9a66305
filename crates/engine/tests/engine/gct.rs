//! Streams that come and go while GCT's server receives.

use std::ops::ControlFlow;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use ropewalk_engine::{Attendant, ChannelSettings, DataChannel, Progress, SendJob, Sent};
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::server::Mode;
use ropewalk_storage::{Lock, Metadata, ReadHandle};
use ropewalk_tests::control::Control;
use ropewalk_tests::peers;
use ropewalk_tests::server::{Kind, Server, Setup};
use ropewalk_transport::Tcp;

use crate::common::*;
use crate::streams::{BLOCK, Quota};

/// A file that can be read only as fast as it is let.
struct Slow {
    file: Arc<TestFile>,
    quota: Arc<Quota>,
}

impl Lock for Slow {}

impl ReadHandle for Slow {
    fn metadata(&self) -> ropewalk_storage::Result<Metadata> {
        ReadHandle::metadata(&*self.file)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> ropewalk_storage::Result<usize> {
        self.quota.take(buffer.len() as u64);
        self.file.read_at(buffer, offset)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn data_ranges(&self, start: u64, end: u64) -> ropewalk_storage::Result<RangeSet> {
        self.file.data_ranges(start, end)
    }
}

/// Takes the reply with which the server begins.
struct Begins<'a> {
    control: &'a mut Control,
}

impl Attendant for Begins<'_> {
    fn begun(&mut self, _: bool) -> std::io::Result<()> {
        let reply = self.control.reply().map_err(std::io::Error::other)?;
        assert!(reply.code < 200, "{reply:?}");
        Ok(())
    }

    fn tick(&mut self, _: &Progress) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn receiver_ready(&self) -> bool {
        true
    }
}

/// GCT's server, a session with it in MODE E, and a channel to send over.
fn session(root: &Path, streams: u32) -> Option<(Server, Control, DataChannel)> {
    if !peers::available(&["globus-gridftp-server"]) {
        return None;
    }
    let server = Setup::new(Kind::Gct, root).start().unwrap();
    let mut control = Control::log_in(server.address()).unwrap();
    control.expect("MODE E", 200).unwrap();
    let to = control.passive().unwrap();
    let settings = ChannelSettings { block_size: BLOCK, ..settings(Mode::ExtendedBlock, streams) };
    Some((server, control, DataChannel::active(Arc::new(Tcp), vec![to], settings, pool(), budget())))
}

/// Stores `contents` while `steer` changes what it likes.
fn store(
    control: &mut Control,
    channel: &mut DataChannel,
    file: &Path,
    contents: &[u8],
    steer: impl FnOnce(&Quota, &Progress) + Send,
) -> Sent {
    let source = Slow { file: TestFile::new(contents, true), quota: Arc::default() };
    let quota = Arc::clone(&source.quota);
    let job = SendJob {
        source: Arc::new(source),
        ranges: RangeSet::from_range(0..contents.len() as u64),
        origin: 0,
        checksum: None,
        expected_size: Some(contents.len() as u64),
        resend: false,
        feed: None,
    };
    control.send(format!("STOR {}", file.display())).unwrap();
    let progress = Progress::new();
    let sent = thread::scope(|scope| {
        scope.spawn(|| {
            steer(&quota, &progress);
            quota.add(u64::MAX / 2);
        });
        channel.send(&job, &mut Begins { control }, &progress).unwrap()
    });
    let reply = control.final_reply().unwrap();
    assert_eq!(reply.code, 226, "{reply:?}");
    assert!(std::fs::read(file).unwrap() == contents, "{} differs", file.display());
    sent
}

#[test]
fn streams_come_and_go_while_it_receives() {
    let root = tempfile::tempdir().unwrap();
    let Some((_server, mut control, mut channel)) = session(root.path(), 2) else { return };
    let parallelism = channel.parallelism();
    for (round, expected) in [10, 8].into_iter().enumerate() {
        let file = root.path().join(format!("file{round}"));
        let sent = store(&mut control, &mut channel, &file, &data(30_000_000), |quota, progress| {
            // The second time there are 5 from the last one.
            for n in [2, 6, 3, 1, 4, 5] {
                parallelism.set(n);
                quota.until("streams", || progress.streams() == n && progress.flows().len() == n as usize);
            }
        });
        assert!(sent.streams >= expected, "{}", sent.streams);
        assert_eq!(channel.cached(), 5);
    }
}

#[test]
fn changes_at_any_moment_leave_it_whole_files() {
    let root = tempfile::tempdir().unwrap();
    let Some((_server, mut control, mut channel)) = session(root.path(), 1) else { return };
    let parallelism = channel.parallelism();
    let mut state = 12_345_u64;
    let mut next = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for round in 0..30 {
        let length = [0, 1000, 300_000, 3_000_000, 9_000_000][next(5) as usize];
        let mut changes: Vec<(u64, u32)> =
            (0..next(12)).map(|_| (next(length as u64 + 1), next(8) as u32 + 1)).collect();
        changes.sort_unstable();
        let file = root.path().join(format!("file{round}"));
        store(&mut control, &mut channel, &file, &data(length), |quota, progress| {
            for (at, n) in changes {
                quota.until("data", || progress.bytes() >= at);
                parallelism.set(n);
            }
        });
        assert_eq!(channel.flows().sample().len(), channel.cached());
    }
}
