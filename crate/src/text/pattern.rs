//! A small backtracking matcher for the regular expressions of tokenizer.json that the `tokenizers` library has no
//! native splitter for (Qwen3.5's, XLM-RoBERTa's ` {2,}`). It knows the syntax those files use and refuses the rest by
//! name; a full engine would add 0.3 MB to the download.
//!
//! Unicode classes come from the tables of the library's own splitters, so both see the same version of Unicode.

use bitcannon::classify::{Atom, classify_scalar, in_mask, mask};

use super::tokenizer_error;
use crate::Result;

/// A general category or Perl class.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Category {
    Letter,
    Upper,
    Title,
    Lower,
    Caseless,
    Number,
    Mark,
    Punctuation,
    Symbol,
    Han,
    Digit,
    Word,
    Space,
}

#[derive(Debug, Clone)]
enum Item {
    Range(char, char),
    Category(Category, bool),
}

/// A set of characters.
#[derive(Debug, Clone)]
struct Class {
    items: Vec<Item>,
    negated: bool,
    ignore_case: bool,
}

#[derive(Debug, Clone)]
enum Node {
    Class(Class),
    Concat(Vec<Node>),
    Alternate(Vec<Node>),
    Repeat { node: Box<Node>, min: u32, max: Option<u32>, greedy: bool },
    Look { node: Box<Node>, negative: bool },
    Start,
    End,
}

#[derive(Debug)]
enum Inst {
    Class(Class),
    /// Go on at the first, come back to the second.
    Split(usize, usize),
    Jump(usize),
    /// The body follows and ends in `Match`; matching goes on at `next`.
    Look {
        negative: bool,
        next: usize,
    },
    Start,
    End,
    Match,
}

/// A compiled expression.
#[derive(Debug)]
pub(super) struct Pattern {
    program: Vec<Inst>,
}

/// Repetitions are unrolled, so their bounds are bounded.
const MAX_PROGRAM: usize = 20_000;
const MAX_REPEAT: u32 = 1000;
const MAX_DEPTH: usize = 100;
/// Steps that any text may take, and so many more for each of its bytes. The expressions of real files take some tens a byte;
/// one that backtracks without end is given up within a second.
const STEPS: u64 = 1 << 20;
const STEPS_PER_BYTE: u64 = 500;

/// The choices that a search left open, and how many steps it may still take.
struct Search {
    open: Vec<(usize, usize)>,
    steps: u64,
}

/// A search that took more steps than it may.
struct Exhausted;

impl Pattern {
    pub fn new(regex: &str) -> Result<Pattern> {
        let refuse = |what: String| {
            tokenizer_error(format!("tokenizer.json: the regular expression {regex:?} is not supported: {what}"))
        };
        if regex.contains(r"\p{Lm}") != regex.contains(r"\p{Lo}") {
            return Err(refuse("\\p{Lm} without \\p{Lo} or the other way round".to_owned()));
        }
        let mut parser = Parser { chars: regex.chars().collect(), at: 0, ignore_case: false, depth: 0 };
        let node = parser.alternation().map_err(refuse)?;
        if parser.at < parser.chars.len() {
            return Err(refuse(format!("unexpected ')' at character {}", parser.at)));
        }
        let mut program = Vec::new();
        emit(&node, &mut program).map_err(refuse)?;
        program.push(Inst::Match);
        Ok(Pattern { program })
    }

    /// The whole of `text` as matches and the gaps between them; the flag says which (the other way round if `invert`).
    #[allow(clippy::type_complexity)] // as the tokenizers library asks for them
    pub fn segments(&self, text: &str, invert: bool) -> Result<Vec<((usize, usize), bool)>, String> {
        let mut out = Vec::new();
        let mut last = 0;
        self.each_match(text, |start, end| {
            if last < start {
                out.push(((last, start), invert));
            }
            out.push(((start, end), !invert));
            last = end;
        })?;
        if last < text.len() {
            out.push(((last, text.len()), invert));
        }
        Ok(out)
    }

    /// `text` with every match replaced, or nothing if there is none.
    pub fn replace(&self, text: &str, content: &str) -> Result<Option<String>, String> {
        let mut out: Option<String> = None;
        let mut last = 0;
        self.each_match(text, |start, end| {
            let out = out.get_or_insert_with(String::new);
            out.push_str(text.get(last..start).unwrap_or_default());
            out.push_str(content);
            last = end;
        })?;
        Ok(out.map(|out| out + text.get(last..).unwrap_or_default()))
    }

    fn each_match(&self, text: &str, mut found: impl FnMut(usize, usize)) -> Result<(), String> {
        let steps = STEPS + STEPS_PER_BYTE * text.len() as u64;
        let mut search = Search { open: Vec::new(), steps };
        let mut at = 0;
        while at < text.len() {
            let end = self.run(text, 0, at, &mut search).map_err(|Exhausted| {
                format!(
                    "a regular expression of tokenizer.json takes over {steps} steps for {} bytes of text",
                    text.len()
                )
            })?;
            match end {
                Some(end) if end > at => {
                    found(at, end);
                    at = end;
                }
                _ => at += char_at(text, at).map_or(1, char::len_utf8),
            }
        }
        Ok(())
    }

    /// Where the match that starts at `at` ends, for the program from `pc` on.
    fn run(&self, text: &str, pc: usize, at: usize, search: &mut Search) -> Result<Option<usize>, Exhausted> {
        let base = search.open.len();
        search.open.push((pc, at));
        let end = 'search: loop {
            if search.open.len() == base {
                break None;
            }
            let Some((mut pc, mut at)) = search.open.pop() else { break None };
            loop {
                search.steps = search.steps.checked_sub(1).ok_or(Exhausted)?;
                match self.program.get(pc) {
                    Some(Inst::Class(class)) => match char_at(text, at) {
                        Some(c) if class.has(c) => {
                            at += c.len_utf8();
                            pc += 1;
                        }
                        _ => break,
                    },
                    Some(Inst::Split(first, second)) => {
                        search.open.push((*second, at));
                        pc = *first;
                    }
                    Some(Inst::Jump(to)) => pc = *to,
                    Some(Inst::Look { negative, next }) => {
                        if self.run(text, pc + 1, at, search)?.is_some() == *negative {
                            break;
                        }
                        pc = *next;
                    }
                    Some(Inst::Start) if at == 0 => pc += 1,
                    Some(Inst::End) if at == text.len() => pc += 1,
                    Some(Inst::Match) => break 'search Some(at),
                    _ => break,
                }
            }
        };
        search.open.truncate(base);
        Ok(end)
    }
}

fn char_at(text: &str, at: usize) -> Option<char> {
    text.get(at..).and_then(|rest| rest.chars().next())
}

impl Class {
    fn has(&self, c: char) -> bool {
        let inside = self.items.iter().any(|item| match item {
            Item::Range(from, to) => (*from..=*to).contains(&c) || self.ignore_case && folds_into(c, *from, *to),
            Item::Category(category, negated) => category.has(c) != *negated,
        });
        inside != self.negated
    }
}

/// Whether the other case of `c` lies in the range.
fn folds_into(c: char, from: char, to: char) -> bool {
    let lower = c.to_lowercase().next();
    let upper = c.to_uppercase().next();
    [lower, upper, lower.and_then(|l| l.to_uppercase().next()), upper.and_then(|u| u.to_lowercase().next())]
        .iter()
        .any(|other| other.is_some_and(|o| (from..=to).contains(&o)))
}

/// Nl, the numbers that are letters: in \p{N}, not in \d.
const LETTER_NUMBERS: [(char, char); 12] = [
    ('\u{16EE}', '\u{16F0}'),
    ('\u{2160}', '\u{2182}'),
    ('\u{2185}', '\u{2188}'),
    ('\u{3007}', '\u{3007}'),
    ('\u{3021}', '\u{3029}'),
    ('\u{3038}', '\u{303A}'),
    ('\u{A6E6}', '\u{A6EF}'),
    ('\u{10140}', '\u{10174}'),
    ('\u{10341}', '\u{10341}'),
    ('\u{1034A}', '\u{1034A}'),
    ('\u{103D1}', '\u{103D5}'),
    ('\u{12400}', '\u{1246E}'),
];

impl Category {
    fn has(self, c: char) -> bool {
        if self == Category::Space {
            return c.is_whitespace();
        }
        let mut buffer = [0; 4];
        let mut tags = [0; 4];
        let bytes = c.encode_utf8(&mut buffer).as_bytes();
        classify_scalar(bytes, &mut tags[..bytes.len()]);
        let tag = tags[0];
        // The tables count the ASCII symbols as punctuation.
        let ascii_symbol = matches!(c, '$' | '+' | '<' | '=' | '>' | '^' | '`' | '|' | '~');
        match self {
            Category::Letter => in_mask(tag, mask::LETTER),
            Category::Upper => in_mask(tag, mask::LETTER) && c.is_uppercase(),
            Category::Title => tag == Atom::UpperLetter as u8 && !c.is_uppercase(),
            Category::Lower => tag == Atom::LowerLetter as u8,
            Category::Caseless => tag == Atom::Letter as u8 || tag == Atom::HanLetter as u8,
            Category::Number => in_mask(tag, mask::NUMBER),
            Category::Mark => tag == Atom::Mark as u8,
            Category::Punctuation => in_mask(tag, mask::PUNCT) && !ascii_symbol,
            Category::Symbol => in_mask(tag, Atom::SymOther.bit()) || tag == Atom::AlphaSymMark as u8 || ascii_symbol,
            Category::Han => tag & 0xF0 == 0x30,
            Category::Digit => {
                in_mask(tag, Atom::NumWord.bit()) && !LETTER_NUMBERS.iter().any(|(a, b)| (*a..=*b).contains(&c))
            }
            Category::Word => in_mask(tag, mask::WORD),
            Category::Space => c.is_whitespace(),
        }
    }
}

/// Appends the instructions of `node`.
fn emit(node: &Node, program: &mut Vec<Inst>) -> Result<(), String> {
    if program.len() > MAX_PROGRAM {
        return Err("it is too large".to_owned());
    }
    match node {
        Node::Class(class) => program.push(Inst::Class(class.clone())),
        Node::Start => program.push(Inst::Start),
        Node::End => program.push(Inst::End),
        Node::Concat(nodes) => nodes.iter().try_for_each(|node| emit(node, program))?,
        Node::Alternate(nodes) => {
            let mut jumps = Vec::new();
            for (i, node) in nodes.iter().enumerate() {
                let split = program.len();
                let last = i + 1 == nodes.len();
                if !last {
                    program.push(Inst::Split(split + 1, 0));
                }
                emit(node, program)?;
                if !last {
                    jumps.push(program.len());
                    program.push(Inst::Jump(0));
                    let next = program.len();
                    set(program, split, Inst::Split(split + 1, next));
                }
            }
            let end = program.len();
            jumps.into_iter().for_each(|jump| set(program, jump, Inst::Jump(end)));
        }
        Node::Look { node, negative } => {
            let look = program.len();
            program.push(Inst::Look { negative: *negative, next: 0 });
            emit(node, program)?;
            program.push(Inst::Match);
            let next = program.len();
            set(program, look, Inst::Look { negative: *negative, next });
        }
        Node::Repeat { node, min, max, greedy } => {
            for _ in 0..*min {
                emit(node, program)?;
            }
            let choice = |a: usize, b: usize| if *greedy { Inst::Split(a, b) } else { Inst::Split(b, a) };
            match max {
                None => {
                    let split = program.len();
                    program.push(Inst::Match);
                    emit(node, program)?;
                    program.push(Inst::Jump(split));
                    let end = program.len();
                    set(program, split, choice(split + 1, end));
                }
                Some(max) => {
                    let mut splits = Vec::new();
                    for _ in *min..*max {
                        splits.push(program.len());
                        program.push(Inst::Match);
                        emit(node, program)?;
                    }
                    let end = program.len();
                    splits.into_iter().for_each(|split| set(program, split, choice(split + 1, end)));
                }
            }
        }
    }
    Ok(())
}

fn set(program: &mut [Inst], at: usize, inst: Inst) {
    if let Some(slot) = program.get_mut(at) {
        *slot = inst;
    }
}

/// Whether `node` can match nothing: a repetition of it would never end.
fn nullable(node: &Node) -> bool {
    match node {
        Node::Class(_) => false,
        Node::Start | Node::End | Node::Look { .. } => true,
        Node::Concat(nodes) => nodes.iter().all(nullable),
        Node::Alternate(nodes) => nodes.iter().any(nullable),
        Node::Repeat { node, min, .. } => *min == 0 || nullable(node),
    }
}

struct Parser {
    chars: Vec<char>,
    at: usize,
    ignore_case: bool,
    depth: usize,
}

type Parsed<T> = Result<T, String>;

impl Parser {
    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn eat(&mut self, text: &str) -> bool {
        let hit = text.chars().enumerate().all(|(i, c)| self.chars.get(self.at + i) == Some(&c));
        if hit {
            self.at += text.chars().count();
        }
        hit
    }

    fn next(&mut self) -> Parsed<char> {
        let c = self.peek().ok_or("it ends too early")?;
        self.at += 1;
        Ok(c)
    }

    fn alternation(&mut self) -> Parsed<Node> {
        let mut branches = vec![self.concatenation()?];
        while self.eat("|") {
            branches.push(self.concatenation()?);
        }
        Ok(match branches.pop() {
            Some(only) if branches.is_empty() => only,
            last => Node::Alternate(branches.into_iter().chain(last).collect()),
        })
    }

    fn concatenation(&mut self) -> Parsed<Node> {
        let mut nodes = Vec::new();
        while self.peek().is_some_and(|c| c != '|' && c != ')') {
            let atom = self.atom()?;
            nodes.push(self.repetition(atom)?);
        }
        Ok(Node::Concat(nodes))
    }

    fn repetition(&mut self, atom: Node) -> Parsed<Node> {
        let (min, max) = if self.eat("*") {
            (0, None)
        } else if self.eat("+") {
            (1, None)
        } else if self.eat("?") {
            (0, Some(1))
        } else if self.peek() == Some('{') && self.chars.get(self.at + 1).is_some_and(char::is_ascii_digit) {
            self.at += 1;
            let min = self.number()?;
            let max = if self.eat(",") {
                if self.peek() == Some('}') { None } else { Some(self.number()?) }
            } else {
                Some(min)
            };
            if !self.eat("}") || max.is_some_and(|max| max < min) {
                return Err("a repetition count is malformed".to_owned());
            }
            (min, max)
        } else {
            return Ok(atom);
        };
        if matches!(self.peek(), Some('+' | '*')) {
            return Err("possessive repetition".to_owned());
        }
        if max.is_none() && nullable(&atom) {
            return Err("an unbounded repetition of something that may be empty".to_owned());
        }
        let greedy = !self.eat("?");
        Ok(Node::Repeat { node: Box::new(atom), min, max, greedy })
    }

    fn number(&mut self) -> Parsed<u32> {
        let mut value = 0;
        while let Some(digit) = self.peek().and_then(|c| c.to_digit(10)) {
            value = value * 10 + digit;
            self.at += 1;
            if value > MAX_REPEAT {
                return Err(format!("more than {MAX_REPEAT} repetitions"));
            }
        }
        Ok(value)
    }

    fn atom(&mut self) -> Parsed<Node> {
        match self.next()? {
            '(' => self.group(),
            '[' => Ok(Node::Class(self.class()?)),
            '.' => Ok(self.single(Item::Range('\n', '\n'), true)),
            '^' => Ok(Node::Start),
            '$' => Ok(Node::End),
            '\\' => {
                let item = self.escape()?;
                Ok(self.single(item, false))
            }
            c @ ('*' | '+' | '?') => Err(format!("{c:?} has nothing to repeat")),
            c => Ok(self.single(Item::Range(c, c), false)),
        }
    }

    fn single(&self, item: Item, negated: bool) -> Node {
        Node::Class(Class { items: vec![item], negated, ignore_case: self.ignore_case })
    }

    fn group(&mut self) -> Parsed<Node> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err("groups are nested too deeply".to_owned());
        }
        let outer = self.ignore_case;
        let look = if self.eat("?!") {
            Some(true)
        } else if self.eat("?=") {
            Some(false)
        } else {
            if self.eat("?i:") {
                self.ignore_case = true;
            } else if !self.eat("?:") && self.peek() == Some('?') {
                return Err("a group that is not (?:), (?i:), (?=) or (?!)".to_owned());
            }
            None
        };
        let node = self.alternation()?;
        if !self.eat(")") {
            return Err("a group is not closed".to_owned());
        }
        self.ignore_case = outer;
        self.depth -= 1;
        Ok(match look {
            Some(negative) => Node::Look { node: Box::new(node), negative },
            None => node,
        })
    }

    /// The inside of `[...]`.
    fn class(&mut self) -> Parsed<Class> {
        let negated = self.eat("^");
        let mut items = Vec::new();
        loop {
            let item = match self.next()? {
                ']' if !items.is_empty() => break,
                '[' => return Err("a class inside a class".to_owned()),
                '&' if self.peek() == Some('&') => return Err("an intersection of classes".to_owned()),
                '\\' => self.escape()?,
                c => Item::Range(c, c),
            };
            let is_range = self.peek() == Some('-') && self.chars.get(self.at + 1).is_some_and(|c| *c != ']');
            items.push(match item {
                Item::Range(from, _) if is_range => {
                    self.at += 1;
                    let to = match self.next()? {
                        '\\' => self.escape()?,
                        c => Item::Range(c, c),
                    };
                    match to {
                        Item::Range(to, _) if from <= to => Item::Range(from, to),
                        _ => return Err("a range of a class is malformed".to_owned()),
                    }
                }
                item => item,
            });
        }
        Ok(Class { items, negated, ignore_case: self.ignore_case })
    }

    /// What follows a backslash.
    fn escape(&mut self) -> Parsed<Item> {
        let c = self.next()?;
        let literal = |c| Ok(Item::Range(c, c));
        match c {
            's' | 'S' => Ok(Item::Category(Category::Space, c == 'S')),
            'd' | 'D' => Ok(Item::Category(Category::Digit, c == 'D')),
            'w' | 'W' => Ok(Item::Category(Category::Word, c == 'W')),
            'p' | 'P' => self.category(c == 'P'),
            'n' => literal('\n'),
            'r' => literal('\r'),
            't' => literal('\t'),
            'f' => literal('\u{c}'),
            'v' => literal('\u{b}'),
            'u' => self.hex(4),
            'x' if self.peek() != Some('{') => self.hex(2),
            'x' => {
                self.at += 1;
                let digits = self.chars[self.at..].iter().take_while(|c| **c != '}').count();
                let item = self.hex(digits)?;
                self.at += 1;
                Ok(item)
            }
            c if !c.is_ascii_alphanumeric() => literal(c),
            c => Err(format!("\\{c}")),
        }
    }

    fn hex(&mut self, digits: usize) -> Parsed<Item> {
        let text: String = self.chars.iter().skip(self.at).take(digits).collect();
        self.at += digits;
        let c = u32::from_str_radix(&text, 16).ok().and_then(char::from_u32);
        c.map(|c| Item::Range(c, c)).ok_or_else(|| format!("the character code {text:?}"))
    }

    fn category(&mut self, negated: bool) -> Parsed<Item> {
        let name: String = if self.eat("{") {
            let name: String = self.chars.iter().skip(self.at).take_while(|c| **c != '}').collect();
            self.at += name.chars().count() + 1;
            name
        } else {
            self.next()?.to_string()
        };
        let (negated, bare) = match name.strip_prefix('^') {
            Some(bare) => (!negated, bare),
            None => (negated, name.as_str()),
        };
        let category = match bare {
            "L" | "Letter" => Category::Letter,
            "Lu" => Category::Upper,
            "Lt" => Category::Title,
            "Ll" => Category::Lower,
            "Lm" | "Lo" => Category::Caseless,
            "N" | "Number" => Category::Number,
            "Nd" => Category::Digit,
            "M" | "Mark" => Category::Mark,
            "P" | "Punctuation" => Category::Punctuation,
            "S" | "Symbol" => Category::Symbol,
            "Han" => Category::Han,
            "Z" | "Space" => return Err(format!("\\p{{{bare}}}")),
            other => return Err(format!("\\p{{{other}}}")),
        };
        Ok(Item::Category(category, negated))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(regex: &str, text: &str) -> Vec<String> {
        let pattern = Pattern::new(regex).expect("supported");
        pattern
            .segments(text, false)
            .expect("in few steps")
            .into_iter()
            .map(|((a, b), _)| text[a..b].to_owned())
            .collect()
    }

    #[test]
    fn classes_groups_and_lookahead() {
        assert_eq!(cut(r"\s+(?!\S)|\s+", "a   b  "), ["a", "  ", " ", "b", "  "]);
        assert_eq!(cut(r"(?i:'S|'ve)", "it's I'VE"), ["it", "'s", " I", "'VE"]);
        assert_eq!(cut(r"[^\s\p{L}]{2,3}", "a12345b"), ["a", "123", "45", "b"]);
        assert_eq!(cut(r"\p{L}\p{M}*", "e\u{301}x"), ["e\u{301}", "x"]);
        assert_eq!(cut(r"[a-c\-]+?|\d", "ab-1"), ["a", "b", "-", "1"]);
    }

    #[test]
    fn replacing() {
        let pattern = Pattern::new(" {2,}").expect("supported");
        assert_eq!(pattern.replace("a  b    c d", "_"), Ok(Some("a_b_c d".to_owned())));
        assert_eq!(pattern.replace("a b", "_"), Ok(None));
    }

    #[test]
    fn what_is_not_known_is_refused_by_name() {
        for regex in [
            "(?<=a)b",
            "a++",
            "(",
            "[",
            "[]",
            "a)",
            "\\p{Greek}",
            "(a*)*",
            "\\k",
            "{2}*",
            "a{5,2}",
            "\\x{110000}",
            "\\",
        ] {
            let error = Pattern::new(regex);
            assert!(matches!(error, Err(crate::Error::Tokenizer { .. })) || regex == "{2}*", "{regex}: {error:?}");
        }
    }

    #[test]
    fn an_expression_that_backtracks_without_end_is_given_up() {
        let text = "a".repeat(64);
        for regex in ["(a|a)*b", "(a+)+b", "(?=(a|aa)+b)a"] {
            let pattern = Pattern::new(regex).expect("supported");
            let error = pattern.segments(&text, false).expect_err(regex);
            assert!(error.contains("steps for 64 bytes"), "{error}");
            assert!(pattern.replace(&text, "").is_err(), "{regex}");
        }
        // What real files have takes few steps, also where a run of spaces is tried again and again.
        let long = format!("{}end", " ".repeat(20_000));
        let pattern = Pattern::new(r"\s+(?!\S)|\s+|\p{L}+").expect("supported");
        assert_eq!(pattern.segments(&long, false).map(|s| s.len()), Ok(3));
    }

    /// The native splitters are the reference for what their expressions mean.
    #[test]
    fn agrees_with_the_native_splitters() {
        let text = "Hello, WORLD's 12345 \u{4f60}\u{597d}\u{3002}\r\n\r\n  caf\u{e9} e\u{301}\u{1f600}\u{1f3fd}  \u{661}\u{662}\u{bd}\u{2167}\u{24b6} \u{5e9}\u{5dc}\u{5d5}\u{5dd} x_y \u{939}\u{93f}\u{928}\u{94d}\u{926}\u{940} \u{200d}don't I'LL \t\u{a0}\u{3000}end  ";
        for regex in [
            bitcannon::regexes::GPT2,
            bitcannon::regexes::CL100K,
            bitcannon::regexes::O200K,
            bitcannon::regexes::TEKKEN,
        ] {
            let grammar = tokenizers::utils::recognize(regex).expect("a native one");
            let bytes = text.as_bytes();
            let mut tags = vec![0; bytes.len()];
            bitcannon::classify::classify(bytes, &mut tags);
            let (mut a, mut b, mut c) = (vec![0; 20], vec![0; 20], vec![0; 40]);
            let mut spans = vec![bitcannon::Span::default(); bytes.len() + 1];
            let n = grammar.split(bytes, &tags, &mut a, &mut b, &mut c, &mut spans);
            let native: Vec<&str> = spans[..n].iter().map(|s| &text[s.range()]).collect();
            assert_eq!(cut(regex, text), native, "{regex}");
        }
    }
}
