use serde::{Deserialize, Serialize};

use super::units;

/// When uploaded data is forced to stable storage.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fsync {
    /// When the system likes.
    #[default]
    None,
    /// Before a file gets its name and the client its 226.
    AtEnd,
    /// Also before each restart marker.
    EachMarker,
}

/// When uploads are written past the page cache.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DirectIo {
    /// Where a file is larger than what the kernel keeps unwritten before writers wait long, and the file system is ext4 or
    /// XFS.
    #[default]
    Auto,
    /// Wherever it can be done.
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
    /// When uploads are forced to stable storage: `"none"`, when the system likes; `"at_end"`, before a file gets its name and
    /// the client its 226; `"each_marker"`, also before each restart marker. Default `"none"`.
    pub fsync: Fsync,
    /// When uploads are written past the page cache, in MODE E, where the client announced the size: `"auto"`, where a file has
    /// more than 64 MiB and is larger than `vm.dirty_ratio` and `vm.dirty_background_ratio` together, less what is unwritten
    /// already (with `fsync`: than the latter alone), or than half of the memory that programs can have, on ext4 and XFS;
    /// `"always"`; `"never"`. Default `"auto"`.
    pub direct_io: DirectIo,
    /// Uploads go to `.NAME.ropewalk-part` beside the target and get their name when they are complete. `false`:
    /// they are written under their name at once. Default `true`.
    pub part_files: bool,
    /// Uploads at least this large (in bytes, where the client announced the size) or of unknown size keep a journal
    /// of what is on disk, so that they can be continued after a crash. Default 4 MiB.
    #[serde(with = "units::bytes")]
    pub journal_above: u64,
    /// Runs of zeros in uploads become holes. Default `false`.
    pub sparse: bool,
    /// Refuse an upload whose announced size (ALLO) is more than what is free. Default `true`.
    pub check_free_space: bool,
}

impl Default for Files {
    fn default() -> Self {
        Self {
            create_mode: 0o644,
            directory_mode: 0o755,
            fsync: Fsync::None,
            direct_io: DirectIo::Auto,
            part_files: true,
            journal_above: 4 << 20,
            sparse: false,
            check_free_space: true,
        }
    }
}
