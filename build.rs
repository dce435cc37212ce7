// SPDX-License-Identifier: Apache-2.0
//! Tells the linker where to put what a wrapper runs (`src/wrapper/hot.ld`). It generates nothing
//! and asks for nothing: the build needs no tool but Rust's.

fn main() {
    println!("cargo::rerun-if-changed=src/wrapper/hot.ld");
    let is_static = std::env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|env| env == "musl");
    // A wrapper's speed is measured on the release build; others keep their usual layout.
    let is_release = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    if is_static && is_release {
        let dir = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
        println!("cargo::rustc-link-arg-bins=-Wl,-T,{dir}/src/wrapper/hot.ld");
    }
}
