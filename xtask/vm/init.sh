#!/bin/busybox sh
# The guest's first process: file systems, modules, then the scenario that the kernel's command line names.
export PATH=/usr/bin HOME=/ RUST_BACKTRACE=1 LC_ALL=C
export FOREBAY_SOCKET=/mnt/state/forebay/control.sock
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sys /sys
/bin/busybox mount -t tmpfs tmp /tmp
/bin/busybox mount -t tmpfs run /run
exec </dev/console >/dev/console 2>&1
/bin/busybox ip link set lo up
while read -r module; do
    case "$(cat /proc/cmdline)" in *forebay.without="${module%.ko} "*) continue ;; esac
    insmod "/modules/$module"
done </modules/order
echo 30 >/proc/sys/kernel/hung_task_timeout_secs
xtask guest
sync
poweroff -f
