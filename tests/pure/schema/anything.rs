// SPDX-License-Identifier: Apache-2.0
//! Any message of the schema, made by its own reflection, so that a new field of NRI is included
//! immediately. There are few names, so that plugins conflict; most values are valid, and some are
//! unusual.

use protobuf::reflect::{ReflectValueBox, RuntimeFieldType, RuntimeType};
use protobuf::{MessageDyn, MessageFull};

/// Messages whose fields are independent; the fields of other messages belong together.
const PLACES: [&str; 11] = [
    "Container",
    "ContainerAdjustment",
    "CreateContainerResponse",
    "Hooks",
    "LinuxCPU",
    "LinuxContainer",
    "LinuxContainerAdjustment",
    "LinuxMemory",
    "LinuxRdt",
    "LinuxResources",
    "UpdateContainerResponse",
];

/// A stream of decisions; proptest shrinks it.
pub(super) struct Dice<'d> {
    bytes: &'d [u8],
    at: usize,
}

impl<'d> Dice<'d> {
    pub(super) fn new(bytes: &'d [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    fn below(&mut self, limit: u8) -> u8 {
        let byte = self.bytes[self.at % self.bytes.len()];
        // Later rounds over the same bytes decide differently.
        let round = u8::try_from(self.at / self.bytes.len() % 251).unwrap_or_default();
        self.at += 1;
        byte.wrapping_mul(31).wrapping_add(round) % limit
    }

    fn pick<'t>(&mut self, texts: &[&'t str]) -> &'t str {
        texts[usize::from(self.below(u8::try_from(texts.len()).unwrap()))]
    }

    /// Any message.
    pub(super) fn message<M: MessageFull>(&mut self) -> M {
        let mut message = M::new();
        self.fill(&mut message);
        message
    }

    fn fill(&mut self, message: &mut dyn MessageDyn) {
        let kind = message.descriptor_dyn();
        for field in kind.fields() {
            let is_there = match field.runtime_field_type() {
                RuntimeFieldType::Singular(RuntimeType::Message(of)) if is_place(of.name()) => {
                    self.below(4) != 0
                }
                RuntimeFieldType::Singular(_)
                | RuntimeFieldType::Repeated(_)
                | RuntimeFieldType::Map(..)
                    if is_place(kind.name()) =>
                {
                    self.below(12) == 0
                }
                RuntimeFieldType::Singular(RuntimeType::Message(_)) => self.below(2) == 0,
                RuntimeFieldType::Singular(_)
                | RuntimeFieldType::Repeated(_)
                | RuntimeFieldType::Map(..) => true,
            };
            if !is_there {
                continue;
            }
            let what = format!("{}.{}", kind.name(), field.name());
            match field.runtime_field_type() {
                RuntimeFieldType::Singular(of) => {
                    let value = self.value(&what, &of);
                    field.set_singular_field(message, value);
                }
                RuntimeFieldType::Repeated(of) => {
                    for _ in 0..=self.below(2) {
                        let value = self.value(&what, &of);
                        field.mut_repeated(message).push(value);
                    }
                }
                RuntimeFieldType::Map(_, of) => {
                    for _ in 0..=self.below(2) {
                        let key = self.key(&what);
                        let value = self.value(&what, &of);
                        field.mut_map(message).insert(ReflectValueBox::String(key), value);
                    }
                }
            }
        }
    }

    fn value(&mut self, what: &str, of: &RuntimeType) -> ReflectValueBox {
        let number = i32::from(self.below(3));
        // Of a thousand values, some are at the end of the range.
        let is_odd = self.below(100) == 0;
        match of {
            RuntimeType::Message(of) => {
                let mut inner = of.new_instance();
                self.fill(&mut *inner);
                ReflectValueBox::Message(inner)
            }
            RuntimeType::Enum(of) => {
                ReflectValueBox::Enum(of.clone(), if is_odd { 77 } else { number })
            }
            RuntimeType::String => ReflectValueBox::String(self.text(what)),
            RuntimeType::Bool => ReflectValueBox::Bool(number != 0),
            RuntimeType::I32 => ReflectValueBox::I32(if is_odd { i32::MIN } else { number }),
            RuntimeType::I64 => {
                ReflectValueBox::I64(if is_odd { i64::MIN } else { i64::from(number) + 1 })
            }
            RuntimeType::U32 => {
                ReflectValueBox::U32(if is_odd { u32::MAX } else { number.cast_unsigned() })
            }
            RuntimeType::U64 => {
                let usual = u64::from(number.cast_unsigned()) + 1;
                ReflectValueBox::U64(if is_odd { u64::MAX } else { usual })
            }
            RuntimeType::F32 | RuntimeType::F64 | RuntimeType::VecU8 => {
                unreachable!("NRI has none of these: {of:?}")
            }
        }
    }

    fn key(&mut self, what: &str) -> String {
        let dash = self.pick(&["", "", "-"]);
        let key = match what {
            "LinuxContainer.sysctl" | "LinuxContainerAdjustment.sysctl" => {
                self.pick(&["net.a", "net.b"])
            }
            "LinuxContainer.net_devices" | "LinuxContainerAdjustment.net_devices" => {
                self.pick(&["eth1", "eth2"])
            }
            "LinuxResources.unified" => self.pick(&["memory.high", "cpu.weight"]),
            _ => self.pick(&["k", "K2", "org.example/k"]),
        };
        format!("{dash}{key}")
    }

    fn text(&mut self, what: &str) -> String {
        if self.below(100) == 0 {
            let odd = ["", "-", "--k", "\u{0}", "é\n", "../..", "x=y", "/", "=", "a,b"];
            return self.pick(&odd).to_owned();
        }
        match what {
            "Mount.destination" => self.pick(&["/d", "/d/", "-/d", "/e", "-/e/"]),
            "Mount.options" => self.pick(&["ro", "nosuid", "bind"]),
            "KeyValue.key" => self.pick(&["A", "B", "-A", "-B"]),
            "Container.env" => self.pick(&["A=0", "B=0", "C=0", "A"]),
            "LinuxDevice.path" => self.pick(&["/dev/a", "/dev/b", "-/dev/a"]),
            "LinuxDevice.type" | "LinuxDeviceCgroup.type" => "c",
            "LinuxDeviceCgroup.access" => self.pick(&["r", "rwm"]),
            "LinuxNamespace.type" => self.pick(&["network", "pid", "-network", "ipc"]),
            "LinuxNamespace.path" => self.pick(&["/ns/1", "/ns/2"]),
            "POSIXRlimit.type" => self.pick(&["nofile", "RLIMIT_NOFILE", "RLIMIT_CORE"]),
            "HugepageLimit.page_size" => self.pick(&["2MB", "2M", "1GB"]),
            "LinuxCPU.cpus" | "LinuxCPU.mems" | "LinuxMemoryPolicy.nodes" => {
                self.pick(&["0", "0-1"])
            }
            "CDIDevice.name" => self.pick(&["v.com/c=a", "v.com/c=b"]),
            "Hook.path" => self.pick(&["/h1", "/h2"]),
            "Hook.env" => "A=B",
            "LinuxContainer.cgroups_path" | "LinuxContainerAdjustment.cgroups_path" => "/cg/c0",
            "ContainerAdjustment.args" => self.pick(&["sh", "true", ""]),
            "LinuxSeccomp.default_action" | "LinuxSyscall.action" => "SCMP_ACT_ALLOW",
            "LinuxSeccomp.architectures" => "SCMP_ARCH_X86_64",
            "LinuxSeccompArg.op" => "SCMP_CMP_EQ",
            "ContainerUpdate.container_id" => self.pick(&["c1", "c2", "c0"]),
            "ContainerEviction.container_id" => self.pick(&["c1", "c2"]),
            "Mount.source" => "/s",
            "LinuxNetDevice.name" => self.pick(&["n1", "n2"]),
            _ => self.pick(&["a", "b"]),
        }
        .to_owned()
    }
}

fn is_place(name: &str) -> bool {
    PLACES.contains(&name)
}
