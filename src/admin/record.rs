// SPDX-License-Identifier: Apache-2.0
//! `replay --record FILE`: what the running daemon asks its plugins, written down as a script
//! that `replay FILE` follows. Ended by a signal, or with the daemon; what was written until then
//! are whole lines.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde_json::{Value, json};

use crate::config::Config;
use crate::error::{Context, Error, Result};
use crate::wrapper;

use super::show::REDACTED;

/// Writes down what happens from now on; `-` is standard output.
///
/// # Errors
/// Fails when the daemon is not there or ends, and when the file exists or cannot be written.
pub(super) fn record(config: &Config, file: &Path, show_env: bool) -> Result<()> {
    let (_, stream) = wrapper::admin_stream(config, &json!({"verb": "record"}).to_string())
        .map_err(|error| error.hint("only a running daemon can be recorded"))?;
    stream.set_read_timeout(None)?;
    let mut out: Box<dyn Write> = if file.as_os_str() == "-" {
        Box::new(std::io::stdout())
    } else {
        // What containers are told is nobody else's business.
        let mut options = OpenOptions::new();
        let opened = options.write(true).create_new(true).mode(0o600).open(file);
        Box::new(opened.doing(|| format!("creating {}", file.display()))?)
    };
    for line in BufReader::new(stream).split(b'\n') {
        let mut line: Value = serde_json::from_slice(&line.doing(|| "listening to the daemon")?)
            .map_err(|error| Error::new(format!("the daemon sent no JSON: {error}")))?;
        if let Some(why) = line["error"].as_str() {
            return Err(Error::new(why));
        }
        if !show_env {
            redact(&mut line);
        }
        out.write_all(format!("{line}\n").as_bytes())
            .and_then(|()| out.flush())
            .doing(|| format!("writing {}", file.display()))?;
    }
    Err(Error::new("the daemon has ended, and the recording with it"))
}

/// Takes the values of variables out; their names are told.
fn redact(line: &mut Value) {
    if let Some(containers) = line.pointer_mut("/state/containers") {
        containers.as_array_mut().into_iter().flatten().for_each(hide);
    }
    if let Some(container) = line.pointer_mut("/request/container") {
        hide(container);
    }
}

fn hide(container: &mut Value) {
    for variable in container["env"].as_array_mut().into_iter().flatten() {
        let text = variable.as_str().unwrap_or_default();
        let name = text.split_once('=').map_or(text, |(name, _)| name);
        *variable = Value::from(format!("{name}={REDACTED}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_variables_are_hidden_wherever_they_stand() {
        let mut line = json!({"state": {"containers": [{"id": "a", "env": ["TOKEN=secret"]}]}});
        redact(&mut line);
        assert!(!line.to_string().contains("secret") && line.to_string().contains("TOKEN="));
        let mut line = json!({"request": {"container": {"env": ["A=secret", "secret"]}}});
        redact(&mut line);
        assert_eq!(line["request"]["container"]["env"][0], format!("A={REDACTED}"));
    }

    #[test]
    fn a_line_without_containers_is_left_alone() {
        for line in [json!({"request": {"pod": {"id": "p"}}}), json!({"state": 5}), json!([])] {
            let mut same = line.clone();
            redact(&mut same);
            assert_eq!(same, line);
        }
    }
}
