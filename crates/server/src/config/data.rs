use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::units;

/// Data connections.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Data {
    /// Local address of data connections. Default: the one to which the client connected.
    pub interface: Option<IpAddr>,
    /// Address told to clients in place of the local one, for a server behind address translation. Default: none.
    pub advertise: Option<IpAddr>,
    /// Ports for passive data connections, first and last. Default: any.
    #[serde(with = "units::ports")]
    pub ports: Option<(u16, u16)>,
    /// Local ports for active data connections, first and last. Default: any.
    #[serde(with = "units::ports")]
    pub source_ports: Option<(u16, u16)>,
    /// Connect to ports below 1024 where a client asks for it. Default `false`.
    pub privileged_ports: bool,
    /// Payload bytes of a MODE E block that we send. Default 1 MiB.
    #[serde(with = "units::bytes")]
    pub block_size: u64,
    /// Memory in bytes for data buffers of all transfers together. Default 64 MiB.
    #[serde(with = "units::bytes")]
    pub buffer_memory: u64,
    /// Most data connections that a transfer uses at a time. Where a client makes more of them for an upload (128 at most),
    /// those wait until others have ended. Default 128.
    pub max_streams: u32,
    /// Largest socket buffer in bytes that a client may ask for. Default 64 MiB.
    #[serde(with = "units::bytes")]
    pub max_socket_buffer: u64,
    /// Payload in bytes that the socket buffers of all connections together may hold (at least 8 KiB): those that ask for more
    /// get a share, again whenever connections come and go. Default: none, the kernel's own limits.
    #[serde(with = "units::optional_bytes")]
    pub socket_memory: Option<u64>,
    /// How `socket_memory` is divided: `max-min`, `weighted`, `threshold` or `current-share`. Default `max-min`.
    pub socket_policy: String,
    /// TCP congestion control of data connections (`bbr`, `cubic`). Default: the system's; `reno` within this host.
    pub congestion: Option<String>,
    /// Those that clients may choose besides (`OPTS RETR Congestion=bbr;`, an extension of ours). Default: none.
    pub congestion_choices: Vec<String>,
    /// Data connections of sessions with a protected control connection have to be protected (PROT), authenticated (DCAU) or
    /// bound to their session (SITE DATAKEY, an extension of ours; with PROT S of Kerberos, too). Clients that can do none of it get no data. Default
    /// `false`.
    pub require_key: bool,
    /// Longest wait for a data connection, in seconds, more than 0, and at most 10 once one came from an address that is not let in.
    /// Default 60.
    #[serde(with = "units::seconds")]
    pub connect_timeout: Duration,
    /// A transfer in which no byte moves for so long is broken off, in seconds; 0 is never. Default 300.
    #[serde(with = "units::seconds")]
    pub stall_timeout: Duration,
}

impl Default for Data {
    fn default() -> Self {
        Self {
            interface: None,
            advertise: None,
            ports: None,
            source_ports: None,
            privileged_ports: false,
            block_size: 1 << 20,
            buffer_memory: 64 << 20,
            max_streams: 128,
            max_socket_buffer: 64 << 20,
            socket_memory: None,
            socket_policy: "max-min".into(),
            congestion: None,
            congestion_choices: Vec::new(),
            require_key: false,
            connect_timeout: Duration::from_secs(60),
            stall_timeout: Duration::from_secs(300),
        }
    }
}
