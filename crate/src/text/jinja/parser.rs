//! Parses the tokens of a template. Limits how deep expressions and blocks nest, because the parser
//! and the interpreter recurse.

use super::ast::{
    BinaryOp, CallArgs, CompareOp, Const, Expr, ForLoop, MacroDef, PostfixOp, Stmt, Target,
    Template,
};
use super::lexer::{Token, tokens};
use super::meter::{Fault, Outcome, fault};
use crate::util::limits::{MAX_TEMPLATE_BYTES, MAX_TEMPLATE_NESTING};

struct Parser {
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
    let mut parser = Parser {
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

impl Parser {
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

    /// Goes one level deeper for `parse`.
    fn nested<T>(&mut self, parse: fn(&mut Parser) -> Outcome<T>) -> Outcome<T> {
        if self.depth >= MAX_TEMPLATE_NESTING {
            return fault(format!(
                "expressions and blocks nest deeper than {MAX_TEMPLATE_NESTING} levels"
            ));
        }
        self.depth += 1;
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }

    /// Parses statements up to one of these words, and passes it and returns it.
    fn body(&mut self, ends: &[&str]) -> Outcome<(Vec<Stmt>, String)> {
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
        if self.depth >= MAX_TEMPLATE_NESTING {
            return fault(format!(
                "expressions and blocks nest deeper than {MAX_TEMPLATE_NESTING} levels"
            ));
        }
        self.depth += 1;
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
            let inner = self.nested(Parser::targets)?;
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

    /// Parses an expression, or several with commas, which are a tuple.
    fn tuple(&mut self, conditional: bool) -> Outcome<Expr> {
        let parse = |parser: &mut Parser| match conditional {
            true => parser.expression(),
            false => parser.nested(Parser::or),
        };
        let first = parse(self)?;
        if !self.is_op(",") {
            return Ok(first);
        }
        let mut items = vec![first];
        while self.eat_op(",") {
            if matches!(
                self.peek(),
                None | Some(Token::BlockEnd | Token::VariableEnd | Token::Op(")" | "]"))
            ) {
                break;
            }
            items.push(parse(self)?);
        }
        Ok(Expr::Tuple(items))
    }

    fn expression(&mut self) -> Outcome<Expr> {
        self.nested(Parser::conditional)
    }

    fn conditional(&mut self) -> Outcome<Expr> {
        let value = self.or()?;
        if !self.eat_word("if") {
            return Ok(value);
        }
        let condition = self.or()?;
        let otherwise = match self.eat_word("else") {
            true => Some(self.expression()?),
            false => None,
        };
        Ok(Expr::If(Box::new((condition, value, otherwise))))
    }

    fn or(&mut self) -> Outcome<Expr> {
        let first = self.and()?;
        if !self.is_word("or") {
            return Ok(first);
        }
        let mut all = vec![first];
        while self.eat_word("or") {
            all.push(self.and()?);
        }
        Ok(Expr::Or(all))
    }

    fn and(&mut self) -> Outcome<Expr> {
        let first = self.not()?;
        if !self.is_word("and") {
            return Ok(first);
        }
        let mut all = vec![first];
        while self.eat_word("and") {
            all.push(self.not()?);
        }
        Ok(Expr::And(all))
    }

    fn not(&mut self) -> Outcome<Expr> {
        if self.eat_word("not") {
            return Ok(Expr::Not(Box::new(self.nested(Parser::not)?)));
        }
        self.compare()
    }

    fn compare(&mut self) -> Outcome<Expr> {
        let first = self.binary(0)?;
        let mut rest = Vec::new();
        loop {
            let op = match self.peek() {
                Some(Token::Op("==")) => CompareOp::Eq,
                Some(Token::Op("!=")) => CompareOp::Ne,
                Some(Token::Op("<")) => CompareOp::Lt,
                Some(Token::Op("<=")) => CompareOp::Le,
                Some(Token::Op(">")) => CompareOp::Gt,
                Some(Token::Op(">=")) => CompareOp::Ge,
                Some(Token::Name(word)) if word == "in" => CompareOp::In,
                Some(Token::Name(word)) if word == "not" => {
                    if !matches!(self.peek_second(), Some(Token::Name(next)) if next == "in") {
                        break;
                    }
                    self.at += 1;
                    CompareOp::NotIn
                }
                _ => break,
            };
            self.at += 1;
            rest.push((op, self.binary(0)?));
        }
        Ok(match rest.is_empty() {
            true => first,
            false => Expr::Compare(Box::new(first), rest),
        })
    }

    fn binary_op(&self, level: u8) -> Option<BinaryOp> {
        let Some(Token::Op(op)) = self.peek() else {
            return None;
        };
        Some(match (level, *op) {
            (0, "+") => BinaryOp::Add,
            (0, "-") => BinaryOp::Sub,
            (2, "*") => BinaryOp::Mul,
            (2, "/") => BinaryOp::Div,
            (2, "//") => BinaryOp::FloorDiv,
            (2, "%") => BinaryOp::Mod,
            (3, "**") => BinaryOp::Pow,
            _ => return None,
        })
    }

    /// Parses binary operators from the loosest level: sums, `~`, products, powers.
    fn binary(&mut self, level: u8) -> Outcome<Expr> {
        let first = match level {
            4 => return self.unary(true),
            _ => self.binary(level + 1)?,
        };
        if level == 1 && self.is_op("~") {
            let mut all = vec![first];
            while self.eat_op("~") {
                all.push(self.binary(2)?);
            }
            return Ok(Expr::Concat(all));
        }
        let mut rest = Vec::new();
        while let Some(op) = self.binary_op(level) {
            self.at += 1;
            rest.push((op, self.binary(level + 1)?));
        }
        Ok(match rest.is_empty() {
            true => first,
            false => Expr::Chain(Box::new(first), rest),
        })
    }

    fn unary(&mut self, filters: bool) -> Outcome<Expr> {
        let inner = if self.eat_op("-") {
            Expr::Neg(Box::new(self.nested(|parser| parser.unary(false))?))
        } else if self.eat_op("+") {
            Expr::Pos(Box::new(self.nested(|parser| parser.unary(false))?))
        } else {
            self.primary()?
        };
        self.postfix(inner, filters)
    }

    fn postfix(&mut self, inner: Expr, filters: bool) -> Outcome<Expr> {
        let mut ops = Vec::new();
        loop {
            let line = self.line();
            let op = match self.peek() {
                Some(Token::Op(".")) => {
                    self.at += 1;
                    match self.next() {
                        Some(Token::Name(name)) => PostfixOp::Attr(name),
                        Some(Token::Int(index)) => PostfixOp::Item(Expr::Const(Const::Int(index))),
                        _ => return fault("expected a name after `.`"),
                    }
                }
                Some(Token::Op("[")) => self.subscript()?,
                Some(Token::Op("(")) => PostfixOp::Call(self.args()?),
                Some(Token::Op("|")) if filters => {
                    self.at += 1;
                    self.filter()?
                }
                Some(Token::Name(word)) if filters && word == "is" => {
                    self.at += 1;
                    self.test()?
                }
                _ => break,
            };
            ops.push((line, op));
        }
        Ok(match ops.is_empty() {
            true => inner,
            false => Expr::Postfix(Box::new(inner), ops),
        })
    }

    fn subscript(&mut self) -> Outcome<PostfixOp> {
        self.expect_op("[")?;
        let mut parts: [Option<Expr>; 3] = [None, None, None];
        let mut colons = 0;
        loop {
            match self.peek() {
                Some(Token::Op("]")) => break,
                Some(Token::Op(":")) if colons < 2 => {
                    self.at += 1;
                    colons += 1;
                }
                _ => {
                    let value = match colons {
                        0 => self.tuple(true)?,
                        _ => self.expression()?,
                    };
                    let free = parts.get_mut(colons).filter(|part| part.is_none());
                    *free.ok_or_else(|| Fault("unexpected value in a subscript".into()))? =
                        Some(value);
                }
            }
        }
        self.expect_op("]")?;
        if colons > 0 {
            return Ok(PostfixOp::Slice(Box::new(parts)));
        }
        let [index, _, _] = parts;
        let index = index.ok_or_else(|| Fault("a subscript is empty".into()))?;
        Ok(PostfixOp::Item(index))
    }

    fn filter(&mut self) -> Outcome<PostfixOp> {
        let name = self.dotted_name()?;
        let args = match self.is_op("(") {
            true => self.args()?,
            false => CallArgs::default(),
        };
        Ok(PostfixOp::Filter(name, args))
    }

    fn dotted_name(&mut self) -> Outcome<String> {
        let mut name = self.name()?;
        while self.eat_op(".") {
            name.push('.');
            name.push_str(&self.name()?);
        }
        Ok(name)
    }

    fn test(&mut self) -> Outcome<PostfixOp> {
        let negated = self.eat_word("not");
        let name = self.dotted_name()?;
        let mut args = CallArgs::default();
        let has_operand = match self.peek() {
            Some(Token::Op("(")) => {
                args = self.args()?;
                false
            }
            Some(Token::Name(word)) => !matches!(
                word.as_str(),
                "else" | "or" | "and" | "if" | "in" | "is" | "not" | "recursive"
            ),
            Some(Token::Str(_) | Token::Int(_) | Token::Float(_) | Token::Op("[" | "{")) => true,
            _ => false,
        };
        if has_operand {
            let operand = self.nested(|parser| {
                let operand = parser.primary()?;
                parser.postfix(operand, false)
            })?;
            args.positional.push(operand);
        }
        Ok(PostfixOp::Test {
            name,
            args,
            negated,
        })
    }

    fn args(&mut self) -> Outcome<CallArgs> {
        self.expect_op("(")?;
        let mut args = CallArgs::default();
        let mut first = true;
        while !self.eat_op(")") {
            if !std::mem::take(&mut first) {
                self.expect_op(",")?;
                if self.eat_op(")") {
                    break;
                }
            }
            let assigns = matches!(self.peek_second(), Some(Token::Op("=")));
            if self.eat_op("**") {
                args.spread_named = Some(self.expression()?);
            } else if self.eat_op("*") {
                args.spread = Some(self.expression()?);
            } else if assigns && matches!(self.peek(), Some(Token::Name(_))) {
                let name = self.name()?;
                self.expect_op("=")?;
                args.named.push((name, self.expression()?));
            } else {
                args.positional.push(self.expression()?);
            }
        }
        Ok(args)
    }

    fn primary(&mut self) -> Outcome<Expr> {
        let line = self.line();
        let found = self.found();
        let token = self.next();
        Ok(match token {
            Some(Token::Name(name)) => match name.as_str() {
                "true" | "True" => Expr::Const(Const::Bool(true)),
                "false" | "False" => Expr::Const(Const::Bool(false)),
                "none" | "None" => Expr::Const(Const::None),
                _ => {
                    self.names.varargs |= name == "varargs";
                    self.names.kwargs |= name == "kwargs";
                    self.names.caller |= name == "caller";
                    Expr::Name(line, name)
                }
            },
            Some(Token::Str(mut text)) => {
                while let Some(Token::Str(_)) = self.peek() {
                    if let Some(Token::Str(more)) = self.next() {
                        text.push_str(&more);
                    }
                }
                Expr::Const(Const::Str(text))
            }
            Some(Token::Int(value)) => Expr::Const(Const::Int(value)),
            Some(Token::Float(value)) => Expr::Const(Const::Float(value)),
            Some(Token::Op("(")) => {
                if self.eat_op(")") {
                    return Ok(Expr::Tuple(Vec::new()));
                }
                let inner = self.tuple(true)?;
                self.expect_op(")")?;
                inner
            }
            Some(Token::Op("[")) => self.list()?,
            Some(Token::Op("{")) => self.dict()?,
            _ => {
                self.at = self.at.saturating_sub(1);
                return fault(format!("expected a value, found {found}"));
            }
        })
    }

    fn list(&mut self) -> Outcome<Expr> {
        let mut items = Vec::new();
        while !self.eat_op("]") {
            if !items.is_empty() {
                self.expect_op(",")?;
                if self.eat_op("]") {
                    break;
                }
            }
            items.push(self.expression()?);
        }
        Ok(Expr::List(items))
    }

    fn dict(&mut self) -> Outcome<Expr> {
        let mut entries = Vec::new();
        while !self.eat_op("}") {
            if !entries.is_empty() {
                self.expect_op(",")?;
                if self.eat_op("}") {
                    break;
                }
            }
            let key = self.expression()?;
            self.expect_op(":")?;
            entries.push((key, self.expression()?));
        }
        Ok(Expr::Dict(entries))
    }
}
