//! How recordings come to lie on the device: what writers do, what it costs, and what is left of it on an old volume.

mod ageing;
mod memory;
mod patterns;
mod studio;
