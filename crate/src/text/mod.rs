//! See the module map in README.md.
