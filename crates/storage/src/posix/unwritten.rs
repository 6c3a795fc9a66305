//! The amount of written data that the kernel keeps in memory before it is on a disk (Linux's
//! `vm.dirty_*`).

use std::fs;

use super::direct::CHUNK;
use crate::DirectIo;

/// Files up to this size always go through the cache, so nothing needs to be looked up.
const SMALL: u64 = 64 << 20;

/// Whether a file of `size` bytes is written past the page cache, on a file system that benefits
/// from it. `sync` means that it must be on the disk when it is complete.
pub(super) fn leaves_cache(when: DirectIo, size: u64, sync: bool) -> bool {
    match when {
        DirectIo::Auto => size > SMALL && Kernel::now().leaves_cache(size, sync),
        DirectIo::Always => size >= CHUNK as u64,
        DirectIo::Never => false,
    }
}

/// The limits of the kernel, in bytes.
#[derive(Clone, Copy, Debug)]
struct Kernel {
    /// From this amount on, the kernel writes to the disk.
    background: u64,
    /// The maximum amount. From the middle between `background` and this limit on, writers have to
    /// wait for the disk.
    limit: u64,
    /// The memory that programs can have.
    available: u64,
    /// The unwritten data of all files.
    unwritten: u64,
}

impl Kernel {
    fn now() -> Self {
        let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let setting = |name: &str| fs::read_to_string(format!("/proc/sys/vm/{name}")).ok();
        Self::of(&memory, setting)
    }

    /// Reads the text of /proc/meminfo and the settings with these names.
    fn of(memory: &str, setting: impl Fn(&str) -> Option<String>) -> Self {
        let bytes = |name: &str| {
            let line = memory.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            Some(line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()? << 10)
        };
        let available = bytes("MemAvailable").unwrap_or(8 << 30);
        let number = |name: &str| setting(name)?.trim().parse::<u64>().ok();
        // The setting is in bytes, or a percentage of the memory that programs can have.
        let of = |name: &str, usual: u64| match number(&format!("{name}_bytes")) {
            Some(bytes) if bytes > 0 => bytes,
            _ => available / 100 * number(&format!("{name}_ratio")).unwrap_or(usual),
        };
        let limit = of("dirty", 20);
        let background = match of("dirty_background", 10) {
            // As the kernel does.
            background if background >= limit => limit / 2,
            background => background,
        };
        let unwritten = bytes("Dirty").unwrap_or(0) + bytes("Writeback").unwrap_or(0);
        Self { background, limit, available, unwritten }
    }

    /// Nothing is faster than the cache until the kernel makes writers wait for the disk. By then
    /// the disk has taken its part, so a file of twice that size still waits little. But if the
    /// file must be on the disk when it is complete, the disk has to start early. And in any case
    /// other programs need memory, too.
    fn leaves_cache(self, size: u64, sync: bool) -> bool {
        let most = if sync {
            self.background
        } else {
            self.background.saturating_add(self.limit).min(self.available / 2)
        };
        size > most.saturating_sub(if sync { 0 } else { self.unwritten })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn kernel(memory: &str, settings: &[(&str, &str)]) -> Kernel {
        Kernel::of(memory, |name| {
            settings.iter().find(|setting| setting.0 == name).map(|setting| format!("{}\n", setting.1))
        })
    }

    #[test]
    fn kernel_limits_are_read_from_proc() {
        let memory =
            "MemTotal: 25000000 kB\nMemAvailable:   20971520 kB\nDirty:  1048576 kB\nWriteback: 4 kB\n";
        let usual = kernel(memory, &[]);
        assert_eq!((usual.background, usual.limit), (20 * GIB / 100 * 10, 20 * GIB / 100 * 20));
        assert_eq!((usual.available, usual.unwritten), (20 * GIB, GIB + 4096));
        let set = kernel(
            memory,
            &[("dirty_ratio", "40"), ("dirty_background_bytes", "1000"), ("dirty_bytes", "0")],
        );
        assert_eq!((set.background, set.limit), (1000, 20 * GIB / 100 * 40));
        let turned = kernel(memory, &[("dirty_bytes", "1000")]);
        assert_eq!((turned.background, turned.limit), (500, 1000));
        assert!(kernel("", &[]).limit > 0);
        assert!(Kernel::now().available > 0);
    }

    #[test]
    fn leaves_cache_compares_size_and_limits() {
        let quiet = Kernel { background: GIB, limit: 2 * GIB, available: 10 * GIB, unwritten: 0 };
        for (unwritten, size, sync, leaves) in [
            (0, 3 * GIB, false, false),
            (0, 3 * GIB + 1, false, true),
            (2 * GIB, GIB, false, false),
            (2 * GIB, GIB + 1, false, true),
            (4 * GIB, 1, false, true),
            (0, GIB, true, false),
            (2 * GIB, GIB + 1, true, true),
        ] {
            let kernel = Kernel { unwritten, ..quiet };
            assert_eq!(kernel.leaves_cache(size, sync), leaves, "{unwritten} {size} {sync}");
        }
        // A kernel that allows all of the memory to be unwritten.
        let greedy = Kernel { background: u64::MAX - 1, limit: u64::MAX, ..quiet };
        assert!(greedy.leaves_cache(5 * GIB + 1, false) && !greedy.leaves_cache(5 * GIB, false));
    }

    #[test]
    fn leaves_cache_follows_the_requested_mode() {
        for (when, size, leaves) in [
            (DirectIo::Auto, SMALL, false),
            (DirectIo::Auto, u64::MAX, true),
            (DirectIo::Always, CHUNK as u64, true),
            (DirectIo::Always, 1000, false),
            (DirectIo::Never, u64::MAX, false),
        ] {
            assert_eq!(leaves_cache(when, size, false), leaves, "{when:?} {size}");
        }
    }
}
