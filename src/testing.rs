// SPDX-License-Identifier: Apache-2.0
//! Items for tests, benches and fuzz targets, under the names of their modules. Most modules
//! themselves are private, so the compiler reports an item of theirs that neither the program nor
//! this file uses.

pub mod admin {
    pub use crate::admin::exit::{EXIT_CODES, EXIT_CODES_OF_VERBS, exit_codes_page};
    pub use crate::admin::{command, command_of_program, completion};
}

pub mod argv {
    pub use crate::argv::{
        CommandLine, ProcessFlag, ResourcesFlag, Verb, for_update_by_stdin, read,
    };
}

pub mod chain {
    pub use crate::chain::{
        Cause, ChainError, ChainedPlugin, Notification, Participants, RuleScope, create,
        notify_all, notify_until_refused, stop, update,
    };
}

pub mod config {
    pub use crate::config::{OnFailure, PluginSettings, load, markdown, problems};
}

pub mod describe {
    pub use crate::describe::{Spec, container, pod, resources_from_json};
}

pub mod dry {
    pub use crate::dry::check_line;
}

pub mod engine {
    pub use crate::engine::{
        CallerInfo, DetectedEngine, EngineKind, FetchedFacts, ROUNDS, Role, Seen, StoreRecord,
        detect, facts, fill_in, wanted, wanted_instead, wanted_more,
    };
    pub mod identity {
        pub use crate::engine::identity::{Field, ranks};
    }
}

pub mod error {
    pub use crate::error::{RESERVED_PHRASES, quoted};
}

pub mod exec {
    pub use crate::mark::ProcessValue;
    pub use crate::spec::patch::patch_later_process;
    pub use crate::wrapper::process_in;
}

pub mod files {
    pub use crate::files::replace;
}

pub mod host {
    pub use crate::host::{Host, POINTS};
}

pub mod inject {
    pub use crate::inject::Injections;
}

pub mod link {
    pub use crate::link::{Attached, DaemonResponse, Notice, PROTOCOL, WrapperRequest, read_frame};
}

pub mod messages {
    pub use crate::messages::{Message, code_of, table};
}

pub mod named {
    pub use crate::named::Named;
}

pub mod plugin {
    pub use crate::plugin::outcome::Outcome;
    pub use crate::plugin::session::{Plugin, SessionError, Settings, handshake};
    pub use crate::plugin::snapshot::EncodedSnapshot;
    pub mod json {
        pub use crate::plugin::json::{read, show};
    }
}

pub mod resolve {
    pub use crate::resolve::{ResourceWriter, check_runtime, needs_runtime};
}

pub mod rules {
    pub use crate::rules::{PodsOfContainers, RuledPod, Rules};
}

pub mod runtime {
    pub use crate::runtime::RuntimeKind;
    pub mod features {
        pub use crate::runtime::features::{Features, ask};
    }
}

pub mod sources {
    pub use crate::sources::{Sources, runtimes_of_docker};
}

pub mod spec {
    pub mod overlay {
        pub use crate::spec::overlay::{merge_update, overlay_of};
    }
    pub mod owned {
        pub use crate::spec::owned::{keep_owned, part, retain, undone};
    }
    pub mod patch {
        pub use crate::spec::patch::{
            CdiDevice, HostFacts, HostMounts, PatchError, PatchedSpec, Resolved, patch_anyway,
            patch_on, propagating_sources,
        };
    }
}

pub mod state {
    pub use crate::state::{Container, Store};
}

pub mod text {
    pub use crate::text::{rfc3339, rfc3339_nanos, short_id};
}
