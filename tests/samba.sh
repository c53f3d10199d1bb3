# A private file server: stock smbd on a free port of the loopback interface, with configuration, state and users of its
# own. Needs lib.sh and a script that is isolated: the user stands in a copy of /etc/passwd that only the script's mount
# namespace sees, and smbd ends with its process namespace.
# shellcheck shell=bash

SMB_USER=editor
SMB_PASSWORD="cut"

# samba_user: makes SMB_USER known inside this mount namespace.
samba_user() {
	local file
	getent passwd "$SMB_USER" >/dev/null && return
	for file in passwd group; do
		cp "/etc/$file" "$SCRATCH/$file"
		mount --bind "$SCRATCH/$file" "/etc/$file"
		on_exit umount "/etc/$file"
	done
	echo "$SMB_USER:x:64001:64001::/nonexistent:/usr/sbin/nologin" >>"$SCRATCH/passwd"
	echo "$SMB_USER:x:64001:" >>"$SCRATCH/group"
}

# print_share KIND NAME DIRECTORY [OPTION…]: a share of DIRECTORY, as `avfsctl samba-config` has it for facilities. Other kinds of
# volumes do not know how a name is really spelt.
print_share() {
	local kind=$1 name=$2 directory=$3 avfsctl=$AVFS_BIN/avfsctl
	[ -x "$avfsctl" ] || die "no avfsctl in $AVFS_BIN: run 'cargo build --release', or set AVFS_BIN"
	"$avfsctl" samba-config --share "$name" --path "$directory" "${@:4}" |
		if [ "$kind" = avfs ]; then cat; else sed '/vfs objects/s/ glusterfs_fuse//'; fi
}

# samba_share KIND NAME DIRECTORY [OPTION…]: makes DIRECTORY, and prints a share of it.
samba_share() {
	mkdir -m 777 "$3"
	print_share "$@"
}

# samba_global NAME STATE [RUN LOG]: prints what a server of a test has in [global], which keeps all that it keeps below STATE, or what
# lives with its process in RUN and its log in LOG.
samba_global() {
	local run=${3:-$2/run} log=${4:-$2/log}
	cat <<-CONF
		[global]
		    workgroup = AVFS
		    netbios name = $1
		    server role = standalone server
		    disable netbios = yes
		    load printers = no
		    printcap name = /dev/null
		    disable spoolss = yes
		    private dir = $2/private
		    lock directory = $run
		    state directory = $run
		    cache directory = $run
		    pid directory = $run
		    ncalrpc dir = $run/ncalrpc
		    usershare path =
		    passdb backend = tdbsam
		    log file = $log/smbd
		    logging = file
		    max log size = 0
	CONF
}

# samba_password CONF: makes the user known to the server of this configuration.
samba_password() {
	printf '%s\n%s\n' "$SMB_PASSWORD" "$SMB_PASSWORD" | smbpasswd -c "$1" -a -s "$SMB_USER" >/dev/null
}

# start_smbd SETTINGS [NAME]: starts smbd with settings of its own and the lines of the file SETTINGS (further global
# settings, then shares). Sets SMB_PORT, SMB_CONF, SMB_PID. Two at the same time have different names.
start_smbd() {
	local settings=$1 state=$SCRATCH/${2:-samba}
	samba_user
	mkdir -p "$state"/{private,log,run}
	SMB_CONF=$state/smb.conf
	{
		samba_global AVFS "$state"
		printf '    %s\n' 'interfaces = 127.0.0.1/8' 'bind interfaces only = yes' ''
		cat "$settings"
	} >"$SMB_CONF"
	samba_password "$SMB_CONF"

	# A port that is free now may be another server's by the time smbd wants it: smbd ends then, and gets another one.
	local try
	for try in 1 2 3 4 5; do
		SMB_PORT=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
		# In a process group of its own: at its end smbd signals the whole group.
		smbd --foreground --configfile="$SMB_CONF" --option="smb ports=$SMB_PORT" >"$state/log/stdout" 2>&1 &
		SMB_PID=$!
		if smbd_listens; then
			on_exit stop "$SMB_PID"
			return
		fi
		stop "$SMB_PID"
		say "smbd did not get port $SMB_PORT (try $try)"
	done
	cat "$state"/log/* >&2
	die "smbd did not start"
}

# smbd_listens: waits until SMB_PID listens on SMB_PORT: this server, not any that answers there. False if it ends, or does
# not listen in 20 s.
smbd_listens() {
	local tenths=200 inode
	while ((tenths-- > 0)) && kill -0 "$SMB_PID" 2>/dev/null; do
		inode=$(awk -v at="$(printf ':%04X' "$SMB_PORT")" 'index($2, at) == 9 && $4 == "0A" { print $10 }' /proc/net/tcp)
		if [ -n "$inode" ] && find "/proc/$SMB_PID/fd" -lname "socket:\\[$inode\\]" 2>/dev/null | grep -q .; then
			return 0
		fi
		sleep 0.1
	done
	return 1
}
