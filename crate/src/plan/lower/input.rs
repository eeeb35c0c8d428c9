//! Lowers external inputs, which need no launch.

use super::{Lower, Lowering, NodeViews};
use crate::Result;
use crate::ir::ReadInput;

impl Lower for ReadInput {
    fn lower(&self, _lowering: &mut Lowering<'_>, _node: &NodeViews<'_>) -> Result<()> {
        Ok(())
    }
}
