//! Expressions, from the weakest operator to the strongest.

use super::TemplateParser;
use crate::text::jinja::ast::{BinaryOp, CallArgs, CompareOp, Const, Expr, PostfixOp};
use crate::text::jinja::lexer::Token;
use crate::text::jinja::meter::{Fault, Outcome, fault};

impl TemplateParser {
    /// Parses an expression, or several with commas, which are a tuple.
    pub(super) fn tuple(&mut self, conditional: bool) -> Outcome<Expr> {
        let parse = |parser: &mut TemplateParser| match conditional {
            true => parser.expression(),
            false => parser.nested(TemplateParser::or),
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

    pub(super) fn expression(&mut self) -> Outcome<Expr> {
        self.nested(TemplateParser::conditional)
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
            return Ok(Expr::Not(Box::new(self.nested(TemplateParser::not)?)));
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

    pub(super) fn filter(&mut self) -> Outcome<PostfixOp> {
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
