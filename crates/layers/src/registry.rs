//! The drivers and layers that stack strings can name.
//!
//! A registry is made once for each process and shared by its sessions. It knows names, options and
//! constructors, and nothing of users: which of the drivers a client may use is the decision of
//! [`StackBuilder`](crate::StackBuilder).

use std::sync::Arc;

use ropewalk_protocol::stack::{DriverOption, DriverSpec, StackSpec};
use ropewalk_transport::{Driver, Managed, NetManager, Options, Tcp};
use ropewalk_udt_driver::Udt;

use crate::{Layer, QuicPort, RateLayer};

/// The name of the layer that authenticates data connections, which a session makes by itself
/// (DCAU, PROT).
pub(crate) const GSI: &str = "gsi";

/// Makes a layer from the options of a stack string.
///
/// # Errors
/// Returns the key of an option that the layer does not have, or whose value it cannot take.
pub type MakeLayer = fn(&[DriverOption]) -> Result<Arc<dyn Layer>, String>;

/// Drivers and layers by name.
pub struct Registry {
    /// The first is used for stacks without a driver.
    drivers: Vec<Arc<dyn Driver>>,
    layers: Vec<(&'static str, MakeLayer)>,
}

/// An entry of the registry with the options of a stack string.
pub(crate) enum Part {
    Driver(Arc<dyn Driver>, Options),
    Layer(Arc<dyn Layer>),
}

impl Registry {
    /// A registry with one driver, which stacks without another one use.
    pub fn new(driver: Arc<dyn Driver>) -> Self {
        Self { drivers: vec![driver], layers: Vec::new() }
    }

    /// All drivers and layers of this program.
    pub fn standard() -> Self {
        Self::standard_at(None)
    }

    /// As [`Registry::standard`]; channels over QUIC that have a token listen at `quic`.
    #[cfg_attr(not(feature = "quic"), allow(unused_variables, clippy::needless_pass_by_value))]
    pub fn standard_at(quic: Option<QuicPort>) -> Self {
        let drivers = Self::new(Arc::new(Tcp)).with_driver(Arc::new(Udt));
        #[cfg(feature = "quic")]
        let drivers = drivers.with_driver(Arc::new(match quic {
            Some(quic) => ropewalk_quic_driver::Quic::at(quic.port),
            None => ropewalk_quic_driver::Quic::default(),
        }));
        #[cfg(feature = "ucx")]
        let drivers = drivers.with_driver(Arc::new(ropewalk_ucx_driver::Ucx::default()));
        drivers.with_layer(RateLayer::NAME, RateLayer::parse)
    }

    #[must_use]
    pub fn with_driver(mut self, driver: Arc<dyn Driver>) -> Self {
        self.drivers.push(driver);
        self
    }

    /// Reports each step of the drivers' connections to this manager.
    #[must_use]
    pub fn managed(mut self, manager: &Arc<dyn NetManager>) -> Self {
        for driver in &mut self.drivers {
            *driver = Arc::new(Managed::new(Arc::clone(driver), Arc::clone(manager)));
        }
        self
    }

    #[must_use]
    pub fn with_layer(mut self, name: &'static str, make: MakeLayer) -> Self {
        self.layers.push((name, make));
        self
    }

    /// The names that stack strings can have.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        let drivers = self.drivers.iter().map(|driver| driver.name());
        drivers.chain([GSI]).chain(self.layers.iter().map(|(name, _)| *name))
    }

    pub fn has(&self, name: &str) -> bool {
        self.names().any(|known| known == name)
    }

    /// Whether the name is that of a driver, not of a layer.
    pub fn has_driver(&self, name: &str) -> bool {
        self.drivers.iter().any(|driver| driver.name() == name)
    }

    /// The names of the drivers that encrypt.
    pub fn encrypting(&self) -> impl Iterator<Item = &'static str> {
        self.drivers.iter().filter(|driver| driver.encrypts()).map(|driver| driver.name())
    }

    /// The driver of stacks that name none.
    pub fn default_driver(&self) -> Arc<dyn Driver> {
        Arc::clone(&self.drivers[0])
    }

    /// The driver of a stack: the one that it names, or the default.
    pub fn driver_of(&self, stack: Option<&StackSpec>) -> Arc<dyn Driver> {
        let mut named = stack.into_iter().flat_map(StackSpec::drivers);
        let named = named.find_map(|spec| self.drivers.iter().find(|driver| driver.name() == spec.name()));
        named.map_or_else(|| self.default_driver(), Arc::clone)
    }

    /// Returns the part of this name; `None` if there is none.
    ///
    /// # Errors
    /// Returns the key of an option that the part does not have.
    pub(crate) fn part(&self, spec: &DriverSpec) -> Result<Option<Part>, String> {
        if let Some(driver) = self.drivers.iter().find(|driver| driver.name() == spec.name()) {
            let mut options = Options::default();
            for option in spec.options() {
                let key = option.key();
                if !driver.read_option(&key, option.value(), &mut options) {
                    return Err(key);
                }
            }
            return Ok(Some(Part::Driver(Arc::clone(driver), options)));
        }
        match self.layers.iter().find(|(name, _)| *name == spec.name()) {
            Some((_, make)) => make(spec.options()).map(|layer| Some(Part::Layer(layer))),
            None => Ok(None),
        }
    }
}
