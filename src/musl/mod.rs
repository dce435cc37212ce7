// SPDX-License-Identifier: Apache-2.0
//! Speeds up the static build (`docs/decisions/0004-the-static-build.md`): short copies
//! (`copy.rs`), and an order of functions with which wrapper and daemon touch few pages of the program
//! (`hot.ld`, which `scripts/hot.sh` generates and `build.rs` passes to the linker). It only
//! affects speed.

mod copy;
