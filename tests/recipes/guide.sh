#!/usr/bin/env bash
# The guide, typed as it stands: what comes is what it shows. On a modelled array of five disks, and in a fresh Debian 12 under systemd.
# usage: ./prove guide [array|fresh|short] [--show]     one place alone; --show prints what comes
#
# array: on this machine, with copies of /etc and /var/lib that nothing else sees and a network that is the loopback alone. What systemd
# does is left out. short: the same without what takes minutes. fresh: a root that debootstrap has made, booted with systemd-nspawn. The
# array is an image file there, because systemd in a container has no units for devices.
# The measurement in "array" writes some 12 GB into a file of $TMPDIR.
#
# Environment: CHAPTERS    those alone, by their names without .md (default: all that can be typed)
#              FRESH_ROOT  a root that debootstrap has made before, to be copied (default: it is made)
. "$(dirname "$0")/../lib.sh"

chapters=()
for name in ${CHAPTERS:-server clients sizing running symptoms reference}; do chapters+=("$ROOT/doc/guide/$name.md"); done
# What the guide calls its array.
ARRAY=/dev/md/footage

# typed PLACE ARGUMENT…: the verdict of all chapters.
typed() {
	local started=$SECONDS
	if python3 "$ROOT/tests/recipes/guide.py" --place "$@" "${chapters[@]}"; then
		say "VERDICT: PASSED: the guide is what happens, $((SECONDS - started)) s"
	else
		say "VERDICT: FAILED"
		return 1
	fi
}

# private DIRECTORY…: what is changed there from now on is seen by this script alone, and gone afterwards.
private() {
	local directory
	for directory; do
		mkdir -p "$SCRATCH/private$directory"/{upper,work}
		mount -t overlay private -o "lowerdir=$directory,upperdir=$SCRATCH/private$directory/upper,workdir=$SCRATCH/private$directory/work" \
			"$directory"
		on_exit umount --lazy "$directory"
	done
}

# modelled_array: sets DEVICE to a block device that takes the time of five disks when MODEL/control is told `modelled`.
modelled_array() {
	local lun tenths=200
	[ -x "$AVFS_BIN/avfs-lab" ] || die "no avfs-lab in $AVFS_BIN: cargo build --workspace"
	export MODEL=$SCRATCH/model
	mkdir "$MODEL"
	"$AVFS_BIN/avfs-lab" lun --profile raid5-table5 --size-gib 64 --backing "$SCRATCH/array" "$MODEL" &
	lun=$!
	on_exit stop "$lun"
	until [ -e "$MODEL/lun" ]; do
		if ((tenths-- == 0)) || ! kill -0 "$lun" 2>/dev/null; then die "the modelled array did not come"; fi
		sleep 0.1
	done
	on_exit umount --lazy "$MODEL"
	echo fast >"$MODEL/control"
	DEVICE=$(losetup --find --show --direct-io=on "$MODEL/lun")
	on_exit losetup --detach "$DEVICE"
}

# on_array PLACE ARGUMENT…
on_array() {
	need_packages samba samba-vfs-modules smbclient acl attr rsync python3
	ISOLATED_BY=(unshare --net)
	isolate "$@"
	ip link set lo up
	scratch
	install_commands
	private /etc /var/lib /var/cache /var/log /mnt /srv /root
	# Volumes that are mounted elsewhere on this machine are none of this one.
	local directory
	for directory in /run/samba /run/avfs; do
		mkdir -p "$directory"
		mount -t tmpfs -o mode=755 private "$directory"
		on_exit umount --lazy "$directory"
	done
	mkdir -p /etc/avfs
	cp "$ROOT/config/avfs.toml" /etc/avfs/example.toml
	modelled_array
	on_exit let_go
	typed "$1" --put "$ARRAY=$DEVICE" "${@:2}"
}

# let_go: what the guide has mounted and started.
let_go() {
	pkill --nslist pid --ns $$ smbd || true
	echo fast >"$MODEL/control" || true
	umount /mnt/footage 2>/dev/null || true
}

# machine: writes the commands that have to do with the machine: within (runs a command in it) and up (boots it, again if it runs).
machine() {
	local device binds=()
	for device in /dev/fuse /dev/loop-control /dev/loop[0-9]*; do [ ! -e "$device" ] || binds+=("--bind=$device"); done
	cat >"$SCRATCH/within" <<-EOS
		#!/bin/bash
		exec nsenter --target "\$(cat "$SCRATCH/init")" --mount --uts --ipc --net --pid --root --wdns=/root \\
			env -i HOME=/root TERM=dumb PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "\$@"
	EOS
	cat >"$SCRATCH/up" <<-EOS
		#!/bin/bash
		if [ -e "$SCRATCH/init" ]; then
			"$SCRATCH/within" systemctl --no-block poweroff
			for ((i = 0; i < 1200; i++)); do [ -e "/proc/\$(cat "$SCRATCH/nspawn")" ] || break; sleep 0.1; done
		fi
		SYSTEMD_SECCOMP=0 SYSTEMD_NSPAWN_API_VFS_WRITABLE=yes SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1 setsid \\
			systemd-nspawn --quiet --boot --register=no --keep-unit --capability=all --console=pipe \\
			--directory="$root" ${binds[*]} </dev/null >>"$SCRATCH/boot.log" 2>&1 &
		echo \$! >"$SCRATCH/nspawn"
		for ((i = 0; i < 1200; i++)); do
			sleep 0.1
			pgrep --parent "\$(cat "$SCRATCH/nspawn")" | head -1 >"$SCRATCH/init"
			case \$("$SCRATCH/within" systemctl is-system-running 2>/dev/null) in running | degraded) exit 0 ;; esac
		done
		exit 1
	EOS
	chmod +x "$SCRATCH/within" "$SCRATCH/up"
	on_exit let_go_of_machine
}

let_go_of_machine() { [ ! -e "$SCRATCH/nspawn" ] || stop "$(cat "$SCRATCH/nspawn")" 60; }

fresh() {
	need_packages debootstrap systemd-container debhelper dpkg-dev binutils file python3 util-linux
	[ -e /dev/fuse ] || die "this machine has no /dev/fuse"
	build_avfs
	isolate "$@"
	scratch
	root=$SCRATCH/root
	say "== A fresh Debian 12"
	fresh_root "$root" --include=systemd,systemd-sysv,udev,dbus,kmod
	for version in 0.1.0-0before 0.1.0+later-1; do
		DEB_BUILD_OPTIONS=noautodbgsym CARGO_TARGET_DIR=$SCRATCH/$version AVFS_BIN=$AVFS_BIN/. \
			"$ROOT/package" --version "$version" | tail -1
	done
	# As an administrator has copied it there; the next one comes by the time of the upgrade.
	cp "$SCRATCH"/0.1.0-0before/package/avfsprogs_*.deb "$root/root/"
	mkdir "$root/root/next"
	cp "$SCRATCH"/0.1.0+later-1/package/avfsprogs_*.deb "$root/root/next/"
	say "== Its boot"
	machine
	"$SCRATCH/up" || {
		tail -40 "$SCRATCH/boot.log"
		die "the fresh root did not boot"
	}
	typed fresh --within "$SCRATCH/within" --reboot "$SCRATCH/up" --put "$ARRAY=/srv/footage.img" "${@:2}" || {
		tail -30 "$SCRATCH/boot.log"
		exit 1
	}
}

case ${1:-} in
short | array) on_array "$@" ;;
fresh) fresh "$@" ;;
'')
	build_avfs
	status=0
	for place in array fresh; do bash "$0" $place || status=1; done
	exit $status
	;;
*) die "usage: ./prove guide [short|array|fresh] [--show]" ;;
esac
