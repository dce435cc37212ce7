// SPDX-License-Identifier: Apache-2.0
//! The build script: passes `hot.ld` to the linker of the static release build, and makes the
//! linker write a map of the program beside the build, with which `scripts/hot.sh` checks the names
//! in `hot.ld`. Links a glibc program at a fixed address, as `.cargo/config.toml` does for a static
//! one. It generates no code, and the build needs only Rust's tools.

fn main() {
    println!("cargo::rerun-if-changed=src/musl/hot.ld");
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    if variable("CARGO_CFG_TARGET_ENV") == "gnu" {
        // The relocations of a debug build take 40 % of each start.
        println!("cargo::rustc-link-arg-bins=-no-pie");
    }
    let is_static = variable("CARGO_CFG_TARGET_ENV") == "musl";
    // The names are those of an x86_64 program; builds for other processors do not use the file.
    let is_static = is_static && variable("CARGO_CFG_TARGET_ARCH") == "x86_64";
    // A wrapper's speed is measured on the release build; development builds keep the usual layout.
    if is_static && variable("PROFILE") == "release" {
        let (dir, out) = (variable("CARGO_MANIFEST_DIR"), variable("OUT_DIR"));
        println!("cargo::rustc-link-arg-bins=-Wl,-T,{dir}/src/musl/hot.ld");
        println!("cargo::rustc-link-arg-bins=-Wl,-Map,{out}/nri-runc.map");
    }
}
