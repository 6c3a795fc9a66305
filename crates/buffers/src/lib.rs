//! Socket buffers of a host, managed like the *buffer size negotiator* of Jeong et al., "A Study on
//! TCP Buffer Management Algorithm for Improvement of Network Performance in Grid Environment"
//! (ICCS 2004).
//!
//! - [`Analyzer`], their *traffic analyzer*: lists the TCP connections of the network namespace
//!   (sock_diag(7)), the programs that own them (proc(5)), and the buffer that each could use
//!   ([`Measure`]).
//! - [`Snapshot`], their *information provider*: as JSON through serde.
//! - [`Negotiator`]: divides a budget by one of the policies of `ropewalk_tuning::buffers`, and
//!   sets the buffers of other programs' sockets through pidfd_getfd(2). A [`Ledger`] records the
//!   original sizes, so that all changes can be undone.
//! - [`Keeper`]: does the same for the connections of its own process.
//!
//! Sizes are in bytes of payload unless a name contains *kernel*: the kernel doubles the size that
//! setsockopt(2) requests, as room for its bookkeeping, and counts and shows the doubled size
//! (socket(7)).

mod analyzer;
mod budget;
mod demand;
mod flow;
mod keeper;
mod ledger;
mod negotiator;
mod owners;
mod rule;
mod socket;
#[allow(unsafe_code)]
mod sys;

pub use analyzer::{AnalyzeError, Analyzer};
pub use budget::{BudgetError, LEAST_BUDGET, check_budget, default_budget, tcp_memory};
pub use demand::{Measure, MeasureName, Past};
pub use flow::{Direction, Filter, Flow, LimitedBy, Owner, SCHEMA, Snapshot};
pub use keeper::{Division, Keeper, Kept};
pub use ledger::{Entry, Ledger, LedgerError};
pub use negotiator::{Action, Decision, Left, Negotiator, Reach, Round, RoundError, Turned};
pub use owners::runs;
pub use rule::{Rule, RuleName};
pub use socket::{Applied, Before, GiveBack, SocketError, Taken};
