#!/usr/bin/env bash
# Runs ./demo, or what is named, from a clean clone in a root that debootstrap has just made, with Debian's own compiler.
# usage: ./prove fresh-debian [COMMAND ARGUMENT…]     (default: ./demo; ./test takes an hour)
. "$(dirname "$0")/../lib.sh"

(($# > 0)) || set -- ./demo
need_packages debootstrap git
isolate "$@"
scratch
root=$SCRATCH/root

# The mirrors, archives and certificates that this machine uses.
sources() {
	# shellcheck disable=SC2016  # apt's own variables
	apt-get indextargets --format '$(SITE) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
		awk '$2 ~ /^bookworm/ && $3 == "main" && !seen[$0]++'
}
mirror=$(sources | awk '$2 == "bookworm" { print $1; exit }')
[ -n "$mirror" ] || die "apt knows no mirror of Debian 12: apt-get update"

say "== A fresh Debian 12"
debootstrap --variant=minbase bookworm "$root" "$mirror" >"$SCRATCH/debootstrap.log" 2>&1 || {
	tail -20 "$SCRATCH/debootstrap.log"
	die "debootstrap failed"
}
sources | while read -r site release component; do say "deb $site $release $component"; done >"$root/etc/apt/sources.list"
cp /etc/resolv.conf "$root/etc/resolv.conf"
mkdir -p "$root/etc/ssl/certs"
# Where this machine trusts an authority of its own, the fresh one does too.
certificates=/etc/ssl/certs/ca-certificates.crt trusted=()
if [ -e $certificates ]; then
	cp $certificates "$root/etc/ssl/trusted-here.crt"
	for name in SSL_CERT_FILE CARGO_HTTP_CAINFO PIP_CERT; do trusted+=("$name=/etc/ssl/trusted-here.crt"); done
fi
git clone --quiet --no-hardlinks "$ROOT" "$root/avfs"

mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --rbind /sys "$root/sys"
! chroot "$root" sh -c 'command -v cargo rustc' || die "the fresh root has a compiler already"

say "== $*"
started=$SECONDS status=0
chroot "$root" /usr/bin/env -i HOME=/root TERM=dumb PATH=/usr/sbin:/usr/bin:/sbin:/bin \
	"${trusted[@]}" \
	sh -c 'cd /avfs && exec "$@"' sh "$@" || status=$?
chroot "$root" sh -c 'cargo --version; rustc --version' || true
if ((status == 0)); then
	say "VERDICT: PASSED: $* in a fresh Debian 12, $((SECONDS - started)) s"
else
	say "VERDICT: FAILED: $* in a fresh Debian 12 ended with $status"
fi
exit "$status"
