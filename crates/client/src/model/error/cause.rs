//! Which of two errors of a transfer is the cause: what this end saw of the data, or the server's
//! reply.
//!
//! If this end breaks a transfer off, the server sees that its data connections end, and replies
//! 425 or 426. That reply is a consequence. If the server breaks it off, this end sees the same,
//! and the reply has the reason.

use std::io;

use ropewalk_engine::Error as E;
use rustix::io::Errno;

use crate::RemoteError;

impl RemoteError {
    /// Whether this end only saw that data connections ended or could not be made, so that the
    /// server's reply may have the reason.
    pub(crate) fn may_be_consequence(&self) -> bool {
        matches!(self, Self::Data { .. }) && !self.is_known_here()
    }

    /// Whether data connections failed for a reason that this end has found: invalid data, or a
    /// limit of this program or host.
    pub(super) fn is_known_here(&self) -> bool {
        let Self::Data { source, .. } = self else { return false };
        match &**source {
            E::Aborted | E::PeerClosed { .. } | E::Incomplete { .. } | E::Stalled { .. } => false,
            E::NoConnection { refused, .. } => refused.is_some(),
            E::Connect { source, .. } | E::Io { source, .. } => is_of_this_host(source),
            _ => true,
        }
    }

    /// The cause, if a transfer has failed with this error and the server has answered its command
    /// with `refusal`.
    pub(crate) fn or_refusal(mut self, refusal: Option<Self>) -> Self {
        let Some(refusal) = refusal else { return self };
        // Data that was found to be forged, or the server's alert: a reply that says only that the
        // connection has ended does not know better.
        let invalid = matches!(&self, Self::Data { source, .. } if is_of_invalid_data(source));
        let is_known =
            !self.may_be_consequence() || invalid && matches!(refusal.reply_code(), Some(425 | 426));
        if !is_known {
            return refusal;
        }
        tracing::debug!(cause = %self, %refusal, "the server's reply follows from what failed here");
        if let (Self::Data { reply, .. }, Self::Refused { reply: said, .. }) = (&mut self, refusal) {
            *reply = Some(said);
        }
        self
    }
}

/// Whether this host has no connection to give, or does not permit one.
fn is_of_this_host(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    error.kind() == io::ErrorKind::Unsupported
        || matches!(
            errno,
            Some(
                Errno::MFILE
                    | Errno::NFILE
                    | Errno::NOBUFS
                    | Errno::NOMEM
                    | Errno::ACCESS
                    | Errno::PERM
                    | Errno::ADDRNOTAVAIL
                    | Errno::ADDRINUSE
                    | Errno::INVAL
            )
        )
}

fn is_of_invalid_data(error: &E) -> bool {
    matches!(error, E::Io { source, .. } if source.kind() == io::ErrorKind::InvalidData)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ropewalk_protocol::reply::Reply;

    use super::*;
    use crate::FailureKind;

    fn data(source: E) -> RemoteError {
        RemoteError::Data { peer: "p".into(), path: "/f".into(), source: Box::new(source), reply: None }
    }

    #[test]
    fn reply_is_the_cause_only_if_this_end_does_not_know_it() {
        let peer = || ropewalk_transport::Endpoint::from(([127, 0, 0, 1], 2811));
        let refusal = |code| RemoteError::Refused {
            peer: "p".into(),
            command: "RETR".into(),
            reply: Reply::new(code, "it broke"),
        };
        let limit = Duration::from_secs(1);
        let connect = |source| E::Connect { address: peer(), source };
        let network = [
            E::Aborted,
            E::PeerClosed { peer: peer(), stream: 0, bytes: 0, left: 0 },
            E::Incomplete { stored: 1, total: 2 },
            E::Stalled { after: limit },
            E::NoConnection { made: 0, wanted: 1, waited: limit, refused: None, turned_down: None },
            E::Io { peer: peer(), source: io::ErrorKind::ConnectionReset.into() },
            connect(io::ErrorKind::ConnectionRefused.into()),
        ];
        for error in network.map(data) {
            assert!(error.may_be_consequence(), "{error}");
            assert_eq!(error.or_refusal(Some(refusal(426))).reply_code(), Some(426));
        }
        let errno = |errno: Errno| io::Error::from(errno);
        let here = [
            E::TooManyStreams { peer: peer(), limit: 1 },
            E::TooMuch { peer: peer(), expected: 1 },
            E::ExtraStream { peer: None, announced: 1 },
            E::OutOfOrder { missing: 0, held: 1 },
            E::Scattered { count: 1 },
            E::Accept(errno(Errno::MFILE)),
            E::System { action: "poll", source: errno(Errno::NOMEM) },
            connect(errno(Errno::MFILE)),
            connect(errno(Errno::ADDRNOTAVAIL)),
            connect(io::ErrorKind::Unsupported.into()),
        ];
        for error in here.map(data) {
            let (told, transient) = (error.to_string(), error.is_transient());
            assert_eq!((error.kind(), error.may_be_consequence()), (FailureKind::Other, false), "{told}");
            let both = error.or_refusal(Some(refusal(552)));
            assert_eq!(both.to_string(), format!("{told} (its reply: 552 it broke)"));
            assert_eq!((both.kind(), both.is_transient()), (FailureKind::Other, transient), "{told}");
        }
        // Local data, and the end of a transfer by this end.
        for error in [
            RemoteError::Output(errno(Errno::NOSPC)),
            RemoteError::SourceChanged { path: "/f".into() },
            RemoteError::Cancelled,
        ] {
            let told = error.to_string();
            assert_eq!(error.or_refusal(Some(refusal(426))).to_string(), told);
        }
        let forged = || data(E::Io { peer: peer(), source: io::ErrorKind::InvalidData.into() });
        assert_eq!(forged().or_refusal(Some(refusal(426))).reply_code(), None);
        assert_eq!(forged().or_refusal(Some(refusal(522))).reply_code(), Some(522));
        assert_eq!(data(E::Aborted).or_refusal(None).reply_code(), None);
    }
}
