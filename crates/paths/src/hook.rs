//! The provider that runs a program, or posts to an HTTP endpoint, for each event.
//!
//! A program gets the name of the event as its argument, and the event as one JSON object on
//! standard input. It answers with a JSON object on standard output, or with nothing. It fails by
//! an exit status other than 0; what it wrote to standard error is then the reason. An endpoint
//! gets the object as a POST, and fails by a status other than 2xx. docs/paths.md has all members.

mod call;

use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use call::{HookError, Target};

use crate::{Answer, Binding, Limits, Order, Outcome, Provider, State, Step};

/// The time limit of one event.
const LIMIT: Duration = Duration::from_secs(30);

/// A hook as a provider of paths.
#[derive(Debug)]
pub struct Hook {
    target: Target,
    reference: Option<String>,
    /// The state that the last step has led to, for hooks that do not answer a query.
    last: State,
}

/// An event of the life of a path.
#[derive(Debug, Serialize)]
struct PathEvent<'a> {
    event: &'static str,
    id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reference: Option<&'a str>,
    /// Seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<u64>,
    until: u64,
    /// Bits per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    capacity: Option<u64>,
    description: &'a str,
}

/// The answer to an event of the life of a path. All members may be missing.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PathReply {
    status: Option<Status>,
    reference: Option<String>,
    message: Option<String>,
    binding: Option<Wanted>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    /// The result is not there yet: it is queried.
    Pending,
    Held,
    Reserved,
    Up,
    Failed,
    Gone,
}

/// [`Binding`], with a capacity as people write it.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Wanted {
    address: Option<std::net::IpAddr>,
    interface: Option<String>,
    capacity: Option<Value>,
    mtu: Option<u32>,
}

impl Hook {
    pub fn new(target: Target) -> Self {
        Self { target, reference: None, last: State::Reserved }
    }

    fn call(&self, order: &Order) -> Result<PathReply, HookError> {
        let event = PathEvent {
            event: order.step.name(),
            id: order.id.as_str(),
            reference: order.reference.as_deref(),
            from: order.request.from.map(|from| from.as_secs()),
            until: order.request.until.as_secs(),
            capacity: order.request.capacity,
            description: &order.request.description,
        };
        let reply = self.target.call(order.step.name(), &event, LIMIT)?;
        Ok(reply.unwrap_or_default())
    }

    fn state(&mut self, step: Step, reply: PathReply) -> Result<Outcome, String> {
        let PathReply { status, message, binding, .. } = reply;
        let binding = binding.map(Wanted::into_binding).transpose()?;
        let usual = match step {
            Step::Hold => State::Held,
            Step::Commit | Step::Release => State::Reserved,
            Step::Activate => State::Up(binding.clone().unwrap_or_default()),
            Step::Abort | Step::Terminate => State::Gone,
            Step::Query | Step::Extend | Step::QueryExtension => self.last.clone(),
        };
        let state = match status {
            None => usual,
            Some(Status::Pending) if step == Step::Query => State::Checking,
            Some(Status::Pending) if step == Step::Activate => State::Activated,
            Some(Status::Pending) => return Ok(Outcome::Accepted),
            Some(Status::Held) => State::Held,
            Some(Status::Reserved) => State::Reserved,
            Some(Status::Up) => match (binding, &self.last) {
                (Some(binding), _) => State::Up(binding),
                (None, State::Up(binding)) => State::Up(binding.clone()),
                (None, _) => State::Up(Binding::default()),
            },
            Some(Status::Failed) => {
                State::Failed(message.unwrap_or_else(|| "the hook reports a failure".into()))
            }
            Some(Status::Gone) => State::Gone,
        };
        self.last = state.clone();
        Ok(Outcome::State(state))
    }
}

impl Provider for Hook {
    fn limits(&self) -> Limits {
        Limits { pause: Duration::from_secs(2), ..Limits::default() }
    }

    fn send(&mut self, order: &Order) -> Outcome {
        if matches!(order.step, Step::Extend | Step::QueryExtension) {
            return Outcome::not_extendable();
        }
        match self.call(order) {
            Ok(mut reply) => {
                if order.step == Step::Hold {
                    // A hook need not have names of its own.
                    self.reference = reply.reference.take().or_else(|| Some(order.id.to_string()));
                }
                self.state(order.step, reply)
                    .unwrap_or_else(|why| Outcome::Refused(format!("{}: {why}", self.target)))
            }
            Err(error @ HookError::NotStarted { .. }) => Outcome::NotSent(error.to_string()),
            Err(error @ (HookError::Silent { .. } | HookError::Lost { .. })) => {
                Outcome::Unclear(error.to_string())
            }
            Err(error @ (HookError::Failed { .. } | HookError::Answer { .. })) => {
                Outcome::Refused(error.to_string())
            }
        }
    }

    fn receive(&mut self, limit: Duration) -> Option<Answer> {
        // All answers come at once.
        std::thread::sleep(limit);
        None
    }

    fn reference(&self) -> Option<String> {
        self.reference.clone()
    }
}

impl Wanted {
    fn into_binding(self) -> Result<Binding, String> {
        let capacity = match self.capacity {
            None | Some(Value::Null) => None,
            Some(Value::Number(bits)) => Some(
                bits.as_u64().filter(|bits| *bits > 0).ok_or("capacity: expected bits per second above 0")?,
            ),
            Some(Value::String(text)) => {
                let rate = ropewalk_units::read::rate(&text).map(|bytes| (bytes * 8.0) as u64);
                Some(
                    rate.filter(|bits| *bits > 0)
                        .ok_or_else(|| format!("capacity: {text:?} is not a rate"))?,
                )
            }
            Some(other) => return Err(format!("capacity: {other} is not a rate")),
        };
        Ok(Binding { address: self.address, interface: self.interface, capacity, mtu: self.mtu })
    }
}

/// Reads the contact string of an endpoint (`192.0.2.1:50000`, `[2001:db8::1]:50000`).
pub(crate) fn contact(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| format!("{text:?} is not an address with a port"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{Id, Request};

    fn order(step: Step) -> Order {
        let request = Request {
            from: None,
            until: Duration::from_secs(2_000_000_000),
            capacity: Some(1_000_000),
            description: "a to b".to_owned(),
        };
        Order { id: Id::random(), number: 1, step, reference: None, request }
    }

    fn hook(script: &str) -> Hook {
        Hook::new(Target::Program(["sh", "-c", script].map(str::to_owned).to_vec()))
    }

    #[test]
    fn silent_hook_leads_through_the_usual_states() {
        let mut hook = hook("true");
        for (step, state) in [
            (Step::Hold, State::Held),
            (Step::Commit, State::Reserved),
            (Step::Activate, State::Up(Binding::default())),
            (Step::Query, State::Up(Binding::default())),
            (Step::Release, State::Reserved),
            (Step::Terminate, State::Gone),
        ] {
            assert_eq!(hook.send(&order(step)), Outcome::State(state), "{step:?}");
        }
        assert!(hook.reference().is_some());
    }

    #[test]
    fn hook_answers_with_binding_and_capacity() {
        let reply = r#"echo '{"binding":{"address":"127.0.0.2","interface":"eth1","capacity":"5Gbit/s","mtu":9000}}'"#;
        let binding = Binding {
            address: Some("127.0.0.2".parse().unwrap()),
            interface: Some("eth1".to_owned()),
            capacity: Some(5_000_000_000),
            mtu: Some(9000),
        };
        assert_eq!(hook(reply).send(&order(Step::Activate)), Outcome::State(State::Up(binding)));
    }

    #[test]
    fn hook_that_fails_is_refused_with_its_own_words() {
        let outcome = hook("echo no circuit >&2; exit 3").send(&order(Step::Hold));
        let Outcome::Refused(why) = outcome else { panic!("{outcome:?}") };
        assert!(why.contains("exit status: 3: no circuit"), "{why}");
        for (script, text) in [
            ("echo nonsense", "expected a JSON object"),
            (r#"echo '{"binding":{"capacity":"fast"}}'"#, "\"fast\" is not a rate"),
            (r#"echo '{"binding":{"address":"here"}}'"#, "address"),
            ("head -c 200000 /dev/zero", "longer than"),
        ] {
            let outcome = hook(script).send(&order(Step::Activate));
            let Outcome::Refused(why) = outcome else { panic!("{script}: {outcome:?}") };
            assert!(why.contains(text), "{script}: {why}");
        }
        let missing = Hook::new(Target::Program(vec!["/nowhere/hook".to_owned()])).send(&order(Step::Hold));
        assert!(matches!(missing, Outcome::NotSent(_)), "{missing:?}");
    }

    #[test]
    fn program_gets_the_event_as_argument_and_as_json() {
        let mut hook = Hook::new(Target::Program(
            ["sh", "-c", r#"read -r event; echo "{\"reference\":\"$0 ${#event}\"}""#]
                .map(str::to_owned)
                .to_vec(),
        ));
        hook.send(&order(Step::Hold));
        let reference = hook.reference().unwrap();
        assert!(reference.starts_with("hold 1"), "{reference}");
    }
}
