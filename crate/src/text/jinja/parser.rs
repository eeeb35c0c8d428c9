//! Parses the tokens of a template. Limits how deep expressions and blocks nest, because the parser
//! and the interpreter recurse.

mod expressions;
mod statements;

use super::ast::Template;
use super::lexer::{Token, tokens};
use super::meter::{Fault, Outcome, fault};
use crate::util::limits::{MAX_TEMPLATE_BYTES, MAX_TEMPLATE_NESTING};

struct TemplateParser {
    tokens: Vec<(Token, u32)>,
    at: usize,
    depth: usize,
    names: NamesInMacro,
}

/// Which of a macro's implicit variables its body names.
#[derive(Default)]
struct NamesInMacro {
    varargs: bool,
    kwargs: bool,
    caller: bool,
}

/// Parses a template.
///
/// # Errors
/// The fault and its line.
pub(super) fn parse(source: &str) -> Result<Template, (Fault, u32)> {
    if source.len() > MAX_TEMPLATE_BYTES {
        let kb = MAX_TEMPLATE_BYTES >> 10;
        return Err((Fault(format!("the template is longer than {kb} KB")), 1));
    }
    let mut parser = TemplateParser {
        tokens: tokens(source)?,
        at: 0,
        depth: 0,
        names: NamesInMacro::default(),
    };
    match parser.body(&[]) {
        Ok((body, _)) => Ok(Template { body }),
        Err(fault) => Err((fault, parser.line())),
    }
}

impl TemplateParser {
    fn line(&self) -> u32 {
        let at = self.at.min(self.tokens.len().saturating_sub(1));
        self.tokens.get(at).map_or(1, |(_, line)| *line)
    }

    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|(token, _)| token)
    }

    fn peek_second(&self) -> Option<&Token> {
        self.tokens.get(self.at + 1).map(|(token, _)| token)
    }

    fn next(&mut self) -> Option<Token> {
        let (token, _) = self.tokens.get_mut(self.at)?;
        let token = std::mem::replace(token, Token::BlockEnd);
        self.at += 1;
        Some(token)
    }

    fn is_op(&self, op: &str) -> bool {
        matches!(self.peek(), Some(Token::Op(found)) if *found == op)
    }

    fn is_word(&self, word: &str) -> bool {
        matches!(self.peek(), Some(Token::Name(found)) if found == word)
    }

    fn eat_op(&mut self, op: &str) -> bool {
        let found = self.is_op(op);
        self.at += usize::from(found);
        found
    }

    fn eat_word(&mut self, word: &str) -> bool {
        let found = self.is_word(word);
        self.at += usize::from(found);
        found
    }

    fn expect_op(&mut self, op: &str) -> Outcome<()> {
        if self.eat_op(op) {
            return Ok(());
        }
        fault(format!("expected `{op}`, found {}", self.found()))
    }

    fn expect_end(&mut self) -> Outcome<()> {
        match self.peek() {
            Some(Token::BlockEnd) => {
                self.at += 1;
                Ok(())
            }
            _ => fault(format!(
                "expected the end of a block, found {}",
                self.found()
            )),
        }
    }

    fn found(&self) -> String {
        match self.peek() {
            None => "the end of the template".into(),
            Some(Token::Name(name)) => format!("`{name:.40}`"),
            Some(Token::Op(op)) => format!("`{op}`"),
            Some(Token::BlockEnd) => "`%}`".into(),
            Some(Token::VariableEnd) => "`}}`".into(),
            Some(_) => "a value".into(),
        }
    }

    fn name(&mut self) -> Outcome<String> {
        match self.peek() {
            Some(Token::Name(_)) => match self.next() {
                Some(Token::Name(name)) => Ok(name),
                _ => fault("expected a name"),
            },
            _ => fault(format!("expected a name, found {}", self.found())),
        }
    }

    fn deepen(&mut self) -> Outcome<()> {
        if self.depth >= MAX_TEMPLATE_NESTING {
            return fault(format!(
                "expressions and blocks nest deeper than {MAX_TEMPLATE_NESTING} levels"
            ));
        }
        self.depth += 1;
        Ok(())
    }

    /// Goes one level deeper for `parse`.
    fn nested<T>(&mut self, parse: fn(&mut TemplateParser) -> Outcome<T>) -> Outcome<T> {
        self.deepen()?;
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }
}
