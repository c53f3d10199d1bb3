#!/usr/bin/env bash
# A volume on Ceph: storage daemons killed, stopped and full, a client fenced by the blocklist, all cold again; nothing acknowledged is lost.
# usage: ceph     about three minutes
#
# One monitor and three OSDs of Debian's Ceph on a private loopback interface, two copies of each object. The kernel's rbd is not asked for:
# qemu-nbd exports the image, and nbdfuse makes a file of that. A client writes numbered records, makes each durable, and notes
# what was acknowledged.
#
# KEEP_SCRATCH=1 keeps all logs.
. "$(dirname "$0")/../lib.sh"

ISOLATED_BY=(unshare --net)
need_packages ceph-mon ceph-osd ceph-common qemu-utils qemu-block-extra libnbd-bin iproute2 fuse3
if [ -z "${AVFS_ISOLATED:-}" ]; then build_avfs; fi
isolate "$@"
scratch
install_commands
ip link set lo up
here=$SCRATCH
results=$SCRATCH/results
: >"$results"
: >"$SCRATCH/table"

# -------------------------------------------------------------------------------------------------------------- Ceph

export CEPH_CONF=$here/ceph.conf CEPH_ARGS=
OSDS=(0 1 2)
# Bytes of an OSD, at first; the cluster is full when this part of one is used.
OSD_SIZE=2G FULL=0.6
fsid=$(cat /proc/sys/kernel/random/uuid)
monitor='[v2:127.0.0.1:3300,v1:127.0.0.1:6789]'
mkdir -p "$here"/{run,mon,log,crash}
cat >"$CEPH_CONF" <<END
[global]
fsid = $fsid
mon host = $monitor
public network = 127.0.0.0/8
cluster network = 127.0.0.0/8
auth cluster required = none
auth service required = none
auth client required = none
run dir = $here/run
admin socket = $here/run/\$cluster-\$name.\$pid.asok
pid file = $here/run/\$name.pid
log file = $here/log/\$name.log
crash dir = $here/crash
mon data = $here/mon
osd data = $here/osd.\$id
osd crush chooseleaf type = 0
osd pool default pg autoscale mode = off
osd op num shards = 2
osd op num threads per shard = 1
mon osd min down reporters = 1
mon osd reporter subtree level = osd
mon osd down out interval = 600
# An OSD that does not answer costs this much, and a part of it again. A volume that stands still for 8 s can lose its lease.
osd heartbeat interval = 1
osd heartbeat grace = 3
osd pool default read lease ratio = 0.4
mon data avail crit = 1
bluestore block size = $(numfmt --from=iec $OSD_SIZE)
bluestore cache autotune = false
bluestore cache size = 32M
END

declare -A PROCESS=()
ceph_() { timeout 30 ceph --connect-timeout 10 "$@" 2>/dev/null; }
start_monitor() {
	ceph-mon --id a --foreground >"$here/log/mon.out" 2>&1 &
	PROCESS[mon]=$!
}
start_osd() {
	ceph-osd --id "$1" --foreground --no-mon-config >>"$here/log/osd.$1.out" 2>&1 &
	PROCESS[osd.$1]=$!
}
is_up() { ceph_ osd dump --format json | grep -q "\"osd\":$1,\"uuid\":\"[^\"]*\",\"up\":1"; }
all_up() {
	local osd
	for osd in "${OSDS[@]}"; do within 60 is_up "$osd" || return 1; done
}
# Without a manager nothing adds the placement groups up: each is asked.
all_clean() {
	local pool group
	pool=$(ceph_ osd pool ls detail --format json | grep -o '"pool":[0-9]*\|"pool_id":[0-9]*' | head -n 1 | tr -dc 0-9)
	for group in 0 1 2 3 4 5 6 7 8 9 a b c d e f; do
		ceph_ tell "$pool.$group" query | grep -m1 '"state"' | grep -q '"active+clean"' || return 1
	done
}
end_all() { # end_all SIGNAL: OSDs, then the monitor
	local name
	for name in "${!PROCESS[@]}"; do kill -s "$1" "${PROCESS[$name]}" 2>/dev/null || true; done
	for name in "${!PROCESS[@]}"; do
		within 20 test ! -e "/proc/${PROCESS[$name]}/fd/0" || kill -KILL "${PROCESS[$name]}" 2>/dev/null || true
		wait "${PROCESS[$name]}" 2>/dev/null || true
	done
}

say "Ceph with three OSDs"
began=$SECONDS
monmaptool --create --fsid "$fsid" --addv a "$monitor" "$here/monmap" >/dev/null
ceph-mon --id a --mkfs --monmap "$here/monmap" >/dev/null 2>&1
on_exit eval "end_all KILL 2>/dev/null"
start_monitor
within 30 ceph_ mon stat || die "the monitor does not answer: $(tail -3 "$here/log/mon.out")"
for osd in "${OSDS[@]}"; do
	uuid=$(cat /proc/sys/kernel/random/uuid)
	mkdir "$here/osd.$osd"
	ceph_ osd new "$uuid" "$osd" >/dev/null
	ceph-osd --id "$osd" --mkfs --osd-uuid "$uuid" --no-mon-config >"$here/log/osd.$osd.out" 2>&1 || die "$(tail -3 "$here/log/osd.$osd.out")"
	start_osd "$osd"
done
all_up || die "the OSDs do not come up: $(tail -3 "$here/log/osd.0.out")"
ceph_ osd pool create volumes 16 16 >/dev/null
ceph_ osd pool set volumes size 2 >/dev/null
ceph_ osd pool set volumes min_size 1 >/dev/null
ceph_ osd set-full-ratio 0.95 >/dev/null
rbd create --size 4G --image-feature layering volumes/footage

# ------------------------------------------------------------------------------------------------------------- heads

# A head's way to the image: a client of Ceph's, and a file that reads and writes through it.
start_export() { # start_export HEAD
	local head=$1
	mkdir -p "$here/$head" "$here/$head-dev"
	rm -f "$here/$head.nbd"
	qemu-nbd --persistent --shared=8 --socket="$here/$head.nbd" --export-name=footage --cache=none --discard=unmap \
		--image-opts "driver=rbd,pool=volumes,image=footage,conf=$CEPH_CONF" >"$here/log/$head.export" 2>&1 &
	PROCESS[$head-export]=$!
	within 30 test -S "$here/$head.nbd" || die "the image is not exported: $(tail -3 "$here/log/$head.export")"
	touch "$here/$head-dev/footage"
	nbdfuse "$here/$head-dev/footage" "nbd+unix:///footage?socket=$here/$head.nbd" >"$here/log/$head.nbdfuse" 2>&1 &
	PROCESS[$head-device]=$!
	within 30 test -s "$here/$head-dev/footage" || die "the export is not reached: $(tail -3 "$here/log/$head.nbdfuse")"
}
end_export() { # end_export HEAD: nothing waits for what hangs.
	local head=$1 process
	umount --lazy "$here/$head-dev/footage" 2>/dev/null || true
	for process in "$head-device" "$head-export"; do
		[ -z "${PROCESS[$process]:-}" ] || kill -KILL "${PROCESS[$process]}" 2>/dev/null || true
		wait "${PROCESS[$process]}" 2>/dev/null || true
	done
}
device() { echo "$here/$1-dev/footage"; }
mount_head() { # mount_head HEAD [OPTION]
	timeout 60 mount.avfs "$(device "$1")" "$here/$1" -o "cache_size=256M,log=$here/log/$1.avfs${2:+,$2}"
}
umount_head() { timeout 120 umount "$here/$1"; }

records() { python3 "$ROOT/tests/recipes/records.py" "$@"; }
ACKNOWLEDGED=$here/acknowledged
WRITER=
start_writer() { # start_writer HEAD
	python3 "$ROOT/tests/recipes/records.py" write "$here/$1/records" "$ACKNOWLEDGED" >"$here/writer" 2>&1 &
	WRITER=$!
	SINCE=$(date +%s.%N)
	within 60 goes_on || true
}
end_writer() {
	kill "$WRITER" 2>/dev/null || true
	wait "$WRITER" 2>/dev/null || true
}
on_exit eval "kill -KILL \$WRITER 2>/dev/null"
# Whether something was acknowledged that was not when it was asked before.
goes_on() { tail -n 1 "$ACKNOWLEDGED" 2>/dev/null | awk -v since="$SINCE" '$2 > since { found = 1 } END { exit !found }'; }
waited() { # waited TEXT: how long the writer waited at most since SINCE.
	local seconds
	seconds=$(records gap "$ACKNOWLEDGED" "$SINCE")
	say "  the writer waited for $seconds s at most"
	printf '| %s | %s |\n' "$1" "$seconds" >>"$here/table"
}
nothing_lost() { # nothing_lost HEAD
	records verify "$here/$1/records" "$ACKNOWLEDGED" | sed 's/^/  /'
}
consistent() { timeout 120 fsck.avfs -n "$(device "$1")" >"$here/log/fsck" 2>&1 || { tail -5 "$here/log/fsck" && return 1; }; }

# Whether what the writer waited for was answered.
ends() { goes_on || ! kill -0 "$WRITER" 2>/dev/null; }
# The writer goes on. Or the fault took longer than the lease: a renewal that arrives so late may have been written over another's name, so
# the mount ends. Then clients hear it, and the volume is mounted again, as Pacemaker does it.
answered() { # answered HEAD
	within 120 ends || return 1
	if kill -0 "$WRITER" 2>/dev/null; then
		say "  it goes on"
		return
	fi
	say "  the lease has run out meanwhile, and the writer hears it: $(cat "$here/writer")"
	umount_head "$1" >"$here/log/umount" 2>&1 || true
	mount_head "$1" && start_writer "$1" && goes_on
}

start_export alpha
say "  there after $((SECONDS - began)) s"
mkfs.avfs --label footage "$(device alpha)" >/dev/null
on_exit eval "umount --lazy $here/alpha $here/beta 2>/dev/null"

say "a round trip"
mount_head alpha
head --bytes=192M /dev/urandom >"$here/film"
began=$(date +%s%N)
cp "$here/film" "$here/alpha/film"
sync "$here/alpha/film"
took=$((($(date +%s%N) - began) / 1000000))
umount_head alpha
end_export alpha
start_export alpha
mount_head alpha
expect "192 MiB are what they were ($((201326 / took)) MB/s with the sync)" cmp "$here/film" "$here/alpha/film"

say "an OSD is killed while a client writes"
start_writer alpha
sleep 2
SINCE=$(date +%s.%N)
kill -KILL "${PROCESS[osd.1]}"
wait "${PROCESS[osd.1]}" 2>/dev/null || true
sleep 15
SINCE_NOW=$SINCE SINCE=$(date +%s.%N)
expect "it goes on with two" within 60 goes_on
SINCE=$SINCE_NOW waited "OSD killed"
start_osd 1
expect "the OSD comes back" within 60 is_up 1
# Before that the other copy of what it has missed is the only one.
expect "all copies are there again" within 90 all_clean

say "an OSD is stopped while a client writes"
sleep 3
SINCE=$(date +%s.%N)
kill -STOP "${PROCESS[osd.2]}"
is_down() { ! is_up 2; }
expect "the monitor takes it for down" within 60 is_down
SINCE_NOW=$SINCE SINCE=$(date +%s.%N)
expect "what waits is answered" answered alpha
SINCE=$SINCE_NOW waited "OSD stopped"
kill -CONT "${PROCESS[osd.2]}"
expect "the OSD comes back" within 60 is_up 2
expect "all copies are there again" within 90 all_clean
end_writer
expect "nothing acknowledged is lost" nothing_lost alpha

say "the cluster is full, and grows"
ceph_ osd set-nearfull-ratio 0.5 >/dev/null
ceph_ osd set-backfillfull-ratio 0.55 >/dev/null
ceph_ osd set-full-ratio $FULL >/dev/null
is_full() { ceph_ osd dump | grep -q "^flags.*full\|^osd\..* full" || ceph_ health detail | grep -q "OSD_FULL\|full osd"; }
start_writer alpha
(dd if=/dev/urandom of="$here/alpha/fill" bs=4M count=600 conv=fsync 2>"$here/fill" || true; echo ended >>"$here/fill") &
filler=$!
expect "a copy fills it" within 240 is_full
sleep 10
SINCE=$(date +%s.%N)
sleep 5
stands() { ! goes_on; }
expect "what writes waits: it hears no error" eval "stands && kill -0 $WRITER"
# What is read waits, too: the export carries sixteen requests at once, and all of them are writes.
# Each OSD grows in turn, as a disk or a logical volume does.
for osd in "${OSDS[@]}"; do
	kill "${PROCESS[osd.$osd]}"
	wait "${PROCESS[osd.$osd]}" 2>/dev/null || true
	truncate -s 5G "$here/osd.$osd/block"
	ceph-bluestore-tool bluefs-bdev-expand --path "$here/osd.$osd" >"$here/log/expand.$osd" 2>&1 || tail -3 "$here/log/expand.$osd"
	start_osd "$osd"
	within 60 is_up "$osd" || true
done
expect "with larger OSDs what waits is answered" answered alpha
expect "so is the copy" within 200 grep -q ended "$here/fill"
wait $filler || true
end_writer
expect "nothing acknowledged is lost" nothing_lost alpha
rm -f "$here/alpha/fill"
ceph_ osd set-full-ratio 0.95 >/dev/null
SINCE=$(date +%s.%N)
start_writer alpha
expect "it is written again" within 30 goes_on
end_writer

say "a client is fenced by the blocklist, and another head takes over"
start_writer alpha
# Bytes that no client has asked to be durable: they are on their way, or in memory.
(dd if=/dev/urandom of="$here/alpha/unwritten" bs=1M count=1500 2>"$here/unwritten" || true; echo ended >>"$here/unwritten") &
copier=$!
sleep 2
# qemu's client watches the image's header as long as it has it open.
client=$(rbd status volumes/footage --format json | grep -o '"address":"[^"]*"' | head -n 1 | cut -d'"' -f4)
start_export beta
holder=$(avfsctl holder "$(device beta)" | awk '$1 == "holder" { print $2 }')
refused() { ! mount_head beta 2>"$here/refused" && grep -q "in use by process" "$here/refused"; }
expect "while it lives the other head is refused" refused
fencing=$(date +%s.%N)
ceph_ osd blocklist add "$client" >/dev/null
fenced=$(ceph_ osd blocklist ls | grep -c "$client" || true)
expect "the blocklist has $client" [ "$fenced" -ge 1 ]
# The OSDs refuse what the client sends from this map on: it is confirmed to be fenced.
mount_head beta "fenced=$holder"
expect "the writer of the fenced head hears an error" within 60 eval "! kill -0 $WRITER"
say "  its words: $(cat "$here/writer")"
expect "so does the copier" within 60 grep -q ended "$here/unwritten"
expect "nothing acknowledged is lost" nothing_lost beta
before=$(stat -c %s "$here/beta/records")
end_writer
wait $copier || true
start_writer beta
expect "the other head goes on" within 30 goes_on
SINCE=$fencing waited "client fenced by the blocklist, the other head takes over"
changed() { timeout 10 dd if=/dev/zero of="$here/alpha/late" bs=1M count=1 conv=fsync 2>/dev/null; }
expect "the fenced head accepts nothing durable any more" eval "! changed"
end_writer
process=$(avfsctl holder "$(device beta)" | awk '$1 == "process" { print $2 }')
umount_head alpha 2>"$here/log/umount" || umount --lazy "$here/alpha" 2>/dev/null || true
end_export alpha
expect "the holder is still the one that took over" [ -e "/proc/$process" ]
expect "the records only grew" [ "$(stat -c %s "$here/beta/records")" -gt "$before" ]

say "all is switched off at once while a client writes, and cold again"
start_writer beta
sleep 3
end_all KILL 2>/dev/null
kill -KILL "$WRITER" 2>/dev/null || true
daemon=$(sed -n 's/.*by process //p' /run/avfs/*.lock 2>/dev/null | tail -n 1)
[ -z "$daemon" ] || kill -KILL "$daemon" 2>/dev/null || true
umount --lazy "$here/beta" 2>/dev/null || true
umount --lazy "$here/beta-dev/footage" 2>/dev/null || true
PROCESS=()
start_monitor
within 30 ceph_ mon stat || die "the monitor does not answer: $(tail -3 "$here/log/mon.out")"
for osd in "${OSDS[@]}"; do start_osd "$osd"; done
expect "Ceph is there again" all_up
start_export beta
mount_head beta
expect "nothing acknowledged is lost" nothing_lost beta
expect "nor is the film" cmp "$here/film" "$here/beta/film"
umount_head beta
expect "the volume is consistent" consistent beta
end_export beta

printf '\n| fault | longest time that a writer of durable records waited, s |\n|---|---|\n'
cat "$here/table"
say
verdict ceph "$results"
