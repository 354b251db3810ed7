# shellcheck shell=sh
# Keeps one machine running independently of the process that started it: boots it, boots it again when it reboots, and
# ends when it powers off or crashes, or when its control group is killed. Its output is the machine's console.
#   GROUP    the machine's control group in the unified tree; this shell is in its subgroup `keeper`
#   CONSOLE  the file that the output goes to, opened for appending: it is cut while the machine runs
#   then the systemd-nspawn that boots it
# sh gets it as text, not as a file: a checkout that changes must not change a running script.
group=$1
console=$2
shift 2
REBOOT=133     # how systemd-nspawn --keep-unit says that the machine wants to boot again
HEALTHY=30     # seconds after which a boot counts as successful
LONGEST=60     # most seconds between two boots of a machine that reboots repeatedly
EVERY=60       # seconds between two looks at the console's size
MOST=16777216  # bytes from which on the console is cut
KEPT=1048576   # bytes at its end that stay then

# When the machine runs out of memory, the kernel should kill neither this script nor the machine's init or its job's
# keeper. Init passes that on to a service only on request (DefaultOOMScoreAdjust=0). A container may not set it.
echo -900 2>/dev/null >/proc/self/oom_score_adj || true

# Removes what an earlier boot has left: its groups, and controllers that only an empty group may enable.
clear_groups() {
    for part in payload supervisor; do
        tries=50 # a group stays busy for a moment after its last process
        while [ -d "$group/$part" ] && [ $tries -gt 0 ]; do
            find "$group/$part" -depth -type d -exec rmdir {} + 2>/dev/null || sleep 0.1
            tries=$((tries - 1))
        done
    done
    for controller in $(cat "$group/cgroup.subtree_control"); do
        echo "-$controller" >"$group/cgroup.subtree_control"
    done
}

# Runs the machine until it ends for good.
keep() {
    pause=0
    while :; do
        clear_groups
        began=$(cut -d. -f1 /proc/uptime)
        code=0
        (echo 0 >"$group/cgroup.procs" && exec "$@" 4>&-) || code=$?
        # A killed systemd-nspawn leaves the machine's init running.
        [ ! -e "$group/payload/cgroup.kill" ] || echo 1 >"$group/payload/cgroup.kill"
        [ "$code" = $REBOOT ] || exit "$code"
        took=$(($(cut -d. -f1 /proc/uptime) - began))
        if [ "$took" -ge $HEALTHY ]; then
            pause=0
        fi
        echo "trainyard: reboot after $took s; the next boot begins in $pause s"
        sleep $pause
        pause=$((pause == 0 ? 1 : pause * 2 < LONGEST ? pause * 2 : LONGEST))
    done
}

# Cuts the console's file, in place, whenever it has become long. Ends when its standard input does.
bound_console() {
    while code=0 && { timeout $EVERY cat >/dev/null || code=$?; } && [ $code = 124 ]; do
        if [ "$(stat -c %s "$console")" -gt $MOST ]; then
            tail -c $KEPT "$console" >"$console.tail" || true # on a full disk all of it goes
            : >"$console"
            echo "trainyard: what the console had said before is cut" >>"$console"
            cat "$console.tail" >>"$console" || true
            rm -f "$console.tail"
        fi
    done
}

# The pipe between them (4) carries nothing: it ends with what keeps the machine, even if that is killed.
exec 3>&1
keep "$@" 4>&1 >&3 3>&- | bound_console
