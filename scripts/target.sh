# Sourced by scripts/static and ./test, after setup.sh: builds for musl, of this architecture or another.

# own_architecture: as images call it.
own_architecture() {
    case $(uname -m) in
    x86_64) echo amd64 ;;
    aarch64) echo arm64 ;;
    *) die "no static build for $(uname -m): amd64 and arm64 only" ;;
    esac
}

# has_std TARGET: whether the compiler has the standard library for it, which rustup installs where it can.
has_std() {
    [ -e "$(rustc --print target-libdir --target "$1")" ] || {
        have rustup && rustup target add "$1" >/dev/null 2>&1
    }
}

# use_target ARCHITECTURE: what cargo needs to build for it with musl, which rustup installs: CARGO_BUILD_TARGET,
# RUSTFLAGS, a C compiler, QEMU for its tests. For this architecture without musl: with the C library that is here.
use_target() {
    case $1 in
    amd64) machine=x86_64 ;;
    arm64) machine=aarch64 ;;
    *) die "no static build for $1: amd64 and arm64 only" ;;
    esac
    own=$(own_architecture)
    CARGO_BUILD_TARGET=$machine-unknown-linux-musl
    RUSTFLAGS="-C target-feature=+crt-static"
    if has_std "$CARGO_BUILD_TARGET"; then
        # The compiler has a linker and musl's objects; the C parts of crates use nothing of a C library that
        # musl lacks.
        RUSTFLAGS="$RUSTFLAGS -C linker=rust-lld -C link-self-contained=yes"
        compiler=musl-gcc
        package=musl-tools
        if [ "$1" != "$own" ]; then
            compiler=$machine-linux-gnu-gcc
            package=gcc-$(printf '%s' "$machine" | tr _ -)-linux-gnu
        fi
        need "$compiler=$package"
        variable=$(printf '%s' "$CARGO_BUILD_TARGET" | tr - _)
        export "CC_$variable=$compiler"
        export "CFLAGS_$variable=-ffile-prefix-map=${CARGO_HOME:-$HOME/.cargo}=cargo -U_FORTIFY_SOURCE"
        if [ "$1" != "$own" ]; then
            export "CARGO_TARGET_$(printf '%s' "$variable" | tr '[:lower:]' '[:upper:]')_RUNNER=qemu-$machine-static"
        fi
    elif [ "$1" = "$own" ]; then
        say "no Rust library for musl (rustup target add $CARGO_BUILD_TARGET): with this system's C library"
        CARGO_BUILD_TARGET=$machine-unknown-linux-gnu
    else
        die "no Rust library for $CARGO_BUILD_TARGET; rustup target add $CARGO_BUILD_TARGET installs it"
    fi
    export CARGO_BUILD_TARGET RUSTFLAGS
}
