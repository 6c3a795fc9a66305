//! Kernel settings of a host. They are written to `/proc/sys` in the network namespace of the host.
//! The lab never changes a setting of the whole machine: such a setting is an error, unless it has
//! the wanted value already.

use crate::scenario::{Kernel, Size, Value};
use std::{
    fs,
    io::{self, ErrorKind},
    os::unix::fs::MetadataExt,
};

/// Linux's own defaults (tcp(7)); otherwise a namespace would inherit the values of this machine.
const TCP_RMEM: [Size; 3] = [Size(4096), Size(131_072), Size(6_291_456)];
const TCP_WMEM: [Size; 3] = [Size(4096), Size(16_384), Size(4_194_304)];

/// The settings that were applied.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Applied {
    /// All settings, with defaults filled in.
    pub(crate) kernel: Kernel,
    /// The congestion control that routes have to set, if this machine does not permit namespaces
    /// to choose it.
    pub(crate) by_route: Option<String>,
}

/// The reason why a setting was not applied.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SysctlError {
    #[error(
        "congestion control {name} is not available on this machine, there are: {available}(`modprobe tcp_{name}` may add it)"
    )]
    NoSuchCongestion { name: String, available: String },
    #[error("there is no setting {name} in a namespace")]
    Missing { name: String, value: String },
    #[error("the kernel refuses {name} = {value}: {error}")]
    Refused { name: String, value: String, error: io::Error },
}

impl SysctlError {
    /// Explains how to solve the problem. The calling thread must be on the machine's own network.
    pub(crate) fn explain(&self) -> String {
        let Self::Missing { name, value } = self else { return self.to_string() };
        match get(name) {
            Some(now) => format!(
                "{name} is a setting of the whole machine on this kernel, not of a namespace, and the lab leaves the \
                 machine's settings alone. It is {now} now: set it to {value} yourself (sysctl -w), or take it out of the \
                 scenario"
            ),
            None => format!("this kernel has no setting {name}"),
        }
    }
}

/// Applies settings to the network namespace of the calling thread.
pub(crate) fn apply(kernel: &Kernel, forwards: bool) -> Result<Applied, SysctlError> {
    let mut kernel = kernel.clone();
    let rmem = *kernel.tcp_rmem.get_or_insert(TCP_RMEM);
    let wmem = *kernel.tcp_wmem.get_or_insert(TCP_WMEM);
    let list = |sizes: [Size; 3]| sizes.map(|Size(bytes)| bytes.to_string()).join(" ");
    let mut settings =
        vec![("net.ipv4.tcp_rmem".to_owned(), list(rmem)), ("net.ipv4.tcp_wmem".to_owned(), list(wmem))];
    if forwards {
        settings.push(("net.ipv4.ip_forward".into(), "1".into()));
        if fs::exists("/proc/sys/net/ipv6").unwrap_or(false) {
            settings.push(("net.ipv6.conf.all.forwarding".into(), "1".into()));
        }
    }
    settings.extend(kernel.sysctl.iter().map(|(name, value)| (name.clone(), text(value))));
    for (name, value) in settings {
        let Err(error) = set(&name, &value) else { continue };
        if shared_value(&name).is_some_and(|now| same(&now, &value)) {
            // A setting of the whole machine, which has the wanted value already.
            continue;
        }
        return Err(match error.kind() {
            ErrorKind::NotFound => SysctlError::Missing { name, value },
            _ if shared_value(&name).is_some() => SysctlError::Missing { name, value },
            _ => SysctlError::Refused { name, value, error },
        });
    }
    let by_route = congestion(kernel.congestion.as_deref().unwrap_or_default())?;
    Ok(Applied { kernel, by_route })
}

/// The value of a setting that namespaces can read but not change; `None` if they can change it.
fn shared_value(name: &str) -> Option<String> {
    let writable = fs::metadata(path(name)).ok()?.mode() & 0o200 != 0;
    if writable { None } else { get(name) }
}

fn same(one: &str, other: &str) -> bool {
    one.split_whitespace().eq(other.split_whitespace())
}

/// The value of a numeric setting of the machine.
pub(crate) fn number(name: &str) -> u64 {
    get(name).and_then(|value| value.parse().ok()).unwrap_or_default()
}

fn congestion(name: &str) -> Result<Option<String>, SysctlError> {
    const SETTING: &str = "net.ipv4.tcp_congestion_control";
    let Err(error) = set(SETTING, name) else { return Ok(None) };
    let available = get("net.ipv4.tcp_available_congestion_control").unwrap_or_default();
    if !available.split_whitespace().any(|other| other == name) {
        let available = available.split_whitespace().map(|name| format!("{name} ")).collect();
        return Err(SysctlError::NoSuchCongestion { name: name.to_owned(), available });
    }
    match error.kind() {
        // The name is not in net.ipv4.tcp_allowed_congestion_control. Routes may set any
        // (ip-route(8), congctl).
        ErrorKind::PermissionDenied | ErrorKind::NotFound => Ok(Some(name.to_owned())),
        _ => Err(SysctlError::Refused { name: SETTING.into(), value: name.to_owned(), error }),
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::Bool(value) => u8::from(*value).to_string(),
        other => other.to_string(),
    }
}

fn path(name: &str) -> String {
    // `net/ipv4/conf/eth0.1/rp_filter` may be written with slashes, as in sysctl(8).
    if name.contains('/') {
        format!("/proc/sys/{name}")
    } else {
        format!("/proc/sys/{}", name.replace('.', "/"))
    }
}

fn set(name: &str, value: &str) -> io::Result<()> {
    fs::OpenOptions::new()
        .write(true)
        .open(path(name))
        .and_then(|mut file| io::Write::write_all(&mut file, value.as_bytes()))
}

/// The value of a setting in the calling thread's network namespace.
fn get(name: &str) -> Option<String> {
    Some(fs::read_to_string(path(name)).ok()?.trim().to_owned())
}
