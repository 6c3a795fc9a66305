//! Measures the data path: a sender and a receiver, each in a process of its own, over loopback.
//!
//! `datapath [--size GIB] [--streams N] [--block KIB] [--mode e|s] [--from FILE]
//! [--to FILE|null] [--checksum] [--copy] [--sparse] [--files N] [--buffer KIB]`
//!
//! Prints GB/s (1 GB = 1e9 bytes) and CPU seconds a GB of both processes. `--from` and `--to` name
//! files that are made for it; without `--to` the bytes go to /dev/null. `--copy` hides
//! descriptors, so that every byte goes through a buffer. `--files N` moves N files of SIZE/N bytes
//! over the same connections.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ropewalk_engine::{
    BufferBudget, ChannelSettings, DataChannel, Nobody, Pool, Progress, ReceiveJob, SendJob, Stage,
};
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::server::{Mode, RepresentationType};
use ropewalk_storage::checksum::Algorithm;
use ropewalk_storage::{DiskFile, Error, Kind, Lock, Metadata, Positions, ReadHandle, Result, WriteHandle};
use ropewalk_transport::{Driver, Options as DriverOptions, Tcp, Tuning};

#[derive(Clone, Debug)]
struct Options {
    size: u64,
    streams: u32,
    block: usize,
    mode: Mode,
    from: String,
    to: String,
    checksum: bool,
    copy: bool,
    sparse: bool,
    files: u64,
    buffer: Option<usize>,
    listen_at: Option<SocketAddr>,
}

fn main() -> io::Result<()> {
    let options = parse();
    match options.listen_at {
        Some(address) => send(&options, address),
        None => receive(&options),
    }
}

fn parse() -> Options {
    let mut options = Options {
        size: 2 << 30,
        streams: 1,
        block: 1 << 20,
        mode: Mode::ExtendedBlock,
        from: "/dev/shm/ropewalk-datapath".into(),
        to: "null".into(),
        checksum: false,
        copy: false,
        sparse: false,
        files: 1,
        buffer: None,
        listen_at: None,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let mut value = || arguments.next().unwrap_or_else(|| usage());
        fn number<T: std::str::FromStr>(text: &str) -> T {
            text.parse().unwrap_or_else(|_| usage())
        }
        match name.as_str() {
            "--size" => options.size = (number::<f64>(&value()) * f64::from(1 << 30)) as u64,
            "--streams" => options.streams = number(&value()),
            "--block" => options.block = number::<usize>(&value()) << 10,
            "--mode" => options.mode = if value() == "s" { Mode::Stream } else { Mode::ExtendedBlock },
            "--from" => options.from = value(),
            "--to" => options.to = value(),
            "--checksum" => options.checksum = true,
            "--copy" => options.copy = true,
            "--sparse" => options.sparse = true,
            "--files" => options.files = number(&value()),
            "--buffer" => options.buffer = Some(number::<usize>(&value()) << 10),
            "--send-to" => options.listen_at = Some(number(&value())),
            _ => usage(),
        }
    }
    options
}

fn usage() -> ! {
    eprintln!("see the top of examples/datapath.rs");
    std::process::exit(2);
}

fn settings(options: &Options) -> ChannelSettings {
    ChannelSettings {
        bandwidth: None,
        granted: None,
        mode: options.mode,
        representation: RepresentationType::Image,
        parallelism: options.streams,
        block_size: options.block,
        options: DriverOptions {
            tuning: Tuning {
                send_buffer: options.buffer,
                receive_buffer: options.buffer,
                ..Tuning::default()
            },
            ..DriverOptions::default()
        },
        connect_timeout: Duration::from_secs(10),
        stall_timeout: Some(Duration::from_secs(60)),
        max_streams: 1000,
        only_from: None,
    }
}

/// The parent: listens, starts the sender, receives, and reports on both.
fn receive(options: &Options) -> io::Result<()> {
    prepare(options)?;
    let settings = settings(options);
    let listener = Tcp.listen((Ipv4Addr::LOCALHOST, 0).into(), &settings.options)?;
    let address = listener.local_addr()?;
    let mut child = Command::new(std::env::current_exe()?)
        .args(std::env::args().skip(1))
        .args(["--send-to", &address.to_string()])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut channel = DataChannel::passive(
        listener,
        settings,
        Arc::new(Pool::new("data", 1000)),
        BufferBudget::new(64 << 20),
    );
    let path = if options.to == "null" { "/dev/null" } else { &options.to };
    let progress = Progress::new();
    let before = cpu();
    let mut began = None;
    for _ in 0..options.files {
        let sink = Handle {
            file: File::options().write(true).create(true).truncate(true).open(path)?,
            hide: options.copy,
            null: options.to == "null",
        };
        let job = ReceiveJob {
            sink: Arc::new(sink),
            origin: 0,
            accept: RangeSet::from_range(0..u64::MAX),
            checksum: options.checksum.then_some(Algorithm::Crc32c),
            sparse: options.sparse,
            written: &|_, _| Ok(()),
        };
        began = began.or(Some(Instant::now()));
        channel.receive(&job, &mut Nobody, &progress).map_err(io::Error::other)?;
    }
    let wall = began.map_or(Duration::ZERO, |began| began.elapsed());
    let mine = cpu() - before;
    let mut line = String::new();
    if let Some(out) = child.stdout.take() {
        BufReader::new(out).read_line(&mut line)?;
    }
    child.wait()?;
    let theirs: f64 = line.trim().parse().unwrap_or(f64::NAN);
    let gigabytes = progress.bytes() as f64 / 1e9;
    println!(
        "{:.2} GB/s  snd {:.3} + rcv {:.3} = {:.3} CPU s/GB  ({:.0} files/s; receiver: network {:.2} s, \
         destination {:.2} s, checksum {:.2} s)",
        gigabytes / wall.as_secs_f64(),
        theirs / gigabytes,
        mine / gigabytes,
        (mine + theirs) / gigabytes,
        options.files as f64 / wall.as_secs_f64(),
        progress.time(Stage::Network).as_secs_f64(),
        progress.time(Stage::Destination).as_secs_f64(),
        progress.time(Stage::Checksum).as_secs_f64(),
    );
    Ok(())
}

/// The child: sends and prints its CPU seconds.
fn send(options: &Options, address: SocketAddr) -> io::Result<()> {
    let pool = Arc::new(Pool::new("data", 1000));
    let mut channel = DataChannel::active(
        Arc::new(Tcp),
        vec![address],
        settings(options),
        pool,
        BufferBudget::new(64 << 20),
    );
    let source = Arc::new(Handle { file: File::open(&options.from)?, hide: options.copy, null: false });
    let size = options.size / options.files;
    let before = cpu();
    for _ in 0..options.files {
        let job = SendJob {
            source: Arc::clone(&source) as Arc<dyn ReadHandle>,
            ranges: RangeSet::from_range(0..size),
            origin: 0,
            checksum: options.checksum.then_some(Algorithm::Crc32c),
            expected_size: None,
            resend: false,
            feed: None,
        };
        channel.send(&job, &mut Nobody, &Progress::new()).map_err(io::Error::other)?;
    }
    writeln!(io::stdout(), "{}", cpu() - before)
}

/// A source of the right size, in the page cache.
fn prepare(options: &Options) -> io::Result<()> {
    if File::open(&options.from).and_then(|file| file.metadata()).is_ok_and(|m| m.len() >= options.size) {
        return Ok(());
    }
    let file = File::create(&options.from)?;
    let block: Vec<u8> = (0..1 << 20).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
    for at in (0..options.size).step_by(block.len()) {
        file.write_all_at(&block, at)?;
    }
    Ok(())
}

/// CPU seconds of this process.
fn cpu() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

struct Handle {
    file: File,
    hide: bool,
    null: bool,
}

impl Handle {
    fn meta(&self) -> Result<Metadata> {
        let size = self.file.metadata().map_err(|e| Error::from_io(&e, "stat", ""))?.len();
        Ok(Metadata {
            kind: Kind::File,
            size,
            modified: (0, 0),
            changed: (0, 0),
            mode: 0o644,
            uid: 0,
            gid: 0,
            device: 0,
            inode: 0,
            links: 1,
            blocks: 0,
            target: None,
            readable: true,
            writable: true,
            searchable: false,
        })
    }
}

impl Lock for Handle {}

impl ReadHandle for Handle {
    fn metadata(&self) -> Result<Metadata> {
        self.meta()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        self.file.read_at(buffer, offset).map_err(|e| Error::from_io(&e, "read", ""))
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        (!self.hide).then(|| self.file.as_fd())
    }

    fn data_ranges(&self, start: u64, end: u64) -> Result<RangeSet> {
        Ok(RangeSet::from_range(start..end))
    }
}

impl DiskFile for Handle {
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        (!self.hide).then(|| self.file.as_fd())
    }
}

impl WriteHandle for Handle {
    fn metadata(&self) -> Result<Metadata> {
        self.meta()
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        self.file.write_all_at(data, offset).map_err(|e| Error::from_io(&e, "write", ""))
    }

    fn positions(&self) -> Positions {
        if self.null { Positions::Ignored } else { Positions::Any }
    }

    fn disk(&self) -> Option<&dyn DiskFile> {
        Some(self)
    }

    fn set_len(&self, length: u64) -> Result<()> {
        self.file.set_len(length).map_err(|e| Error::from_io(&e, "truncate", ""))
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}
