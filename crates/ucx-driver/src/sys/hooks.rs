//! Keeps UCX from changing code of the C library.
//!
//! When UCX is loaded, it writes jumps to functions of its own over the first instructions of
//! `mmap`, `munmap`, and a few more. A thread that runs these instructions at that moment crashes
//! or hangs (openucx/ucx pull request 9148 narrowed the race, and says that it remains). UCX is
//! loaded when the driver is first used, and the program has many threads then.

use std::ffi::CStr;
use std::hint::black_box;

/// Where UCX looks for the way to notice that memory is unmapped.
const VARIABLE: &CStr = c"UCX_MEM_MMAP_HOOK_MODE";

/// The C library calls this function before `main`, when no other thread can read the environment.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = turn_off;

extern "C" fn turn_off() {
    // SAFETY: both strings end with a zero, and there are no other threads yet. A value that the
    // user has set stays.
    unsafe { libc::setenv(VARIABLE.as_ptr(), c"none".as_ptr(), 0) };
}

/// Keeps [`BEFORE_MAIN`] in the program: the linker drops statics to which nothing refers.
pub(super) fn link() {
    black_box(&raw const BEFORE_MAIN);
}
