#!/usr/bin/env python3
"""Numbered records: each is made durable before it is noted as acknowledged, and all that were noted must be there afterwards.

usage: records.py write FILE ACKNOWLEDGED      until something fails, says what, and ends
       records.py verify FILE ACKNOWLEDGED     reads all that was acknowledged
       records.py gap ACKNOWLEDGED SINCE       the longest time without an acknowledgement since then, in seconds
"""
import hashlib
import os
import sys
import time

# Bytes.
SIZE = 64 << 10


def record(name, number):
    """What stands in a record: like no other, and no hole."""
    return hashlib.shake_128(f"{name} {number}".encode()).digest(SIZE)


def last_acknowledged(path):
    try:
        with open(path) as log:
            lines = [line for line in log if line.endswith("\n")]
        return int(lines[-1].split()[0]) if lines else -1
    except FileNotFoundError:
        return -1


def note(log, number):
    """One line is one acknowledgement, whatever kills this process."""
    log.write(f"{number} {time.time():.3f}\n".encode())


def write(path, log):
    name, number = os.path.basename(path), last_acknowledged(log)
    file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    with open(log, "ab", buffering=0) as acknowledged:
        while True:
            number += 1
            try:
                written = os.pwrite(file, record(name, number), number * SIZE)
                os.fsync(file)
            except OSError as error:
                print(f"record {number}: {error.strerror}", flush=True)
                # What hangs at the end is not the client.
                os._exit(1)
            assert written == SIZE
            note(acknowledged, number)
            time.sleep(0.01)


def summary(name, log, read):
    """Compares all acknowledged records with what `read` gives; 0 if nothing is lost."""
    last = last_acknowledged(log)
    lost = [number for number in range(last + 1) if read(number) != record(name, number)]
    print(f"{name}: {last + 1} records acknowledged, {len(lost)} lost" + (f": {lost[:10]}" if lost else ""))
    return 1 if lost or last < 0 else 0


def verify(path, log):
    with open(path, "rb", buffering=0) as file:
        return summary(os.path.basename(path), log, lambda number: os.pread(file.fileno(), SIZE, number * SIZE))


def gap(log, since):
    times = [float(line.split()[1]) for line in open(log) if line.endswith("\n")]
    times = [at for at in times if at >= float(since) - 1]
    print(f"{max((later - earlier for earlier, later in zip(times, times[1:])), default=0):.1f}")
    return 0


if __name__ == "__main__":
    sys.exit({"write": write, "verify": verify, "gap": gap}[sys.argv[1]](*sys.argv[2:]))
