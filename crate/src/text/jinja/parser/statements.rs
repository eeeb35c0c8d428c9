//! The statements of a template, and the targets of their assignments.

use super::TemplateParser;
use crate::text::jinja::ast::{Expr, ForLoop, MacroDef, PostfixOp, Stmt, Target};
use crate::text::jinja::lexer::Token;
use crate::text::jinja::meter::{Outcome, fault};

impl TemplateParser {
    /// Parses statements up to one of these words, and passes it and returns it.
    pub(super) fn body(&mut self, ends: &[&str]) -> Outcome<(Vec<Stmt>, String)> {
        let mut out = Vec::new();
        loop {
            let line = self.line();
            match self.next() {
                None if ends.is_empty() => return Ok((out, String::new())),
                None => return fault(format!("`{}` is missing", ends.join("` or `"))),
                Some(Token::Data(text)) => out.push(Stmt::Data(text)),
                Some(Token::VariableBegin) => {
                    let value = self.tuple(true)?;
                    match self.next() {
                        Some(Token::VariableEnd) => out.push(Stmt::Output(line, value)),
                        _ => {
                            self.at = self.at.saturating_sub(1);
                            return fault("expected `}}` at the end of an expression");
                        }
                    }
                }
                Some(Token::BlockBegin) => {
                    let word = self.name()?;
                    if ends.contains(&word.as_str()) {
                        return Ok((out, word));
                    }
                    self.nested_statement(&word, line, &mut out)?;
                }
                Some(_) => return fault("unexpected token"),
            }
        }
    }

    fn nested_statement(&mut self, word: &str, line: u32, out: &mut Vec<Stmt>) -> Outcome<()> {
        self.deepen()?;
        let parsed = self.statement(word, line);
        self.depth -= 1;
        out.push(parsed?);
        Ok(())
    }

    fn statement(&mut self, word: &str, line: u32) -> Outcome<Stmt> {
        let simple = match word {
            "if" => return self.if_statement(),
            "for" => return self.for_statement(line),
            "set" => return self.set_statement(line),
            "macro" => {
                let name = self.name()?;
                return Ok(Stmt::Macro(Box::new(self.macro_rest(name, "endmacro")?)));
            }
            "call" => return self.call_statement(line),
            "filter" => return self.filter_statement(line),
            "with" => return self.with_statement(line),
            "generation" => return self.scope_statement(line, "endgeneration"),
            "block" => {
                self.name()?;
                while self.eat_word("scoped") || self.eat_word("required") {}
                return self.scope_statement(line, "endblock");
            }
            "autoescape" => {
                self.expression()?;
                return self.scope_statement(line, "endautoescape");
            }
            "do" => Stmt::Do(line, self.tuple(true)?),
            "break" => Stmt::Break,
            "continue" => Stmt::Continue,
            "include" | "import" | "from" | "extends" => {
                while !matches!(self.peek(), None | Some(Token::BlockEnd)) {
                    self.at += 1;
                }
                Stmt::Fail(
                    line,
                    format!("`{word}` needs other templates, which a chat template does not have"),
                )
            }
            other => return fault(format!("`{other:.40}` is not a statement")),
        };
        self.expect_end()?;
        Ok(simple)
    }

    fn scope_statement(&mut self, line: u32, end: &str) -> Outcome<Stmt> {
        self.expect_end()?;
        let (body, _) = self.body(&[end])?;
        if let Some(Token::Name(_)) = self.peek() {
            self.at += 1;
        }
        self.expect_end()?;
        Ok(Stmt::With(line, Vec::new(), body))
    }

    fn if_statement(&mut self) -> Outcome<Stmt> {
        let mut branches = Vec::new();
        let mut otherwise = Vec::new();
        loop {
            let line = self.line();
            let condition = self.tuple(false)?;
            self.expect_end()?;
            let (body, end) = self.body(&["elif", "else", "endif"])?;
            branches.push((line, condition, body));
            match end.as_str() {
                "elif" => continue,
                "else" => {
                    self.expect_end()?;
                    otherwise = self.body(&["endif"])?.0;
                }
                _ => {}
            }
            self.expect_end()?;
            return Ok(Stmt::If {
                branches,
                otherwise,
            });
        }
    }

    fn for_statement(&mut self, line: u32) -> Outcome<Stmt> {
        let target = self.targets()?;
        if !self.eat_word("in") {
            return fault(format!("expected `in`, found {}", self.found()));
        }
        let iterable = self.tuple(false)?;
        let condition = match self.eat_word("if") {
            true => Some(self.expression()?),
            false => None,
        };
        let recursive = self.eat_word("recursive");
        self.expect_end()?;
        let (body, end) = self.body(&["else", "endfor"])?;
        let mut otherwise = Vec::new();
        if end == "else" {
            self.expect_end()?;
            otherwise = self.body(&["endfor"])?.0;
        }
        self.expect_end()?;
        Ok(Stmt::For(Box::new(ForLoop {
            line,
            target,
            iterable,
            condition,
            recursive,
            body,
            otherwise,
        })))
    }

    fn set_statement(&mut self, line: u32) -> Outcome<Stmt> {
        let target = self.targets()?;
        if self.eat_op("=") {
            let value = self.tuple(true)?;
            self.expect_end()?;
            return Ok(Stmt::Set(line, target, value));
        }
        let mut filters = Vec::new();
        while self.eat_op("|") {
            filters.push(self.filter()?);
        }
        self.expect_end()?;
        let (body, _) = self.body(&["endset"])?;
        self.expect_end()?;
        Ok(Stmt::SetBlock(line, target, filters, body))
    }

    fn filter_statement(&mut self, _line: u32) -> Outcome<Stmt> {
        let mut filters = vec![self.filter()?];
        while self.eat_op("|") {
            filters.push(self.filter()?);
        }
        self.expect_end()?;
        let (body, _) = self.body(&["endfilter"])?;
        self.expect_end()?;
        Ok(Stmt::Filter(filters, body))
    }

    fn with_statement(&mut self, line: u32) -> Outcome<Stmt> {
        let mut values = Vec::new();
        while !matches!(self.peek(), Some(Token::BlockEnd)) {
            if !values.is_empty() {
                self.expect_op(",")?;
            }
            let target = self.target()?;
            self.expect_op("=")?;
            values.push((target, self.expression()?));
        }
        self.expect_end()?;
        let (body, _) = self.body(&["endwith"])?;
        self.expect_end()?;
        Ok(Stmt::With(line, values, body))
    }

    fn call_statement(&mut self, line: u32) -> Outcome<Stmt> {
        // The parameters of the body come first, the call after them.
        let params = match self.is_op("(") {
            true => self.params()?,
            false => Vec::new(),
        };
        let call = self.expression()?;
        let is_call = matches!(&call, Expr::Postfix(_, ops) if matches!(ops.last(), Some((_, PostfixOp::Call(_)))));
        if !is_call {
            return fault("expected a call");
        }
        let body = self.macro_body("caller".into(), params, "endcall")?;
        Ok(Stmt::Call(line, call, Box::new(body)))
    }

    fn macro_rest(&mut self, name: String, end: &str) -> Outcome<MacroDef> {
        let params = self.params()?;
        self.macro_body(name, params, end)
    }

    fn params(&mut self) -> Outcome<Vec<(String, Option<Expr>)>> {
        let mut params = Vec::new();
        self.expect_op("(")?;
        while !self.eat_op(")") {
            if !params.is_empty() {
                self.expect_op(",")?;
                if self.eat_op(")") {
                    break;
                }
            }
            let name = self.name()?;
            let default = match self.eat_op("=") {
                true => Some(self.expression()?),
                false => None,
            };
            params.push((name, default));
        }
        Ok(params)
    }

    fn macro_body(
        &mut self,
        name: String,
        params: Vec<(String, Option<Expr>)>,
        end: &str,
    ) -> Outcome<MacroDef> {
        self.expect_end()?;
        let outer = std::mem::take(&mut self.names);
        let body = self.body(&[end]);
        let names = std::mem::replace(&mut self.names, outer);
        if name == "caller" {
            // The body of a call block sees the variables of the macro around it.
            self.names.varargs |= names.varargs;
            self.names.kwargs |= names.kwargs;
            self.names.caller |= names.caller;
        }
        let (body, _) = body?;
        if let Some(Token::Name(_)) = self.peek() {
            self.at += 1;
        }
        self.expect_end()?;
        Ok(MacroDef {
            name,
            params,
            body,
            varargs: names.varargs,
            kwargs: names.kwargs,
            caller: names.caller,
        })
    }

    /// Parses `a`, `a.b`, `(a, b)` or `a, b`.
    fn targets(&mut self) -> Outcome<Target> {
        let first = self.target()?;
        if !self.is_op(",") {
            return Ok(first);
        }
        let mut all = vec![first];
        while self.eat_op(",") {
            if self.is_word("in") || self.is_op("=") || self.is_op(")") {
                break;
            }
            all.push(self.target()?);
        }
        Ok(Target::Tuple(all))
    }

    fn target(&mut self) -> Outcome<Target> {
        if self.eat_op("(") {
            let inner = self.nested(TemplateParser::targets)?;
            self.expect_op(")")?;
            return Ok(inner);
        }
        let name = self.name()?;
        if matches!(
            name.as_str(),
            "true" | "True" | "false" | "False" | "none" | "None"
        ) {
            return fault(format!("`{name}` cannot be assigned to"));
        }
        if self.eat_op(".") {
            return Ok(Target::Attr(name, self.name()?));
        }
        Ok(Target::Name(name))
    }
}
