// SPDX-License-Identifier: Apache-2.0
//! Collects the files of a `sysdump`, each within a bound and without secrets. Data that cannot be
//! read is named in `errors.txt`, and its file is empty or `null`; in `node.json` it is only `null`.

use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

use crate::admin::output::{Answer, Format};
use crate::admin::plugins::output_of;
use crate::admin::{ask, ask_metrics, ask_status, check, install, progress};
use crate::answers::{AdminRequest, PluginRow};
use crate::audit::{AuditFilter, IDENTIFIER, LoggedLine, open_files, search};
use crate::config::{self, AuditTarget, Config, Loaded};
use crate::error::{Error, Result};
use crate::files;
use crate::limits;
use crate::presence::{self, IfThere};
use crate::runtime::bounded;

use super::archive::Part;
use super::redact;

/// Time limit of `journalctl`.
const JOURNAL_WAIT: Duration = Duration::from_secs(10);

/// Everything that goes into the archive.
pub(super) struct Parts {
    pub(super) files: Vec<Part>,
    /// Data that could not be read, one line each.
    pub(super) missing: Vec<String>,
}

impl Parts {
    fn add(&mut self, name: &'static str, bytes: Vec<u8>) {
        self.files.push((name, bytes));
    }

    fn miss(&mut self, name: &str, why: &str) {
        self.missing.push(redact::text(&format!("{name}: {why}")));
    }

    /// Adds a document, redacted: of a list that is too long the first rows, of another such document nothing.
    fn add_json(&mut self, name: &'static str, document: Result<impl Serialize>) {
        let mut document = document.map(|document| json!(document)).unwrap_or_else(|error| {
            self.miss(name, &error.to_string());
            Value::Null
        });
        redact::document(&mut document);
        self.add_as_it_is(name, document);
    }

    fn add_as_it_is(&mut self, name: &'static str, mut document: Value) {
        if let Value::Array(rows) = &mut document {
            let mut bytes = 0;
            let mut fits = |row: &Value| {
                bytes += row.to_string().len() + 1;
                bytes <= limits::SYSDUMP_PART
            };
            let kept = rows.iter().take_while(|row| fits(row)).count();
            let left = rows.len() - kept;
            rows.truncate(kept);
            if left > 0 {
                self.miss(
                    name,
                    &format!("the last {left} rows are left out, as the file would be too long"),
                );
            }
        }
        let mut text = format!("{document:#}\n");
        if text.len() > 2 * limits::SYSDUMP_PART {
            self.miss(name, "the file is left out, as it would be too long");
            text.clear();
        }
        self.add(name, text.into_bytes());
    }

    /// Adds the last lines of this text, redacted.
    fn add_text(&mut self, name: &'static str, text: Result<String>) {
        let text = text.unwrap_or_else(|error| {
            self.miss(name, &error.to_string());
            String::new()
        });
        self.add(name, last_lines(&redact::text(&text)).as_bytes().to_vec());
    }

    /// Adds the last of these documents, redacted, one per line.
    fn add_lines(&mut self, name: &'static str, rows: Result<Vec<Value>>) {
        let rows = rows.unwrap_or_else(|error| {
            self.miss(name, &error.to_string());
            Vec::new()
        });
        let mut text = String::new();
        for mut row in rows {
            redact::document(&mut row);
            text.push_str(&format!("{row}\n"));
        }
        self.add(name, last_lines(&text).as_bytes().to_vec());
    }
}

/// Returns the last lines of a text, at most [`limits::SYSDUMP_PART`] bytes.
fn last_lines(text: &str) -> &str {
    let over = text.len().saturating_sub(limits::SYSDUMP_PART);
    let cut = text.char_indices().find(|(at, c)| *at >= over && (over == 0 || *c == '\n'));
    cut.and_then(|(at, _)| text.get(at + usize::from(over > 0)..)).unwrap_or_default()
}

/// Collects all files.
pub(super) fn collect(loaded: &Loaded) -> Parts {
    let config = &loaded.config;
    let mut parts = Parts { files: Vec::new(), missing: Vec::new() };
    progress::step("asking the daemon");
    let status = ask_status(config);
    let plugins: Result<Vec<PluginRow>> = ask(config, &AdminRequest::Plugins);
    let pid = status.as_ref().ok().map(|status| status.pid.into());
    parts.add_text(
        "plugin-output.txt",
        plugin_output(config, plugins.as_deref().unwrap_or_default()),
    );
    parts.add_json("status.json", status);
    parts.add_json("plugins.json", plugins);
    parts.add_json("pods.json", ask::<Value>(config, &AdminRequest::Pods));
    let metrics = ask_metrics(config).map(|metrics| metrics.text);
    // A metric's labels have the form KEY="VALUE", and no tenant chooses a value, so the text is
    // not redacted.
    let metrics = metrics.unwrap_or_else(|error| {
        parts.miss("metrics.txt", &error.to_string());
        String::new()
    });
    parts.add("metrics.txt", last_lines(&metrics).as_bytes().to_vec());
    parts.add_lines("recent.jsonl", ask(config, &AdminRequest::Recent));
    progress::step("checking");
    parts.add_json("check.json", Ok(check::all(loaded)));
    let engines = install::check_engines(config, pid);
    let programs = engines.programs;
    parts.add_json("engines.json", Ok(json!({"findings": engines.findings, "programs": programs})));
    parts.add_json("config.json", Ok(configuration(loaded)));
    progress::step("reading logs");
    parts.add_text("log.txt", log(config));
    parts.add_lines("audit.jsonl", audit(config));
    parts.add_as_it_is("node.json", node(config));
    let missing = parts.missing.join("\n") + if parts.missing.is_empty() { "" } else { "\n" };
    parts.add("errors.txt", missing.into_bytes());
    parts
}

/// Returns the configuration with the origin of each key, and the errors in its files. The values
/// of `env`, `annotations` and `hooks` are hidden, also of dotted keys such as `env.NAME`.
fn configuration(loaded: &Loaded) -> Value {
    let mut document = config::effective(loaded);
    for section in document["sections"].as_array_mut().into_iter().flatten() {
        let keys = section["keys"].as_object_mut().into_iter().flatten();
        for (key, value) in keys {
            let is_hidden = ["env", "annotations", "hooks"].iter().any(|hidden| {
                let rest = key.strip_prefix(hidden);
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            });
            if is_hidden {
                *value = "(hidden)".into();
            }
        }
    }
    document["problems"] = loaded.warnings().into();
    document["unreadable"] = loaded.unreadable.clone().into();
    document
}

fn plugin_output(config: &Config, plugins: &[PluginRow]) -> Result<String> {
    let launched = plugins.iter().filter(|plugin| plugin.launched).map(PluginRow::id);
    let outputs = launched.map(|id| {
        let output = output_of(config, &id)?.page(Format::Page);
        Ok(format!("{id}:\n{output}\n"))
    });
    outputs.collect()
}

/// Returns the end of the daemon's log: of its file, else of the journal.
fn log(config: &Config) -> Result<String> {
    let file = config.run_dir.join("daemon.log");
    if presence::exists(&file)? {
        return end_of(&file);
    }
    journal("nri-runc", "short-iso")
}

/// Returns the end of a file, which may grow while it is read.
fn end_of(path: &Path) -> Result<String> {
    let mut file = files::open_own(path)?;
    let most = u64::try_from(limits::SYSDUMP_PART).unwrap_or(u64::MAX);
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(most)))?;
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let is_whole = length <= most;
    // The first line may be incomplete.
    let whole = text.split_once('\n').filter(|_| !is_whole).map(|(_, rest)| rest.to_owned());
    Ok(whole.unwrap_or(text))
}

fn journal(identifier: &str, form: &str) -> Result<String> {
    let lines = limits::SYSDUMP_LINES.to_string();
    let words = ["--no-pager", "-q", "-t", identifier, "-o", form, "-n", &lines];
    let answer = bounded::run("journalctl", &words, JOURNAL_WAIT)?;
    match answer.status.success() {
        true => Ok(answer.stdout),
        false => Err(Error::new(format!("journalctl failed ({})", answer.status))),
    }
}

/// Returns the last entries of the audit log; empty without a log.
fn audit(config: &Config) -> Result<Vec<Value>> {
    let mut latest = Vec::new();
    let filter = AuditFilter::default();
    let mut add = |text: &str, _: &LoggedLine| {
        limits::keep_latest(&mut latest, text.to_owned(), limits::SYSDUMP_LINES);
        Ok(())
    };
    if config.audit_target == Some(AuditTarget::Journal) {
        let text = journal(IDENTIFIER, "cat")?;
        search(text.as_bytes(), &filter, &mut add)?;
    } else {
        for mut file in open_files(&config.audit_path)? {
            let most = u64::try_from(limits::SYSDUMP_PART).unwrap_or(u64::MAX);
            let start = file.metadata()?.len().saturating_sub(most);
            file.seek(SeekFrom::Start(start))?;
            search(BufReader::new(file.take(most)), &filter, &mut add)?;
        }
    }
    Ok(latest.iter().map(|text| serde_json::from_str(text).unwrap_or_default()).collect())
}

/// Returns facts about the system, relevant mounts, and the names and sizes of plugins' files.
fn node(config: &Config) -> Value {
    let host = config.host();
    let text = |path: &str| files::read_kernel(&host.path(path)).or_absent();
    let run_dir = config.run_dir.display().to_string();
    let mounts = text("/proc/self/mountinfo").unwrap_or_default();
    let is_wanted = |line: &&str| {
        let at = line.split(' ').nth(4).unwrap_or_default();
        line.contains(" - cgroup") || run_dir == at || run_dir.starts_with(&format!("{at}/"))
    };
    let mounts: Vec<&str> = mounts.lines().filter(is_wanted).take(limits::SYSDUMP_LINES).collect();
    let release = files::read_text(&host.path("/etc/os-release"), limits::CONTAINER_FILE);
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "kernel": text("/proc/version"),
        "os_release": release.or_absent(),
        "cgroups": text("/proc/cgroups"),
        "own_cgroup": text("/proc/self/cgroup"),
        "mounts": mounts,
        "uptime": text("/proc/uptime"),
        "memory": text("/proc/meminfo").and_then(|text| text.lines().next().map(str::to_owned)),
        "processors": std::thread::available_parallelism().map(|count| count.get()).ok(),
        "plugin_files": names(&config.plugin_path),
        "plugin_configuration_files": names(&config.plugin_config_path),
    })
}

/// Returns the names and sizes of a directory's files. Their content is private to the plugins.
fn names(dir: &Path) -> Value {
    let entries = presence::entries(dir).or_absent().unwrap_or_default();
    let rows = entries.iter().take(limits::SYSDUMP_LINES).map(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        json!({"name": name, "bytes": entry.metadata().or_absent().map(|meta| meta.len())})
    });
    rows.collect()
}
