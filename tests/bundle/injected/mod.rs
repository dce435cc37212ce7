// SPDX-License-Identifier: Apache-2.0
//! `[[inject]]` with the built binary: values that containers receive without a plugin.

mod failures;
mod first;
mod table;
