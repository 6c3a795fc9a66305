//! Detects a restart of the machine since a journal was written.

use std::sync::OnceLock;

/// Identifies the boot of the machine (`/proc/sys/kernel/random/boot_id`), to detect a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BootId(pub(super) [u8; 16]);

impl BootId {
    pub(super) fn current() -> Self {
        static CURRENT: OnceLock<BootId> = OnceLock::new();
        *CURRENT.get_or_init(|| {
            let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
            Self(parse(&text).unwrap_or([0; 16]))
        })
    }

    /// An unknown id equals no other, not even itself.
    pub(super) fn is_current(self) -> bool {
        self.0 != [0; 16] && self == Self::current()
    }
}

fn parse(text: &str) -> Option<[u8; 16]> {
    let digits: String = text.trim().chars().filter(|c| *c != '-').collect();
    (digits.len() == 32).then(|| u128::from_str_radix(&digits, 16).ok())?.map(u128::to_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_reads_the_format_of_the_kernel() {
        let parsed = parse("00112233-4455-6677-8899-aabbccddeeff\n");
        assert_eq!(parsed.map(|id| (id[0], id[1], id[15])), Some((0, 0x11, 0xff)));
        assert_eq!(parse(""), None);
        assert_eq!(parse("zz112233-4455-6677-8899-aabbccddeeff"), None);
    }

    #[test]
    fn is_current_of_unknown_boot_is_false() {
        assert!(!BootId([0; 16]).is_current());
        assert!(!BootId([9; 16]).is_current());
    }
}
