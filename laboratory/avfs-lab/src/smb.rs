//! SMB 2 and 3, as much of it as a player needs.
//!
//! **For:** many clients over real connections to stock smbd, cheap enough that a small machine runs them beside the
//! server: one loop over all sockets, and the payload of a read is thrown away in the kernel once its first bytes were
//! seen to be right. **Excludes:** users, signing, encryption, leases, Windows: the share lets anybody in.
//! **State:** a [`Transport`] owns its connections. **Invariants:** never more requests than the server gave credits
//! for.
//!
//! Sources: \[MS-SMB2\] 2.2 (messages), 3.2.4.1.5 (credits); \[MS-NLMP\] 2.2.1 (anonymous authentication).

mod connection;
mod transport;
mod wire;

pub use connection::SmbError;
pub use transport::SmbTransport;
