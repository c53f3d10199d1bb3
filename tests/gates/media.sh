#!/usr/bin/env bash
# Files of every container that ffmpeg makes have the bitrate that their length and ffprobe's duration say.
# usage: media.sh
. "$(dirname "$0")/../lib.sh"

need_packages ffmpeg
need_cargo
cargo test --manifest-path "$ROOT/Cargo.toml" --target-dir "$TARGET" --quiet -p avfs-media --test ffmpeg -- --ignored
