//! The ends of a transfer, with memory in place of disks.

use anyhow::bail;
use clap::ValueEnum;
use ropewalk_client::{ChecksumPolicy, Location, Options, Pair, Remote};

use super::transfer::{NULL, ZEROS};
use crate::exit::usage;

/// A workload: source and destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// Zeros, stored nowhere
    MemMem,
    /// Zeros to the destination
    MemDisk,
    /// The source, stored nowhere
    DiskMem,
    /// The source to the destination
    DiskDisk,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::MemMem => "mem-mem",
            Self::MemDisk => "mem-disk",
            Self::DiskMem => "disk-mem",
            Self::DiskDisk => "disk-disk",
        }
    }

    fn reads_disk(self) -> bool {
        matches!(self, Self::DiskMem | Self::DiskDisk)
    }

    pub(crate) fn writes_disk(self) -> bool {
        matches!(self, Self::MemDisk | Self::DiskDisk)
    }

    /// The pair to copy in place of `pair`: `size` zeros if the data comes from memory.
    ///
    /// # Errors
    /// An end cannot provide memory.
    pub(crate) fn pair(self, pair: &Pair, size: u64, options: &Options) -> anyhow::Result<Pair> {
        let source = match (&pair.source, self.reads_disk()) {
            (Location::Measure { .. }, true) => {
                return Err(usage(format!("{}: the source is not a file", self.name())));
            }
            (disk, true) => disk.clone(),
            (Location::Remote(url), false) => {
                if !Remote::connect(url, options)?.takes_profiles() {
                    bail!(
                        "{} cannot send zeros of any size: it is not a Ropewalk server, or \
                         profiling.enabled is not set",
                        url.host
                    );
                }
                let mut url = url.clone();
                url.path = format!("{ZEROS}{size}").into();
                Location::Remote(url)
            }
            (_, false) => Location::Measure { size },
        };
        let destination = match (&pair.destination, self.writes_disk()) {
            (Location::Measure { .. }, true) => {
                return Err(usage(format!("{}: the destination is not a file", self.name())));
            }
            (disk, true) => disk.clone(),
            (Location::Remote(url), false) => {
                let ours = Remote::connect(url, options)?.takes_profiles();
                let mut url = url.clone();
                url.path = if ours { NULL } else { "/dev/null" }.into();
                Location::Remote(url)
            }
            (_, false) => Location::Measure { size: 0 },
        };
        Ok(Pair { source, destination, window: None })
    }

    /// Discarded data cannot be read again for its checksum, and needs no directories.
    pub(crate) fn options(self, options: &Options) -> Options {
        let mut options = options.clone();
        options.storage.create_directories &= self.writes_disk();
        if !self.writes_disk() && options.integrity.checksum == ChecksumPolicy::Default {
            options.integrity.checksum = ChecksumPolicy::None;
        }
        options
    }
}
