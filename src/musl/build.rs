// SPDX-License-Identifier: Apache-2.0
//! The build script: gives `hot.ld` to the linker of the static release build, and has it write a
//! map of the program beside that build, by which `scripts/hot.sh` checks the names in `hot.ld`.
//! It generates no code, and the build needs no tool but Rust's.

fn main() {
    println!("cargo::rerun-if-changed=src/musl/hot.ld");
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let is_static = variable("CARGO_CFG_TARGET_ENV") == "musl";
    // The names are those of a program for x86_64, and other processors' linkers run without this.
    let is_static = is_static && variable("CARGO_CFG_TARGET_ARCH") == "x86_64";
    // A wrapper's speed is measured on the release build; development builds keep their usual layout.
    if is_static && variable("PROFILE") == "release" {
        let (dir, out) = (variable("CARGO_MANIFEST_DIR"), variable("OUT_DIR"));
        println!("cargo::rustc-link-arg-bins=-Wl,-T,{dir}/src/musl/hot.ld");
        println!("cargo::rustc-link-arg-bins=-Wl,-Map,{out}/nri-runc.map");
    }
}
