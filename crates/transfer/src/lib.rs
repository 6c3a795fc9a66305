//! The life of a file from submitted to done, for downloads, uploads and third-party transfers.
//!
//! A [`Pipeline`] keeps the files that are in flight over one session, or over a pair of them:
//! their commands, the replies that are due, and the phase of each file. It does no I/O and reads
//! no clock: the driver passes replies and the outcome of data transfers in, sends the commands
//! that come out, and acts on the outcomes that [`Pipeline::poll`] returns. One thread owns a
//! pipeline; several pipelines may move ranges of one file, whose [`Ledger`] they share.
//!
//! For every order of replies, refusals and lost sessions, no file gets its name before its server
//! has confirmed it and every file whose data travelled before it, and no file is blamed for the
//! failure of another one.

#![forbid(unsafe_code)]

mod ledger;
mod pipeline;
mod purpose;
mod side;
mod slot;

pub use ledger::Ledger;
pub use pipeline::{Behind, Heard, Left, Lost, Outcome, Outgoing, Pipeline, Route, Site};
pub use purpose::Purpose;
pub use side::{Side, Sides};
pub use slot::{Arrival, Checks, Failure, File, Moved, Slot, Submission};
