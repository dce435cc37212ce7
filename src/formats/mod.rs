// SPDX-License-Identifier: Apache-2.0
//! Lookups of records and fields in databases and messages. This folder names no engine and reads
//! no file: it takes and returns bytes, and bounds the work of a lookup.
//! docs/decisions/0003-database-readers.md explains why no library reads the databases.

pub(crate) mod bolt;
pub(crate) mod netlink;
pub(crate) mod protobuf;
pub(crate) mod sqlite;
