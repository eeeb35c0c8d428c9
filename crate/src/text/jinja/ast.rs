//! The syntax tree of a template. Chains of operators and of calls are lists, so that only nested
//! expressions are deep.

/// A compiled template.
#[derive(Debug)]
pub(in super::super) struct Template {
    pub(super) body: Vec<Stmt>,
}

/// A statement, with its line where it can fail.
#[derive(Debug)]
pub(super) enum Stmt {
    Data(String),
    Output(u32, Expr),
    If {
        branches: Vec<(u32, Expr, Vec<Stmt>)>,
        otherwise: Vec<Stmt>,
    },
    For(Box<ForLoop>),
    Set(u32, Target, Expr),
    /// `{% set x | filter %}…{% endset %}`
    SetBlock(u32, Target, Vec<PostfixOp>, Vec<Stmt>),
    /// `{% filter name %}…{% endfilter %}`
    Filter(Vec<PostfixOp>, Vec<Stmt>),
    With(u32, Vec<(Target, Expr)>, Vec<Stmt>),
    Macro(Box<MacroDef>),
    /// `{% call(args) macro() %}…{% endcall %}`
    Call(u32, Expr, Box<MacroDef>),
    Do(u32, Expr),
    Break,
    Continue,
    /// Fails where it is reached: the loader that it needs does not exist.
    Fail(u32, String),
}

#[derive(Debug)]
pub(super) struct ForLoop {
    pub line: u32,
    pub target: Target,
    pub iterable: Expr,
    pub condition: Option<Expr>,
    pub recursive: bool,
    pub body: Vec<Stmt>,
    pub otherwise: Vec<Stmt>,
}

/// What a value is assigned to.
#[derive(Debug)]
pub(super) enum Target {
    Name(String),
    Attr(String, String),
    Tuple(Vec<Target>),
}

#[derive(Debug)]
pub(super) struct MacroDef {
    pub name: String,
    /// Parameters with their defaults.
    pub params: Vec<(String, Option<Expr>)>,
    pub body: Vec<Stmt>,
    pub varargs: bool,
    pub kwargs: bool,
    pub caller: bool,
}

#[derive(Debug)]
pub(super) enum Expr {
    Const(Const),
    Name(u32, String),
    List(Vec<Expr>),
    Tuple(Vec<Expr>),
    Dict(Vec<(Expr, Expr)>),
    Not(Box<Expr>),
    Neg(Box<Expr>),
    Pos(Box<Expr>),
    /// Left to right.
    Chain(Box<Expr>, Vec<(BinaryOp, Expr)>),
    /// `~`, which joins all operands at once.
    Concat(Vec<Expr>),
    And(Vec<Expr>),
    Or(Vec<Expr>),
    Compare(Box<Expr>, Vec<(CompareOp, Expr)>),
    /// Condition, then, else.
    If(Box<(Expr, Expr, Option<Expr>)>),
    Postfix(Box<Expr>, Vec<(u32, PostfixOp)>),
}

#[derive(Debug)]
pub(super) enum Const {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(String),
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum BinaryOp {
    Add,
    Sub,
    Mul,
    Div,
    FloorDiv,
    Mod,
    Pow,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum CompareOp {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    In,
    NotIn,
}

#[derive(Debug)]
pub(super) enum PostfixOp {
    Attr(String),
    Item(Expr),
    Slice(Box<[Option<Expr>; 3]>),
    Call(CallArgs),
    Filter(String, CallArgs),
    Test {
        name: String,
        args: CallArgs,
        negated: bool,
    },
}

/// Arguments as written.
#[derive(Debug, Default)]
pub(super) struct CallArgs {
    pub positional: Vec<Expr>,
    pub named: Vec<(String, Expr)>,
    pub spread: Option<Expr>,
    pub spread_named: Option<Expr>,
}
