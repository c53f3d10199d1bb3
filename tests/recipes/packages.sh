#!/usr/bin/env bash
# The package in a fresh Debian 12 under systemd: install, fstab by file, label and UUID, others that would overwrite, share, upgrade, purge.
# usage: ./prove packages
#
# Root alone, no virtual machine: the fresh root is booted with systemd-nspawn, which has this machine's kernel and its FUSE. udevd
# runs in there. One volume is in an image file, two are on loop devices, which are to it what disks are.
# Environment: FRESH_ROOT  a root that debootstrap has made before, to be copied (default: it is made)
. "$(dirname "$0")/../lib.sh"

need_packages debootstrap systemd-container debhelper dpkg-dev binutils file
for device in /dev/fuse /dev/autofs; do [ -e $device ] || die "this machine has no $device"; done
build_avfs
isolate "$@"
scratch
root=$SCRATCH/root

# The disks.
disks=()
for disk in array archive; do
	truncate -s 1G "$SCRATCH/$disk"
	device=$(losetup --find --show "$SCRATCH/$disk")
	on_exit losetup --detach "$device"
	disks+=("$device")
done
# And a part of a mirror of a volume, whose metadata of MD is at the end: magic, version 1, where it lies.
"$AVFS_BIN/mkfs-avfs" --size 512M --label mirrored "$SCRATCH/member" >"$SCRATCH/mkfs.log"
truncate -s 1G "$SCRATCH/member"
at=$(((1 << 30) - 8192))
printf '\xfc\x4e\x2b\xa9\x01\x00\x00\x00' | dd of="$SCRATCH/member" bs=1 seek=$at conv=notrunc status=none
printf '\xf0\xff\x1f\x00\x00\x00\x00\x00' | dd of="$SCRATCH/member" bs=1 seek=$((at + 144)) conv=notrunc status=none

say "== A fresh Debian 12"
fresh_root "$root" --include=systemd,systemd-sysv,udev,dbus,kmod

say "== The package, and the one before it"
# One build serves both: what differs is what dpkg looks at, the version and the configuration's example.
packages=$root/root
for version in 0.1.0-0before 0.1.0+later-1; do
	DEB_BUILD_OPTIONS=noautodbgsym CARGO_TARGET_DIR=$SCRATCH/$version AVFS_BIN=$AVFS_BIN/. \
		"$ROOT/package" --version "$version" | tail -1
	cp "$SCRATCH/$version/package/avfsprogs_${version}_"*.deb "$packages/"
done

say "== samba, as an administrator installs it"
chroot "$root" sh -c 'apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
	apt-get install -y -qq --no-install-recommends samba samba-vfs-modules smbclient e2fsprogs xfsprogs lvm2 parted' >"$SCRATCH/apt.log" 2>&1 || {
	tail -20 "$SCRATCH/apt.log"
	die "samba cannot be installed in the fresh root"
}
# Debian's avfs beside ours shows whether a file is in the way.
chroot "$root" apt-get install -y -qq --no-install-recommends avfs >>"$SCRATCH/apt.log" 2>&1 || die "Debian's avfs cannot be installed"

# What the machine does after its boot: one script for each, whose lines "pass CASE" and "fail CASE" are counted.
cat >"$root/root/lib" <<'EOF'
IMAGE=/srv/footage.img V=/mnt/footage S=avfs@mnt-footage.service M=mnt-footage.mount
A=/mnt/array B=/mnt/archive
. /root/disks
check() { name=$1; shift; if "$@"; then echo "pass $name"; else echo "fail $name"; systemctl status --no-pager "$S" "$M" smbd 2>&1; fi; } >>/root/results
# until_so COMMAND…: waits for that, 60 s at the most.
until_so() { i=0; while ! "$@" >/dev/null 2>&1; do i=$((i + 1)); [ $i -lt 600 ] || return 1; sleep 0.1; done; }
mounted() { findmnt -t fuse.avfs,fuseblk.avfs "$V"; }
daemon() { systemctl show --value -p MainPID $S; }
whole() { [ "$(sha256sum <"$V/clip.mov")" = "$(cat /root/sum)" ]; }
# Through smbd, as a client has it.
through_smb() { smbclient //localhost/media -N -c "get clip.mov /root/clip" >/dev/null 2>&1 && [ "$(sha256sum </root/clip)" = "$(cat /root/sum)" ]; }
serving() { mounted && systemctl is-active $S && whole; }
EOF
say "ARRAY=${disks[0]} ARCHIVE=${disks[1]}" >"$root/root/disks"
mv "$SCRATCH/member" "$root/root/member"
cat >"$root/root/first" <<'EOF'
. /root/lib
export DEBIAN_FRONTEND=noninteractive
check "apt install" apt-get install -y -qq /root/avfsprogs_0.1.0-0before_*.deb
check "Debian's avfs keeps its header" dpkg --verify avfs
cp /etc/avfs/example.toml /etc/avfs/footage.toml
check "mkfs" mkfs.avfs --size 2G --label footage $IMAGE
mkdir -p $V
echo "$IMAGE $V avfs config=/etc/avfs/footage.toml,cache_size=256M,nofail 0 0" >>/etc/fstab
systemctl daemon-reload
check "mount by fstab" mount $V
chmod 1777 $V
head -c 64M /dev/urandom >$V/clip.mov
sha256sum <$V/clip.mov >/root/sum
check "umount" umount $V
mkdir -p /etc/systemd/system/smbd.service.d
printf '[global]\n map to guest = bad user\n' >/etc/samba/smb.conf
mount $V
avfsctl samba-config --share media --path $V >>/etc/samba/smb.conf && sed -i 's/^\[media\]/&\n    guest ok = yes/' /etc/samba/smb.conf
avfsctl samba-config --share media --path $V --systemd >/etc/systemd/system/smbd.service.d/media.conf
check "samba-config" testparm -s /etc/samba/smb.conf
umount $V
# By label and by UUID, on disks.
check "mkfs on a disk" mkfs.avfs --label array $ARRAY
check "an empty disk holds nothing" [ -z "$(avfsctl probe --udev $ARCHIVE)" ]
check "mkfs on another disk" mkfs.avfs --label "two words" $ARCHIVE
uuid=$(avfsctl probe --udev $ARCHIVE | sed -n 's/^ID_FS_UUID=//p')
check "udev has a link for the label" until_so [ /dev/disk/by-label/array -ef $ARRAY ]
check "udev has a link for a label of two words" until_so [ '/dev/disk/by-label/two\x20words' -ef $ARCHIVE ]
check "udev has a link for the UUID" until_so [ /dev/disk/by-uuid/$uuid -ef $ARCHIVE ]
MEMBER=$(losetup --find --show /root/member)
check "a part of a RAID is no volume" until_so sh -c "udevadm info $MEMBER | grep -q 'ID_FS_TYPE=linux_raid_member'"
check "nor does a label lead to it" [ ! -e /dev/disk/by-label/mirrored ]
losetup --detach $MEMBER
# The kernel knows the partition, and its device is made here.
partition=$(basename $ARRAY)p1
partx --add $ARRAY
mknod /dev/$partition b $(tr : ' ' </sys/class/block/$partition/dev)
udevadm trigger --action=change /sys/class/block/$partition
check "the partition that protects a volume is nothing to offer" until_so sh -c "udevadm info /dev/$partition | grep -q UDISKS_IGNORE=1"
check "nor is it the volume" sh -c "! udevadm info /dev/$partition | grep ID_FS_TYPE && [ /dev/disk/by-label/array -ef $ARRAY ]"
check "mkfs of others asks for it, too" sh -c "mkfs.xfs /dev/$partition 2>&1 | grep -q 'appears to contain a partition table'"
partx --delete $ARRAY
rm /dev/$partition
check "lsblk -f" sh -c "lsblk --noheadings --fs --raw $ARRAY | grep -q ' avfs 1 array '"
check "blkid" sh -c "blkid --probe $ARRAY | grep -q 'PTTYPE=.dos'"
check "wipefs" sh -c "wipefs $ARRAY | grep -q dos"
before=$(head -c 16M $ARRAY | sha256sum)
check "mkfs.ext4 asks" sh -c "script --quiet --return --command 'mkfs.ext4 $ARRAY' /dev/null </dev/null | grep -q 'Found a dos partition table'"
check "mkfs.xfs refuses" sh -c "mkfs.xfs $ARRAY 2>&1 | grep -q 'appears to contain a partition table'"
check "pvcreate asks" sh -c "pvcreate --devices $ARRAY $ARRAY </dev/null 2>&1 | grep -q 'dos signature detected'"
check "parted asks" sh -c "parted $ARRAY mklabel gpt </dev/null 2>&1 | grep -q 'existing disk label'"
check "none has written" [ "$(head -c 16M $ARRAY | sha256sum)" = "$before" ]
mkdir -p $A $B
echo "LABEL=array $A avfs cache_size=128M,nofail,x-systemd.requires=before-array.service 0 0" >>/etc/fstab
echo "UUID=$uuid $B avfs cache_size=128M,nofail,x-systemd.automount,x-systemd.idle-timeout=2s 0 0" >>/etc/fstab
# What the volume must wait for: it fails where the volume did not.
cat >/etc/systemd/system/before-array.service <<END
[Unit]
DefaultDependencies=no
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=sh -c "sleep 2 && ! findmnt $A"
END
systemctl daemon-reload
check "mount -a -t avfs" sh -c "mount -a -t avfs && findmnt $V && findmnt $A && findmnt -t fuseblk.avfs $B"
check "mount -a -t avfs again" mount -a -t avfs
sha256sum </root/lib >$A/sum
head -c 1M /dev/urandom | tee $B/clip | sha256sum >/root/sum-of-archive
check "umount all" umount $V $A $B
check "mount by label" sh -c "mount -t avfs LABEL=array $A && umount $A"
check "mount by UUID" sh -c "mount -t avfs UUID=$uuid $B && umount $B"
check "a command without udev's help" sh -c "mount.avfs LABEL=array $A && umount $A"
EOF
cat >"$root/root/second" <<'EOF'
. /root/lib
export DEBIAN_FRONTEND=noninteractive
check "mounted at boot by its service" until_so serving
check "smbd waits for the mount" sh -c "systemctl show -p Requires -p After smbd | grep -c '[= ]$M' | grep -qx 2"
check "share" until_so through_smb
device=$(systemd-escape --path --suffix=device /dev/disk/by-label/array)
check "mounted at boot by its label" until_so sh -c "findmnt $A && systemctl is-active avfs@mnt-array.service && test -s $A/sum"
check "its service waits for udev's link" sh -c "systemctl cat avfs@mnt-array.service | grep -qF 'After=$device' && systemctl is-active '$device'"
check "its service waits for x-systemd.requires" systemctl is-active before-array.service
check "findmnt" [ "$(findmnt --noheadings --nofsroot --raw --output SOURCE,FSTYPE,LABEL $A)" = "$ARRAY fuseblk.avfs array" ]
check "lsblk has the mount" sh -c "lsblk --noheadings --fs --raw $ARRAY | grep -q ' avfs 1 array .* $A'"
check "df" sh -c "df --output=source,fstype,target $A | tail -1 | grep -Eq '^$ARRAY +fuseblk([.]avfs)? +$A\$'"
check "not mounted before it is used" sh -c "! grep '$B fuse' /proc/mounts"
check "mounted when it is used, by its UUID" sh -c "sha256sum <$B/clip | cmp - /root/sum-of-archive && grep '$B fuse' /proc/mounts"
# To ask findmnt for the directory would be to use it.
check "unmounted when it is idle" until_so sh -c "! grep '$B fuse' /proc/mounts"
check "mounted again" sh -c "sha256sum <$B/clip | cmp - /root/sum-of-archive"
check "not even by force while it is mounted" sh -c "! mkfs.ext4 -F $ARRAY && ! mkfs.xfs -f $ARRAY && ! pvcreate -ff -y --devices $ARRAY $ARRAY"
check "systemctl status says how the volume is" until_so sh -c "systemctl status --no-pager $S | grep -q 'Status: \"footage: serving; .* free'"
systemctl status --no-pager $S >>/root/log 2>&1
check "log lines have volume and label" sh -c "journalctl -u $S --no-pager | tee -a /root/log | grep -q 'footage on $IMAGE: '"
avfsctl policy set $V/clip.mov --bitrate "80 Mbit/s"
# 1 MiB each 100 ms: 84 Mbit/s at the most.
play() { exec 3<$V/clip.mov; for i in $(seq 40); do dd bs=1M count=1 iflag=fullblock status=none <&3 >/dev/null || return; sleep 0.1; done
	avfsctl info $V >>/root/log; avfsctl info $V | grep -q played; }
check "play at rate" play
smbd=$(systemctl show --value -p MainPID smbd) old=$(daemon)
kill -KILL "$old"
other() { [ "$(daemon)" -gt 0 ] && [ "$(daemon)" != "$old" ] && serving; }
check "a daemon that is killed is started again" until_so other
check "smbd goes on meanwhile" [ "$(systemctl show --value -p MainPID smbd)" = "$smbd" ]
check "share after that" until_so through_smb
old=$(daemon)
kill -STOP "$old"
check "a daemon that hangs is noticed by its watchdog" until_so other
check "share after that, too" until_so through_smb
echo mine >>/etc/avfs/footage.toml.mine
old=$(daemon)
check "upgrade" apt-get install -y -qq /root/avfsprogs_0.1.0+later-1_*.deb
check "the volume is served through it" sh -c "[ '$(daemon)' = $old ]"
check "whole after it" whole
check "systemctl stop unmounts" sh -c "systemctl stop smbd && systemctl stop $M && ! findmnt $V && [ \"\$(systemctl is-active $S)\" = inactive ]"
check "fsck" fsck.avfs $IMAGE
check "systemctl start mounts" sh -c "systemctl start $M"
check "whole with the later version" until_so serving
old=$(daemon)
check "remove" apt-get remove -y -qq avfsprogs
check "mounted volumes go on" sh -c "kill -0 $old && sha256sum <$V/clip.mov | cmp - /root/sum"
check "purge" apt-get purge -y -qq avfsprogs
check "the volume's configuration stays" test -e /etc/avfs/footage.toml -a ! -e /etc/avfs/example.toml
check "umount without the package" sh -c "umount $V && until [ ! -e /proc/$old ]; do sleep 0.1; done"
check "install again" apt-get install -y -qq /root/avfsprogs_0.1.0+later-1_*.deb
check "the volume is still there" sh -c "mount $V && sha256sum <$V/clip.mov | cmp - /root/sum"
check "umount for the last time" umount $V
EOF
cat >"$root/etc/systemd/system/proof.service" <<'EOF'
[Unit]
After=basic.target
[Service]
Type=oneshot
ExecStart=-/bin/sh -c '. /root/now >>/root/log 2>&1'
ExecStopPost=systemctl --no-block poweroff
TimeoutSec=infinity
EOF
mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
ln -sf ../proof.service "$root/etc/systemd/system/multi-user.target.wants/proof.service"
# In a container systemd listens to udevd only where that runs before it starts: so it starts once more, before there are any events.
cat >"$root/etc/systemd/system/listen.service" <<'EOF'
[Unit]
DefaultDependencies=no
After=systemd-udevd.service
Before=systemd-udev-trigger.service local-fs-pre.target sysinit.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=systemctl daemon-reexec
EOF
mkdir -p "$root/etc/systemd/system/sysinit.target.wants"
ln -sf ../listen.service "$root/etc/systemd/system/sysinit.target.wants/listen.service"

# boot SCRIPT: starts the machine, which runs it and ends.
boot() {
	local device binds=()
	for device in /dev/fuse /dev/autofs /dev/loop-control /dev/loop[0-9]*; do [ ! -e "$device" ] || binds+=("--bind=$device"); done
	cp "$root/root/$1" "$root/root/now"
	SYSTEMD_SECCOMP=0 SYSTEMD_NSPAWN_API_VFS_WRITABLE=yes SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1 timeout --kill-after=10 900 \
		systemd-nspawn --quiet --boot --register=no --keep-unit --capability=all --console=pipe \
		--directory="$root" "${binds[@]}" </dev/null >"$SCRATCH/boot-$1.log" 2>&1 || true
}
show_log() { tail -n 60 "$root/root/log" "$SCRATCH"/boot-*.log || true; }

started=$SECONDS
for script in first second; do
	say "== Boot: $script"
	boot "$script"
	[ -s "$root/root/results" ] || {
		show_log
		say "VERDICT: FAILED: the fresh root did not boot, or its script did not run"
		exit 1
	}
done
grep -v '^ ' "$root/root/results" || true
[ -z "${KEEP_SCRATCH:-}" ] || show_log
passed=$(grep -c '^pass ' "$root/root/results" || true)
failed=$(grep -c '^fail ' "$root/root/results" || true)
cases=$(cat "$root/root/first" "$root/root/second" | grep -c '^check ')
say "packages: $passed passed, $failed failed, of $cases"
if ((failed == 0 && passed == cases)); then
	say "VERDICT: PASSED: a fresh Debian 12 installs, boots, shares, upgrades and lets go of it, $((SECONDS - started)) s"
else
	show_log
	say "VERDICT: FAILED"
	exit 1
fi
