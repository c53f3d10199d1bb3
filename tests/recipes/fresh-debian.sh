#!/usr/bin/env bash
# Runs ./demo, or what is named, from a clean clone in a root that debootstrap has just made, with Debian's own compiler.
# usage: ./prove fresh-debian [COMMAND ARGUMENT…]     (default: ./demo; ./test takes an hour)
. "$(dirname "$0")/../lib.sh"

(($# > 0)) || set -- ./demo
need_packages debootstrap git
isolate "$@"
scratch
root=$SCRATCH/root

say "== A fresh Debian 12"
fresh_root "$root"
# Of commands that are not apt.
trusted=()
if [ -e "$root/etc/ssl/trusted-here.crt" ]; then
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
