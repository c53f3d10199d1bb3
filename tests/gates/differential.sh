#!/usr/bin/env bash
# The differential test: random operations on the volume and on an ext4 volume, compared after every step.
# usage: differential.sh [avfs|ext4|xfs] [SEED…]
# Environment: OPERATIONS  their number (5000)
#              OPTIONS     further options of the program
# A failure is repeated with the seed it names.
. "$(dirname "$0")/../lib.sh"

KIND=${1:-avfs}
shift || true
OPERATIONS=${OPERATIONS:-5000}

need_packages acl e2fsprogs
need_cargo
[ -n "${AVFS_ISOLATED:-}" ] ||
	cargo build --manifest-path "$ROOT/Cargo.toml" --target-dir "$TARGET" --quiet -p avfs-tests --bin differential
isolate "$KIND" "$@"

# Three seeds that are always the same, and one that is new each time; but a run that judges a change repeats the same.
seeds=("$@")
((${#seeds[@]})) || seeds=(1 2 3)
(($#)) || [ -n "${CI:-}" ] || seeds+=("$(date +%s)")

scratch
left=$SCRATCH/$KIND right=$SCRATCH/reference
with_volume "$KIND" 4G "$left"
with_volume ext4 4G "$right"
# The one difference that is meant: before the first ACL of a volume, AVFS tells a file's owner that ACLs are unsupported,
# where ext4 says that the file has none (doc/decisions/labels-and-acls.md; tested in crates/avfs-core/tests/model/regressions.rs).
for volume in "$left" "$right"; do
	touch "$volume/acl"
	setfacl --modify user:1:r "$volume/acl"
done

# remount_command KIND DIR: a shell command that unmounts and mounts again.
remount_command() {
	printf '. %q; unmount_volume %q; mount_volume %q %q %q' "$ROOT/tests/lib.sh" "$2" "$1" "$2.img" "$2"
}

# run_differential LEFT RIGHT OPTION…: in new directories
run_differential() {
	rm -rf "$1" "$2"
	mkdir -m 755 "$1" "$2"
	# shellcheck disable=SC2086 # options are words
	"$TARGET/debug/differential" "$1" "$2" --operations "$OPERATIONS" "${@:3}" ${OPTIONS:-}
}

for seed in "${seeds[@]}"; do
	if run_differential "$left/tree" "$right/tree" --seed "$seed" --remount-left "$(remount_command "$KIND" "$left")" \
		--remount-right "$(remount_command ext4 "$right")"; then
		echo "pass seed $seed" >>"$SCRATCH/results"
	else
		echo "fail seed $seed" >>"$SCRATCH/results"
	fi
done

# A test that cannot fail proves nothing: faults on purpose, in one of two directories on ext4, must be found.
for fault in byte size mode xattr name; do
	if run_differential "$right/one" "$right/other" --fault "$fault" --fault-at 447 >"$SCRATCH/fault.log" 2>&1; then
		say "a wrong $fault was not found"
		echo "fail finds a wrong $fault" >>"$SCRATCH/results"
	else
		say "a wrong $fault on purpose: $(grep -m1 'differ' "$SCRATCH/fault.log")"
		echo "pass finds a wrong $fault" >>"$SCRATCH/results"
	fi
done
close_volume "$KIND" "$left"
verdict differential "$SCRATCH/results"
