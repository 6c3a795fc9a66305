//! From a stack string and the security of a session to the driver for its data connections, for
//! clients and servers alike.
//!
//! A stack has one driver. Above it come the data key, the session's own security, and the other
//! layers in the order of the stack string. The order of `gsi` in the string is not significant:
//! GCT's own tests use both orders. The policy is checked on the finished stack, whatever the
//! string and the session have put into it.

use std::net::IpAddr;
use std::sync::Arc;

use ropewalk_protocol::command::{DataAuthentication, Protection};
use ropewalk_protocol::stack::{DriverSpec, StackSpec};
use ropewalk_transport::{Driver, Options};

use crate::registry::{GSI, Part};
use crate::{Assurance, KeyLayer, Layer, LayeredDriver, Registry};

/// The security of a session's data connections.
#[derive(Default)]
pub struct SessionSecurity {
    /// SITE DATAKEY.
    pub key: Option<Arc<KeyLayer>>,
    /// GSI, Kerberos or TLS.
    pub layer: Option<Arc<dyn Layer>>,
    /// The address of the peer that is expected, see [`LayeredDriver::sparing`].
    pub peer: Option<IpAddr>,
}

/// The properties that the connections of a stack must have. The default is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// See [`Assurance::protected`]. Such data is also bound. A driver that encrypts protects its
    /// connections if they have a data key, which proves that no one is between the two ends.
    pub protected: bool,
    /// See [`Assurance::bound`].
    pub bound: bool,
}

/// The reason for which there is no such stack. The texts follow `globus_xio: Bad parameter, `.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StackError {
    #[error("{0} driver not whitelisted")]
    NotAllowed(String),
    #[error("{0} driver is there twice")]
    Twice(String),
    #[error("{0} driver cannot be used together with another transport")]
    TwoTransports(String),
    #[error("{0} driver cannot use the control port")]
    OnePort(String),
    #[error("{driver} option {option} is not supported")]
    Option { driver: String, option: String },
    #[error("gsi driver needs AUTH GSSAPI and DCAU A or S")]
    NoGsi,
}

/// The reason for which a session cannot have a data channel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error(transparent)]
    Stack(#[from] StackError),
    #[error("data connections have to be protected")]
    NotProtected,
    /// The driver of this name encrypts, but its connections have no data key.
    #[error("data connections over {0} have to have a data key")]
    NoKey(&'static str),
    #[error("data connections have to be authenticated or bound to their session")]
    NotBound,
}

/// Makes stacks for the data channels of a session.
pub struct StackBuilder<'a> {
    registry: &'a Registry,
    allowed: Option<&'a [String]>,
    gsi: Option<GsiOptions>,
    /// In place of the driver of its name.
    base: Option<Arc<dyn Driver>>,
}

/// The options of `gsi` that describe the session's data connections.
struct GsiOptions {
    with_self: bool,
    protection: Protection,
}

/// A driver with its layers, and the options that the stack string has for the driver.
pub struct Stack {
    pub driver: Arc<dyn Driver>,
    pub options: Options,
}

/// The parts that a stack string names.
struct Parts {
    driver: Arc<dyn Driver>,
    options: Options,
    layers: Vec<Arc<dyn Layer>>,
}

impl<'a> StackBuilder<'a> {
    pub fn new(registry: &'a Registry) -> Self {
        Self { registry, allowed: None, gsi: None, base: None }
    }

    /// Allows only drivers and layers of these names. Stacks that no string names are not
    /// restricted.
    #[must_use]
    pub fn allowing(self, names: &'a [String]) -> Self {
        Self { allowed: Some(names), ..self }
    }

    /// Sets DCAU and PROT of the session's data connections. Without DCAU, the stack cannot have
    /// `gsi`.
    #[must_use]
    pub fn with_gsi(self, authentication: &DataAuthentication, protection: Protection) -> Self {
        let gsi = (*authentication != DataAuthentication::None).then(|| GsiOptions {
            with_self: *authentication == DataAuthentication::SelfAuthentication,
            protection,
        });
        Self { gsi, ..self }
    }

    /// Uses `driver` in place of the driver of its name, whose options it takes. Stacks of another
    /// driver are refused.
    #[must_use]
    pub fn over(self, driver: Arc<dyn Driver>) -> Self {
        Self { base: Some(driver), ..self }
    }

    /// Checks whether there is such a stack, without the security of a session.
    ///
    /// # Errors
    /// The stack names a driver that does not exist or is not allowed, an option that its driver
    /// does not have, or `gsi` with other properties than those of the session.
    pub fn check(&self, spec: &StackSpec) -> Result<(), StackError> {
        self.parts(spec).map(drop)
    }

    /// Makes the stack; without `spec`, that of the default driver.
    ///
    /// # Errors
    /// As for [`StackBuilder::check`], or the stack does not have what the policy requires.
    pub fn build(
        &self,
        spec: Option<&StackSpec>,
        security: SessionSecurity,
        policy: Policy,
    ) -> Result<Stack, Refusal> {
        let parts = match spec {
            Some(spec) => self.parts(spec)?,
            None => self.bare(),
        };
        let SessionSecurity { key, layer, peer } = security;
        let has_key = key.is_some();
        let key = key.map(|key| key as Arc<dyn Layer>);
        let layers: Vec<Arc<dyn Layer>> = key.into_iter().chain(layer).chain(parts.layers).collect();
        policy.check(&*parts.driver, has_key, &layers)?;
        let driver = layers.into_iter().fold(parts.driver, |driver, layer| {
            let driver = LayeredDriver::new(driver, layer);
            Arc::new(match peer {
                Some(peer) => driver.sparing(peer),
                None => driver,
            })
        });
        Ok(Stack { driver, options: parts.options })
    }

    fn bare(&self) -> Parts {
        let driver = self.base.clone().unwrap_or_else(|| self.registry.default_driver());
        Parts { driver, options: Options::default(), layers: Vec::new() }
    }

    fn parts(&self, spec: &StackSpec) -> Result<Parts, StackError> {
        let mut parts = self.bare();
        let mut has_driver = false;
        for (at, driver) in spec.drivers().iter().enumerate() {
            let name = || driver.name().to_owned();
            let allowed = self.allowed.is_none_or(|names| names.iter().any(|name| name == driver.name()));
            if !allowed || !self.registry.has(driver.name()) {
                return Err(StackError::NotAllowed(name()));
            }
            let refused = |option: String| StackError::Option { driver: name(), option };
            let part = match driver.name() {
                GSI => self.check_gsi(driver).map(|()| None)?,
                _ => self.registry.part(driver).map_err(refused)?,
            };
            if spec.drivers()[..at].iter().any(|before| before.name() == driver.name()) {
                return Err(StackError::Twice(name()));
            }
            match part {
                Some(Part::Driver(..)) if has_driver => return Err(StackError::TwoTransports(name())),
                Some(Part::Driver(driver, options)) => {
                    let driver = match &self.base {
                        None => driver,
                        Some(base) if base.name() == driver.name() => Arc::clone(base),
                        Some(_) => return Err(StackError::OnePort(name())),
                    };
                    (parts.driver, parts.options, has_driver) = (driver, options, true);
                }
                Some(Part::Layer(layer)) => parts.layers.push(layer),
                None => {}
            }
        }
        Ok(parts)
    }

    /// `gsi` describes what DCAU and PROT have set, and changes nothing.
    fn check_gsi(&self, spec: &DriverSpec) -> Result<(), StackError> {
        let gsi = self.gsi.as_ref().ok_or(StackError::NoGsi)?;
        for option in spec.options() {
            let value = option.value().to_ascii_lowercase();
            let holds = match (option.key().as_str(), value.as_slice()) {
                ("auth", b"self") => gsi.with_self,
                ("protection", b"none") => gsi.protection == Protection::Clear,
                ("protection", b"integrity") => gsi.protection == Protection::Safe,
                ("protection", b"private") => gsi.protection == Protection::Private,
                _ => false,
            };
            if !holds {
                return Err(StackError::Option { driver: GSI.to_owned(), option: option.to_string() });
            }
        }
        Ok(())
    }
}

impl Policy {
    fn check(self, driver: &dyn Driver, has_key: bool, layers: &[Arc<dyn Layer>]) -> Result<(), Refusal> {
        let has = |which: fn(Assurance) -> bool| layers.iter().any(|layer| which(layer.assurance()));
        let (bound, protected) = (has(|assured| assured.bound), has(|assured| assured.protected));
        if self.protected && !(protected && bound) {
            match driver.encrypts() {
                true if has_key => {}
                true => return Err(Refusal::NoKey(driver.name())),
                false => return Err(Refusal::NotProtected),
            }
        }
        if self.bound && !bound {
            return Err(Refusal::NotBound);
        }
        Ok(())
    }
}

impl Stack {
    /// Overrides the options of a channel with those that the stack string names.
    pub fn apply(&self, options: &mut Options) {
        let (own, tuning) = (&self.options.tuning, &mut options.tuning);
        tuning.send_buffer = own.send_buffer.or(tuning.send_buffer);
        tuning.receive_buffer = own.receive_buffer.or(tuning.receive_buffer);
        self.apply_protocol(options);
    }

    /// As [`Stack::apply`], for a host that decides about buffers itself.
    pub fn apply_protocol(&self, options: &mut Options) {
        let own = &self.options;
        if own.tuning.congestion.is_some() {
            options.tuning.congestion.clone_from(&own.tuning.congestion);
        }
        options.packet_size = own.packet_size.or(options.packet_size);
        options.packet_window = own.packet_window.or(options.packet_window);
    }
}
