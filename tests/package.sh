#!/usr/bin/env bash
# The Debian package, made from the commands that are built: lintian has nothing to say, the same commit makes the same bytes, no file
# is one of Debian's package avfs, and what shells complete is what they can read.
# usage: tests/package.sh
. "$(dirname "$0")/lib.sh"

need_packages lintian zsh fish dpkg-dev
scratch
passed=0 failed=0
check() {
	local name=$1
	shift
	if "$@"; then
		passed=$((passed + 1))
	else
		say "FAILED: $name"
		failed=$((failed + 1))
	fi
}

# package_into DIRECTORY
package_into() {
	# Symbols take long to compress, and nothing is asked of them here.
	local -x DEB_BUILD_OPTIONS=noautodbgsym
	mkdir -p "$1/release"
	ln -sf "$AVFS_BIN"/* "$1/release/"
	CARGO_TARGET_DIR=$1 AVFS_BIN=$1/release/. "$ROOT/package" >"$1/log" || {
		cat "$1/log"
		return 1
	}
}
package_into "$SCRATCH/one"
package_into "$SCRATCH/two"
deb=$(ls "$SCRATCH"/one/package/avfsprogs_*.deb)

# Tags that are allowed are explained in packaging/debian/avfsprogs.lintian-overrides.
clean() { lintian --allow-root --fail-on error,warning "$deb"; }
same() { cmp "$deb" "$SCRATCH/two/package/$(basename "$deb")"; }
dpkg -c "$deb" | awk '!/\/$/ { print substr($6, 2) }' | sort >"$SCRATCH/files"
# What dpkg -L says of Debian's avfs 1.1.4, but for what is in directories of its own.
free_of_avfs() {
	! grep -E '^/usr/(include/(avfs|virtual)\.h|bin/(avfs-config|avfsd|davpass|ftppass|mountavfs|umountavfs)|lib/libavfs|share/avfs/|share/doc/avfs/|share/man/man1/)' "$SCRATCH/files"
}
has_helpers() {
	local name
	for name in mount.avfs mount.fuse.avfs mount.fuseblk.avfs umount.avfs umount.fuse.avfs umount.fuseblk.avfs mkfs.avfs fsck.avfs; do
		grep -qx "/usr/sbin/$name" "$SCRATCH/files" || {
			say "$name is missing"
			return 1
		}
	done
}
dpkg -x "$deb" "$SCRATCH/root"
share=$SCRATCH/root/usr/share
completions() {
	local file
	for file in "$share"/bash-completion/completions/*; do bash -n "$file" || return; done
	for file in "$share"/zsh/vendor-completions/*; do zsh -n "$file" || return; done
	for file in "$share"/fish/vendor_completions.d/*; do fish -n "$file" || return; done
}
stripped() {
	local file
	for file in "$SCRATCH"/root/usr/sbin/*.avfs "$SCRATCH/root/usr/bin/avfsctl"; do
		! readelf --sections "$file" | grep -q '[.]debug_info' || return
	done
}
# Without the package's own configuration an administrator's would be overwritten.
conffile() { [ "$(dpkg-deb --ctrl-tarfile "$deb" | tar xO ./conffiles)" = /etc/avfs/example.toml ]; }
says_version() { "$SCRATCH/root/usr/sbin/mkfs.avfs" --version | grep -Eq '^mkfs\.avfs [0-9.]+.*[0-9a-f]{12}|^mkfs\.avfs [0-9.]+$'; }

check "lintian" clean
check "twice the same bytes" same
check "no file of Debian's avfs" free_of_avfs
check "the helpers that mount(8) looks for" has_helpers
check "completions" completions
check "stripped" stripped
rules() {
	local file
	for file in 59-avfs-multipath 64-avfs; do grep -qx "/usr/lib/udev/rules.d/$file.rules" "$SCRATCH/files" || return; done
}
check "rules for udev" rules
check "the example is the only conffile" conffile
check "--version has the commit" says_version
say "debian-package: $passed passed, $failed failed"
((failed == 0))
