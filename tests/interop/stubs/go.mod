// Marks the folder; each version has a module file of its own, given to go with -modfile.
module nri-runc.dev/interop/stubs

go 1.24.0

require github.com/containerd/nri v0.12.5
