#!/bin/sh
# Installs the command line tools under the names by which mount(8), umount(8), mkfs(8) and fsck(8) call them.
# Usage: install.sh DIRECTORY_OF_BINARIES [DESTDIR]
set -eu
[ $# -ge 1 ] || { echo "usage: $0 DIRECTORY_OF_BINARIES [DESTDIR]" >&2; exit 2; }
binaries=$1
root=${2:-}
manual=$(dirname "$0")/../../doc/man
include=$(dirname "$0")/../../include
# mount(8) looks into /sbin, which is /usr/sbin on every system whose /usr is merged.
if [ -z "$root" ] && [ "$(readlink -f /sbin)" != /usr/sbin ]; then sbin=/sbin; else sbin=/usr/sbin; fi
install -d "$root$sbin" "$root/usr/bin" "$root/usr/include/avfs"
for tool in mkfs mount umount fsck; do
    install -m 755 "$binaries/$tool-avfs" "$root$sbin/$tool.avfs"
done
install -m 755 "$binaries/avfsctl" "$root/usr/bin/avfsctl"
# /usr/include/avfs.h is another project's, of the same name (Debian's package avfs).
install -m 644 "$include/avfs/avfs.h" "$root/usr/include/avfs/avfs.h"
# The kernel knows the filesystem as "fuseblk.avfs", or "fuse.avfs"; remounting and unmounting look for helpers by these names.
for kind in fuseblk fuse; do
    ln -sf mount.avfs "$root$sbin/mount.$kind.avfs"
    ln -sf umount.avfs "$root$sbin/umount.$kind.avfs"
done
for page in "$manual"/*.[0-9]; do
    install -D -m 644 "$page" "$root/usr/share/man/man${page##*.}/$(basename "$page")"
done
# Where there is udev: it names volumes as it names other filesystems.
for rules in "$(dirname "$0")"/../../packaging/udev/*.rules; do
    install -D -m 644 "$rules" "$root/usr/lib/udev/rules.d/$(basename "$rules")"
done
# Where there is systemd: a service for each volume of fstab, with its daemon.
units=$(dirname "$0")/../../packaging/systemd
install -D -m 644 "$units/avfs@.service" "$root/usr/lib/systemd/system/avfs@.service"
install -D -m 755 "$units/avfs-generator" "$root/usr/lib/systemd/system-generators/avfs-generator"
# For Pacemaker: a volume as a resource of several heads.
install -D -m 755 "$(dirname "$0")/../../packaging/ocf/volume" "$root/usr/lib/ocf/resource.d/avfs/volume"
