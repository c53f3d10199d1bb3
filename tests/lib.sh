# Shared by the gates, the benchmarks, ./test and ./demo: packages, tools, volumes, clean-up, verdicts.
#
# A script that mounts anything calls `isolate "$@"` first. It then runs in a mount namespace and a process namespace of
# its own: no mount, loop device or process it makes can outlive it, not even when it is killed. The clean-up stack
# (`on_exit`) takes things down in order besides, because a volume must also be proven to unmount.
#
# A volume is of a KIND: avfs, or a kernel filesystem (ext4, xfs) in a loop-mounted image of the same size, so that every
# gate can be proven on filesystems that are known to be right. Benchmarks know ntfs too: ntfs-3g, in user space as well.
#
# Environment: AVFS_BIN         directory of the commands of AVFS (default: target/release)
#              AVFS_CACHE_SIZE  memory of the daemon of each AVFS volume (default: 512M)
#              AVFS_OPTIONS     further mount options of each AVFS volume, separated by commas (default: none)
#              KEEP_SCRATCH     if set, images and logs are kept and their directory is named
# shellcheck shell=bash

set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
TARGET=${CARGO_TARGET_DIR:-$ROOT/target}
TOOLS=$TARGET/tools/bin
AVFS_BIN=${AVFS_BIN:-$TARGET/release}
AVFS_CACHE_SIZE=${AVFS_CACHE_SIZE:-512M}
export PATH=$PATH:/usr/sbin:/sbin

say() { printf '%s\n' "$*"; }
die() {
	printf '%s: %s\n' "$(basename "$0")" "$*" >&2
	exit 1
}

# ---------------------------------------------------------------------------------------------------------- clean-up

CLEANUP=()

# on_exit COMMAND ARG…: runs the command when the script ends, however it ends; last in, first out.
on_exit() { CLEANUP+=("$(printf '%q ' "$@")"); }

run_cleanup() {
	local status=$? i
	trap - EXIT
	trap '' INT TERM HUP
	set +e
	for ((i = ${#CLEANUP[@]} - 1; i >= 0; i--)); do eval "${CLEANUP[i]}"; done
	exit "$status"
}
trap run_cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# isolate "$@": runs the calling script again in its own mount and process namespaces. ISOLATED_BY: a command that begins it.
ISOLATED_BY=()
isolate() {
	[ "$(id -u)" = 0 ] || die "must run as root: it mounts filesystems"
	if [ "${AVFS_ISOLATED:-}" = "$0" ]; then
		let_go_of_other_mounts
		return
	fi
	trap - EXIT
	AVFS_ISOLATED=$0 exec "${ISOLATED_BY[@]}" unshare --mount --propagation private --pid --fork --kill-child --mount-proc \
		bash "$0" "$@"
}

# keep_host_proc: before `isolate`, keeps the /proc of outside open as descriptor HOST_PROC. From a process namespace the
# kernel's threads cannot be seen.
keep_host_proc() {
	[ -z "${HOST_PROC:-}" ] || return 0
	exec {HOST_PROC}</proc
	export HOST_PROC
}

# let_go_of_other_mounts: volumes that were mounted before live on in a new namespace, after they are unmounted elsewhere.
let_go_of_other_mounts() {
	local target
	while read -r target; do
		umount --lazy "$(printf '%b' "$target")" || true
	done < <(awk '$3 ~ /^fuse(blk)?[.]/ || $1 ~ "^/dev/loop" && $3 ~ /^(ext4|xfs)$/ { if ($2 != "/") print $2 }' /proc/self/mounts | tac)
}

# scratch: sets SCRATCH to a directory that exists until the script ends.
scratch() {
	SCRATCH=$(mktemp -d "${TMPDIR:-/tmp}/avfs-$(basename "$0" .sh).XXXXXX")
	chmod 755 "$SCRATCH"
	if [ -n "${KEEP_SCRATCH:-}" ]; then say "keeping $SCRATCH"; else on_exit rm -rf --one-file-system "$SCRATCH"; fi
}

# stop PID [SECONDS]: TERM, and KILL if it does not end in time (20 s).
stop() {
	local pid=$1 tenths=$((${2:-20} * 10))
	kill "$pid" 2>/dev/null || return 0
	while ((tenths-- > 0)) && kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
	kill -KILL "$pid" 2>/dev/null || true
}

# ------------------------------------------------------------------------------------------------ packages and tools

# need_packages NAME…: installs the Debian packages that are missing, and only those.
need_packages() {
	local name missing=()
	for name; do
		[ "$(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null)" = installed ] || missing+=("$name")
	done
	((${#missing[@]})) || return 0
	[ "$(id -u)" = 0 ] || die "packages are missing: run as root, or: apt-get install ${missing[*]}"
	say "installing Debian packages: ${missing[*]}"
	# A file server installed for a test must not start and listen on its own.
	local policy=/usr/sbin/policy-rc.d made_policy=
	if [ ! -e $policy ]; then
		printf '#!/bin/sh\nexit 101\n' >$policy && chmod 755 $policy && made_policy=yes
	fi
	if [ -z "${APT_UPDATED:-}" ]; then
		apt-get update -qq && APT_UPDATED=yes
	fi
	local status=0
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null || status=$?
	[ -z "$made_policy" ] || rm -f $policy
	((status == 0)) || die "apt-get could not install: ${missing[*]}"
}

# need_cargo_tool CRATE VERSION BINARY: installs a command of crates.io into target/tools.
need_cargo_tool() {
	local crate=$1 version=$2 binary=$3
	[ -x "$TOOLS/$binary" ] && return
	need_cargo
	say "building $crate $version"
	cargo install --quiet --locked --root "$TARGET/tools" "$crate@$version"
}

# build_avfs: builds the commands in release mode, unless AVFS_BIN says where they are.
build_avfs() {
	[ "$AVFS_BIN" = "$TARGET/release" ] || return 0
	need_cargo
	say "building AVFS"
	cargo build --manifest-path "$ROOT/Cargo.toml" --target-dir "$TARGET" --release --quiet --workspace
}

# need_cargo: with sudo, the cargo of the user who called it; where there is none, the newest that Debian has.
need_cargo() {
	local home
	if ! command -v cargo >/dev/null && [ -n "${SUDO_USER:-}" ]; then
		home=$(getent passwd "$SUDO_USER" | cut -d: -f6)
		export PATH=$PATH:$home/.cargo/bin CARGO_HOME=$home/.cargo RUSTUP_HOME=$home/.rustup
	fi
	need_packages gcc libc6-dev
	command -v cargo >/dev/null || need_packages cargo-web rustc-web rustfmt-web ca-certificates
}

# sources: the archives of Debian 12 that this machine uses: mirror, release, component.
sources() {
	# shellcheck disable=SC2016  # apt's own variables
	apt-get indextargets --format '$(SITE) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
		awk '$2 ~ /^bookworm/ && $3 == "main" && !seen[$0]++'
}

# fresh_root DIRECTORY [OPTION…]: a Debian 12 that debootstrap makes there with these options, with the archives and the certificates
# that this machine uses. Environment: FRESH_ROOT  one that was made before, to be copied.
fresh_root() {
	local root=$1 mirror
	shift
	mirror=$(sources | awk '$2 == "bookworm" { print $1; exit }')
	[ -n "$mirror" ] || die "apt knows no mirror of Debian 12: apt-get update"
	if [ -n "${FRESH_ROOT:-}" ]; then
		cp -a "$FRESH_ROOT" "$root"
	else
		debootstrap --variant=minbase "$@" bookworm "$root" "$mirror" >"$SCRATCH/debootstrap.log" 2>&1 || {
			tail -20 "$SCRATCH/debootstrap.log"
			die "debootstrap failed"
		}
	fi
	sources | while read -r site release component; do say "deb $site $release $component"; done >"$root/etc/apt/sources.list"
	rm -f "$root/etc/resolv.conf"
	cp /etc/resolv.conf "$root/etc/resolv.conf"
	mkdir -p "$root/etc/ssl/certs"
	# Where this machine trusts an authority of its own, the fresh one does too.
	if [ -e /etc/ssl/certs/ca-certificates.crt ]; then
		cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/trusted-here.crt"
		echo 'Acquire::https::CaInfo "/etc/ssl/trusted-here.crt";' >"$root/etc/apt/apt.conf.d/90trusted-here"
	fi
}

# ----------------------------------------------------------------------------------------------------------- volumes

# need_volume_tools KIND: what formatting and mounting that kind takes.
need_volume_tools() {
	case $1 in
	ext4) need_packages e2fsprogs ;;
	xfs) need_packages xfsprogs ;;
	ntfs) need_packages ntfs-3g ;;
	avfs) install_commands ;;
	*) die "unknown kind of volume '$1': choose avfs, ext4, xfs or ntfs" ;;
	esac
}

# install_commands: for this script's mount namespace alone, puts the commands of AVFS where an installation puts them,
# so that mount(8), umount(8) and mount -o remount find them.
install_commands() {
	local commands=$SCRATCH/sbin
	[ ! -d "$commands" ] || return 0
	[ -x "$AVFS_BIN/mount-avfs" ] || die "no mount-avfs in $AVFS_BIN: run 'cargo build --release', or set AVFS_BIN"
	mkdir "$commands"
	ln -s "$AVFS_BIN/mkfs-avfs" "$commands/mkfs.avfs"
	ln -s "$AVFS_BIN/fsck-avfs" "$commands/fsck.avfs"
	ln -s "$AVFS_BIN/mount-avfs" "$commands/mount.avfs"
	ln -s "$AVFS_BIN/mount-avfs" "$commands/mount.fuse.avfs"
	ln -s "$AVFS_BIN/mount-avfs" "$commands/mount.fuseblk.avfs"
	ln -s "$AVFS_BIN/umount-avfs" "$commands/umount.avfs"
	ln -s "$AVFS_BIN/umount-avfs" "$commands/umount.fuse.avfs"
	ln -s "$AVFS_BIN/umount-avfs" "$commands/umount.fuseblk.avfs"
	ln -s "$AVFS_BIN/avfsctl" "$commands/avfsctl"
	mount -t overlay avfs-commands -o "lowerdir=$commands:/usr/sbin" /usr/sbin
	on_exit umount --lazy /usr/sbin
}

# format_volume KIND IMAGE
format_volume() {
	case $1 in
	ext4) mkfs.ext4 -q -F "$2" ;;
	xfs) mkfs.xfs -q -f "$2" ;;
	ntfs) mkfs.ntfs --quiet --fast --force "$2" >/dev/null 2>&1 ;;
	avfs) mkfs.avfs "$2" >/dev/null ;;
	esac
}

# mount_volume KIND IMAGE DIR
mount_volume() {
	case $1 in
	avfs) mount -t avfs -o "cache_size=$AVFS_CACHE_SIZE,log=$3.log${AVFS_OPTIONS:+,$AVFS_OPTIONS}" "$2" "$3" ;;
	ntfs) mount -t ntfs-3g -o big_writes "$2" "$3" ;;
	*) if [ -b "$2" ]; then mount -t "$1" "$2" "$3"; else mount -t "$1" -o loop "$2" "$3"; fi ;;
	esac
}

# unmount_volume DIR: returns when everything is in the image; what was unmounted already stays so.
unmount_volume() {
	mountpoint -q "$1" || return 0
	# What just ended may hold it a moment longer.
	umount "$1" 2>/dev/null || { sleep 1 && umount "$1"; }
}

# check_volume KIND IMAGE: an unmounted volume's own consistency check, which changes nothing.
check_volume() {
	case $1 in
	ext4) e2fsck -n -f "$2" ;;
	xfs) xfs_repair -n "$2" ;;
	ntfs) ntfsfix --no-action "$2" ;;
	avfs) fsck.avfs "$2" ;;
	esac >"$2.check" 2>&1 || {
		tail -20 "$2.check"
		return 1
	}
}

# with_volume KIND SIZE DIR: a new image of SIZE (as truncate(1) reads it) beside DIR, formatted and mounted on DIR, gone
# when the script ends.
with_volume() {
	local kind=$1 size=$2 dir=$3
	need_volume_tools "$kind"
	mkdir -p "$dir"
	truncate -s "$size" "$dir.img"
	format_volume "$kind" "$dir.img"
	on_exit unmount_volume "$dir"
	mount_volume "$kind" "$dir.img" "$dir"
}

# close_volume KIND DIR: the last case of a gate: what it did to the volume left it consistent.
close_volume() {
	local kind=$1 dir=$2
	if unmount_volume "$dir" && check_volume "$kind" "$dir.img"; then
		echo "pass the volume is consistent afterwards" >>"$SCRATCH/results"
	else
		[ ! -f "$dir.log" ] || tail -20 "$dir.log"
		echo "fail the volume is consistent afterwards" >>"$SCRATCH/results"
	fi
}

# ---------------------------------------------------------------------------------------------------------- verdicts

# passed TEXT…, failed TEXT…: how a case ended, for `verdict` in $SCRATCH/results.
passed() { say "  $*" && echo "pass $*" >>"$SCRATCH/results"; }
failed() { say "  FAILED: $*" && echo "fail $*" >>"$SCRATCH/results"; }

# expect TEXT COMMAND…: a case that the command passes or fails. What it keeps in $SCRATCH/said is shown where it fails.
expect() {
	local text=$1
	shift
	if "$@"; then passed "$text"; else
		failed "$text"
		[ ! -f "$SCRATCH/said" ] || tail -5 "$SCRATCH/said"
	fi
}

# verdict GATE RESULTS: RESULTS holds a line "pass CASE" or "fail CASE" per case. Failures listed in allowed-failures.txt
# are named with their reasons; any other failure, or no result at all, fails the gate. Prints the gate's last line.
verdict() {
	local gate=$1 results=$2 passed failed allowed=0 name reason
	passed=$(grep -c '^pass ' "$results" || true)
	failed=0
	while read -r name; do
		reason=$(allowed_failure "$gate" "$name")
		if [ -n "$reason" ]; then
			say "allowed to fail: $name: $reason"
			allowed=$((allowed + 1))
		else
			say "FAILED: $name"
			failed=$((failed + 1))
		fi
	done < <(sed -n 's/^fail //p' "$results")
	if ((passed + failed == 0)); then
		say "FAILED: no case ran"
		failed=1
	fi
	((allowed == 0)) || say "$allowed allowed failures"
	say "$gate: $passed passed, $failed failed"
	((failed == 0))
}

# within SECONDS COMMAND ARG…: tries ten times a second until it succeeds; fails when the time is over. What a try says is not shown.
within() {
	local end=$((SECONDS + $1))
	shift
	until "$@" >/dev/null 2>&1; do
		((SECONDS < end)) || return 1
		sleep 0.1
	done
}

# allowed_failure GATE CASE: prints the reason why this case may fail, if it may.
allowed_failure() {
	awk -F ' *[|] *' -v gate="$1" -v name="$2" '!/^#/ && $1 == gate && $2 == name { print $3; exit }' \
		"$ROOT/tests/gates/allowed-failures.txt"
}

# throughput_table FIGURES: FIGURES holds lines "KIND CLIENTS MB/s". Prints a table with AVFS as a ratio of each other kind.
throughput_table() {
	awk '
	{ rate[$1, $2] = $3 }
	!($1 in kind_seen) { kind_seen[$1]; kind[++kinds] = $1 }
	!($2 in count_seen) { count_seen[$2]; count[++counts] = $2 }
	END {
		printf "| MB/s |"
		for (k = 1; k <= kinds; k++) printf " %s |", kind[k]
		for (k = 1; k <= kinds; k++) if (kind[k] != "avfs") printf " avfs of %s |", kind[k]
		printf "\n|---|"
		for (k = 1; k < 2 * kinds; k++) printf "---|"
		print ""
		for (c = 1; c <= counts; c++) {
			printf "| %d clients |", count[c]
			for (k = 1; k <= kinds; k++) printf " %.0f |", rate[kind[k], count[c]]
			for (k = 1; k <= kinds; k++) if (kind[k] != "avfs") {
				if (rate[kind[k], count[c]] > 0) printf " %.2f |", rate["avfs", count[c]] / rate[kind[k], count[c]]
				else printf " - |"
			}
			print ""
		}
	}' "$1"
}
