use bstr::BString;

use crate::client::{CommandFailure, Event, Session, SubmitError, Ticket};
use crate::command::{Command, Password};
use crate::feature::Features;
use crate::reply::Reply;
use crate::server::RepresentationType;
use crate::site::SiteCommand;

/// What SITE CLIENTINFO tells, for the server's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientInfo {
    pub scheme: String,
    pub name: String,
    pub version: String,
}

impl ClientInfo {
    fn command(&self) -> Command {
        let clean = |text: &str| text.replace(|c: char| c.is_control() || c == '"', "");
        let (scheme, name, version) = (clean(&self.scheme), clean(&self.name), clean(&self.version));
        let text = format!("scheme={scheme};appname=\"{name}\";appver=\"{version}\";");
        Command::Site(SiteCommand::ClientInfo(text.into()))
    }
}

/// A session that is ready for work: TYPE is I, MODE is S.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedIn {
    pub banner: Reply,
    /// The 230 reply, which may have a message of the day.
    pub welcome: Reply,
    pub features: Features,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoginError {
    #[error("the server refused the connection: {0}")]
    Refused(Reply),
    #[error("log-in: {0}")]
    Failed(#[from] CommandFailure),
    #[error("the server wants a password for user {user}, but none was given: {reply}")]
    PasswordWanted { user: BString, reply: Reply },
    #[error("the server wants an account (ACCT), which is not supported: {0}")]
    AccountWanted(Reply),
    #[error("the server closed the connection: {0}")]
    Closed(Reply),
    #[error("log-in: {0}")]
    Submit(#[from] SubmitError),
}

/// Logs a fresh session in: banner, USER, PASS where it is wanted, then FEAT, SITE CLIENTINFO and TYPE I in one flight.
#[derive(Debug)]
pub struct Login {
    user: BString,
    password: Option<Password>,
    client_info: Option<ClientInfo>,
    state: State,
}

#[derive(Debug)]
enum State {
    Banner,
    User { ticket: Ticket, banner: Reply },
    Password { ticket: Ticket, banner: Reply },
    Features { feat: Ticket, image: Ticket, logged_in: LoggedIn },
    Done,
}

impl Login {
    /// `client_info` is for servers that speak GridFTP; others answer with an error, which does not matter.
    pub fn new(
        user: impl Into<BString>,
        password: Option<Password>,
        client_info: Option<ClientInfo>,
    ) -> Self {
        Self { user: user.into(), password, client_info, state: State::Banner }
    }

    /// Takes what the session has got; call it after each input. `None`: not yet.
    pub fn advance(&mut self, session: &mut Session) -> Result<Option<LoggedIn>, LoginError> {
        while let Some(event) = session.poll_event() {
            if let Some(logged_in) = self.event(event, session)? {
                return Ok(Some(logged_in));
            }
        }
        Ok(None)
    }

    fn event(&mut self, event: Event, session: &mut Session) -> Result<Option<LoggedIn>, LoginError> {
        match (std::mem::replace(&mut self.state, State::Done), event) {
            (State::Banner, Event::Greeting(banner)) => {
                if !banner.is_success() {
                    return Err(LoginError::Refused(banner));
                }
                let ticket = session.submit(&Command::User(self.user.clone()))?;
                self.state = State::User { ticket, banner };
            }
            (State::User { ticket, banner }, Event::Finished { ticket: finished, reply })
                if finished == ticket =>
            {
                match (reply.code(), &self.password) {
                    (331, Some(password)) => {
                        let ticket = session.submit(&Command::Pass(password.clone()))?;
                        self.state = State::Password { ticket, banner };
                    }
                    (331, None) => return Err(LoginError::PasswordWanted { user: self.user.clone(), reply }),
                    _ => self.logged_in("USER", banner, reply, session)?,
                }
            }
            (State::Password { ticket, banner }, Event::Finished { ticket: finished, reply })
                if finished == ticket =>
            {
                self.logged_in("PASS", banner, reply, session)?;
            }
            (State::Features { feat, image, mut logged_in }, Event::Finished { ticket, reply }) => {
                if ticket == image {
                    CommandFailure::check("TYPE", reply)?;
                    return Ok(Some(logged_in));
                }
                if ticket == feat {
                    logged_in.features = Features::parse(&reply);
                }
                self.state = State::Features { feat, image, logged_in };
            }
            (_, Event::Closing(reply)) => return Err(LoginError::Closed(reply)),
            (state, _) => self.state = state,
        }
        Ok(None)
    }

    fn logged_in(
        &mut self,
        command: &'static str,
        banner: Reply,
        welcome: Reply,
        session: &mut Session,
    ) -> Result<(), LoginError> {
        if welcome.code() == 332 {
            return Err(LoginError::AccountWanted(welcome));
        }
        let welcome = CommandFailure::check(command, welcome)?;
        let feat = session.submit(&Command::Feat)?;
        if let Some(info) = &self.client_info {
            session.submit(&info.command())?;
        }
        let image = session.submit(&Command::Type(RepresentationType::Image))?;
        let logged_in = LoggedIn { banner, welcome, features: Features::default() };
        self.state = State::Features { feat, image, logged_in };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use bstr::ByteSlice;

    use super::*;
    use crate::client::{FailureKind, Limits};

    fn info() -> ClientInfo {
        ClientInfo { scheme: "gsiftp".into(), name: "rope\"walk".into(), version: "1\r\n".into() }
    }

    /// Plays the server's lines one after another; gives what was sent in answer to each.
    fn play(login: &mut Login, lines: &[&str]) -> (Vec<String>, Result<Option<LoggedIn>, LoginError>) {
        let mut session = Session::new(Limits::default());
        let mut sent = Vec::new();
        for (i, line) in lines.iter().enumerate() {
            session.input(line.replace('|', "\r\n").as_bytes()).unwrap();
            session.input(b"\r\n").unwrap();
            let result = login.advance(&mut session);
            sent.push(session.poll_transmit().unwrap_or_default().to_str_lossy().replace("\r\n", "|"));
            if i + 1 == lines.len() || result.is_err() {
                return (sent, result);
            }
        }
        unreachable!("no lines")
    }

    #[test]
    fn whole_log_in() {
        let mut login = Login::new(":globus-mapping:", Some(Password::new("")), Some(info()));
        let (sent, result) = play(
            &mut login,
            &[
                "120 wait",
                "220-hello|220 vm GridFTP Server 13.24 ready.",
                "331 Password required for :globus-mapping:.",
                "230-User x logged in.|230-be nice|230 End.",
                "211-Extensions supported| SIZE| DCAU|211 End.|500 Invalid command.|200 Type set to I.",
            ],
        );
        assert_eq!(sent[..2], ["", "USER :globus-mapping:|"]);
        assert!(sent[2].starts_with("PASS"));
        assert_eq!(sent[3], "FEAT|SITE CLIENTINFO scheme=gsiftp;appname=\"ropewalk\";appver=\"1\";|TYPE I|");
        let logged_in = result.unwrap().unwrap();
        assert!(logged_in.features.size && logged_in.features.dcau && !logged_in.features.mdtm);
        assert_eq!(logged_in.banner.lines().next().unwrap(), "hello");
        assert_eq!(logged_in.welcome.body().next().unwrap(), "be nice");
    }

    #[test]
    fn without_password_and_features() {
        let mut login = Login::new("anonymous", None, None);
        let (sent, result) = play(&mut login, &["220 ", "230 ok", "502 what?|200 ok"]);
        assert_eq!(sent, ["USER anonymous|", "FEAT|TYPE I|", ""]);
        assert_eq!(result.unwrap().unwrap().features, Features::default());
    }

    #[test]
    fn refusals() {
        let fail = |lines: &[&str]| {
            play(&mut Login::new("u", Some(Password::new("secret")), None), lines).1.unwrap_err()
        };
        let offline = "422 Service temporarily offline. Closing control connection.";
        assert!(matches!(fail(&[offline]), LoginError::Refused(reply) if reply.code() == 422));
        assert!(matches!(fail(&["421 Service busy"]), LoginError::Refused(reply) if reply.code() == 421));
        assert!(matches!(fail(&["500-Server configuration error.| x|500 End."]), LoginError::Refused(_)));
        let LoginError::Failed(failure) = fail(&["220 x", "331 x", "530 Login incorrect. : Invalid user."])
        else {
            panic!("another error");
        };
        assert_eq!((failure.command, failure.kind), ("PASS", FailureKind::Auth));
        assert!(matches!(
            fail(&["220 x", "530 no"]),
            LoginError::Failed(CommandFailure { command: "USER", .. })
        ));
        assert!(matches!(fail(&["220 x", "332 x"]), LoginError::AccountWanted(_)));
        assert!(matches!(fail(&["220 x", "331 x", "332 x"]), LoginError::AccountWanted(_)));
        assert!(matches!(
            fail(&["220 x", "331 x", "421 bye"]),
            LoginError::Failed(_) | LoginError::Closed(_)
        ));
        assert!(matches!(
            fail(&["220 x", "230 x", "211 none|504 no"]),
            LoginError::Failed(CommandFailure { command: "TYPE", .. })
        ));
        let wanted = play(&mut Login::new("u", None, None), &["220 x", "331 x"]).1;
        assert!(matches!(wanted, Err(LoginError::PasswordWanted { .. })));
        let smuggled = play(&mut Login::new("u\nDELE x", None, None), &["220 x"]).1;
        assert!(matches!(smuggled, Err(LoginError::Submit(SubmitError::Unprintable(_)))));
    }

    #[test]
    fn the_password_is_not_traced() {
        let mut session = Session::new(Limits::default());
        session.enable_trace();
        session.input(b"220 x\r\n331 x\r\n").unwrap();
        let login = &mut Login::new("u", Some(Password::new("secret")), None);
        login.advance(&mut session).unwrap();
        session.input(b"331 x\r\n").unwrap();
        login.advance(&mut session).unwrap();
        let lines: Vec<_> =
            std::iter::from_fn(|| session.poll_trace()).map(|l| (l.sent, l.line.to_string())).collect();
        assert!(lines.contains(&(true, "PASS ***".to_owned())), "{lines:?}");
        assert!(!format!("{lines:?} {login:?}").contains("secret"));
    }
}
