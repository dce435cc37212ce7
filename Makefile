# SPDX-License-Identifier: Apache-2.0
# The one door. Every target says what it lacks and works from a fresh clone. Daily work needs `build`, `check`, `test`, `demo` and `install`;
# each further target is for one machine, engine or release step that takes too long to be part of these.

MUSL := x86_64-unknown-linux-musl
# The static build where its target can be had, else glibc (scripts/setup.sh says so).
TARGET := $(shell test -d "$$(rustc --print target-libdir --target $(MUSL) 2>/dev/null)" && echo $(MUSL))
# PROFILE: `quick` takes half the time, and gives a slower program for trying it.
PROFILE ?= release
$(if $(filter release quick,$(PROFILE)),,$(error PROFILE is release or quick))
PROGRAM = target/$(if $(TARGET),$(TARGET)/)$(PROFILE)/nri-runc

.PHONY: all build setup demo docs docs-test test check lint bench bench-compare release-check interop install uninstall vm vm-engines kube soak manual package package-test upgrade-test audit image engines k3s node-helper-test fresh

all: build

setup:
	@sh scripts/setup.sh

# A sub-make: the target may have been added by `setup` just now.
build: setup
	@$(MAKE) --no-print-directory release

# WITH_SAMPLE: the sample plugin of the quick starts, too.
SAMPLE = -p resource-defaults --bin resource-defaults
.PHONY: release
release:
	cargo build --profile $(PROFILE) --locked --bin nri-runc $(if $(WITH_SAMPLE),-p nri-runc $(SAMPLE)) $(if $(TARGET),--target $(TARGET))
	@echo "built $(PROGRAM)$(if $(TARGET), (static),  (glibc: no musl target here))"

demo: setup
	@sh scripts/demo.sh

# The pages of docs/ as a book, in target/book/html. mdBook is built below target/tools, once.
docs:
	@sh scripts/docs.sh

# The quick starts, each command of them, on a machine of namespaces with the real engines.
# DOCS: some of them (docker, podman, containerd, bundle, plugin, howto, cookbook), separated by commas. PACKAGE: a .deb that
# docker, podman and containerd install, in place of a compilation.
docs-test: setup
	@sh scripts/docs-test.sh

.PHONY: path
path:
	@echo $(PROGRAM)

test: setup newer
	@sh scripts/test.sh

# The commands of this README on a minimal Debian below target/fresh, which needs root. RELEASE: bookworm or trixie.
# PARTS: some of it, with what is built here (scripts/fresh.sh).
RELEASE ?= bookworm
PARTS ?=
fresh:
	@RELEASE='$(RELEASE)' PARTS='$(PARTS)' sh scripts/fresh.sh

# The tests run a glibc build with features for tests; the installed program is static, and must compile without them.
.PHONY: static
static:
ifeq ($(TARGET),)
	@echo "skipped: the static build (no musl target here)"
else
	cargo check --locked --bins --target $(TARGET)
endif

# LINT_STATIC: clippy checks the static build, so that `static` need not check its dependencies again.
lint:
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets $(if $(LINT_STATIC),$(if $(TARGET),--target $(TARGET))) -- -D warnings
	cargo test --locked --quiet --test tidy every_
	@sh scripts/hot.sh check
	@if command -v shellcheck >/dev/null; then shellcheck -x -S warning install.sh .ci/run scripts/*.sh scripts/vm/*.sh contrib/package/*.sh; \
		else echo "skipped: shellcheck is not installed"; fi
	@sh scripts/audit.sh if-installed

# What a change passes before it is pushed: a minute when warm.
check:
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	cargo test --locked --quiet -p nri-adaptation -p oci-document
	cargo test --locked --quiet --lib

# Licenses, sources and known defects of the crates; installs what does it (deny.toml).
audit:
	@sh scripts/audit.sh

# Newer engines and runtimes, below target/tools/newer; where that fails it says so.
.PHONY: newer
newer:
	@sh scripts/newer.sh

# NRI_RUNC_BENCH: some of its parts (benches/verbs/main.rs names them), separated by commas.
bench: build newer
	@sh scripts/bench.sh $$($(MAKE) -s --no-print-directory path) $(TARGET)

# How costs grow with what others choose, as curves with limits. NRI_RUNC_BENCH: some of them (benches/verbs/growth.rs);
# KEEP=1 puts numbers and pictures into the book.
bench-growth: build newer
	@sh scripts/bench-growth.sh $$($(MAKE) -s --no-print-directory path) $(TARGET)

# What a change costs: the bench of another commit (REV) and of this one in turns, ROUNDS times.
# NRI_RUNC_BENCH: as for `make bench`.
REV ?=
bench-compare: setup newer
	@sh scripts/bench-compare.sh '$(REV)' "$$NRI_RUNC_BENCH"

# What is too long for every change, before a release: the oldest Rust, the book, the sizes of `make soak` with a limit.
release-check: setup newer
	@sh scripts/release-check.sh

# The last lines say what was skipped, and why.
interop: setup newer
	@sh scripts/newer.sh critest-1.37.0
	@sh scripts/skips.sh interop $(MAKE) --no-print-directory interop_tests

.PHONY: interop_tests
interop_tests:
	cargo test --locked --test bundle go_stub::
	RUNTIMES=all cargo test --locked --test engines interop:: -- --nocapture
	cargo test --locked --test engines containerd::live -- --nocapture --test-threads=1
	cargo test --locked --test engines containerd::compared::
	CRITEST=$(CURDIR)/target/tools/newer/critest-1.37.0/critest cargo test --locked --test engines containerd::critest
	cargo test --locked --test engines -- containerd::template:: containerd::own_nri:: containerd::effect:: containerd::verbs:: containerd::metrics::
	cargo test --locked --test pure go_types -- --nocapture

# The tests of Docker, Podman and CRI-O with newer ones, built from source (Go).
# ENGINES: some of them (scripts/engines.sh names them), separated by blanks.
engines: setup
	@sh scripts/engines.sh $(ENGINES)

# Engines with the systemd driver on cgroup v2, in a guest whose first process is systemd: ENGINES are some of them.
# VM_KERNEL=bookworm-backports or trixie-backports takes a later kernel than Debian 12's, also for `make vm`.
# VM_CLOCK=0.3 slows the guest's clock to that part of this machine's, where others have the processors.
vm-engines: setup
	@GUEST=systemd sh scripts/engines.sh $(ENGINES)

# A real k3s, built from source with Go (a quarter of an hour the first time).
k3s: setup
	@sh scripts/k3s.sh

# KILLS: SIGKILL at every fault point (`make test` has a sample, another one every day).
# ERRNO: each system call of daemon and wrapper fails once, in each of eight ways (hours; SEED/COUNT: some of them).
# LIVES: how many containers live beside daemons and plugins that come and go, and a seed.
# FIELDS: each field of an adjustment in a container of its own (`make test` has all in a few).
# SLOW: peers that never read, never write, or without end (`make test` has a sample, another one every day).
# LENGTHS: each field that a tenant, a plugin or an engine chooses, in each shape of a long text (`make test` has a sample).
# STRESS_ROUNDS: how many crowds of containers pass fickle plugins (`make test` has two).
# PLATEAU: three thousand containers come and go (`make test` has some).
soak: setup
	KILLS=all cargo test --locked --test node kills:: -- --nocapture --skip errno::
	ERRNO=$${ERRNO:-all} cargo test --locked --test node kills::errno:: -- --nocapture
	SLOW=$${SLOW:-all} cargo test --locked --test node slow:: -- --nocapture
	LIVES=$${LIVES:-5000} cargo test --locked --test node lives:: -- --nocapture
	STRESS_ROUNDS=$${STRESS_ROUNDS:-1000} cargo test --locked --test bundle crowd:: -- --nocapture
	PLATEAU=all cargo test --locked --test bundle plateau:: -- --nocapture
	KUBE=load LOAD_PODS=$${LOAD_PODS:-100} LOAD_SECONDS=$${LOAD_SECONDS:-900} sh scripts/kube.sh
	STRESS_ROUNDS=$${STRESS_ROUNDS:-100} cargo test --locked --test node resources::parallel:: -- --nocapture
	FIELDS=each cargo test --locked --test node resources::matrix:: -- --nocapture
	LENGTHS=$${LENGTHS:-all} cargo test --locked --test pure length:: -- --nocapture
	FUZZ_SECONDS=$${FUZZ_SECONDS:-300} cargo test --locked --test pure fuzz:: -- --nocapture
	NRI_RUNC_BENCH=create_during_updates NRI_RUNC_BENCH_SECONDS=60 $(MAKE) --no-print-directory bench

# cgroup v2 in a guest, with runc and crun; and each field of an adjustment on v1 with crun.
vm: setup
	@sh scripts/vm.sh

# A real Kubernetes of one node on containerd, built from source (Go), with nri-runc as its runtime.
# KUBE: some of its rows (tests/kube/main.rs names them), separated by commas.
kube: setup
	@sh scripts/kube.sh

# An upgrade from an earlier version and back. FROM: its tag or commit (default: the last tag).
FROM ?=
upgrade-test: setup
	@sh scripts/upgrade-test.sh $(FROM)

# Man pages and completions, written from the tables of the program into target/manual.
manual:
	NRI_RUNC_MANUAL=$(CURDIR)/target/manual cargo test --locked --quiet --test tidy manual_pages_and

# Archives, .deb, .rpm, SBOM and checksums into target/package/dist. ARCHES: for which processors.
# TWICE: builds each program twice, in different folders, and compares. BINARY: package this program, and the
# sample plugin resource-defaults beside it.
ARCHES ?= x86_64 aarch64
package:
	sh scripts/package.sh $(foreach arch,$(ARCHES),--arch $(arch)) $(if $(TWICE),--twice) \
		$(if $(BINARY),--binary x86_64='$(BINARY)')

# Those packages installed, upgraded, removed and purged, on a machine of their own inside this one.
package-test:
	cargo build --locked --example demo_plugin
	sh scripts/package.sh --arch x86_64 --next
	sh scripts/package-test.sh $(PARTS)

# The image for Kubernetes nodes, for ARCHES, into target/image; no Docker is needed. PROFILE: as for `make install`.
image:
	sh scripts/node-image.sh $(foreach arch,$(ARCHES),--arch $(arch)) $(if $(filter quick,$(PROFILE)),--quick)

# The image's second program against a systemd and an API server of its tests.
node-helper-test:
	sh scripts/node-image.sh test

# PREFIX: where bin/nri-runc goes. DESTDIR: a folder that packages are made of; nothing outside it
# is touched and nothing is started. BINARY: install this one and build none.
PREFIX ?= /usr/local
DESTDIR ?=
BINARY ?=
INTO = $(if $(DESTDIR),--destdir '$(DESTDIR)')

# Asked again after the build, which may have added the static target. By another name, so that `make -n` runs it not.
BUILT = $(MAKE) -s --no-print-directory path

install: export WITH_SAMPLE = 1
install: $(if $(BINARY),,build)
	sh install.sh --binary "$(or $(BINARY),$$($(BUILT)))" --prefix '$(PREFIX)' $(INTO)

uninstall:
	sh install.sh --uninstall $(INTO)
