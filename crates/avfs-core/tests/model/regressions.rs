//! Histories that went wrong once.
