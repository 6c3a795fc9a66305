use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::units;

/// When uploaded data is forced to stable storage.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fsync {
    /// Whenever the system chooses.
    #[default]
    None,
    /// Before a file gets its name and the client receives 226.
    AtEnd,
    /// Also before each restart marker.
    EachMarker,
}

/// When uploads bypass the page cache.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DirectIo {
    /// If a file is larger than the amount that the kernel keeps unwritten before writers wait
    /// long, and the file system is ext4 or XFS.
    #[default]
    Auto,
    /// Whenever it is possible.
    Always,
    Never,
}

impl From<DirectIo> for ropewalk_storage::DirectIo {
    fn from(when: DirectIo) -> Self {
        match when {
            DirectIo::Auto => Self::Auto,
            DirectIo::Always => Self::Always,
            DirectIo::Never => Self::Never,
        }
    }
}

/// How files are written.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Files {
    /// Permission bits of new files, before the process's umask. Default 0o644.
    #[serde(with = "units::mode")]
    pub create_mode: u32,
    /// Permission bits of new directories, before the process's umask. Default 0o755.
    #[serde(with = "units::mode")]
    pub directory_mode: u32,
    /// When uploads are forced to stable storage: `"none"`, whenever the system chooses;
    /// `"at_end"`, before a file gets its name and the client receives 226; `"each_marker"`, also
    /// before each restart marker. Default `"none"`.
    pub fsync: Fsync,
    /// When uploads bypass the page cache, in MODE E, if the client announced the size: `"auto"`,
    /// on ext4 and XFS, if a file has more than 64 MiB and is larger than half of the memory
    /// available to programs, or larger than `vm.dirty_ratio` and `vm.dirty_background_ratio`
    /// together, less the amount that is unwritten already (with `fsync`: than the latter alone);
    /// `"always"`; `"never"`. Default `"auto"`.
    pub direct_io: DirectIo,
    /// The drivers of files that clients may choose (`SITE SETDISKSTACK`): `file`; `popen`, a
    /// program in place of the file; `ordering`, which puts blocks in order for `popen` (that is
    /// done in any case). Default `file`.
    pub drivers: Vec<String>,
    /// The programs that `popen` may run: a name for clients, and the absolute path, for instance
    /// `tar = "/usr/bin/tar"`. Clients choose the arguments. Such a program runs as the session's
    /// user, without a shell, and can read and write whatever that user can. Default: none.
    pub programs: BTreeMap<String, PathBuf>,
    /// Uploads go to `.NAME.ropewalk-part` beside the target and get their name when they are
    /// complete. `false`: uploads are written under their name from the start. Default `true`.
    pub part_files: bool,
    /// Uploads keep a journal of the data on disk if they have at least this size (in bytes, if the
    /// client announced it) or an unknown size, so that they can be resumed after a crash. Default
    /// 4 MiB.
    #[serde(with = "units::bytes")]
    pub journal_above: u64,
    /// Runs of zeros in uploads become holes. Default `false`.
    pub sparse: bool,
    /// Refuse an upload whose announced size (ALLO) exceeds the free space, less what is reserved
    /// and what other uploads with an announced size still need. Default `true`.
    pub check_free_space: bool,
}

impl Default for Files {
    fn default() -> Self {
        Self {
            create_mode: 0o644,
            directory_mode: 0o755,
            fsync: Fsync::None,
            direct_io: DirectIo::Auto,
            drivers: vec!["file".into()],
            programs: BTreeMap::new(),
            part_files: true,
            journal_above: 4 << 20,
            sparse: false,
            check_free_space: true,
        }
    }
}
