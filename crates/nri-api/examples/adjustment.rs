// SPDX-License-Identifier: Apache-2.0
//! Reads a plugin's adjustment, written as JSON, and prints its encoded size.
//!
//! `cargo run -p nri-api --features json --example adjustment`
#![expect(clippy::print_stdout, reason = "an example prints")]

use nri_api::{ContainerAdjustment, json};
use protobuf::Message;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let text =
        r#"{"env": [{"key": "GREETING", "value": "hello"}], "annotations": {"seen": "yes"}}"#;
    let adjustment: ContainerAdjustment = json::read(&serde_json::from_str(text)?)?;
    println!("{} bytes: {}", adjustment.write_to_bytes()?.len(), json::show(&adjustment));
    Ok(())
}
