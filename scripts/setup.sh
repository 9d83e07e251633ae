# Sourced by ./run and ./test: installs what a fresh Debian machine lacks, saying what.
# Never edits package sources; without root it only says what is missing.

say() { printf '%s\n' "$*" >&2; }
die() { say "$*"; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

PATH=$PATH:/usr/sbin:/sbin:$HOME/.cargo/bin
export PATH

# install_packages PACKAGE…: by apt-get, all at once.
install_packages() {
    [ $# -gt 0 ] || return 0
    if [ "$(id -u)" -ne 0 ]; then
        die "missing: $*; as root: apt-get install $*"
    fi
    have apt-get || die "missing: $*; install them with this system's package manager"
    say "installing: $*"
    export DEBIAN_FRONTEND=noninteractive
    if ! apt-get install -y -qq --no-install-recommends "$@" >/dev/null 2>&1; then
        apt-get update -qq >/dev/null || die "cannot read the package lists; check the network"
        apt-get install -y -qq --no-install-recommends "$@" >/dev/null ||
            die "cannot install $*; see apt-get's message above"
    fi
}

# need COMMAND=PACKAGE…: installs the packages whose command is not there.
need() {
    missing=
    for pair in "$@"; do
        have "${pair%%=*}" || missing="$missing ${pair#*=}"
    done
    # shellcheck disable=SC2086
    install_packages $missing
}

# cargo_is_new_enough: whether the cargo on PATH builds this project.
cargo_is_new_enough() {
    have cargo || return 1
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$root/Cargo.toml" | head -n 1)
    found=$(cargo --version | cut -d ' ' -f 2)
    [ "$(printf '%s\n%s\n' "$wanted" "$found" | sort -V | head -n 1)" = "$wanted" ]
}

# need_rust: a compiler of at least the version in Cargo.toml. Debian's stable releases have a new
# one beside their own, packaged for building browsers.
need_rust() {
    need cc=gcc ld=binutils
    [ -e /usr/include/stdlib.h ] || install_packages libc6-dev
    cargo_is_new_enough && return 0
    [ "$(id -u)" -eq 0 ] || die "missing: Rust $wanted or newer; see https://rustup.rs"
    if ! (install_packages cargo-web rustc-web) || ! cargo_is_new_enough; then
        die "no package here has Rust $wanted or newer; see https://rustup.rs"
    fi
}

# build_release: the program, optimised.
build_release() {
    say "building"
    cargo build --release --locked --quiet --manifest-path "$root/Cargo.toml" --package ztier ||
        die "the build failed; see the compiler's messages above"
    ztier=${CARGO_TARGET_DIR:-$root/target}/release/ztier
}
