# shellcheck shell=sh
# Keeps one machine running independently of the process that started it: boots it, boots it again when it reboots, and
# ends when it powers off or crashes, or when its control group is killed. Its output is the machine's console.
#   GROUP  the machine's control group in the unified tree; this shell is in its subgroup `keeper`
#   then the systemd-nspawn that boots it
# sh gets it as text, not as a file: a checkout that changes must not change a running script.
group=$1
shift
REBOOT=133  # how systemd-nspawn --keep-unit says that the machine wants to boot again
HEALTHY=30  # seconds after which a boot counts as successful
LONGEST=60  # most seconds between two boots of a machine that reboots repeatedly

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

pause=0
while :; do
    clear_groups
    began=$(cut -d. -f1 /proc/uptime)
    code=0
    (echo 0 >"$group/cgroup.procs" && exec "$@") || code=$?
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
