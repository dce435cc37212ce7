// SPDX-License-Identifier: Apache-2.0
//! Chooses the role by argv alone: a runtime verb, or nri-runc's own verb `nri`.
//!
//! It does not use std's entry point, which would ignore SIGPIPE, open /dev/null on closed
//! descriptors and install signal stacks before `main`. The real runtime inherits dispositions and
//! descriptors, and must not be able to notice that nri-runc, not the engine, started it.
#![no_main]

use std::ffi::{CStr, OsStr, OsString, c_char, c_int};
use std::os::unix::ffi::OsStrExt;

#[global_allocator]
static ALLOCATOR: nri_runc::Allocator = nri_runc::Allocator::new();

/// The C entry point.
#[expect(unsafe_code, reason = "the C entry point has an unmangled name")]
// SAFETY: no other symbol of this program is called `main`.
#[unsafe(no_mangle)]
pub extern "C" fn main(argc: c_int, argv: *const *const c_char) -> c_int {
    let words = words_of(argc, argv);
    if words.get(1).is_some_and(|word| word == "nri") {
        nri_runc::run_admin(&words).into()
    } else {
        nri_runc::run_wrapper(&words).into()
    }
}

#[expect(unsafe_code, reason = "argv arrives as C pointers")]
fn words_of(argc: c_int, argv: *const *const c_char) -> Vec<OsString> {
    let count = usize::try_from(argc).unwrap_or(0);
    let mut words = Vec::with_capacity(count + 1);
    for index in 0..count {
        // SAFETY: the C runtime passes `argc` pointers at `argv`; index is below argc.
        let place = unsafe { argv.add(index) };
        // SAFETY: as above, so there is a pointer to read.
        let pointer = unsafe { *place };
        if pointer.is_null() {
            break;
        }
        // SAFETY: each of these pointers is a NUL-terminated string that lives as long as this
        // process.
        let word = unsafe { CStr::from_ptr(pointer) };
        words.push(OsStr::from_bytes(word.to_bytes()).to_owned());
    }
    words
}
