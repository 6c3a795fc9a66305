//! The table of settings: one row defines a flag, an environment variable and a configuration key.

use ropewalk_client::Fairness;

use super::Group::{Connection, Copy, Ends, Path, Security};
use super::Shape::{Negated, Optional, Switch, Value};
use super::ends;
use super::sockets::{show_socket_memory, socket_memory};
use super::stripes::{show_stripe_block_size, show_stripes, stripe_block_size, stripes};
use super::trust::{
    authorities, data_protection, fingerprint, revocations, show_data_protection, show_fingerprint,
    show_subject, subject,
};
use super::values::{
    auto, bandwidth, block_size, boolean, buffer_memory, capacity, checksum, congestion, credential,
    data_ports, direct_io, fsync, log_file, max_streams, mode, polite, preserve, retries, retry_limit, share,
    show_auto, show_bandwidth, show_capacity, show_checksum, show_congestion, show_data_ports,
    show_direct_io, show_duration, show_fsync, show_mode, show_path, show_preserve, show_retry_limit,
    show_share, show_size, show_stall, show_sync, show_tcp_buffer, stall, streams, sync, tcp_buffer, tuner,
    user,
};
use super::{Setting, Settings, path, scitag, ssh};
use crate::units::parse_duration;

macro_rules! switch {
    ($($field:ident).+) => {
        (|settings: &mut Settings, text: &str| boolean(text).map(|on| settings.$($field).+ = on),
         |settings: &Settings| settings.$($field).+.to_string())
    };
}

macro_rules! automatic {
    ($($field:ident).+) => {
        (|settings: &mut Settings, text: &str| auto(text).map(|value| settings.$($field).+ = value),
         |settings: &Settings| show_auto(settings.$($field).+))
    };
}

macro_rules! duration {
    ($($field:ident).+) => {
        (|settings: &mut Settings, text: &str| parse_duration(text).map(|value| settings.$($field).+ = value),
         |settings: &Settings| show_duration(settings.$($field).+))
    };
}

/// A time limit: zero is refused, because nothing completes within no time.
macro_rules! limit {
    ($($field:ident).+) => {
        (|settings: &mut Settings, text: &str| match parse_duration(text)? {
            time if time.is_zero() => Err("expected a time above 0".to_owned()),
            time => Ok(settings.$($field).+ = time),
         },
         |settings: &Settings| show_duration(settings.$($field).+))
    };
}

type Access = (fn(&mut Settings, &str) -> Result<(), String>, fn(&Settings) -> String);

const fn setting(
    key: &'static str,
    short: Option<char>,
    shape: super::Shape,
    group: super::Group,
    access: Access,
    help: &'static str,
) -> Setting {
    Setting { key, short, shape, group, help, apply: access.0, show: access.1 }
}

#[rustfmt::skip]
pub(crate) const SETTINGS: &[Setting] = &[
    setting("streams", Some('p'), Value("N|auto"), Copy, (streams, |s| show_auto(s.options.tuning.streams)),
        "Data connections of a file; automatic by default"),
    setting("files", None, Value("N|auto"), Copy, automatic!(options.tuning.files),
        "Files in flight: control connections (pairs of them between two servers) that work at the same time"),
    setting("pipeline", None, Value("N|auto"), Copy, automatic!(options.tuning.pipeline),
        "Transfer commands outstanding on one control connection"),
    setting("tuner", None, Value("NAME"), Copy, (tuner, |s| s.options.tuning.tuner.name().into()),
        "Tuner of the number of streams while data moves: pilot (Ropewalk's own), apt, apt-golden, \
         apt-long, climb, track, or fixed, which keeps the number that the round trip suggests"),
    setting("max-streams", None, Value("N"), Copy, (max_streams, |s| s.options.tuning.max_streams.to_string()),
        "Most data connections of a path that the tuner may use"),
    setting("polite", None, Switch, Copy, (polite, |s| (s.options.tuning.fairness == Fairness::Polite).to_string()),
        "Yield to other traffic of the path: fewer streams whenever it shows a queue or loss"),
    setting("share", None, Value("PERCENT"), Copy, (share, show_share),
        "Do not add streams beyond about this share of what the path carries, other traffic included"),
    setting("capacity", None, Value("RATE|auto"), Copy, (capacity, show_capacity),
        "Capacity of the path, if known, for example 10Gbit/s: a hint for the tuner's start"),
    setting("bandwidth", None, Value("RATE|none"), Copy, (bandwidth, show_bandwidth),
        "Limit of the payload rate, over all connections of the run, in both directions together: \
         200Mbit/s, 20MB/s, or by the time of day: \"Mon-Fri 08:00-18:00 200Mbit/s, else off\" \
         (between two servers only with --through-here). `ropewalk jobs limit` changes it in a run"),
    setting("congestion", None, Value("NAMES|none"), Copy, (congestion, show_congestion),
        "Congestion controls that the tuner may choose from (a site's decision: bbr takes more than \
         its share of a shared path); without tuning, as with --streams, the first is used"),
    setting("stack", None, Value("DRIVERS|auto|default"), Copy, (ends::stack, ends::show_common_stack),
        "Drivers of data connections, here and at the servers (SITE SETNETSTACK), with options behind \
         a colon: tcp:sndbuf=4194304, tcp,rate:rate=10M, udt, quic or ucx. auto starts with TCP, and \
         tries udt or quic while data moves if TCP cannot fill a lossy path. Authentication and protection \
         hold with any stack"),
    setting("disk-stack", None, Value("DRIVERS|default"), Copy,
        (ends::disk_stack, |s| ends::show_stack(s.options.data.disk_stack.as_ref())),
        "Drivers of files at the servers (SITE SETDISKSTACK): 'popen:argv=#tar#cf#-#/data' puts a \
         program that the server permits in place of the file, here to copy a directory as an \
         archive; the path of the URL then names nothing"),
    setting("space-token", None, Value("TOKEN"), Copy, (ends::space_token, ends::show_space_token),
        "Let uploads draw on this reservation at the destination's server (SITE SPACE RESERVE, \
         docs/space.md); a token that the server does not know, or that has expired, is an error"),
    setting("mode", None, Value("auto|stream|extended"), Copy, (mode, show_mode),
        "Mode of data connections; auto: MODE E (extended) if both sides support it, otherwise MODE \
         S (stream)"),
    setting("ascii", None, Switch, Copy, switch!(options.data.ascii),
        "TYPE A: convert line ends of text files"),
    setting("block-size", None, Value("SIZE"), Copy, (block_size, |s| show_size(s.options.data.block_size as u64)),
        "Bytes of a block in MODE E"),
    setting("tcp-buffer", None, Value("SIZE|auto"), Copy, (tcp_buffer, show_tcp_buffer),
        "Socket buffers; `auto` leaves them to the kernel, unless earlier transfers have shown that \
         its tuning is not sufficient for the path (Ropewalk servers are asked to do the same: \
         ABUF)"),
    setting("socket-memory", None, Value("SIZE|none"), Copy, (socket_memory, show_socket_memory),
        "Payload that the socket buffers of all connections together may hold: connections that \
         need more than an equal share get the same amount each, adjusted whenever connections \
         come and go (`none`: the kernel's own limits)"),
    setting("buffer-memory", None, Value("SIZE"), Copy, (buffer_memory, |s| show_size(s.options.tuning.buffer_memory as u64)),
        "Memory for data buffers, for all transfers together"),
    setting("recursive", Some('r'), Switch, Copy, switch!(options.selection.recursive),
        "Copy directories with everything beneath them"),
    setting("create-directories", None, Negated, Copy, switch!(options.storage.create_directories),
        "Do not make missing directories of the destination"),
    setting("keep-dirlinks", None, Switch, Copy, switch!(options.storage.keep_dirlinks),
        "Follow symbolic links beneath a local destination that stand for directories and lead out of it"),
    setting("sync", None, Optional("exists|size|time|checksum|off", "time"), Copy, (sync, show_sync),
        "Skip files that the destination has: it exists; same size; same size and not older (the \
         default of the bare flag); same size and checksum. Sizes are those of whole files, also \
         with --offset and --length"),
    setting("delete", None, Switch, Copy, switch!(options.selection.delete),
        "With --sync and --recursive: remove entries from the destination that the source does not have"),
    setting("preserve", None, Value("times,modes,links|all|none"), Copy, (preserve, show_preserve),
        "Keep modification times, permissions; copy symbolic links as links instead of following them"),
    setting("sparse", None, Negated, Copy, switch!(options.storage.sparse),
        "Send the holes of sparse files as zeros (always so between two servers; the receiver may \
         turn zeros into holes: `files.sparse`)"),
    setting("checksum", None, Value("ALGORITHM|auto|none"), Copy, (checksum, show_checksum),
        "Verification of the destination: `auto` uses the best algorithm of both sides; a named \
         algorithm is required, or the file fails"),
    setting("fsync", None, Optional("none|end|marker", "end"), Copy, (fsync, show_fsync),
        "Force data to stable storage before a file gets its name, or also before each restart marker"),
    setting("direct-io", None, Value("auto|always|never"), Copy, (direct_io, show_direct_io),
        "Write local files past the page cache: `auto` does so for files larger than the amount \
         that the kernel buffers before writers must wait, by direct or uncached writes, whichever \
         is measured to be better; `always` uses direct writes"),
    setting("resume", None, Negated, Copy, switch!(options.recovery.resume),
        "Restart files that an earlier run left incomplete"),
    setting("retries", None, Value("N"), Copy, (retries, |s| s.options.recovery.retries.to_string()),
        "Retries of a file; a try that made progress restarts the count"),
    setting("retry-pause", None, Value("TIME"), Copy, duration!(options.recovery.retry_pause),
        "First pause between tries; it grows up to a minute while tries make no progress"),
    setting("retry-limit", None, Value("TIME|off"), Copy, (retry_limit, show_retry_limit),
        "Stop retrying a connection, or a file without progress, this long after the first failure"),
    setting("stall-limit", None, Value("RATE/TIME|off"), Copy, (stall, show_stall),
        "Cancel and retry a transfer that stays below RATE for TIME, for example 10KiB/60s"),
    setting("stop-on-failure", None, Switch, Copy, switch!(options.recovery.stop_on_failure),
        "Stop at the first file that fails permanently"),
    setting("status-interval", None, Value("TIME"), Copy, duration!(status_interval),
        "Interval of status lines, if standard error is not a terminal, and in the log (0: none)"),
    setting("log-file", None, Value("FILE"), Copy, (log_file, |s| show_path(s.log_file.as_ref())),
        "Append messages and status lines to FILE"),
    setting("in-place", None, Switch, Copy, switch!(options.storage.in_place),
        "Write files at servers under their final names, for servers that permit no renaming: an \
         interrupted file then has its final name"),
    setting("delayed-passive", None, Switch, Copy, switch!(options.data.delayed_passive),
        "Let the server choose its data address after it knows the file (OPTS PASV AllowDelayed)"),
    setting("through-here", None, Switch, Copy, switch!(options.data.through_here),
        "Pass data between two servers through this machine, if they cannot send to each other"),
    setting("one-port", None, Switch, Copy, switch!(options.data.one_port),
        "Send all data connections to the server's control port, for servers of which a firewall lets \
         no other port through (OnePort; without this option, that happens by itself if an announced \
         port cannot be reached)"),
    setting("scitag", None, Value("NUMBER|NAME|off"), Copy, (scitag::set, scitag::show),
        "Mark data connections with the experiment and activity that they serve (SciTags): 64 * \
         experiment + activity, or names of the registry such as \"atlas/Data Challenge\". The mark is \
         in the IPv6 flow label, and servers are asked for it too (SITE SCITAG)"),
    setting("scitag-registry", None, Value("FILE"), Copy, (scitag::set_registry, scitag::show_registry),
        "Copy of https://scitags.org/api.json for --scitag with names; without this option, \
         $XDG_CACHE_HOME/ropewalk/scitags.json, /var/cache/ropewalk/scitags.json or \
         /etc/ropewalk/scitags.json"),
    setting("scitag-registry-url", None, Value("URL|off"), Copy, (scitag::set_url, scitag::show_url),
        "Fetch the registry from this address (https://scitags.org/api.json) if --scitag has names and \
         the copy is missing or older than a day. If that fails, the old copy is used"),
    setting("fireflies", None, Value("HOST:PORT,...|peer|none"), Copy, (scitag::set_fireflies, scitag::show_fireflies),
        "With --scitag: send UDP messages about each data connection to these collectors (port \
         10514 unless named), or to the peer of the connection"),
    setting("path", None, Value("hook:PROGRAM|nsi:FILE|nsi-rest:FILE|tc:FILE|reserved:ID|none"), Path, (path::provider, path::show_provider),
        "Reserve a network path before the copy, use it when it is up, and release it at the end: \
         by a program or URL (hook:), a provider of NSI (nsi:) or a proxy in front of one (nsi-rest:), as a guaranteed rate on an interface of this host (tc:), or one that `ropewalk reserve` has reserved"),
    setting("path-policy", None, Value("prefer|require"), Path, (path::policy, path::show_policy),
        "Without a path, copy over the usual network (prefer), or fail (require); the same if a hook fails"),
    setting("path-time", None, Value("TIME"), Path, limit!(path.time),
        "The time for which the path is reserved; the end of the copy releases it earlier, and nsi: extends it"),
    setting("rate", None, Value("RATE|auto"), Path, (path::rate, path::show_rate),
        "The rate to reserve with --path, for example --path nsi:nsi.toml --rate 5Gbit/s; `auto`: \
         --capacity, or what the provider's file says"),
    setting("task-id", None, Value("ID|random|none"), Path, (path::task, path::show_task),
        "The task ID of the copy for the network managers and logs of both servers (SITE TASKID), \
         and for the hook of --path; by default a random one for each run"),
    setting("stripes", None, Value("N|auto|off"), Copy, (stripes, show_stripes),
        "Use several addresses of a server with data nodes for each file (SPAS, SPOR): N for a \
         download, all of the destination otherwise; `auto`: as many as the server has. For example: \
         ropewalk cp --stripes auto -p 4 gsiftp://a.example/big gsiftp://b.example/big"),
    setting("stripe-block-size", None, Value("SIZE|partitioned|default"), Copy, (stripe_block_size, show_stripe_block_size),
        "How a source with data nodes divides a file among them: blocks of SIZE in turn, or one \
         range for each; `default`: as the server likes"),
    setting("user", None, Value("NAME"), Security, (user, |s| s.options.login.user.clone().unwrap_or_default()),
        "Log in as this user if the URL names none"),
    setting("password-file", None, Value("FILE"), Security, (ends::password_file, |s| show_path(s.password_files.common.as_ref())),
        "Take the password from the first line of FILE (`-`: standard input)"),
    setting("source-password-file", None, Value("FILE"), Ends,
        (ends::source_password_file, |s| show_path(s.password_files.source.as_ref())),
        "--password-file for the source's server only"),
    setting("destination-password-file", None, Value("FILE"), Ends,
        (ends::destination_password_file, |s| show_path(s.password_files.destination.as_ref())),
        "--password-file for the destination's server only"),
    setting("token", None, Value("auto|FILE"), Security, (super::token::set, super::token::show),
        "Log in with a bearer token if the URL names no user: the one in FILE, or with `auto` the \
         one in BEARER_TOKEN, BEARER_TOKEN_FILE, $XDG_RUNTIME_DIR/bt_uUID or /tmp/bt_uUID. It \
         needs a protected control connection"),
    setting("tls", None, Switch, Security, switch!(options.login.tls),
        "Log in to ftp:// over TLS (AUTH TLS), as ftpes:// does; ftps:// uses TLS from the start"),
    setting("fingerprint", None, Value("SHA256:HEX"), Security, (fingerprint, show_fingerprint),
        "The certificate that servers with TLS must have, regardless of its issuer"),
    setting("accept-new", None, Switch, Security, switch!(options.trust.accept_new),
        "On first contact accept a server with TLS whose certificate is from no trusted authority, \
         and remember its fingerprint"),
    setting("insecure", None, Switch, Security, switch!(options.login.insecure),
        "Let gsiftp:// log in without certificates and in clear, as ftp:// does"),
    setting("auth", None, Value("auto|gsi|kerberos"), Security, (super::kerberos::set, super::kerberos::show),
        "Credential for log-ins of gsiftp://: a certificate, or a Kerberos ticket (ftp:// too); \
         `auto`: a ticket if there is no certificate"),
    setting("kerberos-service", None, Value("NAME,NAME..."), Security,
        (super::kerberos::set_services, super::kerberos::show_services),
        "Services of a server's Kerberos principal, tried in this order (host, then ftp)"),
    setting("credential", None, Value("FILE"), Security, (credential, |s| show_path(s.options.login.credential.as_ref())),
        "Certificate, key and chain for gsiftp:// or TLS in one file, like a proxy; for gsiftp:// \
         if it is not in one of the usual places"),
    setting("authorities", None, Value("PATH"), Security, (authorities, |s| show_path(s.options.trust.authorities.as_ref())),
        "Trusted authorities: a directory for gsiftp://, a file or directory for TLS, if they are \
         not in one of the usual places"),
    setting("revocations", None, Value("PATH"), Security, (revocations, |s| show_path(s.options.trust.revocations.as_ref())),
        "Lists of revoked certificates for TLS: a file, or a directory of files HASH.r0; lists \
         beside trusted authorities in a directory are always read"),
    setting("server-subject", None, Value("SUBJECT"), Security, (subject, show_subject),
        "Required subject of the servers' certificate, regardless of the host name"),
    setting("source-credential", None, Value("FILE"), Ends, (ends::source_credential, |s| ends::show_credential(&s.options.login.source)),
        "--credential for the source's server only"),
    setting("destination-credential", None, Value("FILE"), Ends,
        (ends::destination_credential, |s| ends::show_credential(&s.options.login.destination)),
        "--credential for the destination's server only"),
    setting("source-subject", None, Value("SUBJECT"), Ends, (ends::source_subject, |s| ends::show_subject(&s.options.login.source)),
        "--server-subject for the source's server only"),
    setting("destination-subject", None, Value("SUBJECT"), Ends,
        (ends::destination_subject, |s| ends::show_subject(&s.options.login.destination)),
        "--server-subject for the destination's server only"),
    setting("source-stack", None, Value("DRIVERS|default"), Ends,
        (ends::source_stack, |s| ends::show_stack(s.options.login.source.stack.as_ref())),
        "--stack for the source's server only"),
    setting("destination-stack", None, Value("DRIVERS|default"), Ends,
        (ends::destination_stack, |s| ends::show_stack(s.options.login.destination.stack.as_ref())),
        "--stack for the destination's server only"),
    setting("source-disk-stack", None, Value("DRIVERS|default"), Ends,
        (ends::source_disk_stack, |s| ends::show_stack(s.options.login.source.disk_stack.as_ref())),
        "--disk-stack for the source's server only"),
    setting("destination-disk-stack", None, Value("DRIVERS|default"), Ends,
        (ends::destination_disk_stack, |s| ends::show_stack(s.options.login.destination.disk_stack.as_ref())),
        "--disk-stack for the destination's server only"),
    setting("source-slots-token", None, Value("TOKEN"), Ends,
        (ends::source_slots_token, |s| ends::show_slots_token(&s.options.login.source)),
        "Let transfers use this reservation at the source's server (SITE SLOTS RESERVE, \
         docs/limits.md); once it has ended, the copy goes on without it"),
    setting("destination-slots-token", None, Value("TOKEN"), Ends,
        (ends::destination_slots_token, |s| ends::show_slots_token(&s.options.login.destination)),
        "--source-slots-token for the destination's server"),
    setting("data-credential", None, Value("login|auto|FILE"), Security, (ends::set_data_credential, ends::show_data_credential),
        "Credential that authenticates data connections of gsiftp://: that of the log-in, one made \
         for this run, or a proxy of the one in FILE; servers get the latter two by DCSC"),
    setting("delegate", None, Negated, Security, switch!(options.login.delegate),
        "Delegate no proxy to servers; their data connections are then not authenticated"),
    setting("dcau", None, Negated, Security, switch!(options.data_security.authentication),
        "Do not authenticate data connections of gsiftp://"),
    setting("require-data-authentication", None, Switch, Security, switch!(options.data_security.require_authentication),
        "Transfer nothing over data connections that are neither authenticated, protected nor bound to their session"),
    setting("data-protection", None, Value("auto|clear|safe|private"), Security, (data_protection, show_data_protection),
        "Protection of data connections of gsiftp:// and TLS: none, against modification, or \
         encryption (GCT encrypts both); `auto` is clear with gsiftp:// and private with TLS"),
    setting("ssh", None, Value("COMMAND"), Security, (ssh::program, ssh::show_program),
        "The program for sshftp://, with arguments, if it is not plain `ssh`: \"ssh -F FILE -o \
         OPTION=VALUE\""),
    setting("ssh-remote", None, Value("COMMAND"), Security, (ssh::remote, ssh::show_remote),
        "Command that sshftp:// starts on the server's host instead of the script `sshftp`; the \
         user's shell there interprets it"),
    setting("ssh-sharing", None, Negated, Security, switch!(options.ssh.share),
        "Log in with ssh for every control connection, instead of once for each server"),
    setting("connect-timeout", None, Value("TIME"), Connection, limit!(options.timeouts.connect),
        "Longest wait for a connection"),
    setting("reply-timeout", None, Value("TIME"), Connection, limit!(options.timeouts.reply),
        "Longest silence of a server that owes a reply; for a checksum one more second for each 8 \
         MiB of the file, unless it reports progress"),
    setting("keepalive", None, Value("TIME"), Connection, duration!(options.timeouts.keepalive),
        "Idle time of a control connection after which NOOP is sent"),
    setting("data-ports", None, Value("FIRST-LAST|any"), Connection, (data_ports, show_data_ports),
        "Local ports for data connections that servers open"),
    setting("relative-paths", None, Switch, Connection, switch!(options.relative_paths),
        "Paths of URLs are relative to the log-in directory; %2F at their start means the root"),
    setting("debug", None, Switch, Connection, switch!(options.trace_control),
        "Show the dialogue of control connections"),
];

#[cfg(test)]
mod tests;
