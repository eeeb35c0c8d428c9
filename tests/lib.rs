//! Helpers shared by the test targets of this crate.
