"""The share as a client sees it: libsmbclient, the library behind file managers, through python3-smbc.

The server is named by the environment: SMB_URL (smb://host:port/share), SMB_USER, SMB_PASSWORD.
"""

import os

import smbc

MIB = 1 << 20


class Share:
    """One connection. A process that was forked makes its own."""

    def __init__(self):
        self.url = os.environ["SMB_URL"]
        user, password = os.environ["SMB_USER"], os.environ["SMB_PASSWORD"]
        self.context = smbc.Context()
        self.context.functionAuthData = lambda *_: ("AVFS", user, password)
        self.context.timeout = 60_000  # milliseconds

    def open(self, path, flags=os.O_RDONLY):
        return self.context.open(f"{self.url}/{path}", flags)

    def unlink(self, path):
        self.context.unlink(f"{self.url}/{path}")

    def chunks(self, path, chunk_bytes=MIB):
        """The file's bytes, from its beginning to its end."""
        file = self.open(path)
        try:
            while chunk := file.read(chunk_bytes):
                yield chunk
        finally:
            file.close()
