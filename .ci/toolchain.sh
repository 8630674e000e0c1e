# shellcheck shell=bash
# Which Rust builds what: sourced by `setup`, which installs, and by `rust`, which chooses among what is there.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# The Rust of the agent, or any newer release.
pin=$(sed -n 's/^channel *= *"\(.*\)"/\1/p' "$root/rust-toolchain.toml")
# The kernel programs need a nightly, whose LLVM must not be newer than the linker's: this one, where one is installed
# for the purpose, or the user's own.
nightly="nightly-2026-05-20"
llvm=22
# The images hold nothing but the binary: it is linked statically.
static_target=$(uname -m)-unknown-linux-musl

PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
export PATH

have() { command -v "$1" >/dev/null 2>&1; }

# $1, the first line of `rustc --version`, is of the pinned release or a newer one.
new_enough() {
    local version
    version=$(awk '{ print $2 }' <<<"$1")
    [[ -n $version && $version != *-nightly* && $version != *-beta* ]] &&
        [[ $(printf '%s\n' "$pin" "${version%%-*}" | sort -V | head -n 1) == "$pin" ]]
}

# rustup has a toolchain of this name.
installed() { rustup toolchain list | grep -q "^$1\(-[a-z]\|\$\)"; }

# The toolchain of rustup for the agent, if it has to be named: the pin, then `stable`, then any.
agent_toolchain() {
    local names name
    if installed "$pin"; then
        return 0
    fi
    names=$(rustup toolchain list | awk '{ print $1 }')
    for name in $(grep '^stable' <<<"$names") $(grep -v '^stable' <<<"$names"); do
        if new_enough "$(rustup run "$name" rustc --version 2>/dev/null)"; then
            printf '%s\n' "$name"
            return 0
        fi
    done
    echo "rust: rustup has no toolchain $pin or newer; install it: rustup toolchain install $pin" >&2
    return 1
}

# The compiler of the fuzz targets: any nightly of rustup has sanitizers.
fuzz_toolchain() {
    local name
    have rustup || return 1
    for name in nightly "$nightly"; do
        if installed "$name"; then
            echo "$name"
            return
        fi
    done
    return 1
}

# What merges the counts of instrumented binaries: of rustup, or else the linker's if it is of the same LLVM.
llvm_profdata() {
    local version host dir
    version=$(.ci/rust rustc -vV)
    host=$(sed -n 's/^host: //p' <<<"$version")
    dir=$(.ci/rust rustc --print sysroot)/lib/rustlib/$host/bin
    if [[ ! -x $dir/llvm-profdata && $version == *"LLVM version: $llvm."* ]]; then
        dir=/usr/lib/llvm-$llvm/bin
    fi
    [[ -x $dir/llvm-profdata ]] && echo "$dir/llvm-profdata"
}

# The nightly has the sources of `core`, and an LLVM that the linker can read.
nightly_works() {
    local sysroot version
    installed "$1" || return 1
    sysroot=$(rustup run "$1" rustc --print sysroot 2>/dev/null) || return 1
    version=$(rustup run "$1" rustc -vV | sed -n 's/^LLVM version: \([0-9]*\).*/\1/p')
    [[ -d $sysroot/lib/rustlib/src/rust/library/core ]] && ((version <= llvm))
}

# Debian's Rust is there, with a ready-made `core` for the BPF target.
debian_rust_works() {
    [[ -x /usr/bin/cargo && -x /usr/bin/rustc ]] &&
        [[ -d $(/usr/bin/rustc --print sysroot)/lib/rustlib/bpfel-unknown-none ]]
}

# The compiler of the kernel programs: a toolchain of rustup, or `debian`.
bpf_toolchain() {
    if have rustup && nightly_works nightly; then
        echo nightly
    elif have rustup && nightly_works "$nightly"; then
        echo "$nightly"
    elif debian_rust_works; then
        echo debian
    else
        return 1
    fi
}
