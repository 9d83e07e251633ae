# Sourced by ./run and ./test: installs what a fresh Debian machine lacks, saying what.
# Never edits package sources and never removes a package; without root it only says what is missing.

say() { printf '%s\n' "$*" >&2; }
die() { say "$*"; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

HOME=${HOME:-/root}
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin:$HOME/.cargo/bin
export HOME PATH
lists_are_fresh=false

# install_packages PACKAGE…: by apt-get, all at once. Quiet unless it fails.
install_packages() {
    [ $# -gt 0 ] || return 0
    [ "$(id -u)" -eq 0 ] || die "missing: $*; as root: apt-get install $*"
    have apt-get || die "missing: $*; install them with this system's package manager"
    say "installing: $*"
    export DEBIAN_FRONTEND=noninteractive
    # Old lists offer old versions, or files that the mirrors no longer have.
    if ! $lists_are_fresh; then
        apt-get update -qq >/dev/null || say "cannot renew the package lists; going on with the old"
        lists_are_fresh=true
    fi
    said=$(apt-get install -y -qq --no-install-recommends --no-remove "$@" 2>&1) || {
        say "$said"
        die "cannot install $*; see apt-get's message above"
    }
}

# lacking COMMAND=PACKAGE…: the packages whose command is not there, each once.
lacking() {
    for pair in "$@"; do
        have "${pair%%=*}" || printf '%s\n' "${pair#*=}"
    done | sort -u | tr '\n' ' '
}

# need COMMAND=PACKAGE…: installs the packages whose command is not there.
need() {
    # shellcheck disable=SC2046
    install_packages $(lacking "$@")
}

# cargo_is_new_enough: whether the cargo on PATH builds this project.
cargo_is_new_enough() {
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$root/Cargo.toml" | head -n 1)
    have cargo || return 1
    found=$(cargo --version 2>/dev/null | cut -d ' ' -f 2)
    [ -n "$found" ] && [ "$(printf '%s\n%s\n' "$wanted" "$found" | sort -V | head -n 1)" = "$wanted" ]
}

# need_rust [COMMAND=PACKAGE…]: a linker, the C library's headers, certificates for fetching crates,
# and a compiler of at least the version in Cargo.toml; and what else is asked for, in the same go.
# Debian's stable releases have a new compiler beside their own, packaged for building browsers.
need_rust() {
    packages=$(lacking cc=gcc ld=binutils "$@")
    [ -e /usr/include/stdlib.h ] || packages="$packages libc6-dev"
    if have apt-get && [ ! -e /etc/ssl/certs/ca-certificates.crt ]; then
        packages="$packages ca-certificates"
    fi
    if ! cargo_is_new_enough && [ -x "$HOME/.cargo/bin/cargo" ]; then
        PATH=$HOME/.cargo/bin:$PATH
    fi
    if cargo_is_new_enough; then
        # shellcheck disable=SC2086
        install_packages $packages
        return
    fi
    rust="Rust $wanted or newer (https://rustup.rs)"
    if [ "$(id -u)" -ne 0 ]; then
        packages=$(printf '%s' "$packages" | tr -s ' ')
        [ -z "${packages# }" ] || die "missing: $rust, and as root: apt-get install $packages"
        die "missing: $rust"
    fi
    # shellcheck disable=SC2086
    install_packages $packages cargo-web rustc-web
    hash -r
    cargo_is_new_enough || die "no package here has Rust $wanted or newer; see https://rustup.rs"
}

# need_vm: what virtual machines of tests/vm need, and the programs that they get to work with.
need_vm() {
    need qemu-system-x86_64=qemu-system-x86 busybox=busybox-static depmod=kmod xz=xz-utils \
        strip=binutils setpriv=util-linux mkfs.ext4=e2fsprogs mkfs.xfs=xfsprogs \
        mkfs.btrfs=btrfs-progs nbd-client=nbd-client dmsetup=dmsetup make-bcache=bcache-tools \
        fio=fio stress-ng=stress-ng
}

# need_cargo_deb: what makes Debian packages of crates. Unoptimised, which takes a third of the time to build.
need_cargo_deb() {
    cargo deb --version >/dev/null 2>&1 && return
    say "installing: cargo-deb"
    cargo install --quiet --locked --debug --no-default-features cargo-deb ||
        die "cannot install cargo-deb; see the messages above"
}

# need_miri: the interpreter that finds undefined behaviour, where rustup can install it.
need_miri() {
    cargo +nightly miri --version >/dev/null 2>&1 && return
    have rustup || return 0
    say "installing: a nightly toolchain with miri"
    timeout 300 rustup toolchain install nightly --profile minimal --component miri,rust-src >/dev/null 2>&1 ||
        say "cannot install miri; going on without it"
}

# know_commit: what `ztier --version` says of it. Empty in a source archive, which has no .git.
know_commit() {
    ZTIER_COMMIT=$([ ! -e "$root/.git" ] ||
        git -C "$root" rev-parse --short=12 HEAD 2>/dev/null || true)
    export ZTIER_COMMIT
}

# build_release: the program, optimised.
build_release() {
    know_commit
    ztier=${CARGO_TARGET_DIR:-$root/target}/release/ztier
    if [ -x "$ztier" ]; then say "building"; else say "building; the first time takes minutes"; fi
    cargo build --release --locked --quiet --manifest-path "$root/Cargo.toml" --package ztier ||
        die "the build failed; see the messages above"
}

# build_programs: the program as packages have it and its benchmarks, optimised, with what those start in
# virtual machines.
build_programs() {
    know_commit
    cargo build --release --locked --manifest-path "$root/Cargo.toml" --features ztier/object-store \
        --package ztier --package ztier-bench --package ztier-vm --bin ztier --bin ztier-bench --bin ztier-vm-agent --bin ztier-vm-pressure
}
