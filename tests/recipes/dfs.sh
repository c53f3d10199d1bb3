#!/usr/bin/env bash
# Many heads, one volume each, under one MS-DFS namespace: smbclient reaches both by one name, also when a head is away.
# usage: dfs
#
# Two smbd of Debian's, each with a volume of its own, on two addresses of a private loopback interface (a referral of DFS names no port).
# Each head has the same namespace: a directory of links on its own disk.
. "$(dirname "$0")/../lib.sh"
. "$ROOT/tests/samba.sh"

ISOLATED_BY=(unshare --net)
need_packages samba smbclient iproute2
if [ -z "${AVFS_ISOLATED:-}" ]; then build_avfs; fi
isolate "$@"
scratch
install_commands
results=$SCRATCH/results
: >"$results"
ip link set lo up

declare -A ADDRESS=([alpha]=127.0.0.2 [beta]=127.0.0.3) PROCESS=()

# configure HEAD: its volume, its share, and the namespace, in which each head has an entry.
configure() {
	local head=$1 state=$SCRATCH/$1-samba name
	mkdir -p "$state"/{private,run,log,namespace}
	with_volume avfs 1G "$SCRATCH/$head"
	for name in "${!ADDRESS[@]}"; do ln -s "msdfs:${ADDRESS[$name]}\\$name" "$state/namespace/$name"; done
	{
		samba_global "$head" "$state"
		cat <<-END
			    interfaces = ${ADDRESS[$head]}/8
			    bind interfaces only = yes
			    smb ports = 445
			    host msdfs = yes

			[projects]
			    comment = all volumes, under one name
			    path = $state/namespace
			    msdfs root = yes
			    read only = yes

		END
		samba_share avfs "$head" "$SCRATCH/$head/share"
	} >"$state/smb.conf"
	samba_password "$state/smb.conf"
}

listens() { (exec 3<>"/dev/tcp/${ADDRESS[$1]}/445") 2>/dev/null; }

start_head() {
	local head=$1 tenths=200
	# In a process group of its own: at its end smbd signals the whole group.
	smbd --foreground --configfile="$SCRATCH/$head-samba/smb.conf" >"$SCRATCH/$head-samba/log/stdout" 2>&1 &
	PROCESS[$head]=$!
	on_exit stop $!
	until listens "$head"; do
		((tenths-- > 0)) || die "smbd of $head does not start: $(tail -3 "$SCRATCH/$head-samba/log/smbd")"
		sleep 0.1
	done
}

# client HEAD COMMANDS: what an editor's machine does, which knows this one server's name.
client() {
	timeout 60 smbclient "//${ADDRESS[$1]}/projects" --user="$SMB_USER%$SMB_PASSWORD" --option="client min protocol=SMB3" --debuglevel=0 \
		--command="$2" >"$SCRATCH/said" 2>&1
}
same() { cmp "$1" "$2"; }

samba_user
for head in alpha beta; do configure "$head"; done
for head in alpha beta; do start_head "$head"; done
head --bytes=8M /dev/urandom >"$SCRATCH/first"
head --bytes=8M /dev/urandom >"$SCRATCH/second"

say "one name, two heads"
for head in alpha beta; do
	expect "the namespace on $head shows both volumes" eval "client $head ls && grep -q ' alpha ' $SCRATCH/said && grep -q ' beta ' $SCRATCH/said"
done
expect "through alpha a film goes to alpha's volume" client alpha "cd alpha; lcd $SCRATCH; put first film"
expect "and another to beta's" client alpha "cd beta; lcd $SCRATCH; put second film"
expect "each volume has its own" eval "same $SCRATCH/first $SCRATCH/alpha/share/film && same $SCRATCH/second $SCRATCH/beta/share/film"
expect "through beta both are read" client beta "lcd $SCRATCH; get alpha\\film back1; get beta\\film back2"
expect "with what was written" eval "same $SCRATCH/first $SCRATCH/back1 && same $SCRATCH/second $SCRATCH/back2"
expect "a folder is made, renamed and removed through the namespace" \
	client beta "cd alpha; mkdir reel1; rename reel1 reel2; rmdir reel2"

say "a head is away"
stop "${PROCESS[beta]}"
unmount_volume "$SCRATCH/beta"
expect "the other volume is read by the same name" client alpha "lcd $SCRATCH; get alpha\\film back3"
refused() { client "$@"; if grep -q NT_STATUS "$SCRATCH/said"; then return 0; else return 1; fi; }
expect "the one that is away says so, and hangs nothing" refused alpha "cd beta; ls"
mount_volume avfs "$SCRATCH/beta.img" "$SCRATCH/beta"
start_head beta
rm -f "$SCRATCH/back2"
expect "it is there again when its head is" client alpha "lcd $SCRATCH; get beta\\film back2"
expect "with what was written before" same "$SCRATCH/second" "$SCRATCH/back2"

say "a volume moves to the other head"
# The link is changed on each head; what clients know of it is for a time that the referral says.
stop "${PROCESS[beta]}"
unmount_volume "$SCRATCH/beta"
mount_volume avfs "$SCRATCH/beta.img" "$SCRATCH/beta"
print_share avfs beta "$SCRATCH/beta/share" >>"$SCRATCH/alpha-samba/smb.conf"
ln -sfn "msdfs:${ADDRESS[alpha]}\\beta" "$SCRATCH/alpha-samba/namespace/beta"
kill -HUP "${PROCESS[alpha]}"
rm -f "$SCRATCH/back2"
moved() { client alpha "lcd $SCRATCH; get beta\\film back2"; }
expect "clients find it by the same name" eval "moved || { sleep 2; moved; }"
expect "with what was written before" same "$SCRATCH/second" "$SCRATCH/back2"

stop "${PROCESS[alpha]}"
for head in alpha beta; do close_volume avfs "$SCRATCH/$head"; done
verdict dfs "$results"
