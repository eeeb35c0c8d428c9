//! Runs a template: statements, expressions, scopes, macros and loops. Each evaluation counts as a
//! step and as a frame of the stack.

use std::cell::RefCell;
use std::rc::Rc;

use super::super::local_time::LocalTime;
use super::args::Args;
use super::ast::{CallArgs, Const, Expr, ForLoop, MacroDef, PostfixOp, Stmt, Target, Template};
use super::meter::{Fault, Hold, Meter, MeteredText, Outcome, fault};
use super::runtime::Runtime;
use super::value::{Dict, Function, ListBuffer, LoopState, Value};
use super::{binary, filters, functions, methods, subscript};
use crate::util::limits::MAX_TEMPLATE_FRAMES;

/// Variables of a block, a loop's iteration or a macro call.
struct Scope<'t> {
    variables: RefCell<Vec<(&'t str, Value)>>,
    parent: Option<Rc<Scope<'t>>>,
}

impl<'t> Scope<'t> {
    fn inside(parent: &Rc<Scope<'t>>) -> Rc<Scope<'t>> {
        Rc::new(Scope {
            variables: RefCell::default(),
            parent: Some(Rc::clone(parent)),
        })
    }

    fn set(&self, name: &'t str, value: Value) {
        let mut variables = self.variables.borrow_mut();
        match variables.iter_mut().find(|(own, _)| *own == name) {
            Some(entry) => entry.1 = value,
            None => variables.push((name, value)),
        }
    }
}

/// A macro with the scope that it was defined in.
struct MacroObject<'t> {
    def: &'t MacroDef,
    scope: Rc<Scope<'t>>,
    _hold: Hold,
}

/// How a statement ends.
#[derive(PartialEq)]
enum Flow {
    Next,
    Break,
    Continue,
}

/// One rendering.
struct Interpreter<'t> {
    meter: Rc<Meter>,
    globals: &'t [(String, Value)],
    clock: Option<LocalTime>,
    namespaces: Vec<(Vec<(String, Value)>, Hold)>,
    macros: Vec<MacroObject<'t>>,
    /// Recursive loops with their scopes.
    recursions: Vec<(&'t ForLoop, Rc<Scope<'t>>, Hold)>,
    line: u32,
    frames: usize,
}

/// What each macro, namespace and recursive loop holds until the end.
const OBJECT_BYTES: usize = 256;

/// Renders a template with these global variables.
///
/// # Errors
/// The fault and its line.
pub(super) fn render(
    template: &Template,
    meter: &Rc<Meter>,
    globals: &[(String, Value)],
    clock: Option<LocalTime>,
) -> Result<String, (Fault, u32)> {
    let mut interpreter = Interpreter {
        meter: Rc::clone(meter),
        globals,
        clock,
        namespaces: Vec::new(),
        macros: Vec::new(),
        recursions: Vec::new(),
        line: 1,
        frames: 0,
    };
    let scope = Rc::new(Scope {
        variables: RefCell::default(),
        parent: None,
    });
    let mut out = MeteredText::new(meter);
    match interpreter.run(&template.body, &scope, &mut out) {
        Ok(_) => Ok(out.into_string()),
        Err(fault) => Err((fault, interpreter.line)),
    }
}

impl<'t> Interpreter<'t> {
    /// Counts a step and a frame; `leave` ends the frame.
    fn enter(&mut self) -> Outcome<()> {
        self.meter.work(1)?;
        if self.frames >= MAX_TEMPLATE_FRAMES {
            return fault("macros, loops and expressions nest too deep");
        }
        self.frames += 1;
        Ok(())
    }

    fn leave(&mut self) {
        self.frames -= 1;
    }

    fn run(
        &mut self,
        body: &'t [Stmt],
        scope: &Rc<Scope<'t>>,
        out: &mut MeteredText,
    ) -> Outcome<Flow> {
        for statement in body {
            self.enter()?;
            let flow = self.statement(statement, scope, out)?;
            self.leave();
            if flow != Flow::Next {
                return Ok(flow);
            }
        }
        Ok(Flow::Next)
    }

    fn statement(
        &mut self,
        statement: &'t Stmt,
        scope: &Rc<Scope<'t>>,
        out: &mut MeteredText,
    ) -> Outcome<Flow> {
        match statement {
            Stmt::Data(text) => out.push_str(text)?,
            Stmt::Output(line, value) => {
                self.line = *line;
                self.eval(value, scope)?.print(out)?;
            }
            Stmt::If {
                branches,
                otherwise,
            } => return self.run_if(branches, otherwise, scope, out),
            Stmt::For(each) => {
                self.line = each.line;
                let items = self.eval(&each.iterable, scope)?;
                self.run_for(each, &items, 0, scope, out)?;
            }
            Stmt::Set(line, target, value) => {
                self.line = *line;
                let value = self.eval(value, scope)?;
                self.assign(target, value, scope)?;
            }
            Stmt::SetBlock(line, target, filters, body) => {
                let text = self.capture(body, filters, scope)?;
                self.line = *line;
                self.assign(target, text, scope)?;
            }
            Stmt::Filter(filters, body) => self.capture(body, filters, scope)?.print(out)?,
            Stmt::With(line, values, body) => {
                self.line = *line;
                let inner = Scope::inside(scope);
                for (target, value) in values {
                    let value = self.eval(value, scope)?;
                    self.assign(target, value, &inner)?;
                }
                return self.run(body, &inner, out);
            }
            Stmt::Macro(def) => {
                let value = self.define(def, scope)?;
                scope.set(&def.name, value);
            }
            Stmt::Call(line, call, body) => {
                self.line = *line;
                self.run_call(call, body, scope)?.print(out)?;
            }
            Stmt::Do(line, value) => {
                self.line = *line;
                self.eval(value, scope)?;
            }
            Stmt::Break => return Ok(Flow::Break),
            Stmt::Continue => return Ok(Flow::Continue),
            Stmt::Fail(line, reason) => {
                self.line = *line;
                return fault(reason.as_str());
            }
        }
        Ok(Flow::Next)
    }

    fn run_if(
        &mut self,
        branches: &'t [(u32, Expr, Vec<Stmt>)],
        otherwise: &'t [Stmt],
        scope: &Rc<Scope<'t>>,
        out: &mut MeteredText,
    ) -> Outcome<Flow> {
        for (line, condition, body) in branches {
            self.line = *line;
            if self.eval(condition, scope)?.truthy() {
                return self.run(body, scope, out);
            }
        }
        self.run(otherwise, scope, out)
    }

    /// Runs a loop over `items`; `level` is how deep a recursive loop is.
    fn run_for(
        &mut self,
        each: &'t ForLoop,
        items: &Value,
        level: usize,
        scope: &Rc<Scope<'t>>,
        out: &mut MeteredText,
    ) -> Outcome<()> {
        let mut items = items.iterate(&self.meter)?;
        if let Some(condition) = &each.condition {
            let mut accepted = ListBuffer::new(&self.meter);
            for item in items.iter() {
                let inner = Scope::inside(scope);
                self.assign(&each.target, item.clone(), &inner)?;
                if self.eval(condition, &inner)?.truthy() {
                    accepted.push(item.clone())?;
                }
            }
            items = accepted.finish()?;
        }
        if items.is_empty() {
            self.run(&each.otherwise, scope, out)?;
            return Ok(());
        }
        let recursion = match each.recursive {
            true => {
                let mut hold = Hold::new(&self.meter);
                hold.grow(OBJECT_BYTES)?;
                self.recursions.push((each, Rc::clone(scope), hold));
                Some(self.recursions.len() - 1)
            }
            false => None,
        };
        let state = LoopState::new(Rc::clone(&items), level, recursion)?;
        for (index, item) in items.iter().enumerate() {
            state.index.set(index);
            self.meter.work(2)?;
            let inner = Scope::inside(scope);
            inner.set("loop", Value::Loop(Rc::clone(&state)));
            self.assign(&each.target, item.clone(), &inner)?;
            if self.run(&each.body, &inner, out)? == Flow::Break {
                break;
            }
        }
        Ok(())
    }

    /// Calls the loop `index` again for other items.
    fn recurse(&mut self, index: usize, level: usize, items: &Value) -> Outcome<Value> {
        let Some((each, scope, _)) = self.recursions.get(index) else {
            return fault("the loop is not recursive");
        };
        let each = *each;
        let scope = Rc::clone(scope);
        let mut out = MeteredText::new(&self.meter);
        self.run_for(each, items, level + 1, &scope, &mut out)?;
        Ok(Value::Str(Rc::new(out.finish()?)))
    }

    /// Renders a block to a string and filters it.
    fn capture(
        &mut self,
        body: &'t [Stmt],
        filters: &'t [PostfixOp],
        scope: &Rc<Scope<'t>>,
    ) -> Outcome<Value> {
        let mut out = MeteredText::new(&self.meter);
        self.run(body, &Scope::inside(scope), &mut out)?;
        let mut value = Value::Str(Rc::new(out.finish()?));
        for filter in filters {
            value = self.apply(value, filter, scope)?;
        }
        Ok(value)
    }

    fn define(&mut self, def: &'t MacroDef, scope: &Rc<Scope<'t>>) -> Outcome<Value> {
        let mut hold = Hold::new(&self.meter);
        hold.grow(OBJECT_BYTES)?;
        self.macros.push(MacroObject {
            def,
            scope: Rc::clone(scope),
            _hold: hold,
        });
        Ok(Value::Macro(self.macros.len() - 1))
    }

    fn run_call(
        &mut self,
        call: &'t Expr,
        body: &'t MacroDef,
        scope: &Rc<Scope<'t>>,
    ) -> Outcome<Value> {
        let Expr::Postfix(inner, ops) = call else {
            return fault("expected a call");
        };
        let Some(((_, PostfixOp::Call(args)), before)) = ops.split_last() else {
            return fault("expected a call");
        };
        let mut callee = self.eval(inner, scope)?;
        for (line, op) in before {
            self.line = *line;
            callee = self.apply(callee, op, scope)?;
        }
        let mut args = self.args(args, scope)?;
        let caller = self.define(body, scope)?;
        args.named.push(("caller".to_owned(), caller));
        self.call(&callee, args)
    }

    /// Calls macro `index`.
    fn call_macro(&mut self, index: usize, args: Args) -> Outcome<Value> {
        let Some(object) = self.macros.get(index) else {
            return fault("the macro does not exist");
        };
        let def = object.def;
        let scope = Scope::inside(&object.scope);
        let Args {
            positional,
            mut named,
        } = args;
        let mut positional = positional.into_iter();
        let caller = named.iter().position(|(name, _)| name == "caller");
        if let Some(at) = caller {
            let (_, caller) = named.remove(at);
            if !def.caller && !def.params.iter().any(|(name, _)| name == "caller") {
                return fault(format!("macro '{}' takes no caller", def.name));
            }
            scope.set("caller", caller);
        }
        for (name, default) in &def.params {
            let by_name = named.iter().position(|(own, _)| own == name);
            let value = match (positional.next(), by_name) {
                (Some(_), Some(_)) => {
                    return fault(format!(
                        "macro '{}' got two values for argument '{name}'",
                        def.name
                    ));
                }
                (Some(value), None) => value,
                (None, Some(at)) => named.remove(at).1,
                (None, None) if name == "caller" && caller.is_some() => continue,
                (None, None) => match default {
                    Some(default) => self.eval(default, &scope)?,
                    None => Value::undefined(&self.meter, name)?,
                },
            };
            scope.set(name, value);
        }
        let mut more = ListBuffer::new(&self.meter);
        for value in positional {
            more.push(value)?;
        }
        if !def.varargs && !more.items().is_empty() {
            return fault(format!(
                "macro '{}' takes not more than {} argument(s)",
                def.name,
                def.params.len()
            ));
        }
        if let Some((name, _)) = named.first().filter(|_| !def.kwargs) {
            return fault(format!(
                "macro '{}' takes no keyword argument '{name}'",
                def.name
            ));
        }
        if def.varargs {
            scope.set("varargs", Value::Tuple(more.finish()?));
        }
        if def.kwargs {
            let meter = Rc::clone(&self.meter);
            let entries = named
                .into_iter()
                .map(|(name, value)| Ok((Value::text(&meter, &name)?, value)));
            scope.set("kwargs", Value::Dict(Dict::new(&meter, entries)?));
        }
        let line = self.line;
        let mut out = MeteredText::new(&self.meter);
        self.run(&def.body, &scope, &mut out)?;
        self.line = line;
        Ok(Value::Str(Rc::new(out.finish()?)))
    }

    fn assign(&mut self, target: &'t Target, value: Value, scope: &Rc<Scope<'t>>) -> Outcome<()> {
        match target {
            Target::Name(name) => scope.set(name, value),
            Target::Attr(name, attr) => {
                let Value::Namespace(index) = self.lookup(name, scope)? else {
                    return fault(format!(
                        "cannot assign attribute '{attr}' on non-namespace object"
                    ));
                };
                if let Some((values, hold)) = self.namespaces.get_mut(index) {
                    match values.iter_mut().find(|(own, _)| own == attr) {
                        Some(entry) => entry.1 = value,
                        None => {
                            hold.grow(64 + attr.len())?;
                            values.push((attr.clone(), value));
                        }
                    }
                }
            }
            Target::Tuple(targets) => {
                let items = value.iterate(&self.meter)?;
                if items.len() != targets.len() {
                    return fault(format!(
                        "cannot unpack {} values into {}",
                        items.len(),
                        targets.len()
                    ));
                }
                for (target, item) in targets.iter().zip(items.iter()) {
                    self.assign(target, item.clone(), scope)?;
                }
            }
        }
        Ok(())
    }

    fn lookup(&mut self, name: &'t str, scope: &Rc<Scope<'t>>) -> Outcome<Value> {
        let mut at = Some(scope);
        while let Some(scope) = at {
            let variables = scope.variables.borrow();
            self.meter.work(variables.len() / 16)?;
            if let Some((_, value)) = variables.iter().find(|(own, _)| *own == name) {
                return Ok(value.clone());
            }
            at = scope.parent.as_ref();
        }
        if let Some((_, value)) = self.globals.iter().find(|(own, _)| own == name) {
            return Ok(value.clone());
        }
        Ok(Value::Function(match name {
            "range" => Function::Range,
            "dict" => Function::Dict,
            "namespace" => Function::Namespace,
            "raise_exception" => Function::RaiseException,
            "strftime_now" => Function::StrftimeNow,
            "tojson" => Function::ToJson,
            _ => return Value::undefined(&self.meter, name),
        }))
    }

    /// Evaluates an expression.
    fn eval(&mut self, expr: &'t Expr, scope: &Rc<Scope<'t>>) -> Outcome<Value> {
        self.enter()?;
        let value = match expr {
            Expr::Const(constant) => self.constant(constant)?,
            Expr::Name(line, name) => {
                self.line = *line;
                self.lookup(name, scope)?
            }
            Expr::Postfix(inner, ops) => {
                let mut value = self.eval(inner, scope)?;
                for (line, op) in ops {
                    self.line = *line;
                    self.meter.work(1)?;
                    value = self.apply(value, op, scope)?;
                }
                value
            }
            Expr::Not(inner) => Value::Bool(!self.eval(inner, scope)?.truthy()),
            other => self.eval_other(other, scope)?,
        };
        self.leave();
        Ok(value)
    }

    fn constant(&self, constant: &Const) -> Outcome<Value> {
        Ok(match constant {
            Const::None => Value::None,
            Const::Bool(b) => Value::Bool(*b),
            Const::Int(n) => Value::Int(*n),
            Const::Float(n) => Value::Float(*n),
            Const::Str(text) => Value::text(&self.meter, text)?,
        })
    }

    fn eval_other(&mut self, expr: &'t Expr, scope: &Rc<Scope<'t>>) -> Outcome<Value> {
        match expr {
            Expr::List(items) => self.items(items, scope)?.list(),
            Expr::Tuple(items) => Ok(Value::Tuple(self.items(items, scope)?.finish()?)),
            Expr::Dict(entries) => {
                let mut all = Vec::new();
                for (key, value) in entries {
                    all.push(Ok((self.eval(key, scope)?, self.eval(value, scope)?)));
                }
                Ok(Value::Dict(Dict::new(&self.meter, all)?))
            }
            Expr::Neg(inner) => binary::negate(&self.eval(inner, scope)?),
            Expr::Pos(inner) => binary::positive(&self.eval(inner, scope)?),
            Expr::Chain(first, rest) => {
                let mut value = self.eval(first, scope)?;
                for (op, operand) in rest {
                    let operand = self.eval(operand, scope)?;
                    value = binary::apply(&self.meter, *op, &value, &operand)?;
                }
                Ok(value)
            }
            Expr::Concat(parts) => {
                let mut out = MeteredText::new(&self.meter);
                for part in parts {
                    self.eval(part, scope)?.print(&mut out)?;
                }
                Ok(Value::Str(Rc::new(out.finish()?)))
            }
            Expr::And(operands) => self.first_of(operands, false, scope),
            Expr::Or(operands) => self.first_of(operands, true, scope),
            Expr::Compare(first, rest) => self.compare(first, rest, scope),
            Expr::If(parts) => {
                let (condition, then, otherwise) = &**parts;
                if self.eval(condition, scope)?.truthy() {
                    return self.eval(then, scope);
                }
                match otherwise {
                    Some(otherwise) => self.eval(otherwise, scope),
                    None => Value::undefined(&self.meter, "the value without an else"),
                }
            }
            // The others are evaluated above.
            _ => fault("unexpected expression"),
        }
    }

    fn items(&mut self, items: &'t [Expr], scope: &Rc<Scope<'t>>) -> Outcome<ListBuffer> {
        let mut out = ListBuffer::new(&self.meter);
        for item in items {
            out.push(self.eval(item, scope)?)?;
        }
        Ok(out)
    }

    /// Returns the first operand whose truth is `truth`, or the last one.
    fn first_of(
        &mut self,
        operands: &'t [Expr],
        truth: bool,
        scope: &Rc<Scope<'t>>,
    ) -> Outcome<Value> {
        let mut value = Value::None;
        for operand in operands {
            value = self.eval(operand, scope)?;
            if value.truthy() == truth {
                break;
            }
        }
        Ok(value)
    }

    fn compare(
        &mut self,
        first: &'t Expr,
        rest: &'t [(super::ast::CompareOp, Expr)],
        scope: &Rc<Scope<'t>>,
    ) -> Outcome<Value> {
        let mut left = self.eval(first, scope)?;
        for (op, right) in rest {
            let right = self.eval(right, scope)?;
            if !binary::compare(&self.meter, *op, &left, &right)? {
                return Ok(Value::Bool(false));
            }
            left = right;
        }
        Ok(Value::Bool(true))
    }

    fn apply(&mut self, value: Value, op: &'t PostfixOp, scope: &Rc<Scope<'t>>) -> Outcome<Value> {
        match op {
            PostfixOp::Attr(name) => subscript::attribute(self, &value, name),
            PostfixOp::Item(index) => {
                let index = self.eval(index, scope)?;
                subscript::item(self, &value, &index)
            }
            PostfixOp::Slice(parts) => {
                let mut bounds = [None, None, None];
                for (bound, part) in bounds.iter_mut().zip(parts.iter()) {
                    *bound = match part {
                        Some(part) => Some(self.eval(part, scope)?),
                        None => None,
                    };
                }
                subscript::slice(&self.meter, &value, &bounds)
            }
            PostfixOp::Call(args) => {
                let args = self.args(args, scope)?;
                self.call(&value, args)
            }
            PostfixOp::Filter(name, args) => {
                let args = self.args(args, scope)?;
                filters::apply(self, name, value, args)
            }
            PostfixOp::Test {
                name,
                args,
                negated,
            } => {
                let args = self.args(args, scope)?;
                let holds = filters::test(self, name, &value, args)?;
                Ok(Value::Bool(holds != *negated))
            }
        }
    }

    fn args(&mut self, args: &'t CallArgs, scope: &Rc<Scope<'t>>) -> Outcome<Args> {
        let mut out = Args::default();
        for value in &args.positional {
            out.positional.push(self.eval(value, scope)?);
        }
        if let Some(spread) = &args.spread {
            let items = self.eval(spread, scope)?.iterate(&self.meter)?;
            self.meter.work(items.len())?;
            out.positional.extend(items.iter().cloned());
        }
        for (name, value) in &args.named {
            out.named.push((name.clone(), self.eval(value, scope)?));
        }
        if let Some(spread) = &args.spread_named {
            let Value::Dict(dict) = self.eval(spread, scope)? else {
                return fault("argument after ** must be a mapping");
            };
            for (key, value) in dict.entries() {
                let Some(name) = key.as_str() else {
                    return fault("keywords must be strings");
                };
                self.meter.work(1 + name.len() / 16)?;
                out.named.push((name.to_owned(), value.clone()));
            }
        }
        Ok(out)
    }

    /// Calls a value.
    fn call(&mut self, callee: &Value, args: Args) -> Outcome<Value> {
        match callee {
            Value::Macro(index) => self.call_macro(*index, args),
            Value::Method(method) => methods::call(&self.meter, &method.this, method.name, args),
            Value::Function(function) => functions::call(self, *function, args),
            Value::Loop(state) => {
                let Some(recursion) = state.recursion else {
                    return fault("the loop is not recursive");
                };
                let mut args = args;
                let items = args.required(0, "iterable")?;
                self.recurse(recursion, state.level, &items)
            }
            Value::Undefined(name) => fault(format!("'{}' is undefined", &name[..])),
            other => fault(format!("'{}' object is not callable", other.type_name())),
        }
    }
}

impl Runtime for Interpreter<'_> {
    fn meter(&self) -> &Rc<Meter> {
        &self.meter
    }

    fn now(&self) -> LocalTime {
        self.clock.unwrap_or_else(LocalTime::now)
    }

    fn new_namespace(&mut self, values: Vec<(String, Value)>) -> Outcome<Value> {
        let mut hold = Hold::new(&self.meter);
        hold.grow(OBJECT_BYTES + values.len() * 64)?;
        self.namespaces.push((values, hold));
        Ok(Value::Namespace(self.namespaces.len() - 1))
    }

    fn namespace_value(&self, index: usize, name: &str) -> Option<Value> {
        let (values, _) = self.namespaces.get(index)?;
        let found = values.iter().find(|(own, _)| own == name);
        found.map(|(_, value)| value.clone())
    }

    fn macro_name(&self, index: usize) -> Option<&str> {
        self.macros
            .get(index)
            .map(|object| object.def.name.as_str())
    }
}
