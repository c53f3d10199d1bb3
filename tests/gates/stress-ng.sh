#!/usr/bin/env bash
# stress-ng: every stressor of the class filesystem, one after another, each verifying what it does. A stressor that
# says it cannot run here has not passed: it must be listed among the allowed failures, with the reason.
# usage: stress-ng.sh [avfs|ext4|xfs] [STRESSOR…]
. "$(dirname "$0")/../lib.sh"

KIND=${1:-avfs}
shift || true
SECONDS_EACH=2
SECONDS_HANGING=90 # some clean up what they made for long after their time

need_packages stress-ng
isolate "$KIND" "$@"

stressors=("$@")
if ((${#stressors[@]} == 0)); then
	# bind-mount recurses into the host's root; stress-ng itself leaves it out of the class unless it is named.
	read -ra stressors < <(stress-ng --class 'filesystem?' | sed -n "s/^class 'filesystem' stressors: //p" | sed 's/\bbind-mount //')
	((${#stressors[@]} > 30)) || die "stress-ng names only ${#stressors[@]} stressors of the class filesystem"
fi

scratch
with_volume "$KIND" 4G "$SCRATCH/volume"
# Stressors that give up privileges must still be able to write.
mkdir -m 1777 "$SCRATCH/volume/stress"
cd "$SCRATCH/volume/stress"

for stressor in "${stressors[@]}"; do
	log=$SCRATCH/$stressor.log
	status=0
	timeout --kill-after 10 "$SECONDS_HANGING" stress-ng "--$stressor" 1 --timeout "$SECONDS_EACH" --verify \
		--no-rand-seed --temp-path . >"$log" 2>&1 || status=$?
	if ((status == 0)) && ! grep -q 'skipp\(ed\|ing\)' "$log"; then
		echo "pass $stressor" >>"$SCRATCH/results"
	else
		say "$stressor: exit code $status"
		grep -E ' (fail|error|warn)|skipp' "$log" | head -5 || true
		echo "fail $stressor" >>"$SCRATCH/results"
	fi
done
cd /
close_volume "$KIND" "$SCRATCH/volume"
verdict stress-ng "$SCRATCH/results"
