//! Placeholder for the frontend.
