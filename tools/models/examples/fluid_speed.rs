//! Measures the speed of the fluid model: `fluid_speed [GROUPS] [SECONDS]`; the defaults are 10,000
//! groups and 10 simulated seconds.
//!
//! Groups of one connection with round-trip times of 10 to 200 ms and windows of 64 packets share a
//! bottleneck that half of them could fill. The program runs drop-tail and two configurations of
//! RED in turn, and prints simulated seconds per second, on one core.

use std::error::Error;
use std::time::Instant;

use ropewalk_models::fluid::{Coupling, Drop, Fluid, Group, Red, Scenario};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let groups: u32 = arguments.next().map_or(Ok(10_000), |text| text.parse())?;
    let seconds: f64 = arguments.next().map_or(Ok(10.0), |text| text.parse())?;
    let group = |i: u32| {
        let delay_ms = 10.0 + 190.0 * f64::from(i) / f64::from(groups.max(1));
        Group { connections: 1.0, delay_ms, window_limit: 64.0, window: 1.0 }
    };
    let groups: Vec<Group> = (0..groups).map(group).collect();
    let bandwidth = groups.iter().map(|group| group.window_limit / group.delay_ms).sum::<f64>() / 2.0;
    let queue_limit = 100.0 * bandwidth;
    // The weight of adaptive RED, with which the average follows the queue within a second, and the
    // original weight, which needs short steps here.
    let red =
        |weight| Drop::Red(Red { min: queue_limit / 8.0, max: queue_limit / 2.0, max_loss: 0.1, weight });
    let adaptive = -(-1.0 / (1000.0 * bandwidth)).exp_m1();
    for (name, drop) in [("drop-tail", Drop::Tail), ("RED", red(adaptive)), ("RED, weight 0.002", red(0.002))]
    {
        let (groups, coupling) = (groups.clone(), Coupling::Physical);
        let mut fluid =
            Fluid::new(Scenario { bandwidth, groups, queue_limit, drop, coupling, step_ms: None })?;
        let began = Instant::now();
        fluid.advance(1000.0 * seconds)?;
        let took = began.elapsed().as_secs_f64();
        let step = fluid.step_ms();
        println!(
            "{name}: steps of {step:.3} ms, {seconds} s in {took:.2} s: {:.2} x real time",
            seconds / took
        );
    }
    Ok(())
}
