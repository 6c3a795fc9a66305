//! What the host knows of a session.

use std::net::SocketAddr;
use std::sync::Arc;

use bstr::BString;
use ropewalk_protocol::server::Failure;

use crate::accounts::Login;
use crate::gsi;
use crate::operations::Channel;
use crate::settings::Settings;

pub(crate) struct Context {
    pub(crate) id: u64,
    /// The client's end of the control connection; IPv4 as IPv4 even through an IPv6 socket.
    pub(crate) peer: SocketAddr,
    /// Our end of it.
    pub(crate) local: SocketAddr,
    pub(crate) settings: Arc<Settings>,
    pub(crate) login: Option<Box<Login>>,
    pub(crate) channel: Option<Box<Channel>>,
    /// SITE TASKID.
    pub(crate) task: Option<BString>,
    /// What is known of the client by its certificate.
    pub(crate) client: Box<gsi::Client>,
}

impl Context {
    pub(crate) fn login(&self) -> Result<&Login, Failure> {
        let refused = || Failure::Refused { code: 530, text: "Please login with USER and PASS.".into() };
        self.login.as_deref().ok_or_else(refused)
    }

    /// The name for logs.
    pub(crate) fn user(&self) -> &str {
        self.login.as_ref().map_or("-", |login| &login.account.name)
    }
}
