//! The change from clear to protected lines.

use super::*;
use crate::sealing::{OverTls, Seal, Sealing};

impl Control {
    /// Protects everything from now on. It is an error if clear bytes follow the last reply.
    pub(crate) fn protect(&mut self, session: Box<dyn Seal>) -> Result<(), RemoteError> {
        self.nothing_came()?;
        self.security = Some(Box::new(Sealing::new(session)));
        Ok(())
    }

    fn nothing_came(&self) -> Result<(), RemoteError> {
        if self.machine.is_at_rest() {
            return Ok(());
        }
        let reason = "clear data followed the start of protection".to_owned();
        Err(RemoteError::Nonsense { peer: self.peer.clone(), reason })
    }

    /// A TLS handshake; `at_once`: the server has sent nothing before it.
    pub(crate) fn shake(
        &mut self,
        mut handshake: Handshake,
        at_once: bool,
    ) -> Result<Box<Established>, RemoteError> {
        if !at_once {
            self.nothing_came()?;
        }
        let limit = self.reply_timeout;
        let deadline = Instant::now() + limit;
        let closed = |peer: &str| RemoteError::Closed { peer: peer.to_owned(), command: "TLS".to_owned() };
        let mut buffer = [0; 16 << 10];
        let mut came = 0;
        loop {
            let mut out = Vec::new();
            let step = handshake.step(&buffer[..came], &mut out);
            self.out.extend(out);
            self.flush()?;
            match step {
                Ok(None) => {}
                Ok(Some(established)) => return Ok(established),
                Err(error) => {
                    let hint = match error {
                        // Without TLS a server speaks first.
                        HandshakeError::NotTls(_) if at_once => {
                            "; for a server that starts in clear, use ftpes:// (or --tls with ftp://)"
                        }
                        _ => "",
                    };
                    return Err(RemoteError::Security {
                        peer: self.peer.clone(),
                        reason: format!("{error}{hint}"),
                    });
                }
            }
            came = loop {
                match self.stream.read(&mut buffer) {
                    Ok(0) => return Err(closed(&self.peer)),
                    Ok(n) => break n,
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                        if !self.wait(deadline)? {
                            let command = "TLS".to_owned();
                            return Err(RemoteError::Silent { peer: self.peer.clone(), command, limit });
                        }
                        self.flush()?;
                    }
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(source) => return Err(RemoteError::Control { peer: self.peer.clone(), source }),
                }
            };
            self.life.hears(Instant::now());
        }
    }

    /// Sends and receives everything in TLS from now on.
    pub(crate) fn protect_with_tls(&mut self, established: Box<Established>) -> Result<(), RemoteError> {
        let mut security = OverTls::new(established);
        // The first bytes may have come with the last ones of the handshake.
        let mut answers = Vec::new();
        let opened = security.open(&[], &mut self.machine, &mut answers);
        self.out.extend(answers);
        self.tell();
        opened.map_err(|unopened| unopened.of(&self.peer))?;
        self.security = Some(Box::new(security));
        Ok(())
    }
}
