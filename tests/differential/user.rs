//! Acting as somebody else: the one place that changes the credentials of this thread.

/// Who an operation is done by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum User {
    /// Whoever runs the test; root, for the whole of it.
    Own,
    /// Uid and gid 64001.
    Editor,
    /// Uid 64002, of the editor's group.
    Assistant,
}

/// Group of editor and assistant.
pub(crate) const GROUP: u32 = 64001;

impl User {
    /// The uid of a user that can be named in a chown or an ACL.
    pub(crate) fn uid(self) -> u32 {
        match self {
            Self::Own => 0,
            Self::Editor => 64001,
            Self::Assistant => 64002,
        }
    }

    /// Does `action` with the filesystem identity of this user: permissions are checked against it, and what is
    /// made is its own. Needs root for anybody but [`User::Own`].
    pub(crate) fn act<T>(self, action: impl FnOnce() -> T) -> T {
        if self == Self::Own {
            return action();
        }
        set_filesystem_identity(self.uid(), GROUP);
        let result = action();
        set_filesystem_identity(0, 0);
        result
    }
}

/// Changes the identity that the kernel uses for this thread's file system calls, setfsuid(2). The capabilities that
/// override permissions leave with uid 0 and come back with it.
fn set_filesystem_identity(uid: u32, gid: u32) {
    // SAFETY: both calls take a number and change nothing but the credentials of this thread.
    unsafe {
        // The group first while becoming somebody, as only root may change it; the same order is right on the way
        // back, because uid 0 keeps CAP_SETGID throughout: it is no filesystem capability.
        libc::setfsgid(gid);
        libc::setfsuid(uid);
    }
}
