#!/usr/bin/env bash
# smbtorture, Samba's own suite, against stock smbd on the volume: every subtest that passes on ext4 or XFS must pass.
# usage: smbtorture.sh [avfs|ext4|xfs] [--all | SUITE…]
# Without suites: those that lean on the filesystem (3 minutes); --all: every suite of the list (25 minutes).
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../samba.sh"

KIND=${1:-avfs}
shift || true
TARGET_LIST=$ROOT/tests/gates/smbtorture-target.txt
SEED=1
SUITE_SECONDS=600

need_packages samba samba-vfs-modules samba-testsuite python3
isolate "$KIND" "$@"

case ${1:-} in
'') suites=(
	smb2.{read,rw,create,dir,rename,streams,acls,lock,timestamps,ioctl,getinfo}
	smb2.{rw,create,dir,rename,streams,timestamps}-m
	vfs.fruit-netatalk vfs.fruit-mediashare vfs.fruit_netatalk vfs.fruit_file_id vfs.streams_xattr
	raw.{streams,read,write,rename}
) ;;
--all) mapfile -t suites < <(sed -n 's/^\([a-z].*\) | .* | .*/\1/p' "$TARGET_LIST" | uniq) ;;
*) suites=("$@") ;;
esac

scratch
with_volume "$KIND" 4G "$SCRATCH/volume"

# The shares: plain NTFS semantics; what an editing facility uses; the same with Apple's metadata as Netatalk kept them.
volume=$SCRATCH/volume
share() { samba_share "$KIND" "$1" "$volume/$1" "${@:2}"; }
{
	cat <<-CONF
		    # Half of the suites speak SMB1.
		    server min protocol = NT1
		    ntlm auth = yes
		    dos filemode = yes
		    create mask = 755
		    fruit:copyfile = yes
		    fruit:veto_appledouble = no
	CONF
	share plain --clients no-macos
	share mediashare
	share netatalk
	printf ' fruit:%s\n' "metadata = netatalk" "resource = file" "locking = netatalk" "encoding = native"
} >"$SCRATCH/shares"
start_smbd "$SCRATCH/shares"

for suite in "${suites[@]}"; do
	case $suite in
	*-m) share=mediashare test=${suite%-m} ;;
	*-mediashare | *-netatalk) share=${suite##*-} test=${suite%-*} ;;
	vfs.*) share=netatalk test=$suite ;;
	*) share=plain test=$suite ;;
	esac
	# What a failed subtest left behind must not fail the next.
	find "$volume/$share" -mindepth 1 -delete
	log=$SCRATCH/$suite.log
	timeout --kill-after 10 "$SUITE_SECONDS" smbtorture --configfile="$SMB_CONF" --smb-ports="$SMB_PORT" \
		--user="$SMB_USER%$SMB_PASSWORD" --target=samba3 --format=subunit --seed="$SEED" \
		--option="torture:localdir=$volume/$share" --option=torture:share2=plain \
		"//127.0.0.1/$share" "$test" >"$log" 2>"$log.stderr" </dev/null || true

	# What must pass: on a kernel filesystem what passed there, on AVFS what passed on either.
	awk -F ' [|] ' -v suite="$suite" -v kind="$KIND" '
		FNR == NR {
			if (match($0, /^(success|failure|error|skip): /)) {
				name = substr($0, RLENGTH + 1)
				sub(/ \[$/, "", name)
				outcome[name] = substr($0, 1, RLENGTH - 2)
			}
			next
		}
		$1 == suite {
			split($3, on, " ")
			if (kind == "ext4" && on[1] != "success" || kind == "xfs" && on[2] != "success") next
			print (outcome[$2] == "success" ? "pass " : "fail ") suite " " $2
		}' "$log" "$TARGET_LIST" >"$SCRATCH/suite_results"
	[ -s "$SCRATCH/suite_results" ] || echo "fail $suite: not in the list of targets" >"$SCRATCH/suite_results"
	cat "$SCRATCH/suite_results" >>"$SCRATCH/results"
	say "$suite: $(grep -c '^pass' "$SCRATCH/suite_results" || true) passed, $(grep -c '^fail' "$SCRATCH/suite_results" || true) failed"
	if grep -q '^fail' "$SCRATCH/suite_results"; then
		grep -A2 -E '^(failure|error): ' "$log" | sed 's/^/    /' || true
		tail -3 "$log.stderr" | sed 's/^/    /'
	fi
done
stop "$SMB_PID"
close_volume "$KIND" "$volume"
verdict smbtorture "$SCRATCH/results"
