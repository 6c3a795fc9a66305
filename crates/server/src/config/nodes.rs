use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Data nodes, which move data in place of the server (docs/nodes.md).
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Nodes {
    /// Address and port on which data nodes join. Default `"[::]:2812"`.
    pub listen: SocketAddr,
    /// File with the secret that front end and nodes have in common, at least 32 characters, which
    /// other users must not be able to read. It has to be set.
    pub join_token_file: Option<PathBuf>,
    /// Directory of this host that the nodes have as their `--root`: the shared file system.
    /// Default: the server's `root`; without that, `/`.
    pub root: Option<PathBuf>,
    /// Most nodes that move one file together, for clients that use all addresses of the server
    /// (SPAS, SPOR). Default 32; 1 switches striped transfers off.
    pub max_stripes: u32,
}

impl Default for Nodes {
    fn default() -> Self {
        let listen = SocketAddr::from(([0u16; 8], 2812));
        Self { listen, join_token_file: None, root: None, max_stripes: 32 }
    }
}
