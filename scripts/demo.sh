# Sourced by ./run: the main job, once over a block device with ext4, once over NBD.
# Long steps run in the background and are waited for, so that a signal ends them at once.

GIB=1073741824
name=demo-$$
work=
table=

# stat_of KEY: a number of the volume's statistics.
stat_of() {
    "$ztier" stats "$name" --format json | tr ',{}' '\n\n\n' |
        sed -n "s/^ *\"$1\": *\([0-9.]*\).*/\1/p" | head -n 1
}

mib() { awk -v b="$1" 'BEGIN { printf "%.1f MiB", b / 1048576 }'; }
now() { date +%s.%N; }
since() { awk -v s="$1" -v e="$(now)" 'BEGIN { printf "%.1f s", e - s }'; }
rate() { awk -v b="$1" -v s="$2" -v e="$(now)" 'BEGIN { printf "%.0f MB/s", b / 1e6 / (e - s) }'; }

# step WHAT COMMAND…: runs a long command; if it fails, WHAT is what failed.
step() {
    what=$1
    shift
    "$@" &
    wait $! || die "failed: $what"
}

# how_much: bytes of files to use: 1.5 GiB, or what memory and the volume's limit allow even if
# nothing shrinks.
how_much() {
    awk -v most=$((GIB * 3 / 2)) -v limit="$(stat_of ram_limit_bytes)" '/^MemAvailable:/ {
        b = int($2 * 1024 * 0.35)
        if (b > limit * 0.7) b = int(limit * 0.7)
        print (b < most ? b : most) }' /proc/meminfo
}

# choose_files BYTES: real files of this machine, at most BYTES in all, as lines «size, path below /».
# Small files come last: thousands of them would measure the file system.
choose_files() {
    find /usr /opt -xdev -type f -readable -size +0 -size -65536k -printf '%s\t%P\t%H\n' 2>/dev/null |
        awk -F '\t' '$2 !~ /[\\"]/ && NF == 3 {
            print ($1 < 131072) "\t" $1 "\t" substr($3, 2) "/" $2 }' | sort -s -n -k 1,1 |
        awk -F '\t' -v most="$1" 'sum + $2 <= most { sum += $2; print $2 "\t" $3 }' >"$work/files"
}

# prepare: chooses the files, and sums them up.
prepare() {
    step "choosing files in /usr" choose_files "$(how_much)"
    [ -s "$work/files" ] || die "no list of files: $work is full, or /usr has none to read"
    cut -f 2 "$work/files" | tr '\n' '\0' >"$work/files0"
    bytes=$(awk '{ s += $1 } END { printf "%.0f", s }' "$work/files")
    say "using $(wc -l <"$work/files") files of this machine, $(mib "$bytes"); reading them first"
}

checksums() { cd / && xargs -0 sha256sum <"$work/files0" >"$work/sums"; }

# pack: the chosen files as a tar stream of whole blocks.
pack() {
    tar -C / -c -b 64 -f - --no-recursion --null --verbatim-files-from -T "$work/files0"
}

# measured WHAT: a row of the table. A plain RAM disk needs as much memory as is stored, and blocks
# of one repeated word, which cost ztier nothing, are stored like others there.
measured() {
    stored=$(($(stat_of orig_data_bytes) + $(stat_of blocks_same) * 4096))
    memory=$(stat_of mem_used_bytes)
    payload=$(stat_of compr_data_bytes)
    table="$table$(awk -v what="$1" -v o="$stored" -v m="$memory" -v p="$payload" 'BEGIN {
        dense = "-"; overhead = "-"; mib = 1048576
        if (m > 0) dense = sprintf("%.2f x", o / m)
        if (p > 0) overhead = sprintf("%.3f", m / p)
        printf "%-26s %10.1f MiB %10.1f MiB %12.1f MiB %9s %15s", what, o / mib, m / mib, o / mib,
            dense, overhead }')
"
}

print_table() {
    printf '\n%-26s %14s %14s %16s %9s %15s\n%s\n' "" "stored" "memory used" "plain RAM disk" \
        "as dense" "memory/payload" "$table"
}

# below PID: all processes below PID.
below() {
    cat /proc/[0-9]*/stat 2>/dev/null | awk -v top="$1" '
        { pid = $1; sub(/.*\) /, ""); parent[pid] = $2 }
        END { for (pid in parent) {
            p = pid
            while (p in parent && parent[p] != top) p = parent[p]
            if (p in parent && p != top) print pid } }'
}

# unmount: a process that is being ended may hold the mount a little longer.
unmount() {
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        umount "$work/mnt" 2>/dev/null && return
        sleep 0.3
    done
    umount "$work/mnt"
}

# take_down STATUS: whatever was put up, also after a failure.
take_down() {
    trap - EXIT
    trap '' INT TERM HUP
    [ "$1" -le 128 ] || say "interrupted; taking everything down"
    # shellcheck disable=SC2046
    kill $(below $$) 2>/dev/null || :
    # The shell would say «Terminated» of each.
    { wait; } 2>/dev/null
    [ -n "$work" ] || exit "$1"
    if mountpoint -q "$work/mnt" 2>/dev/null; then unmount || umount -l "$work/mnt"; fi
    if "$ztier" list --json 2>/dev/null | grep -q "\"$name\""; then
        "$ztier" down "$name" --discard >&2 || say "could not take $name down; try: ztier down $name"
    fi
    rm -rf "$work"
    exit "$1"
}

# put_up EXPORT: brings the volume up and sets $device to what to open.
put_up() {
    trap 'take_down $?' EXIT
    trap 'exit 129' HUP
    trap 'exit 130' INT
    trap 'exit 143' TERM
    began=$(now)
    work=$(mktemp -d "${TMPDIR:-/tmp}/ztier-run.XXXXXX") || die "cannot make a directory for the run"
    start=$(now)
    device=$("$ztier" up "$name" --size 3G --export "$1") || die "failed: bringing a volume up"
    device=$(printf '%s\n' "$device" | head -n 1)
    say "$device is usable after $(since "$start")"
}

drop_caches() {
    sync -f "$work/mnt"
    if echo 1 2>/dev/null >/proc/sys/vm/drop_caches; then
        say "dropped the page cache of this whole machine"
    else
        unmount || die "failed: unmounting $device"
        mount "$device" "$work/mnt" || die "failed: mounting $device again"
        say "mounted anew, to empty the page cache"
    fi
}

fill() {
    pack | tar -C "$work/mnt" -x -f - && sync -f "$work/mnt"
}

check() { cd "$work/mnt" && sha256sum --quiet -c "$work/sums"; }

# delete_half: deletes files that hold half of the bytes, here and there.
delete_half() {
    awk -F '\t' '{ seen += $1 } gone + $1 <= seen / 2 { gone += $1; print $2 }' "$work/files" |
        tr '\n' '\0' | (cd "$work/mnt" && xargs -0 rm -f)
}

# settle: waits until cleaning has given back what it can, 5 s at most.
settle() {
    before=$(stat_of mem_used_bytes)
    for _ in 1 2 3 4 5; do
        sleep 1
        after=$(stat_of mem_used_bytes)
        [ "$after" -lt "$((before - before / 200))" ] || break
        before=$after
    done
}

demo_block_device() {
    put_up fuse
    prepare
    step "reading the files" checksums
    mkdir "$work/mnt"
    mkfs.ext4 -q -F "$device" || die "failed: mkfs.ext4 on $device"
    mount "$device" "$work/mnt" || die "failed: mounting $device"

    start=$(now)
    step "filling $device" fill
    say "filled at $(rate "$bytes" "$start")"
    drop_caches
    start=$(now)
    step "comparing: files read back differ" check
    say "read back at $(rate "$bytes" "$start"), every checksum right"
    measured "filled"

    step "deleting files" delete_half
    # What a journal still holds is not trimmed.
    sync -f "$work/mnt"
    step "fstrim" fstrim "$work/mnt"
    step "waiting" settle
    measured "half deleted, then fstrim"
    unmount || die "failed: unmounting $device"
    print_table
    say "taking everything down after $(since "$began")"
}

copy_in() { pack | nbdcopy - "$device"; }
# sum_packed: the checksum and the size of what is copied in.
sum_packed() {
    { pack | tee /dev/fd/3 | sha256sum >"$work/sum"; } 3>&1 | wc -c >"$work/size"
}
sum_copied() { nbdcopy "$device" - | head -c "$size" | sha256sum | cmp -s - "$work/sum"; }

demo_nbd() {
    put_up nbd
    prepare
    step "reading the files" sum_packed
    size=$(cat "$work/size")

    start=$(now)
    step "copying in with nbdcopy" copy_in
    say "copied in at $(rate "$size" "$start")"
    start=$(now)
    step "comparing: what was read back differs" sum_copied
    say "copied out at $(rate "$size" "$start"), the checksum is right"
    measured "filled"

    # nbdcopy turns the holes of a sparse file into trims.
    truncate -s $((size / 2 / 4096 * 4096)) "$work/holes"
    step "trimming with nbdcopy" nbdcopy "$work/holes" "$device"
    step "waiting" settle
    measured "half trimmed"
    print_table
    say "taking everything down after $(since "$began")"
}
