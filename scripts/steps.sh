# Sourced by ./test: steps, parts that run beside each other, and what came of them. A result is a
# line of a file in $work, to which all processes of a run append: times, counts, skips, fails.

# timed WHAT COMMAND…: runs it, and notes how long it took, and how much of a processor.
timed() {
    what=$1
    shift
    say ""
    say "== $what"
    began=$(date +%s)
    status=0
    # In a shell of its own, whose children are those of the command alone.
    (
        ended=0
        "$@" || ended=$?
        times >"$work/processor.$part"
        exit $ended
    ) || status=$?
    printf '%6d s %6d s  %s\n' $(($(date +%s) - began)) "$(processor)" "$what" >>"$work/times"
    [ "$status" -eq 0 ] || fail "$what"
    return "$status"
}
# processor: seconds of it that the command took, with all processes that were waited for.
processor() {
    awk -F '[ ms]+' 'NR == 2 { printf "%d", $1 * 60 + $2 + $3 * 60 + $4 }' "$work/processor.$part"
}
# count PASSED FAILED SKIPPED
count() {
    printf '%d %d %d\n' "$1" "$2" "$3" >>"$work/counts"
}
# fail WHAT: says it now, and again at the end.
fail() {
    say "FAILED: $1"
    printf '  %s\n' "$1" >>"$work/fails"
}
step() {
    if timed "$@"; then count 1 0 0; else count 0 1 0; fi
}
# skip WHAT WHY [COUNT]
skip() {
    count 0 0 "${3:-1}"
    printf '  %s: %s\n' "$1" "$2" >>"$work/skips"
}

# test_step WHAT COMMAND…: a step that runs Rust tests, each of which counts. A test that lacks
# something says «skipped: …»; to the test runner it has passed.
test_step() {
    log=$work/log.$part
    if timed "$1" logged "$@"; then failed_here=0; else failed_here=1; fi
    count_tests
}
logged() {
    shift
    rm -f "$log.failed"
    { "$@" 2>&1 || : >"$log.failed"; } | tee "$log" | grep --line-buffered -v '^test .* ok$' || :
    [ ! -e "$log.failed" ]
}
# count_tests: adds up the tests of the log.
count_tests() {
    # shellcheck disable=SC2046
    set -- $(awk '/^test result: / { p += $4; f += $6 } END { print p + 0, f + 0 }' "$log")
    # Also a build that fails, or a process that dies before its result.
    [ "$2" -eq 0 ] || failed_here=$2
    failed_tests >>"$work/fails"
    sed -n 's/^.*skipped: //p' "$log" | sort | uniq -c >"$log.skips"
    lacking=0
    while read -r times why; do
        skip "$times of the tests" "$why" "$times"
        lacking=$((lacking + times))
    done <"$log.skips"
    count $(($1 - lacking)) "$failed_here" 0
}
# failed_tests: the tests of the log that failed, and the first lines of what each said.
failed_tests() {
    awk '
        /^(stack backtrace:|note: |$)/ { said = 0 }
        said > 0 { said_by[name] = said_by[name] " " substr($0, 1, 400); said -= 1 }
        match($0, /^thread \047[^\047]*\047.* panicked at /) {
            split($0, parts, "\047"); name = parts[2]
            said_by[name] = substr($0, RSTART + RLENGTH); said = 6
        }
        /^failures:$/ { listed = 1 }
        /^test result: / { listed = 0 }
        listed && /^    [^ ]+$/ { print "    " $1 ": " said_by[$1] }
    ' "$log"
}

# begin PART: runs `part_PART` of ./test beside what follows, until `join PART`. Most tests wait more
# than they compute, for timers, drives and each other.
begin() {
    say ""
    say "== $1: begun, beside what follows"
    # A session of its own, so that all of it can be ended.
    ZTIER_TEST_WORK=$work setsid sh "$root/test" "--part=$1" >"$work/part.$1" 2>&1 </dev/null &
    eval "begun_$1=\$!"
    begun="$begun $!"
}
# join PART: waits for it, and shows what it said.
join() {
    eval "pid=\$begun_$1"
    say ""
    say "== $1: waiting for its end"
    ended=0
    wait "$pid" || ended=$?
    cat "$work/part.$1" >&2
    [ $ended -eq 0 ] || { count 0 1 0 && fail "$1: ended by itself, status $ended"; }
}
end_parts() {
    for pid in $begun; do kill -- "-$pid" 2>/dev/null || :; done
    # Daemons that they tested lead sessions of their own. There are none unless the run was ended.
    for process in /proc/[0-9]*; do
        if tr '\0' '\n' 2>/dev/null <"$process/environ" | grep -q -x -F "ZTIER_TEST_WORK=$work"; then
            kill -9 "${process#/proc/}" 2>/dev/null || :
        fi
    done
    if have losetup; then
        losetup -a | awk -F : -v work="($work/" 'index($0, work) { print $1 }' | while read -r device; do
            losetup -d "$device" 2>/dev/null || :
        done
    fi
    awk -v work="$work/" 'index($2, work) == 1 { print $2 }' /proc/mounts | while read -r mount; do
        umount -l "$mount" 2>/dev/null || :
    done
}

# results: says them all. Fails if anything has failed.
results() {
    say ""
    say "seconds per step, some beside others, and of a processor; $(($(date +%s) - start)) in all, with installing:"
    cat "$work/times" >&2
    if [ -s "$work/skips" ]; then
        say "skipped:"
        cat "$work/skips" >&2
    fi
    if [ -s "$work/fails" ]; then
        say "failed:"
        cat "$work/fails" >&2
    fi
    awk '{ p += $1; f += $2; s += $3 }
        END { printf "%d passed, %d failed, %d skipped\n", p, f, s; exit f > 0 }' "$work/counts"
}
