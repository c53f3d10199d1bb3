#!/usr/bin/env bash
# Two heads under Debian's Pacemaker: one killed, stopped, cut off; the other takes over, and SMB clients lose nothing acknowledged.
# usage: heads [agent]     the whole, in about four minutes; or the resource agent alone, without a cluster, in under a minute
#
# On one machine: two heads with namespaces of their own (processes, mounts, network, name), a bridge, one image behind a loop device for
# each head, a power switch that kills a head's first process. Corosync, Pacemaker, smbd and IPaddr2 are Debian's. Two clients write
# numbered records through SMB, each flushed before it is answered, and note what was acknowledged.
#
# KEEP_SCRATCH=1 keeps all logs.
. "$(dirname "$0")/../lib.sh"
. "$ROOT/tests/samba.sh"

declare -A DEVICE
HEADS=(alpha beta)
ADDRESS=10.77.0.100 # moves
GATEWAY=10.77.0.1   # clients and the power switch
GROUP=storage
PYTHON=/usr/bin/python3 # that has Debian's packages

# ------------------------------------------------------------------------------------------------------------- a head

# The first process of a head: what a machine's boot does. All that is mounted and made here ends with it.
if [ "${1:-}" = head ]; then
	trap - EXIT
	name=$2 here=$3
	hostname "$name"
	mount --make-rprivate /
	# Not the laboratory's: the kernel takes two with one for one machine.
	mount --bind "$here/boot_id" /proc/sys/kernel/random/boot_id
	mount -t tmpfs tmpfs /run
	mount -t tmpfs -o mode=1777 tmpfs /dev/shm
	mount -t tmpfs tmpfs /etc/corosync
	cp "$here/corosync.conf" /etc/corosync/
	# One name of the device on both heads, as /dev/disk/by-id/ has it: behind it each has a path of its own.
	mount -t tmpfs tmpfs "${here%/*}/dev"
	ln -s "$(<"$here/device")" "${here%/*}/dev/volume"
	mkdir -p /run/resource-agents /run/samba /run/crm
	chown hacluster:haclient /run/crm
	for directory in /var/lib/corosync /var/lib/pacemaker /var/log; do
		mount --bind "$here$directory" "$directory"
	done
	ip link set lo up
	until ip link show eth0 >/dev/null 2>&1; do sleep 0.05; done
	ip address add "$(<"$here/address")/24" dev eth0
	ip link set eth0 up
	corosync -f >/var/log/corosync.out 2>&1 &
	until corosync-cmapctl -g runtime.members >/dev/null 2>&1 || corosync-quorumtool -s >/dev/null 2>&1; do
		kill -0 $! 2>/dev/null || exit 1
		sleep 0.1
	done
	pacemakerd -f >/var/log/pacemakerd.out 2>&1 &
	while :; do wait || true; sleep 1; done
fi

mode=${1:-all}
case $mode in all | agent) ;; *) die "unknown part '$mode': see its head" ;; esac
[ "$mode" = agent ] || ISOLATED_BY=(unshare --net --uts --ipc)

need_packages resource-agents libxml2-utils iproute2
[ "$mode" = agent ] || need_packages corosync pacemaker pacemaker-cli-utils crmsh samba smbclient python3-samba iputils-arping
if [ -z "${AVFS_ISOLATED:-}" ]; then build_avfs; fi
isolate "$@"
scratch
install_commands
results=$SCRATCH/results
: >"$results"

# The agent where an installation puts it, for this mount namespace alone.
mkdir -p "$SCRATCH/resource.d/avfs"
cp "$ROOT/packaging/ocf/volume" "$SCRATCH/resource.d/avfs/"
mount -t overlay agents -o "lowerdir=$SCRATCH/resource.d:/usr/lib/ocf/resource.d" /usr/lib/ocf/resource.d
on_exit umount --lazy /usr/lib/ocf/resource.d
AGENT=/usr/lib/ocf/resource.d/avfs/volume

# loop_device IMAGE: a block device of it, past the kernel's cache of it as a LUN is. Two have nothing to do with each other.
loop_device() {
	LOOP=$(losetup --find --show --direct-io=on "$1")
	on_exit losetup --detach "$LOOP"
}

consistent() { fsck.avfs -n "$1" >"$SCRATCH/fsck"; }

# ------------------------------------------------------------------------------------------------- the agent by itself

# agent HEAD ACTION [PARAMETER=VALUE…]: what Pacemaker calls. Without a cluster its commands are stood in for by files.
agent() {
	local head=$1 action=$2
	shift 2
	env PATH="$SCRATCH/stub:$PATH" STUB="$SCRATCH/stub" HEAD="$head" OCF_ROOT=/usr/lib/ocf OCF_RESOURCE_INSTANCE=volume HA_RSCTMP=/run/resource-agents \
		OCF_RESKEY_device="${DEVICE[$head]}" OCF_RESKEY_directory="$SCRATCH/$head" OCF_RESKEY_options="cache_size=64M,log=$SCRATCH/$head.log" \
		OCF_RESKEY_CRM_meta_timeout="${STOP_WITHIN:-120000}" "$@" $AGENT "$action" >>"$SCRATCH/$head.agent" 2>&1
}

answers() { # answers CODE HEAD ACTION…: whether the agent answers with this code.
	local wanted=$1 code=0
	shift
	agent "$@" || code=$?
	((code == wanted)) || {
		say "$* answers $code instead of $wanted"
		tail -5 "$SCRATCH/$1.agent"
		return 1
	}
}

daemon_of() { avfsctl info --json "$1" | sed -n 's/^ *"process": \([0-9]*\).*/\1/p' | head -1; }

agent_alone() {
	local image=$SCRATCH/image begun took daemon holder
	mkdir -p /run/resource-agents "$SCRATCH/stub"
	truncate -s 1G "$image"
	loop_device "$image" && DEVICE[alpha]=$LOOP
	loop_device "$image" && DEVICE[beta]=$LOOP
	mkfs.avfs "${DEVICE[alpha]}" >/dev/null

	say "Debian's ocf-tester"
	ocf-tester -n volume -o "device=${DEVICE[alpha]}" -o "directory=$SCRATCH/tested" -o cache=no -o options=cache_size=64M $AGENT >"$SCRATCH/tester" 2>&1 ||
		tail -20 "$SCRATCH/tester"
	expect "the agent passes ocf-tester" grep -q "passed all tests" "$SCRATCH/tester"

	# What Pacemaker's commands answer, of two nodes.
	# shellcheck disable=SC2016
	printf '%s\n' '#!/bin/sh' 'case $1 in --list) printf "1 alpha member\n2 beta lost\n" ;; *) echo "$HEAD" ;; esac' >"$SCRATCH/stub/crm_node"
	# shellcheck disable=SC2016
	printf '%s\n' '#!/bin/sh' 'file="$STUB/$2.$4"' 'case $7 in --update) echo "$8" >"$file" ;; --query) cat "$file" ;; esac' >"$SCRATCH/stub/crm_attribute"
	# shellcheck disable=SC2016
	printf '%s\n' '#!/bin/sh' 'cat "$STUB/fenced.$2"' >"$SCRATCH/stub/stonith_admin"
	chmod 755 "$SCRATCH"/stub/*
	attribute() { cat "$SCRATCH/stub/$1.avfs-holder-volume"; }

	say "wrong parameters"
	expect "no device: not configured" answers 6 alpha start OCF_RESKEY_device=
	expect "a relative directory: not configured" answers 6 alpha validate-all OCF_RESKEY_directory=media
	expect "fenced among the options: not configured" answers 6 alpha validate-all OCF_RESKEY_options=ro,fenced=1
	expect "a device that is not there: not installed" answers 5 alpha start OCF_RESKEY_device=/dev/none
	expect "a probe where the device is not there: not running" answers 7 alpha monitor OCF_RESKEY_device=/dev/none
	expect "an action that it does not have: unimplemented" answers 3 alpha promote
	mkdir -p "$SCRATCH/alpha"
	mount -t tmpfs other "$SCRATCH/alpha"
	expect "something else is mounted there: not running" answers 7 alpha monitor
	expect "and nothing is mounted over it" answers 2 alpha start
	umount "$SCRATCH/alpha"

	say "a daemon that hangs"
	expect "started" answers 0 alpha start
	holder=$(avfsctl holder "${DEVICE[alpha]}" | awk '$1 == "holder" { print $2 }')
	expect "the cluster knows the holder" [ "$(attribute alpha)" = "$holder/never" ]
	expect "the other head is refused while it lives" answers 1 beta start
	echo "data" >"$SCRATCH/alpha/file" && sync "$SCRATCH/alpha/file"
	daemon=$(daemon_of "$SCRATCH/alpha")
	kill -STOP "$daemon"
	begun=$SECONDS
	expect "a stopped daemon is a failed monitor" answers 1 alpha monitor
	expect "found out in $((SECONDS - begun)) s" [ $((SECONDS - begun)) -le 12 ]
	begun=$SECONDS
	expect "stop kills it" answers 0 alpha stop
	took=$((SECONDS - begun))
	expect "in $took s, and the process is gone" [ ! -e "/proc/$daemon" ]
	expect "nothing is mounted, and that is no failure" answers 7 alpha monitor
	expect "the cluster knows that the holder is dead" [ "$(attribute alpha)" = "$holder/ended" ]
	begun=$SECONDS
	expect "the other head takes over" answers 0 beta start
	took=$((SECONDS - begun))
	expect "in $took s: the watch is a short one" [ $took -le 7 ]
	expect "what was made durable is there" [ "$(cat "$SCRATCH/beta/file")" = data ]

	say "a fencing that the cluster confirms"
	daemon=$(daemon_of "$SCRATCH/beta")
	kill -KILL "$daemon"
	umount --lazy "$SCRATCH/beta"
	begun=$SECONDS
	expect "without a fencing it takes over" answers 0 alpha start
	took=$((SECONDS - begun))
	expect "in $took s: nothing shortens the watch" [ $took -ge 10 ]
	daemon=$(daemon_of "$SCRATCH/alpha")
	kill -KILL "$daemon"
	umount --lazy "$SCRATCH/alpha"
	echo '<fence_event action="off" target="alpha" status="success" completed="2026-01-01 10:00:00Z"/>' >"$SCRATCH/stub/fenced.alpha"
	begun=$SECONDS
	expect "with one since the mount it takes over" answers 0 beta start
	took=$((SECONDS - begun))
	expect "in $took s" [ $took -le 7 ]

	say "a client that has a file open"
	tail --follow "$SCRATCH/beta/file" >/dev/null &
	daemon=$!
	begun=$SECONDS
	expect "stop ends it, and unmounts" answers 0 beta stop
	took=$((SECONDS - begun))
	expect "in $took s" [ $took -le 20 ]
	expect "the client is gone" within 5 test ! -e "/proc/$daemon/fd"
	expect "the volume was given back" grep -qx "holder   none" <(avfsctl holder "${DEVICE[beta]}")
	expect "stop of what is stopped" answers 0 beta stop
	expect "the volume is consistent" consistent "${DEVICE[alpha]}"
}

if [ "$mode" = agent ]; then
	mount -t tmpfs tmpfs /run
	agent_alone
	verdict heads "$results"
	exit
fi

# --------------------------------------------------------------------------------------------------------- the cluster

# on HEAD COMMAND…: in the head's namespaces.
on() {
	local pid
	pid=$(<"$SCRATCH/$1/pid")
	shift
	timeout 60 nsenter --target "$pid" --mount --pid --net --uts --ipc -- "$@"
}

lives() { [ -e "/proc/$(<"$SCRATCH/$1/pid")" ]; }
switch_off() {
	local pid
	pid=$(<"$SCRATCH/$1/pid")
	kill -KILL "$pid" 2>/dev/null || true
	while [ -e "/proc/$pid" ]; do sleep 0.05; done
}
other() { if [ "$1" = alpha ]; then echo beta; else echo alpha; fi; }
# Whether it has the volume and serves the address, as the kernel has it.
serves() { on "$1" sh -c "grep -q ' $VOLUME ' /proc/self/mountinfo && ip -4 address show dev eth0 | grep -q $ADDRESS/"; }
online() { on "$1" crm_mon -1 --output-as=xml 2>/dev/null | grep -c '<node .*online="true"' | grep -qx "${2:-2}"; }
settled() { on "$1" crm_resource --wait --timeout=30s >/dev/null 2>&1; }

make_head() {
	local name=$1 here=$SCRATCH/$1 directory
	mkdir -p "$here"/var/lib/corosync "$here"/var/log/{corosync,pacemaker,crmsh,samba,avfs}
	for directory in blackbox cib cores pengine; do mkdir -p "$here/var/lib/pacemaker/$directory"; done
	chown -R hacluster:haclient "$here/var/lib/pacemaker" "$here/var/log/pacemaker"
	chmod 770 "$here/var/log/pacemaker"
	echo "$2" >"$here/address"
	echo "${DEVICE[$name]}" >"$here/device"
	cp "$SCRATCH/corosync.conf" "$here/corosync.conf"
}

boot() {
	local name=$1 here=$SCRATCH/$1
	cat /proc/sys/kernel/random/uuid >"$here/boot_id"
	unshare --mount --pid --net --uts --ipc --fork --kill-child --mount-proc bash "$0" head "$name" "$here" >>"$here/boot.log" 2>&1 &
	local outer=$! inner
	until inner=$(cat "/proc/$outer/task/$outer/children" 2>/dev/null) && [ -n "${inner// /}" ]; do
		kill -0 $outer || die "head $name does not start: $(tail -3 "$here/boot.log")"
		sleep 0.05
	done
	inner=${inner// /}
	echo "$inner" >"$here/pid"
	# It has its own network by then.
	until [ "$(readlink "/proc/$inner/ns/net")" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.05; done
	# The one of an earlier life goes some time after it.
	within 20 eval "ip link delete $name-port 2>/dev/null; ip link add $name-port type veth peer name eth0 netns $inner" || die "$name has no network"
	ip link set "$name-port" master br0 up
}

# All processes of a head, by the laboratory's numbers.
processes_of() {
	local namespace process
	namespace=$(readlink "/proc/$(<"$SCRATCH/$1/pid")/ns/pid")
	for process in /proc/[0-9]*; do
		[ "$(readlink "$process/ns/pid" 2>/dev/null)" != "$namespace" ] || echo "${process#/proc/}"
	done
}

signal_head() { # signal_head SIGNAL HEAD: twice, for what was just born.
	local pids
	for _ in 1 2; do
		pids=$(processes_of "$2")
		# shellcheck disable=SC2086
		kill -s "$1" $pids 2>/dev/null || true
	done
}

active() {
	local name
	for name in "${HEADS[@]}"; do
		if lives "$name" && serves "$name"; then echo "$name" && return; fi
	done
	return 1
}

acknowledged_since() { # acknowledged_since TIME: whether each client was answered after it.
	local client
	for client in "${CLIENTS[@]}"; do
		tail -n 1 "$SCRATCH/$client.acknowledged" 2>/dev/null | awk -v since="$1" '$2 > since { found = 1 } END { exit !found }' || return 1
	done
}

# taken_over CASE FROM SINCE: waits until the other head serves and all clients were answered by it; the seconds that they waited.
taken_over() {
	local text=$1 from=$2 since=$3 to now client seconds longest=0
	to=$(other "$from")
	if ! within 90 serves "$to"; then
		failed "$text: $to does not take over"
		on "$to" crm_mon -1rn || true
		return 1
	fi
	now=$(date +%s.%N)
	if ! within 60 acknowledged_since "$now"; then
		failed "$text: clients are not served again"
		return 1
	fi
	for client in "${CLIENTS[@]}"; do
		seconds=$($PYTHON "$ROOT/tests/recipes/records.py" gap "$SCRATCH/$client.acknowledged" "$since")
		longest=$(printf '%s\n%s\n' "$longest" "$seconds" | sort -g | tail -n 1)
	done
	passed "$text: clients of $from are served by $to after $longest s"
	printf '| %s | %s |\n' "$text" "$longest" >>"$SCRATCH/table"
}

# The head is there again, as a member that has nothing.
rejoin() {
	local name=$1 peer
	peer=$(other "$name")
	lives "$name" || boot "$name"
	within 60 online "$peer" || die "$name does not join: $(tail -5 "$SCRATCH/$name/var/log/pacemaker/pacemaker.log")"
	on "$peer" crm_resource --cleanup >/dev/null 2>&1 || true
	within 30 settled "$peer" || true
}

ip link add br0 type bridge || die "this kernel has no bridge: the heads have no network"
ip link set lo up
ip address add $GATEWAY/24 dev br0
ip link set br0 up

say "two heads"
VOLUME=$SCRATCH/footage
mkdir "$VOLUME"
image=$SCRATCH/image
truncate -s 4G "$image"
declare -A DEVICE
for name in "${HEADS[@]}"; do loop_device "$image" && DEVICE[$name]=$LOOP; done
mkfs.avfs --label footage "${DEVICE[alpha]}" >/dev/null

cat >"$SCRATCH/corosync.conf" <<-END
	totem {
	    version: 2
	    cluster_name: heads
	    transport: knet
	    crypto_cipher: none
	    crypto_hash: none
	    token: 1000
	}
	nodelist {
	    node { ring0_addr: 10.77.0.11  name: alpha  nodeid: 1 }
	    node { ring0_addr: 10.77.0.12  name: beta   nodeid: 2 }
	}
	quorum {
	    provider: corosync_votequorum
	    two_node: 1
	}
	logging {
	    to_logfile: yes
	    logfile: /var/log/corosync/corosync.log
	    to_syslog: no
	    timestamp: on
	}
END
sed -i 's/node { ring0_addr: \([0-9.]*\)  name: \([a-z]*\) *nodeid: \([0-9]\) }/node {\n        ring0_addr: \1\n        name: \2\n        nodeid: \3\n    }/' "$SCRATCH/corosync.conf"
make_head alpha 10.77.0.11
make_head beta 10.77.0.12

mkdir "$SCRATCH/dev"

# Samba: what both heads need to know alike, users and the server's identity, is made once and copied.
samba_user
samba=$SCRATCH/samba
mkdir -p "$samba/private"
samba_global FOOTAGE "$samba" /run/samba /var/log/samba >"$samba/smb.conf"
cat >>"$samba/smb.conf" <<-END
	    smb ports = 445
	    # An answer to a write says that it is durable: what these clients note is what nothing may lose.
	    strict sync = yes
	    sync always = yes

END
mkdir -p /run/samba
mount "${DEVICE[alpha]}" -t avfs "$VOLUME" -o cache_size=64M
samba_share avfs footage "$VOLUME/share" >>"$samba/smb.conf"
umount "$VOLUME"
samba_password "$samba/smb.conf"
cat >"$SCRATCH/client.conf" <<-END
	[global]
	    client min protocol = SMB3
	    private dir = $SCRATCH
	    lock directory = $SCRATCH
	    state directory = $SCRATCH
	    cache directory = $SCRATCH
END
export CLIENT_CONF=$SCRATCH/client.conf

# The power switch, and the agent that asks it through the network as it asks a management card. A head that is cut off reaches none.
$PYTHON "$ROOT/tests/recipes/heads.py" switch $GATEWAY 7000 "$SCRATCH" 2>"$SCRATCH/switch.log" &
on_exit stop $!
cat >"$SCRATCH/sbin/fence_switch" <<'END'
#!/bin/bash
# Asks the laboratory's power switch.
action=off
while IFS='=' read -r name value; do
	case $name in
	action) action=$value ;;
	nodename | port | plug) plug=$value ;;
	esac
done
ask() {
	exec 3<>/dev/tcp/10.77.0.1/7000 || exit 1
	echo "$1 $plug" >&3
	read -r -t 10 state <&3
}
case $action in
metadata)
	cat <<-XML
		<?xml version="1.0" ?>
		<resource-agent name="fence_switch" shortdesc="power switch of the laboratory">
		<longdesc>Kills a head.</longdesc>
		<parameters>
		<parameter name="action" unique="0" required="1"><content type="string" default="off"/><shortdesc lang="en">action</shortdesc></parameter>
		<parameter name="port" unique="0" required="1"><content type="string"/><shortdesc lang="en">head</shortdesc></parameter>
		</parameters>
		<actions><action name="on"/><action name="off"/><action name="status"/><action name="monitor"/><action name="list"/><action name="metadata"/></actions>
		</resource-agent>
	XML
	;;
off) timeout 10 bash -c "$(declare -f ask); plug=$plug; ask off; [ \"\$state\" = off ]" ;;
status | monitor) timeout 10 bash -c "$(declare -f ask); plug=$plug; ask status" ;;
on) ;;
*) exit 1 ;;
esac
END
chmod 755 "$SCRATCH/sbin/fence_switch"

for name in "${HEADS[@]}"; do
	on_exit switch_off "$name"
	boot "$name"
done
within 60 online alpha || {
	for name in "${HEADS[@]}"; do tail -5 "$SCRATCH/$name"/boot.log "$SCRATCH/$name"/var/log/{corosync.out,pacemakerd.out} "$SCRATCH/$name"/var/log/*/*.log; done
	die "the cluster does not form"
}

cat >"$SCRATCH/cluster" <<-END
	property stonith-enabled=true stonith-action=off no-quorum-policy=ignore dc-deadtime=1s
	rsc_defaults migration-threshold=1 resource-stickiness=100
	primitive switch stonith:fence_switch params pcmk_host_list="alpha beta" pcmk_host_check=static-list op monitor interval=60s timeout=20s
	primitive volume ocf:avfs:volume params device="$SCRATCH/dev/volume" directory="$VOLUME" options="cache_size=256M,log=/var/log/avfs/log" op start timeout=60s op stop timeout=40s op monitor interval=2s timeout=30s
	primitive smb ocf:heartbeat:anything params binfile=/usr/sbin/smbd cmdline_options="--foreground --configfile=$samba/smb.conf" pidfile=/run/samba/smb.pid op monitor interval=2s timeout=10s op stop timeout=20s
	primitive address ocf:heartbeat:IPaddr2 params ip=$ADDRESS cidr_netmask=24 op monitor interval=2s timeout=10s
	group $GROUP volume smb address
	location prefers $GROUP 1: alpha
END
on alpha crm --force configure load update "$SCRATCH/cluster" >"$SCRATCH/crm.log" 2>&1 || {
	cat "$SCRATCH/crm.log"
	die "the cluster's configuration is refused"
}
within 60 serves alpha || {
	on alpha crm_mon -1rnf || true
	tail -20 "$SCRATCH/alpha/var/log/pacemaker/pacemaker.log"
	die "the volume does not start"
}

CLIENTS=(first second)
RUNNING=()
start_clients() {
	local client
	for client in "${CLIENTS[@]}"; do
		$PYTHON "$ROOT/tests/recipes/heads.py" client $ADDRESS "$client" "$SCRATCH/$client.acknowledged" &
		RUNNING+=($!)
	done
}
end_clients() {
	kill "${RUNNING[@]}"
	wait "${RUNNING[@]}" || true
	RUNNING=()
}
start_clients
within 30 acknowledged_since 0 || {
	tail -5 "$SCRATCH"/*.errors
	die "clients are not served"
}

# ----------------------------------------------------------------------------------------------------------- the cases

: >"$SCRATCH/table"
from=alpha
turn() { # turn TEXT: prints what comes, and sets FROM, SINCE.
	say "$*"
	from=$(active) || die "no head is active"
	sleep 1
	SINCE=$(date +%s.%N)
}
# Why the mount had to watch for so long as it did, in the agent's words, since the last time this was asked.
reasons() {
	grep -h "is mounted on\|last holder is dead" "$SCRATCH/$1"/var/log/pacemaker/pacemaker.log | tail -n 2 | sed 's/.*INFO: /    /; s/.*): /    /' || true
}

turn "the active head is put on standby"
on "$from" crm_standby --node "$from" --update on
taken_over "clean switch" "$from" "$SINCE" || true
on "$from" crm_standby --node "$from" --update off
rejoin "$from"

turn "daemon and smbd are killed"
pids=$(on "$from" sh -c 'pidof mount.avfs mount-avfs smbd; true')
# shellcheck disable=SC2086
on "$from" kill -KILL $pids
taken_over "daemon and smbd killed" "$from" "$SINCE" || true
reasons "$(other "$from")"
rejoin "$from"

turn "the daemon is stopped with SIGSTOP"
daemon=$(on "$from" avfsctl info --json "$VOLUME" | sed -n 's/^ *"process": \([0-9]*\).*/\1/p' | head -1)
on "$from" kill -STOP "$daemon"
taken_over "daemon stopped" "$from" "$SINCE" || true
reasons "$(other "$from")"
expect "the stopped daemon was killed" within 5 on "$from" sh -c "! kill -0 $daemon"
rejoin "$from"

turn "the head is switched off"
switch_off "$from"
taken_over "head killed, fenced" "$from" "$SINCE" || true
expect "the switch was asked" grep -q " $from\$" "$SCRATCH/switched"
reasons "$(other "$from")"
rejoin "$from"

turn "the head's network is cut"
ip link set "$from-port" down
taken_over "network cut, fenced" "$from" "$SINCE" || true
expect "the head that was cut off is off" within 5 eval "! lives $from"
reasons "$(other "$from")"
rejoin "$from"

# Without fencing the lease alone stands between a head that wakes and the device.
turn "the whole head is stopped with SIGSTOP, and nothing fences it"
to=$(other "$from")
on "$to" crm_attribute --name stonith-enabled --update false
# It has unwritten bytes when it halts, and goes on writing when it wakes.
on "$from" sh -c "dd if=/dev/urandom of=$VOLUME/unwritten bs=1M count=3000 2>/var/log/avfs/dd; echo ended >>/var/log/avfs/dd" &
writer=$!
sleep 2
SINCE=$(date +%s.%N)
signal_head STOP "$from"
taken_over "head stopped, not fenced" "$from" "$SINCE" || true
# It wakes alone: what it does then is its own doing.
ip link set "$from-port" down
# The other one rests, so that every byte that changes would be of the one that wakes.
end_clients
on "$to" avfsctl sync "$VOLUME"
digest() { $PYTHON "$ROOT/tests/recipes/heads.py" digest "$image"; }
rests() {
	before=$(digest)
	sleep 2
	[ "$before" = "$(digest)" ]
}
expect "the volume rests" within 60 rests
signal_head CONT "$from"
said() { on "$from" grep -q "the lease on the volume is lost" /var/log/avfs/log; }
expect "the head that wakes finds that it has lost the volume" within 10 said
expect "its client hears an error" within 20 on "$from" grep -q "ended" /var/log/avfs/dd
expect "in these words: $(on "$from" grep -o 'dd: error.*' /var/log/avfs/dd || true)" on "$from" grep -q "Input/output error" /var/log/avfs/dd
# Longer than its lease would have lasted, and than its agent needs to try again.
sleep 12
expect "no byte of it reached the device: the image is the same, but for the block that the other renews" [ "$before" = "$(digest)" ]
expect "it does not have the volume" eval "! on $from avfsctl info $VOLUME >/dev/null 2>&1 || ! on $from sh -c 'echo x >$VOLUME/x' 2>/dev/null"
expect "the other has it" serves "$to"
on "$to" crm_attribute --name stonith-enabled --update true
expect "the cluster switches it off as soon as it may" within 30 eval "! lives $from"
wait "$writer" 2>/dev/null || true
start_clients
rejoin "$from"
sleep 3

say "the end"
end_clients
intact() { $PYTHON "$ROOT/tests/recipes/heads.py" verify $ADDRESS "$1" "$SCRATCH/$1.acknowledged" 2>&1 | sed 's/^/  /'; }
for client in "${CLIENTS[@]}"; do expect "nothing that $client was told to be durable is lost" intact "$client"; done
to=$(active)
on "$to" crm_resource --resource $GROUP --set-parameter target-role --meta --parameter-value Stopped >/dev/null
given_back() { avfsctl holder "${DEVICE[$to]}" | grep -qx "holder   none"; }
expect "the volume is given back" within 60 given_back
for name in "${HEADS[@]}"; do switch_off "$name"; done
expect "the volume is consistent" consistent "$image"

printf '\n| case | seconds until SMB clients are served again |\n|---|---|\n'
cat "$SCRATCH/table"
say
verdict heads "$results"
