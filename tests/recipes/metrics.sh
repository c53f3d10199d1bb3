#!/usr/bin/env bash
# Debian's Prometheus checks and scrapes the metrics of a volume that is used, and Chromium shows its page, wide, narrow, light and dark.
# usage: metrics [PAGES]     PAGES: a directory where the pictures of the page are kept (default: none)
#
# promtool judges text, rules and their tests; every metric that the rules and the dashboard name is one that there is; a Prometheus
# scrapes the volume, and says of it what avfsctl says. Without Chromium the page is not looked at, and that is said.
. "$(dirname "$0")/../lib.sh"
[ -n "${AVFS_ISOLATED:-}" ] || build_avfs
isolate "$@"
pages=${1:-}
scratch
need_packages prometheus curl python3
install_commands
mount -t tmpfs none /run
on_exit umount --lazy /run

passed=0 failed=0
# holds WHAT COMMAND ARG…
holds() {
	local what=$1
	shift
	if "$@" >"$SCRATCH/said" 2>&1; then
		passed=$((passed + 1))
	else
		failed=$((failed + 1))
		say "FAILED: $what"
		sed 's/^/    /' "$SCRATCH/said"
	fi
}

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
port=$(free_port)
image=$SCRATCH/footage.img
mount=/run/footage
mkdir "$mount"
truncate -s 2G "$image"
mkfs.avfs --label footage "$image" >/dev/null
printf '[web]\nlisten = "127.0.0.1:%s"\n[[stream]]\npath = "*.mov"\nbitrate = "100 Mbit/s"\n' "$port" >"$SCRATCH/config"
STATE_DIRECTORY=$SCRATCH/state mount.avfs "$image" "$mount" -o "cache_size=128M,config=$SCRATCH/config,log=$SCRATCH/log"
on_exit umount.avfs "$mount"
head -c 300M /dev/urandom >"$mount/A001C001.mov"
avfsctl sync "$mount"

# What is played and written all the time.
python3 - "$mount" <<'PLAY' &
import os, sys, time
file = os.open(sys.argv[1] + "/A001C001.mov", os.O_RDONLY)
began, piece = time.time(), 0
while True:
    os.pread(file, 1 << 20, piece % 299 << 20)
    with open(sys.argv[1] + "/other", "wb") as other:
        other.write(bytes(1 << 20))
    piece += 1
    time.sleep(max(0, began + piece * 0.0839 - time.time()))
PLAY
player=$!
on_exit stop "$player" 5
sleep 3

url=http://127.0.0.1:$port
# Until a request of the player was served with time to spare.
tenths=200
while curl -fsS "$url/metrics" >"$SCRATCH/metrics" && ! grep -q ^avfs_streams_least_slack "$SCRATCH/metrics" && ((tenths-- > 0)); do sleep 0.1; done
holds "promtool takes the metrics" promtool check metrics <"$SCRATCH/metrics"
avfsctl metrics >"$SCRATCH/printed"
holds "promtool takes what avfsctl prints" promtool check metrics <"$SCRATCH/printed"
monitoring=$ROOT/packaging/monitoring
holds "promtool takes the rules" promtool check rules "$monitoring/avfs-alerts.yml"
holds "the alerts are raised by what is to raise them" promtool test rules "$monitoring/avfs-alerts-test.yml"
holds "promtool takes the configuration" promtool check config "$monitoring/prometheus.yml"

# exist FILE: all metrics that it names are there. Of room there is none without a stream, and here is one.
exist() {
	local metric lacks=0
	while read -r metric; do
		grep -q "^# TYPE $metric " "$SCRATCH/metrics" || { say "$1: there is no $metric" && lacks=1; }
	done < <(grep -oE 'avfs_[a-z_]+' "$1" | sed -E 's/_(bucket|sum|count)$//' | sort -u)
	return "$lacks"
}
holds "what the rules name is there" exist "$monitoring/avfs-alerts.yml"
holds "what the dashboard names is there" exist "$monitoring/avfs-dashboard.json"
holds "the dashboard is JSON" python3 -m json.tool "$monitoring/avfs-dashboard.json"

prometheus_port=$(free_port)
sed "s/127.0.0.1:9750/127.0.0.1:$port/; s/15s/1s/" "$monitoring/prometheus.yml" >"$SCRATCH/prometheus.yml"
cp "$monitoring/avfs-alerts.yml" "$SCRATCH/"
prometheus --config.file="$SCRATCH/prometheus.yml" --storage.tsdb.path="$SCRATCH/tsdb" \
	--web.listen-address="127.0.0.1:$prometheus_port" >"$SCRATCH/prometheus.log" 2>&1 &
on_exit stop $! 10
# query EXPRESSION: the value that Prometheus has.
query() {
	curl -fsS --get --data-urlencode "query=$1" "http://127.0.0.1:$prometheus_port/api/v1/query" |
		python3 -c 'import json, sys; print(json.load(sys.stdin)["data"]["result"][0]["value"][1])' 2>/dev/null
}
# becomes VALUE EXPRESSION: within 20 s.
becomes() {
	local tenths=200
	while [ "$(query "$2")" != "$1" ]; do
		((tenths-- > 0)) || { query "$2" && return 1; }
		sleep 0.1
	done
}
holds "Prometheus scrapes the volume" becomes 1 'up{job="avfs"}'
holds "it has the label" becomes 1 'avfs_info{label="footage"}'
holds "it sees the one who plays" becomes 1 'avfs_streams{state="admitted",direction="read"}'
holds "it sees the cache" becomes "$((128 << 20))" avfs_cache_limit_bytes
holds "it sees what is written" becomes 1 'clamp_max(ceil(increase(avfs_device_written_bytes_total[10s])), 1)'
holds "no alert is raised by a volume that is well" becomes 0 'count(ALERTS{alertstate="firing"}) or vector(0)'

if command -v chromium >/dev/null; then
	[ -n "$pages" ] || pages=$SCRATCH
	for width in 1280x900 390x1300; do
		for scheme in 0-dark 1-light; do
			picture=$pages/page-$([ $width = 390x1300 ] && echo narrow || echo wide)-${scheme#*-}.png
			look() {
				timeout 90 chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size="${width/x/,}" \
					--blink-settings=preferredColorScheme="${scheme%-*}" --virtual-time-budget=12000 "$@" "$url/"
			}
			holds "the page at $width, ${scheme#*-}, is drawn" look --screenshot="$picture"
			look --dump-dom >"$SCRATCH/dom" 2>/dev/null
			holds "it shows who plays" grep -q 'A001C001.mov' "$SCRATCH/dom"
			holds "and that the volume serves" grep -qE 'state good[^>]*>serving' "$SCRATCH/dom"
			holds "with a bar" grep -qE 'scaleX\(0?\.[0-9]+|scaleX\(1' "$SCRATCH/dom"
		done
	done
else
	say "the page is not looked at: there is no chromium"
fi
say "metrics: $passed passed, $failed failed"
((failed == 0))
