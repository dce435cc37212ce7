// SPDX-License-Identifier: Apache-2.0
//! Speeds up the static build (`docs/decisions/0004-the-static-build.md`): short copies
//! (`copy.rs`), and an order of the functions in the program by which a wrapper touches few of its
//! pages (`hot.ld`, which `scripts/hot.sh` makes and `build.rs` gives to the linker). Nothing here
//! changes what the program does: without it everything works, slower.

mod copy;
