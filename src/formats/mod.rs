// SPDX-License-Identifier: Apache-2.0
//! Formats of databases and messages, as far as a record or a field is looked up in them. This
//! folder names no engine and reads no file: bytes in, bytes out, with a bound on what one lookup
//! may visit. Why the databases are not read by libraries: docs/decisions/0003-database-readers.md.

pub(crate) mod bolt;
pub(crate) mod netlink;
pub(crate) mod protobuf;
pub(crate) mod sqlite;
