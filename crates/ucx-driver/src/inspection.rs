//! The transports and devices that UCX sees, read from the text that it prints for people.

/// The library and this host, as UCX sees them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// The version of the library, such as `1.13.1`.
    pub version: String,
    /// Those that the settings of UCX permit, in its order.
    pub resources: Vec<Resource>,
}

/// A transport over a device, such as `rc_mlx5` over `mlx5_0:1`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// Its name in `UCX_TLS`.
    pub transport: String,
    /// Its name in `UCX_NET_DEVICES`, if it is one of the network.
    pub device: String,
}

impl Resource {
    /// Whether the transport uses an InfiniBand or RoCE device: its name begins with that of a
    /// service of verbs (reliable, unreliable, dynamically connected).
    #[must_use]
    pub fn is_rdma(&self) -> bool {
        ["rc", "ud", "dc"].contains(&self.transport.split('_').next().unwrap_or_default())
    }
}

impl Inspection {
    /// Reads lines such as `# resource 1 : md 1 dev 1 flags -- tcp/lo`. Other lines have no meaning
    /// here.
    pub(crate) fn new(version: String, description: &str) -> Self {
        let resources = description.lines().filter_map(|line| {
            let mut words = line.trim_start_matches(['#', ' ']).split_whitespace();
            let (transport, device) =
                (words.next()? == "resource").then(|| words.next_back())??.split_once('/')?;
            Some(Resource { transport: transport.to_owned(), device: device.to_owned() })
        });
        Self { version, resources: resources.collect() }
    }
}

/// Whether a connection uses shared memory, by the text in which UCX describes it. Its lines are
/// such as `# lane[1]: 3:posix/memory.0 md[2] -> md[2]/posix/sysdev[255] am`.
pub(crate) fn shares_memory(description: &str) -> bool {
    const TRANSPORTS: [&str; 3] = ["posix", "sysv", "xpmem"];
    let lanes = description.lines().filter(|line| line.contains("lane["));
    let mut names = lanes.flat_map(str::split_whitespace).filter_map(|word| word.split_once('/'));
    names.any(|(name, _)| TRANSPORTS.contains(&name.rsplit(':').next().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_memory_looks_only_at_the_lanes() {
        let text = "# UCP endpoint\n#    peer: posix/x\n#    lane[0]: cm rdmacm\n\
                    #    lane[1]:  1:tcp/lo.0 md[1]       -> md[1]/tcp/sysdev[255] am am_bw#0\n";
        assert!(!shares_memory(text));
        assert!(shares_memory(&text.replace("1:tcp/lo.0", "3:posix/memory.0")));
    }

    #[test]
    fn description_of_ucx_names_transports_and_devices() {
        let text = "#\n# UCP context\n#\n#     component 0  :  self\n#            md 1  :  component 1  tcp \n#\n\
                    #      resource 0  :  md 0  dev 0  flags -- self/memory0\n\
                    #      resource 1  :  md 1  dev 1  flags -- rc_mlx5/mlx5_0:1\n\
                    #      resource 2  :  md 1  dev 1  flags s- tcp/lo\n# resource\n# resource 3\n\n";
        let inspection = Inspection::new("1.13.1".to_owned(), text);
        let names: Vec<_> =
            inspection.resources.iter().map(|one| (&*one.transport, &*one.device, one.is_rdma())).collect();
        assert_eq!(names, [("self", "memory0", false), ("rc_mlx5", "mlx5_0:1", true), ("tcp", "lo", false)]);
    }
}
