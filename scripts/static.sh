# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh disable=SC2154
# Builds static programs for x86_64 and aarch64. scripts/package.sh and scripts/node-image.sh source it after they set
# $top (the checkout) and $tools (the folder for tools) and define `fail`.

# Downloads Debian packages and unpacks them into target/tools/$1; the other arguments are the packages.
unpack_debian() {
    dir=$tools/$1
    shift
    [ ! -e "$dir/.done" ] || return 0
    command -v apt-get >/dev/null || return 1
    rm -rf "$dir"
    mkdir -p "$dir"
    (cd "$dir" && apt-get download "$@" && for package in *.deb; do dpkg -x "$package" . || exit 1; done) >"$dir.log" 2>&1 || return 1
    rm -f "$dir"/*.deb
    touch "$dir/.done"
}

# Prints the path of an unpacked binutils program for aarch64: a wrapper that sets its private library path.
unpacked_binutils() {
    dir=$tools/binutils-aarch64
    unpack_debian binutils-aarch64 binutils-aarch64-linux-gnu || return 1
    mkdir -p "$tools/bin"
    libraries=$(dirname "$(find "$dir" -name 'libbfd*.so' | head -n 1)")
    wrapper=$tools/bin/aarch64-linux-gnu-$1
    printf '#!/bin/sh\nLD_LIBRARY_PATH=%s exec %s "$@"\n' "$libraries" "$dir/usr/bin/aarch64-linux-gnu-$1" >"$wrapper"
    chmod +x "$wrapper"
    echo "$wrapper"
}

# Prints a linker for the other architecture: Rust's, LLVM's, or binutils', which is downloaded if necessary.
cross_linker() {
    host=$(rustc -vV | sed -n 's/^host: //p')
    for linker in "$(rustc --print sysroot)/lib/rustlib/$host/bin/gcc-ld/ld.lld" ld.lld aarch64-linux-gnu-ld; do
        if found=$(command -v "$linker"); then echo "$found"; return; fi
    done
    unpacked_binutils ld || fail "no linker for aarch64: install lld or binutils-aarch64-linux-gnu ($tools/binutils-aarch64.log)"
}

# Prints the C compiler and the archiver for aarch64, as two words: the installed ones, or downloaded ones.
cross_compiler() {
    if command -v aarch64-linux-gnu-gcc >/dev/null; then
        echo "aarch64-linux-gnu-gcc aarch64-linux-gnu-ar"
        return
    fi
    wrapper=$tools/bin/aarch64-linux-gnu-gcc
    dir=$tools/gcc-aarch64
    version=$(apt-cache depends gcc-aarch64-linux-gnu 2>/dev/null | sed -n 's/.*Depends: gcc-\([0-9]*\)-aarch64-linux-gnu$/\1/p' | head -n 1)
    # shellcheck disable=SC2015
    [ -n "$version" ] && unpack_debian gcc-aarch64 "gcc-$version-aarch64-linux-gnu" "cpp-$version-aarch64-linux-gnu" \
        "libgcc-$version-dev-arm64-cross" libc6-dev-arm64-cross linux-libc-dev-arm64-cross ||
        fail "no C compiler for aarch64: install gcc-aarch64-linux-gnu ($dir.log)"
    assembler=$(unpacked_binutils as) || fail "no assembler for aarch64: install binutils-aarch64-linux-gnu"
    archiver=$(unpacked_binutils ar) || fail "no ar for aarch64: install binutils-aarch64-linux-gnu"
    mkdir -p "$dir/programs"
    ln -sf "$assembler" "$dir/programs/as"
    printf '#!/bin/sh\nexec %s -B%s -isystem %s "$@"\n' "$dir/usr/bin/aarch64-linux-gnu-gcc-$version" \
        "$dir/programs" "$dir/usr/aarch64-linux-gnu/include" >"$wrapper"
    chmod +x "$wrapper"
    echo "$wrapper $archiver"
}

# Refuses a program that tests can fail, stall or kill (the feature `faults`).
# Searches for the description of the key `debug.fault`; messages would prove nothing, because every build has them all.
# shellcheck disable=SC2016
no_build_for_tests() { ! grep -qF 'For tests: `POINT:kill`' "$1" || fail "$1 was built for tests: build it without the feature faults"; }

# build_static ARCH SOURCE BUILD PROGRAM [WORD...]: compiles PROGRAM of SOURCE into BUILD, in the profile
# $profile (default: release), with more arguments for cargo. The program contains no paths of this machine.
build_static() {
    arch=$1 source=$2 build=$3 program=$4
    shift 4
    target=$arch-unknown-linux-musl
    [ -d "$(rustc --print target-libdir --target "$target" 2>/dev/null)" ] ||
        rustup target add "$target" >/dev/null 2>&1 || fail "the Rust target $target cannot be had"
    flags="'--remap-path-prefix=$source=/nri-runc'"
    for registry in "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*; do
        [ ! -d "$registry" ] || flags="$flags, '--remap-path-prefix=$registry=/cargo'"
    done
    flags="$flags, '--remap-path-prefix=$(rustc --print sysroot)=/rust'"
    if [ "$arch" != "$(uname -m)" ]; then
        linker=$(cross_linker)
        flags="$flags, '-Clinker=$linker', '-Clinker-flavor=ld'"
    fi
    say "building $program for $arch"
    (cd "$source" && cargo build --profile "${profile:-release}" --locked --bin "$program" --target "$target" --target-dir "$build" \
        --config "target.$target.rustflags = [$flags]" "$@")
    no_build_for_tests "$build/$target/${profile:-release}/$program"
}
