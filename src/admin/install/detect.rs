// SPDX-License-Identifier: Apache-2.0
//! Selects the containerd of this host: by the file or distribution that the command line names, by
//! the record of an earlier `install`, else by the files that exist. Several candidates are an
//! error, not a guess. It only reads.

use super::distribution::{self, DISTRIBUTIONS, Distribution, FLATCAR_MAIN};
use super::engine::Engine;
use super::ledger::Ledger;
use super::plan::Texts;
use super::root::Root;
use super::{containerd, running};
use crate::error::{Error, Result};

/// The program that sets up an EKS node on Amazon Linux 2023.
const NODEADM: &str = "/usr/bin/nodeadm";

/// The engine, main file and distribution that the command line names.
#[derive(Debug, Clone, Copy)]
pub(super) struct Named<'n> {
    pub(super) engine: Engine,
    pub(super) file: Option<&'n str>,
    pub(super) distribution: Option<Distribution>,
}

/// Returns the engine's main file; `None` for the default file, unless the command line names it.
pub(super) fn main_file(
    named: Named<'_>,
    old: Option<&Ledger>,
    root: &Root,
) -> Result<Option<String>> {
    if !named.engine.has_distributions() {
        return match named.distribution {
            Some(_) => Err(Error::new("--distribution applies to containerd only")),
            None => Ok(named.file.map(str::to_owned)),
        };
    }
    let main = match (named.file, named.distribution) {
        (Some(file), None) => file.to_owned(),
        (Some(file), Some(distribution)) => {
            require_file_of(file, distribution)?;
            file.to_owned()
        }
        (None, Some(distribution)) => named_here(distribution, root)?,
        (None, None) => match old {
            Some(old) => return Ok(old.main.clone()),
            None => found(root)?,
        },
    };
    // A file that the command line names is recorded even if it is the default one.
    let is_usual = main == containerd::MAIN && named.file.is_none();
    Ok((!is_usual).then_some(main))
}

/// Returns the distribution that writes this main file.
pub(super) fn of(main: Option<&str>) -> Option<Distribution> {
    Distribution::of_main(main.unwrap_or(containerd::MAIN))
}

/// Whether the registration is in containerd's default file, and this distribution's containerd
/// reads that file.
pub(super) fn is_usual_file(distribution: Distribution, ledger: &Ledger) -> bool {
    let reads_usual =
        distribution == Distribution::Flatcar || distribution.main() == containerd::MAIN;
    reads_usual && ledger.main.is_none()
}

fn require_file_of(file: &str, distribution: Distribution) -> Result<()> {
    let wanted = Distribution::of_main(distribution.main());
    if Distribution::of_main(file) == wanted {
        return Ok(());
    }
    Err(Error::new(format!("{file} is not a configuration file of {}", distribution.title()))
        .hint("give --distribution or --engine-config, not both"))
}

/// Returns the main file of a named distribution, which must be on this host.
fn named_here(distribution: Distribution, root: &Root) -> Result<String> {
    if distribution == Distribution::Flatcar && !is_flatcar(root) {
        return Err(is_not_here(distribution, FLATCAR_MAIN, root));
    }
    let main = main_of(distribution, root);
    let is_missing = |path: &str| !root.has_file(path);
    match Distribution::of_main(&main) {
        Some(its) if is_missing(distribution::source(&main)) => {
            let is_here = its.programs().iter().any(|path| root.has_program(path));
            if is_here {
                return Err(its.is_not_started(distribution::source(&main)));
            }
            Err(is_not_here(its, &main, root))
        }
        Some(_) | None => Ok(main),
    }
}

fn is_not_here(distribution: Distribution, main: &str, root: &Root) -> Error {
    let others = here(root);
    let others: Vec<&str> = others.iter().map(|(other, _)| other.title()).collect();
    let is_movable = matches!(distribution, Distribution::K3s | Distribution::Rke2);
    let hint = match others.join(", ") {
        none if none.is_empty() && is_movable => "with another data directory: --engine-config \
                                                  DIR/agent/etc/containerd/config.toml"
            .to_owned(),
        none if none.is_empty() => "install without --distribution".to_owned(),
        others => format!("found: {others}"),
    };
    Error::new(format!("{} is not on this host: no {main}", distribution.title())).hint(hint)
}

/// Returns the distribution's main file: that of its running containerd, else its default one.
fn main_of(distribution: Distribution, root: &Root) -> String {
    if distribution == Distribution::Flatcar {
        return flatcar_main(root).to_owned();
    }
    let runs = if root.is_confined() { Vec::new() } else { running::main_files(&root.processes()) };
    let its = runs.into_iter().find(|main| Distribution::of_main(main) == Some(distribution));
    its.unwrap_or_else(|| distribution.main().to_owned())
}

/// Whether the system is Flatcar and has the file of its built-in containerd.
pub(super) fn is_flatcar(root: &Root) -> bool {
    let system = root.text(distribution::OS_RELEASE);
    let system = Texts::from([(distribution::OS_RELEASE.to_owned(), system)]);
    distribution::is_flatcar(&system) && root.has_file(FLATCAR_MAIN)
}

/// Returns Flatcar's own file if it imports other files and the default file does not exist; else the
/// default file, which is a copy to make if it does not exist.
fn flatcar_main(root: &Root) -> &'static str {
    let text = root.text(FLATCAR_MAIN);
    let texts = Texts::from([(FLATCAR_MAIN.to_owned(), text)]);
    let imports = containerd::sources(FLATCAR_MAIN, &texts).len() > 1;
    let is_copied = root.has_file(containerd::MAIN);
    if imports && !is_copied { FLATCAR_MAIN } else { containerd::MAIN }
}

/// Returns the main file of this host's containerd; fails if the host has several.
fn found(root: &Root) -> Result<String> {
    let mut all = here(root);
    let is_flatcar = all.iter().any(|(its, _)| *its == Distribution::Flatcar);
    let is_usual =
        Engine::OF_DISTRIBUTIONS.row().program(root).is_some() || root.has_file(containerd::MAIN);
    if is_usual && !is_flatcar && !all.is_empty() {
        all.push((Distribution::Kubeadm, containerd::MAIN.to_owned()));
    }
    match all.as_slice() {
        [] => Ok(containerd::MAIN.to_owned()),
        [(_, main)] => Ok(main.clone()),
        several => {
            let titles = several.iter().map(|(its, main)| {
                let is_usual = *its == Distribution::Kubeadm;
                let title = if is_usual { "containerd" } else { its.title() };
                format!("{title} ({main})")
            });
            let names: Vec<&str> = several.iter().map(|(its, _)| its.name()).collect();
            Err(Error::new(format!(
                "this host has more than one containerd: {}",
                titles.collect::<Vec<_>>().join(", ")
            ))
            .hint(format!("say which: --distribution {}", names.join("|"))))
        }
    }
}

/// Returns the option (with a leading space) by which `install` selects the containerd that reads
/// this file.
pub(super) fn option_for(engine: Engine, file: Option<&str>, root: &Root) -> String {
    let has_distributions = engine.has_distributions();
    let found =
        || here(root).into_iter().next().map(|(_, main)| main).filter(|_| has_distributions);
    let file = file.map(str::to_owned).or_else(found);
    let its = file.as_deref().and_then(Distribution::of_main).filter(|_| has_distributions);
    match (its, file) {
        (Some(its), Some(file)) if file == its.main() => format!(" --distribution {}", its.name()),
        (_, Some(file)) if file != containerd::MAIN => format!(" --engine-config {file}"),
        (_, _) => String::new(),
    }
}

/// Returns a note for an EKS node, whose nodeadm writes the default file anew at each boot.
pub(super) fn note(engine: Engine, main: Option<&str>, root: &Root) -> Option<String> {
    let is_eks = engine.has_distributions() && main.is_none() && root.has_program(NODEADM);
    is_eks.then(|| {
        format!(
            "nodeadm writes {} anew when the node boots: put the same tables into spec.containerd.config \
             of its NodeConfig, or install after each boot",
            containerd::MAIN
        )
    })
}

/// Lists the distributions on this host, each with its main file.
pub(super) fn here(root: &Root) -> Vec<(Distribution, String)> {
    let all = DISTRIBUTIONS.into_iter().filter_map(|distribution| {
        let main = main_of(distribution, root);
        let is_here = if distribution == Distribution::Flatcar {
            is_flatcar(root)
        } else {
            root.has_file(distribution::source(&main))
                || distribution.programs().iter().any(|path| root.has_program(path))
        };
        is_here.then_some((distribution, main))
    });
    all.collect()
}
