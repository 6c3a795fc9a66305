//! Compares the model in time with the algebraic one, and tests which scenarios it refuses.
#![allow(clippy::unwrap_used)]

use ropewalk_models::fluid::{Coupling, Drop, Fluid, FluidError, Group, Red, Scenario, equilibrium};
use ropewalk_tuning::model::{self, Path};

const BANDWIDTH: f64 = 25.0 / 3.0;
const GENTLE: Red = Red { min: 0.0, max: 800.0, max_loss: 0.05, weight: 0.002 };

fn group(connections: f64, delay_ms: f64) -> Group {
    Group { connections, delay_ms, window_limit: 1e9, window: 2.0 }
}

fn red(groups: Vec<Group>) -> Scenario {
    let (drop, coupling) = (Drop::Red(GENTLE), Coupling::Paper);
    Scenario { bandwidth: BANDWIDTH, groups, queue_limit: 5000.0, drop, coupling, step_ms: None }
}

fn tail(groups: Vec<Group>, queue_limit: f64) -> Scenario {
    let coupling = Coupling::Physical;
    Scenario { bandwidth: BANDWIDTH, groups, queue_limit, drop: Drop::Tail, coupling, step_ms: None }
}

fn close(a: f64, b: f64, relative: f64) -> bool {
    (a - b).abs() <= relative * b.abs().max(1e-9)
}

/// With the paper's queue the loss in equilibrium is Eq (7) at the round-trip time including the
/// queue.
#[test]
fn fluid_with_red_settles_at_equation_7() {
    let mut fluid = Fluid::new(red(vec![group(60.0, 100.0)])).unwrap();
    fluid.advance(20_000.0).unwrap();
    let state = fluid.state();
    let rtt = 100.0 + state.queue / BANDWIDTH;
    let (loss, window) = model::saturated_loss(BANDWIDTH, rtt, 60).unwrap();
    assert!(close(state.loss, loss, 1e-6) && close(state.windows[0], window, 1e-6), "{state:?}");
    let rest = equilibrium(&red(vec![group(60.0, 100.0)])).unwrap().unwrap();
    assert!(close(state.queue, rest.queue, 1e-6) && close(state.goodput, rest.goodput, 1e-6), "{rest:?}");
}

/// With a real queue the equilibrium is the physical variant, with the full queue in the round-trip
/// time.
#[test]
fn fluid_with_drop_tail_settles_at_physical_variant() {
    let mut fluid = Fluid::new(tail(vec![group(30.0, 20.0)], 50.0)).unwrap();
    fluid.advance(2_000.0).unwrap();
    let state = fluid.state();
    let path = Path::new(BANDWIDTH, 20.0 + 50.0 / BANDWIDTH, 1e9).unwrap();
    let steady = model::physical(&path, 30).unwrap();
    assert!(close(state.loss, steady.loss, 1e-6), "{state:?} {steady:?}");
    assert_eq!(state.goodput, BANDWIDTH);
    let rest = equilibrium(&tail(vec![group(30.0, 20.0)], 50.0)).unwrap().unwrap();
    assert!(close(rest.loss, steady.loss, 1e-9) && rest.queue == 50.0);
}

/// Limited windows that fill the link cause a queue without loss.
#[test]
fn fluid_with_limited_windows_fills_link_without_loss() {
    let groups = vec![Group { window_limit: 40.0, ..group(25.0, 100.0) }];
    let mut fluid = Fluid::new(tail(groups.clone(), 500.0)).unwrap();
    fluid.advance(20_000.0).unwrap();
    let (state, rest) = (fluid.state(), equilibrium(&tail(groups, 500.0)).unwrap().unwrap());
    assert_eq!((state.windows[0], state.loss, rest.loss), (40.0, 0.0, 0.0));
    assert!(
        close(state.queue, 25.0 * 40.0 - 100.0 * BANDWIDTH, 1e-3) && close(rest.queue, state.queue, 1e-3)
    );
}

#[test]
fn fluid_with_smaller_step_changes_little() {
    let end = |step_ms| {
        let groups = vec![group(20.0, 50.0), group(20.0, 150.0)];
        let mut fluid = Fluid::new(Scenario { step_ms, ..red(groups) }).unwrap();
        fluid.advance(3_000.0).unwrap();
        fluid.state()
    };
    let (chosen, fine) = (end(None), end(Some(0.1)));
    assert!(close(chosen.queue, fine.queue, 2e-5), "{} {}", chosen.queue, fine.queue);
    assert!(
        close(chosen.windows[0], fine.windows[0], 1e-5) && close(chosen.windows[1], fine.windows[1], 1e-5)
    );
}

/// A step longer than the shortest delay is replaced by that delay, also for the memory of past
/// windows and the amount of work.
#[test]
fn fluid_with_step_above_shortest_delay_uses_delay() {
    let end = |step_ms| {
        let groups = vec![group(20.0, 1.0), group(20.0, 150.0)];
        let mut fluid = Fluid::new(Scenario { step_ms: Some(step_ms), ..tail(groups, 100.0) }).unwrap();
        fluid.advance(3_000.0).unwrap();
        (fluid.step_ms(), fluid.state())
    };
    assert_eq!(end(20.0), end(1.0));
    let short = Scenario { step_ms: Some(100.0), ..tail(vec![group(1.0, 0.001)], 100.0) };
    assert_eq!(short.step(), 0.001);
    assert!(matches!(short.check_length(36e6), Err(FluidError::TooLong { .. })));
}

/// The slope of the paper's own RED is too steep, so that the loop does not settle.
#[test]
fn fluid_with_steep_red_oscillates() {
    let steep = Red { min: 25.0, max: 75.0, max_loss: 0.1, weight: 0.002 };
    let mut fluid = Fluid::new(Scenario { drop: Drop::Red(steep), ..red(vec![group(60.0, 100.0)]) }).unwrap();
    let (mut low, mut high) = (f64::INFINITY, 0.0_f64);
    for tenth in 100..300_u32 {
        fluid.advance(f64::from(tenth) * 100.0).unwrap();
        let queue = fluid.state().queue;
        (low, high) = (low.min(queue), high.max(queue));
    }
    assert!(low < 5.0 && high > 45.0, "{low} {high}");
}

/// Few connections on a fast path: loss and window at a full queue are a stiff system.
#[test]
fn fluid_one_connection_on_fast_path_stays_finite() {
    let scenario =
        Scenario { bandwidth: 833.3, ..tail(vec![Group { window: 80_000.0, ..group(1.0, 100.0) }], 8000.0) };
    let mut fluid = Fluid::new(scenario).unwrap();
    assert!(fluid.step_ms() < 0.01);
    fluid.advance(500.0).unwrap();
    let state = fluid.state();
    assert!(state.loss < 1e-3 && state.windows[0] > 80_000.0 && state.windows[0] < 100_000.0, "{state:?}");
}

#[test]
fn fluid_with_invalid_scenario_fails() {
    let good = || tail(vec![group(1.0, 10.0)], 10.0);
    let refused = |scenario: Scenario| match Fluid::new(scenario) {
        Ok(_) => String::new(),
        Err(error) => error.to_string(),
    };
    for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(refused(Scenario { bandwidth: bad, ..good() }).starts_with("bandwidth is "), "{bad}");
        assert!(refused(Scenario { step_ms: Some(bad), ..good() }).starts_with("step is "), "{bad}");
        let groups = vec![group(1.0, 10.0), group(bad, 10.0)];
        assert!(refused(Scenario { groups, ..good() }).starts_with("group 2: number of connections is "));
        let groups = vec![group(1.0, bad)];
        assert!(refused(Scenario { groups, ..good() }).starts_with("group 1: delay is "));
        let groups = vec![Group { window_limit: bad, ..group(1.0, 1.0) }];
        assert!(refused(Scenario { groups, ..good() }).starts_with("group 1: largest window is "));
        let groups = vec![Group { window: bad, ..group(1.0, 1.0) }];
        assert!(refused(Scenario { groups, ..good() }).starts_with("group 1: first window is "));
        if bad != 0.0 {
            assert!(refused(Scenario { queue_limit: bad, ..good() }).starts_with("queue is "), "{bad}");
        }
    }
    assert!(refused(Scenario { groups: vec![], ..good() }).starts_with("there are no groups"));
    assert!(refused(Scenario { coupling: Coupling::Paper, ..good() }).contains("needs a RED queue"));
    let turned = Drop::Red(Red { min: 75.0, max: 25.0, ..GENTLE });
    assert!(refused(Scenario { drop: turned, ..good() }).contains("expected the second above the first"));
    assert!(refused(Scenario { queue_limit: 1e11, ..good() }).contains("too much to remember"));
    let mut fluid = Fluid::new(good()).unwrap();
    assert!(matches!(fluid.advance(1e12), Err(FluidError::TooLong { .. })));
    assert!(matches!(fluid.advance(f64::NAN), Err(FluidError::Parameter(_))));
    fluid.advance(100.0).unwrap();
    fluid.advance(50.0).unwrap();
    assert!((fluid.time_ms() - 100.0).abs() <= fluid.step_ms());
}
