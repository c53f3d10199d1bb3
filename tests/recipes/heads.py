#!/usr/bin/env python3
"""What the recipe `heads` needs beside the cluster: its clients, its power switch, and what it finds out.

usage: heads.py client SERVER FILE ACKNOWLEDGED    writes numbered records through SMB, each flushed before it is answered; reconnects
       heads.py verify SERVER FILE ACKNOWLEDGED    reads all that was acknowledged
       heads.py switch ADDRESS PORT DIRECTORY      the power switch: "off NAME" kills the head whose first process is in DIRECTORY/NAME/pid
       heads.py digest IMAGE                       of all bytes of the image, but for the protection block
"""
import hashlib
import mmap
import os
import signal
import socket
import socketserver
import subprocess
import sys
import time

import records

USER, PASSWORD, SHARE = "editor", "cut", "footage"
# How long a client waits for an answer before it connects again, in seconds.
PATIENCE = 3
MMP, BLOCK = (1 << 20) + (128 << 10), 4096


def connect(server):
    from samba import credentials, param
    from samba.samba3 import libsmb_samba_internal as libsmb, param as s3param

    # A server that is not there is found out without the library's long timeouts.
    socket.create_connection((server, 445), 1).close()
    lp = s3param.get_context()
    lp.load(os.environ["CLIENT_CONF"])
    who = credentials.Credentials()
    who.guess(param.LoadParm())
    who.set_username(USER)
    who.set_password(PASSWORD)
    connection = libsmb.Conn(server, SHARE, lp=lp, creds=who, force_smb1=False)
    connection.settimeout(PATIENCE * 1000)
    return connection


READ_WRITE, SHARE_ALL, OPEN_IF, OPEN = 0x0012019F, 7, 3, 1


def write_records(server, file, log):
    """Until something fails."""
    connection = connect(server)
    handle = connection.create(file, DesiredAccess=READ_WRITE, ShareAccess=SHARE_ALL, CreateDisposition=OPEN_IF)
    number = records.last_acknowledged(log)
    if number >= 0 and connection.read(handle, number * records.SIZE, records.SIZE) != records.record(file, number):
        # After the reconnection nothing older may be shown.
        with open(log + ".wrong", "a") as wrong:
            wrong.write(f"record {number} is not what was acknowledged\n")
    with open(log, "ab", buffering=0) as acknowledged:
        while True:
            number += 1
            connection.write(handle, records.record(file, number), number * records.SIZE, 0)
            records.note(acknowledged, number)
            time.sleep(0.02)


def client(server, file, log):
    """Keeps a writer going: one that fails or hangs is replaced, as an editor's machine connects again."""
    writer = None

    def end(*_):
        if writer:
            writer.kill()
        sys.exit(0)

    signal.signal(signal.SIGTERM, end)
    while True:
        writer = subprocess.Popen([sys.executable, __file__, "write", server, file, log], stderr=open(log + ".errors", "a"))
        begun = time.time()
        while writer.poll() is None:
            time.sleep(0.1)
            heard = os.stat(log).st_mtime if os.path.exists(log) else 0
            if time.time() - max(begun, heard) > PATIENCE:
                writer.kill()
                writer.wait()
        time.sleep(0.2)


def verify(server, file, log):
    connection = connect(server)
    handle = connection.create(file, DesiredAccess=READ_WRITE, ShareAccess=SHARE_ALL, CreateDisposition=OPEN)
    status = records.summary(file, log, lambda number: connection.read(handle, number * records.SIZE, records.SIZE))
    if os.path.exists(log + ".wrong"):
        print(open(log + ".wrong").read(), end="")
        status = 1
    return status


class Switch(socketserver.StreamRequestHandler):
    def handle(self):
        words = self.rfile.readline().decode().split()
        action, name = (words + ["", ""])[:2]
        path = os.path.join(self.server.directory, name, "pid")
        try:
            process = int(open(path).read())
        except (FileNotFoundError, ValueError):
            process = None
        lives = process is not None and os.path.exists(f"/proc/{process}")
        if action == "off":
            if lives:
                # Of the head's first process: the kernel ends all others with it.
                os.kill(process, signal.SIGKILL)
                while os.path.exists(f"/proc/{process}"):
                    time.sleep(0.02)
            with open(os.path.join(self.server.directory, "switched"), "a") as log:
                log.write(f"{time.time():.3f} {name}\n")
            lives = False
        self.wfile.write(b"on\n" if lives else b"off\n")


def switch(address, port, directory):
    socketserver.ThreadingTCPServer.allow_reuse_address = True
    with socketserver.ThreadingTCPServer((address, int(port)), Switch) as server:
        server.directory = directory
        server.serve_forever()


def digest(image):
    """Read past the kernel's cache of the image, as the loop devices write past it."""
    total = hashlib.blake2b()
    descriptor = os.open(image, os.O_RDONLY | os.O_DIRECT)
    size = os.fstat(descriptor).st_size
    buffer = mmap.mmap(-1, 4 << 20)
    at = 0
    while at < size:
        try:
            data = os.lseek(descriptor, at, os.SEEK_DATA)
        except OSError:
            break
        at = data & ~((1 << 20) - 1)
        got = os.preadv(descriptor, [buffer], at)
        part = bytearray(buffer[:got])
        if at <= MMP < at + got:
            part[MMP - at : MMP - at + BLOCK] = bytes(BLOCK)
        total.update(str(at).encode())
        total.update(part)
        at += got
    print(total.hexdigest())


if __name__ == "__main__":
    commands = {"client": client, "write": write_records, "verify": verify, "switch": switch, "digest": digest}
    sys.exit(commands[sys.argv[1]](*sys.argv[2:]))
