# Sourced by ./run: the main job, once over a block device with ext4, once over NBD.

GIB=1073741824
name=demo-$$
work=

# stat_of KEY: a number of the volume's statistics.
stat_of() {
    "$ztier" stats "$name" --format json | tr ',{}' '\n\n\n' |
        sed -n "s/^ *\"$1\": *\([0-9.]*\).*/\1/p" | head -n 1
}

mib() { awk -v b="$1" 'BEGIN { printf "%.1f MiB", b / 1048576 }'; }
now() { date +%s.%N; }
rate() { awk -v b="$1" -v s="$2" -v e="$3" 'BEGIN { printf "%.0f MB/s", b / 1e6 / (e - s) }'; }

# how_much: bytes of files to use: 1.5 GiB, or what memory allows.
how_much() {
    awk -v most=$((GIB * 3 / 2)) '/^MemAvailable:/ { b = int($2 * 1024 * 0.35) }
        END { print (b < most ? b : most) }' /proc/meminfo
}

# choose_files BYTES LIST: real files of this machine, up to so many bytes, one path below / a line.
choose_files() {
    find /usr /opt -xdev -type f -readable -size +0 -size -65536k -printf '%s\t%P\t%H\n' 2>/dev/null |
        awk -F '\t' -v most="$1" '$2 !~ /[\\"]/ && NF == 3 && sum + $1 <= most {
            sum += $1; print substr($3, 2) "/" $2 }' >"$2"
    [ -s "$2" ] || die "no readable files in /usr to work with"
}

# report WHAT: what is stored, in how much memory, and what a plain RAM disk would use.
report() {
    stored=$(stat_of orig_data_bytes)
    memory=$(stat_of mem_used_bytes)
    payload=$(stat_of compr_data_bytes)
    awk -v what="$1" -v o="$stored" -v m="$memory" -v p="$payload" 'BEGIN {
        printf "%-22s %9.1f MiB stored in %9.1f MiB of memory", what, o / 1048576, m / 1048576
        if (m > 0) printf "  (a plain RAM disk: %.2f x as much)", o / m
        if (p > 0) printf "  memory / payload %.3f", m / p
        print "" }'
}

# take_down STATUS: whatever was put up, also after a failure.
take_down() {
    trap - EXIT INT TERM
    [ -n "$work" ] || exit "$1"
    if mountpoint -q "$work/mnt" 2>/dev/null; then umount "$work/mnt" || umount -l "$work/mnt"; fi
    if "$ztier" list --json 2>/dev/null | grep -q "\"$name\""; then
        "$ztier" down "$name" --discard >&2 || say "could not take $name down; try: ztier down $name"
    fi
    rm -rf "$work"
    exit "$1"
}

prepare() {
    trap 'take_down $?' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    work=$(mktemp -d "${TMPDIR:-/tmp}/ztier-run.XXXXXX")
    choose_files "$(how_much)" "$work/files"
    tr '\n' '\0' <"$work/files" >"$work/files0"
    bytes=$(cd / && xargs -0 stat -c %s <"$work/files0" | awk '{ s += $1 } END { printf "%d", s }')
    say "using $(wc -l <"$work/files") files of this machine, $(mib "$bytes"); their checksums first"
    (cd / && xargs -0 sha256sum <"$work/files0") >"$work/sums"
}

# pack: the chosen files as a tar stream.
pack() { tar -C / -c -f - --no-recursion --null --verbatim-files-from -T "$work/files0"; }

drop_caches() {
    sync
    if echo 1 >/proc/sys/vm/drop_caches 2>/dev/null; then
        say "dropped the page cache of this whole machine"
    else
        umount "$work/mnt"
        mount "$device" "$work/mnt"
        say "mounted anew, to empty the page cache"
    fi
}

demo_block_device() {
    prepare
    mkdir "$work/mnt"
    start=$(now)
    device=$("$ztier" up "$name" --size 3G --export auto | head -n 1)
    say "$device is usable after $(awk -v s="$start" -v e="$(now)" 'BEGIN { printf "%.2f s", e - s }')"
    mkfs.ext4 -q -F "$device"
    mount "$device" "$work/mnt"

    start=$(now)
    pack | tar -C "$work/mnt" -x -f -
    sync -f "$work/mnt"
    say "filled at $(rate "$bytes" "$start" "$(now)")"
    drop_caches
    start=$(now)
    (cd "$work/mnt" && sha256sum --quiet -c "$work/sums") || die "files read back differ"
    say "read back at $(rate "$bytes" "$start" "$(now)"), every checksum right"
    report "filled"

    awk 'NR % 2' "$work/files" | tr '\n' '\0' | (cd "$work/mnt" && xargs -0 rm -f)
    # What a journal still holds is not trimmed.
    sync -f "$work/mnt"
    fstrim "$work/mnt"
    sleep 3
    report "half deleted, fstrim"
    umount "$work/mnt"
    say "taking everything down"
}

demo_nbd() {
    prepare
    uri=$("$ztier" up "$name" --size 3G --export nbd | head -n 1)
    say "$uri is usable"
    pack >"$work/in.tar"
    truncate -s %4096 "$work/in.tar"
    size=$(stat -c %s "$work/in.tar")
    sum=$(sha256sum <"$work/in.tar")

    start=$(now)
    nbdcopy "$work/in.tar" "$uri"
    say "copied in at $(rate "$size" "$start" "$(now)")"
    rm "$work/in.tar"
    start=$(now)
    [ "$(nbdcopy "$uri" - | head -c "$size" | sha256sum)" = "$sum" ] || die "what was read back differs"
    say "copied out at $(rate "$size" "$start" "$(now)"), the checksum is right"
    report "filled"

    # nbdcopy turns the holes of a sparse file into trims.
    truncate -s $((size / 2 / 4096 * 4096)) "$work/holes"
    nbdcopy "$work/holes" "$uri"
    sleep 3
    report "half trimmed"
    say "taking everything down"
}
