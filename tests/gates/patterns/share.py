"""A share as a scripted client sees it: SMB 3 messages one by one, several on their way at once where a real client has
them so.

The server is named by the environment: SMB_PORT, SMB_USER, SMB_PASSWORD.
"""

import os
import struct
import uuid
from collections import deque

from smbprotocol.connection import Connection, Dialects
from smbprotocol.create_contexts import CreateContextName, SMB2CreateAllocationSize, SMB2CreateContextRequest
from smbprotocol.exceptions import SMBResponseException
from smbprotocol.file_info import FileInformationClass, InfoType
from smbprotocol.header import NtStatus
from smbprotocol.open import (
    CreateDisposition,
    CreateOptions,
    DirectoryAccessMask,
    FileAttributes,
    FilePipePrinterAccessMask,
    ImpersonationLevel,
    Open,
    SMB2QueryInfoRequest,
    SMB2QueryInfoResponse,
    SMB2SetInfoRequest,
    ShareAccess,
)
from smbprotocol.session import Session
from smbprotocol.tree import TreeConnect

KIB = 1 << 10
MIB = 1 << 20

SHARE_ALL = ShareAccess.FILE_SHARE_READ | ShareAccess.FILE_SHARE_WRITE | ShareAccess.FILE_SHARE_DELETE
READ = FilePipePrinterAccessMask.GENERIC_READ
READ_WRITE = FilePipePrinterAccessMask.GENERIC_READ | FilePipePrinterAccessMask.GENERIC_WRITE
DELETE = FilePipePrinterAccessMask.DELETE | FilePipePrinterAccessMask.FILE_READ_ATTRIBUTES
READ_ATTRIBUTES = FilePipePrinterAccessMask.FILE_READ_ATTRIBUTES
MISSING = {NtStatus.STATUS_OBJECT_NAME_NOT_FOUND, NtStatus.STATUS_OBJECT_PATH_NOT_FOUND, 0xC000000F}


class Share:
    """One connection of one client."""

    def __init__(self, name):
        port = int(os.environ["SMB_PORT"])
        self.connection = Connection(uuid.uuid4(), "127.0.0.1", port, require_signing=False)
        # 3.1.1 wants the tree connect signed, and signing in Python would be all that is measured.
        self.connection.connect(Dialects.SMB_3_0_2, timeout=30)
        user, password = os.environ["SMB_USER"], os.environ["SMB_PASSWORD"]
        self.session = Session(self.connection, user, password, require_encryption=False, auth_protocol="ntlm")
        self.session.connect()
        # Ten requests of 1 MiB take 160 credits.
        self.connection.echo(sid=self.session.session_id, credit_request=512)
        self.tree = TreeConnect(self.session, rf"\\127.0.0.1\{name}")
        self.tree.connect()

    def close(self):
        self.connection.disconnect(close=True)

    def send(self, message):
        return self.connection.send(message, self.session.session_id, self.tree.tree_connect_id)

    def open(self, path, access=READ, disposition=CreateDisposition.FILE_OPEN, options=0, allocation_bytes=None):
        contexts = []
        if allocation_bytes is not None:
            allocation = SMB2CreateAllocationSize()
            allocation["allocation_size"] = allocation_bytes
            context = SMB2CreateContextRequest()
            context["buffer_name"] = CreateContextName.SMB2_CREATE_ALLOCATION_SIZE
            context["buffer_data"] = allocation
            contexts.append(context)
        handle = Open(self.tree, path.replace("/", "\\"))
        handle.create(
            ImpersonationLevel.Impersonation,
            access,
            FileAttributes.FILE_ATTRIBUTE_NORMAL,
            SHARE_ALL,
            disposition,
            options,
            create_contexts=contexts,
        )
        return File(self, handle)

    def create(self, path, **more):
        return self.open(path, READ_WRITE, CreateDisposition.FILE_OVERWRITE_IF, **more)

    def make_directory(self, path):
        options = CreateOptions.FILE_DIRECTORY_FILE
        self.open(path, DirectoryAccessMask.FILE_LIST_DIRECTORY, CreateDisposition.FILE_OPEN_IF, options).close()

    def open_directory(self, path):
        access = DirectoryAccessMask.FILE_LIST_DIRECTORY | DirectoryAccessMask.FILE_WRITE_EA
        return self.open(path, access, options=CreateOptions.FILE_DIRECTORY_FILE)

    def is_missing(self, path):
        """Opens a name that should not be there."""
        try:
            self.open(path, READ_ATTRIBUTES).close()
        except SMBResponseException as error:
            if error.status in MISSING:
                return True
            raise
        return False

    def stat(self, path):
        """Opens, asks for everything and closes, as clients do for a stat; returns the length."""
        with self.open(path, READ_ATTRIBUTES) as file:
            return file.length()

    def list(self, directory, pattern="*"):
        """Names of a directory that match; none when nothing does."""
        options = CreateOptions.FILE_DIRECTORY_FILE
        with self.open(directory, DirectoryAccessMask.FILE_LIST_DIRECTORY, options=options) as folder:
            names = []
            while True:
                try:
                    entries = folder.handle.query_directory(
                        pattern, FileInformationClass.FILE_ID_BOTH_DIRECTORY_INFORMATION
                    )
                except SMBResponseException as error:
                    if error.status in {NtStatus.STATUS_NO_MORE_FILES} | MISSING:
                        return names
                    raise
                names += [entry["file_name"].get_value().decode("utf-16-le") for entry in entries]


class File:
    def __init__(self, share, handle):
        self.share, self.handle = share, handle

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.handle.close()

    def write(self, offset, data):
        written = self.handle.write(data, offset)
        assert written == len(data), f"{written} bytes of {len(data)} were written at {offset}"

    def read(self, offset, length):
        try:
            return self.handle.read(offset, length)
        except SMBResponseException as error:
            if error.status == NtStatus.STATUS_END_OF_FILE:
                return b""
            raise

    def _pipeline(self, asks, depth, check):
        """Sends `asks`, pairs of a message and what is passed to `check` with its answer, `depth` at a time."""
        waiting = deque()

        def finish_oldest():
            request, unpack, expected = waiting.popleft()
            check(unpack(request), expected)

        for (message, unpack), expected in asks:
            if len(waiting) == depth:
                finish_oldest()
            waiting.append((self.share.send(message), unpack, expected))
        while waiting:
            finish_oldest()

    def write_many(self, pieces, depth=10):
        """Writes pairs of offset and data, so many at once."""

        def check(written, length):
            assert written == length, f"{written} bytes of {length} were written"

        asks = ((self.handle.write(data, offset, send=False), len(data)) for offset, data in pieces)
        self._pipeline(asks, depth, check)

    def read_many(self, pieces, check, depth=10):
        """Reads pairs of offset and length, so many at once, and calls check(data, offset) for each."""
        asks = ((self.handle.read(offset, length, send=False), offset) for offset, length in pieces)
        self._pipeline(asks, depth, check)

    def flush(self):
        self.handle.flush()

    def set(self, kind, buffer):
        message = SMB2SetInfoRequest()
        message["info_type"] = InfoType.SMB2_0_INFO_FILE
        message["file_info_class"] = kind
        message["file_id"] = self.handle.file_id
        message["buffer"] = buffer
        self.share.connection.receive(self.share.send(message))

    def query(self, kind, type_=InfoType.SMB2_0_INFO_FILE):
        message = SMB2QueryInfoRequest()
        message["info_type"] = type_
        message["file_info_class"] = kind
        message["output_buffer_length"] = 4096
        message["file_id"] = self.handle.file_id
        response = SMB2QueryInfoResponse()
        response.unpack(self.share.connection.receive(self.share.send(message))["data"].get_value())
        return response["buffer"].get_value()

    def length(self):
        allocation, end = struct.unpack_from("<QQ", self.query(FileInformationClass.FILE_STANDARD_INFORMATION))
        assert allocation >= 0
        return end

    def set_end(self, length):
        self.set(FileInformationClass.FILE_END_OF_FILE_INFORMATION, struct.pack("<Q", length))

    def set_allocation(self, length):
        self.set(FileInformationClass.FILE_ALLOCATION_INFORMATION, struct.pack("<Q", length))

    def set_ea(self, name, value):
        name, value = name.encode(), value.encode()
        head = struct.pack("<IBBH", 0, 0, len(name), len(value))
        self.set(FileInformationClass.FILE_FULL_EA_INFORMATION, head + name + b"\0" + value)

    def rename(self, to):
        name = to.replace("/", "\\").encode("utf-16-le")
        self.set(FileInformationClass.FILE_RENAME_INFORMATION, struct.pack("<B7xQI", 0, 0, len(name)) + name)
