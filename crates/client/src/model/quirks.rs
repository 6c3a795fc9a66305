//! How servers behave in what FEAT does not announce.
//!
//! A session makes one [`ServerQuirks`] from the greeting and the features of its server, and the
//! rest of the client asks it instead of the kind of the server. The table
//! [`ServerQuirks::of`] has a row for each kind. A server that is not known is assumed to have
//! every quirk that costs nothing but time if it is assumed in error. SYST is not sent: the servers
//! of the table all answer `215 UNIX Type: L8`.

use bstr::ByteSlice;
use ropewalk_protocol::feature::Features;

/// The program that a server runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerKind {
    Ropewalk,
    /// globus-gridftp-server of the Grid Community Toolkit.
    Gct,
    /// Any other server with MODE E and parallel streams, such as that of dCache.
    GridFtp,
    Vsftpd,
    ProFtpd,
    PureFtpd,
    /// A plain FTP server that neither FEAT nor the greeting identifies.
    Unknown,
}

impl ServerKind {
    /// FEAT comes first, because sites change the greeting.
    pub(crate) fn of(greeting: &str, features: &Features) -> Self {
        let says = |name: &str| greeting.as_bytes().contains_str(name);
        match () {
            () if features.ranges => Self::Ropewalk,
            () if features.dsi => Self::Gct,
            () if features.extended => Self::GridFtp,
            () if says("vsFTPd") => Self::Vsftpd,
            () if says("ProFTPD") => Self::ProFtpd,
            () if says("Pure-FTPd") => Self::PureFtpd,
            () => Self::Unknown,
        }
    }
}

/// How a client makes a symbolic link at a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SymlinkCommand {
    /// `SITE SYMLINK`. The target stays as it is, and need not exist.
    One,
    /// `SITE SYMLINKFROM` and `SITE SYMLINKTO`, which GCT's server has, or `SITE SYMLINK` of a
    /// server that does not know them. GCT's server resolves a relative target against the current
    /// directory, stores it as an absolute one, and requires that it exists.
    Two,
}

/// The behaviour of one kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServerQuirks {
    /// Two uploads to one part file at a time are refused or kept apart. At any other server each
    /// upload needs a part file of its own.
    pub separates_uploads: bool,
    /// Listings leave out part files of uploads (`.NAME.ropewalk-part`).
    pub hides_part_files: bool,
    /// The server keeps a journal of the ranges in a part file. Over SSH it is the only record,
    /// since the process of one session knows nothing of the others.
    pub keeps_journals: bool,
    /// A session moves a file with several threads, so several sessions for one file gain nothing.
    /// The session of any other server has one thread or process.
    pub has_thread_per_stream: bool,
    /// ABOR is always answered. GCT's server stops to answer after an ABOR that meets no transfer,
    /// and sometimes after one that meets a command that is being refused.
    pub answers_every_abort: bool,
    /// If a data connection breaks within a block, GCT's server writes what it has of the block to
    /// the beginning of the file, even long after it has reported the range there as received.
    pub writes_late_block: bool,
    /// `ABUF` enlarges the socket buffers of the data connections of a long path.
    pub obeys_abuf: bool,
    /// GCT's server may leave bytes outside of ASCII out of paths, and then takes one file for
    /// another. Its build decides; the session asks for a path that shows it.
    pub may_drop_non_ascii: bool,
    /// MLSR stops at a directory that it cannot read, unless `OPTS MLSR` says otherwise. GCT's
    /// server continues, and takes that option for an empty list of facts.
    pub tree_listing_stops_at_errors: bool,
    /// MLSR of GCT's server takes the first name of a directory for `.`: if a name sorts before the
    /// dot, a directory may get the facts of another one, or may be left out with what is in it.
    pub tree_listing_confuses_directories: bool,
    /// MLSR of a symbolic link to a directory lists, at GCT's server, the link alone.
    pub tree_listing_stays_at_link: bool,
    /// MLSD of GCT's server leaves out symbolic links that lead nowhere; its MLSR lists them.
    pub hides_dangling_links: bool,
    /// GCT's server reports the relative target of a symbolic link as an absolute path. Plain
    /// servers do not say which one it is, and are treated like it.
    pub may_make_links_absolute: bool,
    /// MLST and MLSD of ProFTPD and Pure-FTPd report a symbolic link itself, or its target with the
    /// size and the permissions of the link. GridFTP servers follow links.
    pub reports_links_unfollowed: bool,
    /// vsftpd sends an empty listing of a directory that it may not read, and says so only in the
    /// text of its successful reply.
    pub lists_unreadable_as_empty: bool,
    pub symlink_command: SymlinkCommand,
}

impl ServerQuirks {
    pub(crate) fn of(kind: ServerKind) -> Self {
        let unknown = Self {
            separates_uploads: false,
            hides_part_files: false,
            keeps_journals: false,
            has_thread_per_stream: false,
            answers_every_abort: false,
            writes_late_block: false,
            obeys_abuf: false,
            may_drop_non_ascii: false,
            tree_listing_stops_at_errors: false,
            tree_listing_confuses_directories: true,
            tree_listing_stays_at_link: true,
            hides_dangling_links: true,
            may_make_links_absolute: true,
            reports_links_unfollowed: true,
            lists_unreadable_as_empty: true,
            symlink_command: SymlinkCommand::Two,
        };
        let grid_ftp = Self {
            writes_late_block: true,
            reports_links_unfollowed: false,
            lists_unreadable_as_empty: false,
            ..unknown
        };
        match kind {
            ServerKind::Ropewalk => Self {
                separates_uploads: true,
                hides_part_files: true,
                keeps_journals: true,
                has_thread_per_stream: true,
                answers_every_abort: true,
                writes_late_block: false,
                obeys_abuf: true,
                may_drop_non_ascii: false,
                tree_listing_stops_at_errors: true,
                tree_listing_confuses_directories: false,
                tree_listing_stays_at_link: false,
                hides_dangling_links: false,
                may_make_links_absolute: false,
                reports_links_unfollowed: false,
                lists_unreadable_as_empty: false,
                symlink_command: SymlinkCommand::One,
            },
            ServerKind::Gct => Self { may_drop_non_ascii: true, ..grid_ftp },
            ServerKind::GridFtp => grid_ftp,
            // None of these three has MLSR.
            ServerKind::Vsftpd => Self {
                tree_listing_confuses_directories: false,
                tree_listing_stays_at_link: false,
                hides_dangling_links: false,
                ..unknown
            },
            ServerKind::ProFtpd | ServerKind::PureFtpd => Self {
                tree_listing_confuses_directories: false,
                tree_listing_stays_at_link: false,
                hides_dangling_links: false,
                lists_unreadable_as_empty: false,
                ..unknown
            },
            ServerKind::Unknown => unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(greeting: &str, features: &str) -> ServerKind {
        ServerKind::of(greeting, &Features::new(features.lines().map(Into::into)))
    }

    /// The names of the quirks that hold.
    fn held(kind: ServerKind) -> Vec<&'static str> {
        let quirks = ServerQuirks::of(kind);
        let all = [
            ("separates_uploads", quirks.separates_uploads),
            ("hides_part_files", quirks.hides_part_files),
            ("keeps_journals", quirks.keeps_journals),
            ("has_thread_per_stream", quirks.has_thread_per_stream),
            ("answers_every_abort", quirks.answers_every_abort),
            ("writes_late_block", quirks.writes_late_block),
            ("obeys_abuf", quirks.obeys_abuf),
            ("may_drop_non_ascii", quirks.may_drop_non_ascii),
            ("tree_listing_stops_at_errors", quirks.tree_listing_stops_at_errors),
            ("tree_listing_confuses_directories", quirks.tree_listing_confuses_directories),
            ("tree_listing_stays_at_link", quirks.tree_listing_stays_at_link),
            ("hides_dangling_links", quirks.hides_dangling_links),
            ("may_make_links_absolute", quirks.may_make_links_absolute),
            ("reports_links_unfollowed", quirks.reports_links_unfollowed),
            ("lists_unreadable_as_empty", quirks.lists_unreadable_as_empty),
            ("two symlink commands", quirks.symlink_command == SymlinkCommand::Two),
        ];
        all.iter().filter(|(_, holds)| *holds).map(|(name, _)| *name).collect()
    }

    #[test]
    fn ropewalk_server_is_known_by_its_extensions() {
        let features = "MLST Type*;\nPARALLEL\nMLSR\nROPEWALK PassiveSender;Ranges;Streams;";
        assert_eq!(kind("host FTP Server (vsFTPd 3.0.3) ready.", features), ServerKind::Ropewalk);
        assert_eq!(
            held(ServerKind::Ropewalk),
            [
                "separates_uploads",
                "hides_part_files",
                "keeps_journals",
                "has_thread_per_stream",
                "answers_every_abort",
                "obeys_abuf",
                "tree_listing_stops_at_errors",
            ]
        );
    }

    #[test]
    fn gct_server_is_known_by_its_storage_interface() {
        let features = "DSI file-13.24\nMLSR\nPARALLEL\nMLST Type*;Size*;\nABUF";
        assert_eq!(kind("a site's own greeting", features), ServerKind::Gct);
        assert_eq!(
            held(ServerKind::Gct),
            [
                "writes_late_block",
                "may_drop_non_ascii",
                "tree_listing_confuses_directories",
                "tree_listing_stays_at_link",
                "hides_dangling_links",
                "may_make_links_absolute",
                "two symlink commands",
            ]
        );
    }

    #[test]
    fn other_grid_ftp_server_is_treated_as_gct_but_for_names() {
        assert_eq!(kind("dCache", "PARALLEL\nMLST Type*;"), ServerKind::GridFtp);
        let gct = ServerQuirks::of(ServerKind::Gct);
        let expected = ServerQuirks { may_drop_non_ascii: false, ..gct };
        assert_eq!(ServerQuirks::of(ServerKind::GridFtp), expected);
    }

    #[test]
    fn vsftpd_is_known_by_its_greeting() {
        let features = "EPRT\nEPSV\nMDTM\nPASV\nREST STREAM\nSIZE\nTVFS";
        assert_eq!(kind("220 (vsFTPd 3.0.3)", features), ServerKind::Vsftpd);
        assert_eq!(
            held(ServerKind::Vsftpd),
            [
                "may_make_links_absolute",
                "reports_links_unfollowed",
                "lists_unreadable_as_empty",
                "two symlink commands",
            ]
        );
    }

    #[test]
    fn proftpd_is_known_by_its_greeting() {
        let greeting = "220 ProFTPD Server (Debian) [::ffff:127.0.0.1]";
        assert_eq!(kind(greeting, "MLST modify*;\nREST STREAM\nSIZE"), ServerKind::ProFtpd);
        let quirks = ["may_make_links_absolute", "reports_links_unfollowed", "two symlink commands"];
        assert_eq!(held(ServerKind::ProFtpd), quirks);
    }

    #[test]
    fn pure_ftpd_is_known_by_its_greeting() {
        let greeting = "220---------- Welcome to Pure-FTPd [privsep] [TLS] ----------\n220 Local time";
        assert_eq!(kind(greeting, "MLST type*;\nREST STREAM\nESTA"), ServerKind::PureFtpd);
        let quirks = ["may_make_links_absolute", "reports_links_unfollowed", "two symlink commands"];
        assert_eq!(held(ServerKind::PureFtpd), quirks);
    }

    #[test]
    fn unknown_server_has_every_quirk_of_plain_servers() {
        assert_eq!(kind("220 Service ready", "SIZE"), ServerKind::Unknown);
        let unknown = held(ServerKind::Unknown);
        for kind in [ServerKind::Vsftpd, ServerKind::ProFtpd, ServerKind::PureFtpd] {
            assert!(held(kind).iter().all(|quirk| unknown.contains(quirk)), "{kind:?}");
        }
    }
}
