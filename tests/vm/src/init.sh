#!/boot/busybox sh
# The first program of a machine: finds the disks by their serial names, and starts the agent. With
# `root=NAME` on the kernel's command line, the system on the disk NAME instead.
b=/boot/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
$b mkdir -p /dev/pts /dev/shm
$b mount -t devpts devpts /dev/pts
$b mount -t tmpfs shm /dev/shm
for module in /boot/modules/*.ko; do $b insmod "$module"; done
name=
for word in $($b cat /proc/cmdline); do
    case $word in
    root=*) name=${word#root=} ;;
    # The kernel replaces instructions of its own when the first group is made: best before the agent
    # is up (Setup::boot).
    cgroups)
        $b mount -t cgroup2 none /sys/fs/cgroup
        echo +memory >/sys/fs/cgroup/cgroup.subtree_control
        $b mkdir /sys/fs/cgroup/first && $b rmdir /sys/fs/cgroup/first
        ;;
    esac
done
for disk in /sys/block/vd*; do
    [ -e "$disk/serial" ] && $b ln -s "/dev/${disk##*/}" "/disk/$($b cat "$disk/serial")"
done
if [ -n "$name" ]; then
    $b mount "/disk/$name" /root || $b poweroff -f
    $b mount --move /proc /root/proc
    $b mount --move /sys /root/sys
    $b mount --move /dev /root/dev
    exec $b switch_root /root /sbin/init
fi
$b mount -o ro /disk/programs /image || $b poweroff -f
PATH=/usr/local/bin:/bin
HOME=/root
export PATH HOME
ip link set lo up
hostname vm
/boot/agent
poweroff -f
