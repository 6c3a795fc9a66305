//! Assigns functions of the kernel to modules by their names. Code that is a module in one kernel
//! may be built into another; it gets the same name in both.

use crate::profile::ShareKind;

/// Prefixes of functions' names, and the name of the module. The longest matching prefix counts.
const MODULES: &[(&str, &str)] = &[
    ("bbr_", "tcp_bbr"),
    ("bictcp_", "tcp_cubic"),
    ("btrfs_", "btrfs"),
    ("cubictcp_", "tcp_cubic"),
    ("ext4_", "ext4"),
    ("fq_codel_", "sch_fq_codel"),
    ("fq_dequeue", "sch_fq"),
    ("fq_enqueue", "sch_fq"),
    ("fuse_", "fuse"),
    ("htcp_", "tcp_htcp"),
    ("hystart_", "tcp_cubic"),
    ("jbd2_", "jbd2"),
    ("mb_cache_", "mbcache"),
    ("netem_", "sch_netem"),
    ("nf_conntrack_", "nf_conntrack"),
    ("nfs3_", "nfsv3"),
    ("nfs4_", "nfsv4"),
    ("nfs_", "nfs"),
    ("nfsd4_", "nfsd"),
    ("nfsd_", "nfsd"),
    ("nft_", "nf_tables"),
    ("ovl_", "overlay"),
    ("rpc_", "sunrpc"),
    ("svc_", "sunrpc"),
    ("tls_device_", "tls"),
    ("tls_sw_", "tls"),
    ("xdr_", "sunrpc"),
    ("xfs_", "xfs"),
    ("xprt_", "sunrpc"),
    ("xs_tcp_", "sunrpc"),
];

/// The same for drivers.
const DRIVERS: &[(&str, &str)] = &[
    ("bnx2x_", "bnx2x"),
    ("bnxt_", "bnxt_en"),
    ("e1000_", "e1000"),
    ("e1000e_", "e1000e"),
    ("ena_", "ena"),
    ("gve_", "gve"),
    ("i40e_", "i40e"),
    ("ice_", "ice"),
    ("igb_", "igb"),
    ("ixgbe_", "ixgbe"),
    ("loopback_", "loopback"),
    ("mlx4_", "mlx4_core"),
    ("mlx5_", "mlx5_core"),
    ("mlx5e_", "mlx5_core"),
    ("nvme_", "nvme"),
    ("tg3_", "tg3"),
    ("tun_", "tun"),
    ("veth_", "veth"),
    ("virtblk_", "virtio_blk"),
    ("virtnet_", "virtio_net"),
    ("virtqueue_", "virtio_ring"),
    ("vmxnet3_", "vmxnet3"),
    ("vring_", "virtio_ring"),
];

/// The part of the kernel that a function belongs to, if its name shows that.
pub(super) fn subsystem(function: &str) -> Option<(ShareKind, &'static str)> {
    // For names like `__tun_detach` and `__ext4_journal_start_sb`.
    let name = function.trim_start_matches('_');
    let longest = |table: &'static [(&'static str, &'static str)]| {
        let fits = table.iter().filter(|(beginning, _)| name.starts_with(beginning));
        fits.max_by_key(|(beginning, _)| beginning.len()).map(|&(_, module)| module)
    };
    longest(DRIVERS)
        .map(|module| (ShareKind::Driver, module))
        .or_else(|| longest(MODULES).map(|module| (ShareKind::Module, module)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subsystem_when_code_is_built_in_names_its_module() {
        for (function, kind, name) in [
            ("cubictcp_cong_avoid", ShareKind::Module, "tcp_cubic"),
            ("nfs_writepages", ShareKind::Module, "nfs"),
            ("nfs4_proc_write_setup", ShareKind::Module, "nfsv4"),
            ("rpc_execute", ShareKind::Module, "sunrpc"),
            ("mb_cache_entry_find_first", ShareKind::Module, "mbcache"),
            ("__ext4_journal_start_sb", ShareKind::Module, "ext4"),
            ("tg3_poll_work", ShareKind::Driver, "tg3"),
            ("tun_get_user", ShareKind::Driver, "tun"),
            ("virtnet_poll", ShareKind::Driver, "virtio_net"),
        ] {
            assert_eq!(subsystem(function), Some((kind, name)), "{function}");
        }
        for function in ["tcp_sendmsg_locked", "_copy_to_iter", "do_syscall_64", "tunable", ""] {
            assert_eq!(subsystem(function), None, "{function}");
        }
    }
}
