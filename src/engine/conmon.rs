// SPDX-License-Identifier: Apache-2.0
//! conmon's command line: CRI-O and Podman start the runtime's `create` through conmon, whose
//! arguments have facts that the bundle lacks.

use super::{CallerInfo, EngineKind};

/// Returns the value of conmon's option with one of these names.
pub(super) fn option(call: &CallerInfo<'_>, names: &[&str]) -> Option<String> {
    let words = parent(call)?;
    let at = words.iter().position(|word| names.iter().any(|name| word == name.as_bytes()))?;
    String::from_utf8(words.get(at + 1)?.clone()).ok()
}

/// Returns the value of an option of the command that conmon runs when the container exits (`podman
/// --root DIR …`).
pub(super) fn exit_option(call: &CallerInfo<'_>, name: &str) -> Option<String> {
    let words = parent(call)?;
    let mut said = words.windows(2).filter(|pair| pair[0] == b"--exit-command-arg");
    said.by_ref().find(|pair| pair[1] == name.as_bytes())?;
    String::from_utf8(said.next()?[1].clone()).ok()
}

/// Returns the engine that started conmon. Examines only options whose values engines write,
/// because the arguments also contain a pod's name, which may be `podman`.
pub(super) fn engine(words: &[Vec<u8>]) -> Option<EngineKind> {
    if words.iter().any(|word| word == b"--exit-command") {
        return Some(EngineKind::Podman);
    }
    let has_part = |part: &[u8]| {
        let at = words.iter().position(|word| word == b"--exit-dir");
        let folder = at.and_then(|at| words.get(at + 1));
        folder.is_some_and(|folder| folder.split(|byte| *byte == b'/').any(|name| name == part))
    };
    if has_part(b"libpod") {
        return Some(EngineKind::Podman);
    }
    let is_crio = has_part(b"crio") || words.iter().any(|word| word == b"--socket-dir-path");
    is_crio.then_some(EngineKind::Crio)
}

/// Whether a command line is conmon's. CRI-O's packages have installed it as `crio-conmon`, and operators append a
/// version; conmonrs is a server without conmon's options.
pub(crate) fn is_conmon(words: &[Vec<u8>]) -> bool {
    let program = words.first().map(Vec::as_slice).unwrap_or_default();
    let name = program.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let name = name.strip_prefix(b"crio-").unwrap_or(name);
    name.starts_with(b"conmon") && !name.starts_with(b"conmonrs")
}

fn parent<'a>(call: &'a CallerInfo<'_>) -> Option<&'a [Vec<u8>]> {
    [call.parent, call.grandparent].into_iter().find(|words| is_conmon(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_conmons_options_are_read() {
        let line = "/usr/bin/conmon -n web --exit-command /usr/bin/podman --exit-command-arg \
                    --root --exit-command-arg /srv/graph";
        let words: Vec<Vec<u8>> =
            line.split_whitespace().map(|word| word.as_bytes().to_vec()).collect();
        let told = |parent: &[Vec<u8>]| {
            let (id, bundle) = ("c", "/b");
            let call = CallerInfo { id, bundle, parent, grandparent: &[], variables: &[] };
            (option(&call, &["-n"]), exit_option(&call, "--root"))
        };
        assert_eq!(told(&words), (Some("web".to_owned()), Some("/srv/graph".to_owned())));
        assert_eq!(told(&words[1..]), (None, None));
        let named = |name: &str| {
            let mut words = words.clone();
            words[0] = name.as_bytes().to_vec();
            told(&words).0
        };
        assert_eq!(named("crio-conmon").as_deref(), Some("web"));
        assert_eq!(named("conmon-2.1.12").as_deref(), Some("web"));
        assert_eq!((named("/bin/conmonrs"), named("crio-conmonrs")), (None, None));
    }

    #[test]
    fn an_option_without_its_value_is_ignored() {
        let words = vec![b"conmon".to_vec(), b"-n".to_vec()];
        let call =
            CallerInfo { id: "c", bundle: "/b", parent: &words, grandparent: &[], variables: &[] };
        assert_eq!(option(&call, &["-n"]), None);
    }
}
