#!/bin/busybox sh
# The first process where a whole system is booted: modules, its disk, what is tested, its own first process.
busybox=/bin/busybox
$busybox mount -t devtmpfs dev /dev
$busybox mount -t proc proc /proc
$busybox mount -t sysfs sys /sys
exec </dev/console >/dev/console 2>&1
while read -r module; do
    $busybox insmod "/modules/$module"
done </modules/order
for disk in /sys/block/*; do
    if [ "$($busybox cat "$disk/serial" 2>/dev/null)" = root ]; then
        $busybox mount -t ext4 "/dev/${disk##*/}" /sysroot
    fi
done
# Only in the first life: later ones find what the system made of it.
if [ ! -e /sysroot/usr/bin/forebayd ]; then
    $busybox cp -a /payload/. /sysroot/
    $busybox chroot /sysroot /usr/sbin/depmod "$($busybox uname -r)"
fi
for place in dev proc sys; do
    $busybox mount -o move "/$place" "/sysroot/$place"
done
exec $busybox switch_root /sysroot /sbin/init
