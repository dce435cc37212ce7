// SPDX-License-Identifier: Apache-2.0
//! What `check` says of the engines on this host: whether they know of us, whether that is still
//! as it was written, whether our program is where they will look, and whether the running engine
//! knows the handler (CRI engines, where one answers). It changes nothing.

use serde_json::{Value, json};

use super::ledger::Ledger;
use super::place;
use super::plan::{ENGINES, Engine, Wish};
use crate::config::Config;
use crate::error::Result;
use crate::host::Host;
use crate::sources;

/// One finding per engine that is here or has a record, and whether any is registered.
pub(in crate::admin) fn findings(config: &Config) -> (Vec<Value>, bool) {
    let host = config.host();
    let mut is_any = false;
    let mut found = Vec::new();
    for engine in ENGINES {
        let check = format!("registered with {}", engine.name());
        let ledger = match Ledger::load(&host, engine) {
            Ok(ledger) => ledger,
            Err(error) => {
                found.push(json!({"check": check, "ok": false, "detail": error.to_string(),
                    "hint": "mend or remove the record"}));
                continue;
            }
        };
        let is_here = engine.programs().iter().any(|path| host.path(path).exists());
        match ledger {
            Some(ledger) => {
                is_any = true;
                found.push(registered(&check, engine, &ledger, &host, config));
            }
            None if is_here => {
                found.push(json!({"check": check, "ok": true, "detail": "no", "hint": ""}));
            }
            None => {}
        }
    }
    (found, is_any)
}

fn registered(check: &str, engine: Engine, ledger: &Ledger, host: &Host, config: &Config) -> Value {
    let finding = |ok: bool, detail: String, hint: String| json!({"check": check, "ok": ok, "detail": detail, "hint": hint});
    let again = format!("nri-runc nri install {}", engine.name());
    if !host.path(&ledger.binary).is_file() {
        let detail = format!("{} is missing", ledger.binary);
        return finding(false, detail, "put nri-runc there again".to_owned());
    }
    match is_in_force(engine, ledger, host, config) {
        Ok(true) => {
            let default = if ledger.default { ", the default" } else { "" };
            let detail = format!("as {}{default}", ledger.name);
            match running(engine, ledger, host) {
                Some(known) if known.contains(&ledger.name) => {
                    finding(true, format!("{detail}; {} knows it", engine.name()), String::new())
                }
                Some(_) => {
                    let detail = format!("{detail}; {} runs without it", engine.name());
                    finding(false, detail, engine.reload(false).to_owned())
                }
                None => finding(true, detail, String::new()),
            }
        }
        Ok(false) => finding(false, "no longer as it was written".to_owned(), again),
        Err(error) => finding(false, error.to_string(), again),
    }
}

/// The handlers of the running engine, where it can be asked.
fn running(engine: Engine, ledger: &Ledger, host: &Host) -> Option<Vec<String>> {
    let socket = match engine {
        Engine::Containerd => {
            let main = ledger.main.as_deref().unwrap_or(super::containerd::MAIN);
            super::containerd::socket(&place::read(host, main).ok().flatten().unwrap_or_default())
        }
        Engine::Crio => "/var/run/crio/crio.sock".to_owned(),
        Engine::Docker | Engine::Podman | Engine::Nerdctl => return None,
    };
    sources::handlers(&host.path(socket))
}

fn is_in_force(engine: Engine, ledger: &Ledger, host: &Host, config: &Config) -> Result<bool> {
    let wish = Wish {
        name: ledger.name.clone(),
        binary: ledger.binary.clone(),
        default: ledger.default,
        main: ledger.main.clone(),
        socket: config.socket_path.display().to_string(),
    };
    let now = place::read_all(host, engine, ledger.main.as_deref())?;
    let plan = engine.plan(&wish, &now)?;
    Ok(plan.files.iter().all(|(path, text)| now.get(path) == Some(text)))
}
