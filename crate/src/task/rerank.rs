//! Scores of documents for a query: pairs through a classification head, or a question to a decoder whose answer is yes or
//! no. It knows text and scores; how they are computed is the engine's business.

use super::embed::{describe_encoder, run_all};
use super::parts::TextParts;
use crate::exec::{Encoder, Tokens};
use crate::hub::AbortFlag;
use crate::text::Tokenizer;
use crate::{Error, Result};
use serde_json::{Value, json};
use std::rc::Rc;

/// What Qwen3's rerankers are asked when the caller says nothing else.
const INSTRUCTION: &str = "Given a web search query, retrieve relevant passages that answer the query";
const BEFORE: &str = "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the \
                      Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n";
const AFTER: &str = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";

/// How a query and a document are put to the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asking {
    /// As a pair of texts.
    Pair,
    /// As Qwen3-Reranker's question.
    Question,
}

/// A loaded reranker.
pub struct Reranker {
    /// The engine.
    pub encoder: Encoder,
    /// Tokenizer and template.
    pub text: Rc<TextParts>,
    /// How it is asked.
    pub asking: Asking,
    /// Whether scores are squeezed into 0 to 1.
    pub sigmoid: bool,
    /// The name that it was loaded by.
    pub name: String,
    /// The commit, where the server named one.
    pub revision: Option<String>,
    /// What did not go as asked.
    pub warnings: Vec<String>,
}

impl Reranker {
    /// What the model is and what it costs, in the names of the JavaScript face.
    pub fn info(&self) -> Value {
        let mut info = describe_encoder(&self.encoder, &self.text, "rerank", &self.warnings);
        info["model"] = json!(self.name);
        info["revision"] = json!(self.revision);
        info
    }

    /// The score of each document, in their order.
    ///
    /// # Errors
    /// `Request` for an instruction that the model does not take, `Aborted`, or what the tokenizer or the device refuses.
    pub async fn rerank(
        &mut self,
        query: &str,
        documents: &[String],
        instruction: Option<&str>,
        abort: &AbortFlag,
    ) -> Result<Vec<f32>> {
        if instruction.is_some() && self.asking == Asking::Pair {
            let reason = "this model takes none; leave it out".into();
            return Err(Error::Request { parameter: "instruction".into(), reason });
        }
        let tokenizer = self.text.tokenizer()?;
        let longest = self.encoder.longest;
        let tokens = |document: &String| match self.asking {
            Asking::Pair => {
                let (ids, types) = tokenizer.encode_pair(query, document, longest)?;
                Ok(Tokens { ids, types, skip: 0 })
            }
            Asking::Question => question(tokenizer, query, document, instruction.unwrap_or(INSTRUCTION), longest),
        };
        let rows = run_all(&self.encoder, documents, tokens, abort, |_, _| {}).await?;
        let score = |row: &Vec<f32>| row.first().copied().unwrap_or(f32::NEG_INFINITY);
        let sigmoid = |x: f32| if self.sigmoid { (1.0 / (1.0 + (-f64::from(x)).exp())) as f32 } else { x };
        Ok(rows.iter().map(|row| sigmoid(score(row))).collect())
    }
}

/// Qwen3-Reranker's question; the middle is cut where it is too long. The texts are not trusted with special tokens.
fn question(tokenizer: &Tokenizer, query: &str, document: &str, instruction: &str, most: usize) -> Result<Tokens> {
    let mut ids = tokenizer.encode_trusted(BEFORE, false)?;
    let after = tokenizer.encode_trusted(AFTER, false)?;
    let text = format!("<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}");
    let mut middle = tokenizer.encode(&text, false)?;
    middle.truncate(most.saturating_sub(ids.len() + after.len()));
    ids.extend(middle);
    ids.extend(after);
    ids.truncate(most);
    Ok(Tokens { ids, types: Vec::new(), skip: 0 })
}
