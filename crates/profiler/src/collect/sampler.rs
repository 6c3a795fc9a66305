//! A thread that looks at something again and again.

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

pub(super) struct Sampler<T> {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<T>>,
}

impl<T: Send + 'static> Sampler<T> {
    /// Calls `look` once an interval, and a last time at the end.
    pub(super) fn start(
        name: &str,
        interval: Duration,
        mut state: T,
        look: impl Fn(&mut T) + Send + 'static,
    ) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel::<()>();
        let run = move || {
            let mut next = Instant::now() + interval;
            loop {
                let left = next.saturating_duration_since(Instant::now());
                let ended = stopped.recv_timeout(left) != Err(RecvTimeoutError::Timeout);
                look(&mut state);
                if ended {
                    return state;
                }
                // What was missed is not made up for.
                while next <= Instant::now() {
                    next += interval;
                }
            }
        };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(run)?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }

    /// Looks a last time and ends. `None` if the thread panicked.
    pub(super) fn finish(mut self) -> Option<T> {
        self.end()
    }
}

impl<T> Sampler<T> {
    fn end(&mut self) -> Option<T> {
        drop(self.stop.take());
        self.thread.take()?.join().ok()
    }
}

impl<T> Drop for Sampler<T> {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn it_looks_until_it_is_told_to_end_and_once_more() {
        let (told, heard) = mpsc::channel();
        let sampler = Sampler::start("test", Duration::from_millis(1), 0_u32, move |count| {
            *count += 1;
            // Nobody listens at the end.
            let _ = told.send(*count);
        })
        .unwrap();
        while heard.recv().unwrap() < 3 {}
        assert!(sampler.finish().unwrap() >= 4);
        let sampler = Sampler::start("test", Duration::from_secs(1000), 0, |count| *count += 1).unwrap();
        assert_eq!(sampler.finish(), Some(1));
    }
}
