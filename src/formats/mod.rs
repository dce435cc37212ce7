// SPDX-License-Identifier: Apache-2.0
//! File formats of databases, as far as a record is looked up in them. They name no engine and
//! read no file: bytes in, bytes out, with a bound on what one lookup may visit. Why they are not
//! libraries: docs/decisions/0003-database-readers.md.

pub(crate) mod bolt;
pub(crate) mod sqlite;
