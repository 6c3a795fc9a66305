//! The client's side of a control connection: commands and bytes in, bytes and [`Event`]s out.

pub mod answer;
mod failure;
mod login;
mod session;
mod settings;

pub use failure::{CommandFailure, FailureKind};
pub use login::{ClientInfo, LoggedIn, Login, LoginError};
pub use session::{Event, Limits, Session, SessionError, SubmitError, Ticket, TraceLine};
pub use settings::{Change, Settings, SettingsTracker};
