// SPDX-License-Identifier: Apache-2.0
//! The injections of the tests of each engine, without a plugin, and the `exec` that they permit.

/// The file that is mounted, in the folder of the test's host.
pub const FILE: &str = "corp.pem";

/// Sections of the configuration; `SOURCE` is the path of that file.
pub const SETTINGS: &str = r#"
[[inject]]
name = "corporate CA"
env = { SSL_CERT_FILE = "/corp.pem", OWN = "injected" }
mounts = [{ source = "SOURCE", destination = "/corp.pem", options = ["rbind", "ro"] }]

[[exec_rule]]
name = "cat alone"
commands = ["!/bin/cat"]
"#;

/// The output of `cat /proc/1/environ /corp.pem` inside a container that sets `OWN=kept`.
pub const WANTED: [&str; 3] = ["SSL_CERT_FILE=/corp.pem", "OWN=kept", "from the node"];
