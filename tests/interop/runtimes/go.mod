// A template: the test names each version in turn, in a copy of this folder, where go adds what it requires.
module nri-runc.dev/interop/runtimes

go 1.24.0

require github.com/containerd/nri v0.12.5
