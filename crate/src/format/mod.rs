//! See the module map in README.md.

pub mod layout;
