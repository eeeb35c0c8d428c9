//! The syntaxes of tool calls, one file each.

pub(super) mod function_xml;
pub(super) mod functionary;
pub(super) mod gemma;
pub(super) mod glm;
pub(super) mod json_tags;
pub(super) mod llama;
pub(super) mod mistral;
pub(super) mod pythonic;
pub(super) mod sections;
