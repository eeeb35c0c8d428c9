//! Parses regular expressions into a tree. Supports the syntax in tokenizer.json files and refuses
//! the rest by name.

use super::assertion::Assertion;
use super::class::{CharCategory, CharClass, ClassItem};
use super::scripts::script;
use std::rc::Rc;

const MAX_REPEAT: u32 = 1000;
const MAX_GROUP_DEPTH: usize = 100;

#[derive(Debug, Clone)]
pub(super) enum RegexNode {
    Class(Rc<CharClass>),
    Concat(Vec<RegexNode>),
    Alternate(Vec<RegexNode>),
    Repeat {
        node: Box<RegexNode>,
        min: u32,
        max: Option<u32>,
        greedy: bool,
    },
    Look {
        node: Box<RegexNode>,
        negative: bool,
        /// Characters before the position where the match begins; 0 to look ahead.
        behind: usize,
    },
    /// A group into which nothing backtracks.
    Atomic(Box<RegexNode>),
    Assert(Assertion),
}

/// Whether `node` can match the empty string: repeating it would never end.
fn nullable(node: &RegexNode) -> bool {
    match node {
        RegexNode::Class(_) => false,
        RegexNode::Assert(_) | RegexNode::Look { .. } => true,
        RegexNode::Atomic(node) => nullable(node),
        RegexNode::Concat(nodes) => nodes.iter().all(nullable),
        RegexNode::Alternate(nodes) => nodes.iter().any(nullable),
        RegexNode::Repeat { node, min, .. } => *min == 0 || nullable(node),
    }
}

/// Number of characters that `node` matches; `None` if it varies.
fn fixed_length(node: &RegexNode) -> Option<usize> {
    match node {
        RegexNode::Class(_) => Some(1),
        RegexNode::Assert(_) => Some(0),
        RegexNode::Look { .. } => None,
        RegexNode::Atomic(node) => fixed_length(node),
        RegexNode::Concat(nodes) => nodes
            .iter()
            .try_fold(0usize, |sum, node| sum.checked_add(fixed_length(node)?)),
        RegexNode::Alternate(nodes) => {
            let mut lengths = nodes.iter().map(fixed_length);
            let first = lengths.next()??;
            lengths.all(|length| length == Some(first)).then_some(first)
        }
        RegexNode::Repeat { node, min, max, .. } => {
            let length = fixed_length(node).filter(|_| Some(*min) == *max)?;
            length.checked_mul(*min as usize)
        }
    }
}

/// Looks for `node` before a position. Its alternatives may differ in length.
fn look_behind(node: RegexNode, negative: bool) -> Parsed<RegexNode> {
    let branches = match node {
        RegexNode::Alternate(nodes) => nodes,
        node => vec![node],
    };
    let looks = branches.into_iter().map(|node| {
        let behind =
            fixed_length(&node).ok_or("lookbehind of a varying length or with lookaround in it")?;
        let node = Box::new(node);
        Ok(RegexNode::Look {
            node,
            negative,
            behind,
        })
    });
    let looks = looks.collect::<Parsed<Vec<_>>>()?;
    Ok(match negative {
        true => RegexNode::Concat(looks),
        false => RegexNode::Alternate(looks),
    })
}

struct RegexParser {
    chars: Vec<char>,
    at: usize,
    ignore_case: bool,
    depth: usize,
}

/// Parses an expression.
///
/// # Errors
/// Names the unsupported syntax.
pub(super) fn parse(regex: &str) -> Parsed<RegexNode> {
    let mut parser = RegexParser {
        chars: regex.chars().collect(),
        at: 0,
        ignore_case: false,
        depth: 0,
    };
    let node = parser.alternation()?;
    if parser.at < parser.chars.len() {
        return Err(format!("unexpected ')' at character {}", parser.at));
    }
    Ok(node)
}

type Parsed<T> = Result<T, String>;

impl RegexParser {
    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn eat(&mut self, text: &str) -> bool {
        let hit = text
            .chars()
            .enumerate()
            .all(|(i, c)| self.chars.get(self.at + i) == Some(&c));
        if hit {
            self.at += text.chars().count();
        }
        hit
    }

    fn next(&mut self) -> Parsed<char> {
        let c = self.peek().ok_or("unexpected end")?;
        self.at += 1;
        Ok(c)
    }

    fn alternation(&mut self) -> Parsed<RegexNode> {
        let mut branches = vec![self.concatenation()?];
        while self.eat("|") {
            branches.push(self.concatenation()?);
        }
        Ok(match branches.pop() {
            Some(only) if branches.is_empty() => only,
            last => RegexNode::Alternate(branches.into_iter().chain(last).collect()),
        })
    }

    fn concatenation(&mut self) -> Parsed<RegexNode> {
        let mut nodes = Vec::new();
        while self.peek().is_some_and(|c| c != '|' && c != ')') {
            let atom = self.atom()?;
            nodes.push(self.repetition(atom)?);
        }
        Ok(RegexNode::Concat(nodes))
    }

    fn repetition(&mut self, atom: RegexNode) -> Parsed<RegexNode> {
        let braces = self.peek() == Some('{');
        let (min, max) = if self.eat("*") {
            (0, None)
        } else if self.eat("+") {
            (1, None)
        } else if self.eat("?") {
            (0, Some(1))
        } else if self.peek() == Some('{')
            && self
                .chars
                .get(self.at + 1)
                .is_some_and(char::is_ascii_digit)
        {
            self.at += 1;
            let min = self.number()?;
            let max = if self.eat(",") {
                if self.peek() == Some('}') {
                    None
                } else {
                    Some(self.number()?)
                }
            } else {
                Some(min)
            };
            if !self.eat("}") || max.is_some_and(|max| max < min) {
                return Err("invalid repetition count".to_owned());
            }
            (min, max)
        } else {
            return Ok(atom);
        };
        let possessive = !braces && self.eat("+");
        if matches!(self.peek(), Some('+' | '*')) {
            return Err("repetition of a repetition".to_owned());
        }
        if max.is_none() && nullable(&atom) {
            return Err("unbounded repetition of an expression that may be empty".to_owned());
        }
        let greedy = possessive || !self.eat("?");
        let repeat = RegexNode::Repeat {
            node: Box::new(atom),
            min,
            max,
            greedy,
        };
        Ok(if possessive {
            RegexNode::Atomic(Box::new(repeat))
        } else {
            repeat
        })
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

    fn atom(&mut self) -> Parsed<RegexNode> {
        match self.next()? {
            '(' => self.group(),
            '[' => Ok(RegexNode::Class(Rc::new(self.class()?))),
            '.' => Ok(self.single(ClassItem::Range('\n', '\n'), true)),
            '^' => Ok(RegexNode::Assert(Assertion::LineStart)),
            '$' => Ok(RegexNode::Assert(Assertion::LineEnd)),
            '\\' => {
                let assertion = match self.peek() {
                    Some('A') => Some(Assertion::TextStart),
                    Some('z') => Some(Assertion::TextEnd),
                    Some(c @ ('b' | 'B')) => Some(Assertion::WordBoundary(c == 'b')),
                    _ => None,
                };
                if let Some(assertion) = assertion {
                    self.at += 1;
                    return Ok(RegexNode::Assert(assertion));
                }
                let item = self.escape()?;
                Ok(self.single(item, false))
            }
            c @ ('*' | '+' | '?') => Err(format!("{c:?} has nothing to repeat")),
            c => Ok(self.single(ClassItem::Range(c, c), false)),
        }
    }

    fn single(&self, item: ClassItem, negated: bool) -> RegexNode {
        RegexNode::Class(Rc::new(CharClass {
            items: vec![item],
            negated,
            ignore_case: self.ignore_case,
        }))
    }

    fn group(&mut self) -> Parsed<RegexNode> {
        self.depth += 1;
        if self.depth > MAX_GROUP_DEPTH {
            return Err(format!("more than {MAX_GROUP_DEPTH} nested groups"));
        }
        let outer = self.ignore_case;
        // Applies to the rest of the group around it, as in Oniguruma.
        if self.eat("?i)") {
            self.ignore_case = true;
            let rest = self.alternation()?;
            self.depth -= 1;
            return Ok(rest);
        }
        let atomic = self.eat("?>");
        let behind = ["?<!", "?<="].into_iter().position(|start| self.eat(start));
        let lookaround = if self.eat("?!") {
            Some(true)
        } else if self.eat("?=") {
            Some(false)
        } else if behind.is_some() {
            None
        } else {
            if self.eat("?i:") {
                self.ignore_case = true;
            } else if !atomic && !self.eat("?:") && self.peek() == Some('?') {
                return Err(
                    "group other than (?:), (?i:), (?>), (?=), (?!), (?<=) and (?<!)".to_owned(),
                );
            }
            None
        };
        let node = self.alternation()?;
        if !self.eat(")") {
            return Err("unclosed group".to_owned());
        }
        self.ignore_case = outer;
        self.depth -= 1;
        if let Some(index) = behind {
            return look_behind(node, index == 0);
        }
        Ok(match lookaround {
            Some(negative) => RegexNode::Look {
                node: Box::new(node),
                negative,
                behind: 0,
            },
            None if atomic => RegexNode::Atomic(Box::new(node)),
            None => node,
        })
    }

    /// Parses the inside of `[...]`.
    fn class(&mut self) -> Parsed<CharClass> {
        self.depth += 1;
        if self.depth > MAX_GROUP_DEPTH {
            return Err(format!("more than {MAX_GROUP_DEPTH} nested classes"));
        }
        let ignore_case = self.ignore_case;
        let set = |items, negated| CharClass {
            items,
            negated,
            ignore_case,
        };
        let negated = self.eat("^");
        let mut items = Vec::new();
        let mut others = Vec::new();
        loop {
            let item = match self.next()? {
                ']' if !items.is_empty() => break,
                '[' if self.eat(":") => {
                    self.posix_bracket(&mut items)?;
                    continue;
                }
                '[' => ClassItem::All(vec![self.class()?]),
                '&' if !items.is_empty() && self.eat("&") => {
                    others.push(set(std::mem::take(&mut items), false));
                    continue;
                }
                '\\' => self.escape()?,
                c => ClassItem::Range(c, c),
            };
            let is_range =
                self.peek() == Some('-') && self.chars.get(self.at + 1).is_some_and(|c| *c != ']');
            items.push(match item {
                ClassItem::Range(from, _) if is_range => {
                    self.at += 1;
                    let to = match self.next()? {
                        '\\' => self.escape()?,
                        c => ClassItem::Range(c, c),
                    };
                    match to {
                        ClassItem::Range(to, _) if from <= to => ClassItem::Range(from, to),
                        _ => return Err("invalid range in a character class".to_owned()),
                    }
                }
                item => item,
            });
        }
        self.depth -= 1;
        if others.is_empty() {
            return Ok(set(items, negated));
        }
        others.push(set(items, false));
        Ok(set(vec![ClassItem::All(others)], negated))
    }

    /// Parses what follows `[:` in a class.
    fn posix_bracket(&mut self, items: &mut Vec<ClassItem>) -> Parsed<()> {
        let negated = self.eat("^");
        let rest = self.chars[self.at..].iter();
        let name: String = rest.take_while(|c| c.is_ascii_lowercase()).collect();
        self.at += name.len();
        let category = match name.as_str() {
            "alpha" => CharCategory::Alphabetic,
            "digit" => CharCategory::Digit,
            "lower" => CharCategory::Lowercase,
            "punct" => CharCategory::PosixPunctuation,
            "space" => CharCategory::Space,
            "upper" => CharCategory::Uppercase,
            "word" => CharCategory::Word,
            "alnum" if !negated => {
                items.push(ClassItem::Category(CharCategory::Digit, false));
                CharCategory::Alphabetic
            }
            _ => return Err(format!("[:{name}:]")),
        };
        items.push(ClassItem::Category(category, negated));
        match self.eat(":]") {
            true => Ok(()),
            false => Err(format!("[:{name}")),
        }
    }

    /// Parses what follows a backslash.
    fn escape(&mut self) -> Parsed<ClassItem> {
        let c = self.next()?;
        let literal = |c| Ok(ClassItem::Range(c, c));
        match c {
            's' | 'S' => Ok(ClassItem::Category(CharCategory::Space, c == 'S')),
            'd' | 'D' => Ok(ClassItem::Category(CharCategory::Digit, c == 'D')),
            'w' | 'W' => Ok(ClassItem::Category(CharCategory::Word, c == 'W')),
            'p' | 'P' => self.category(c == 'P'),
            'h' => Ok(ClassItem::All(vec![CharClass {
                items: vec![
                    ClassItem::Range('0', '9'),
                    ClassItem::Range('A', 'F'),
                    ClassItem::Range('a', 'f'),
                ],
                negated: false,
                ignore_case: false,
            }])),
            'n' => literal('\n'),
            'r' => literal('\r'),
            't' => literal('\t'),
            'f' => literal('\u{c}'),
            'v' => literal('\u{b}'),
            'u' => self.hex(4),
            'x' if self.peek() != Some('{') => self.hex(2),
            'x' => {
                self.at += 1;
                let digits = self.chars[self.at..]
                    .iter()
                    .take_while(|c| **c != '}')
                    .count();
                let item = self.hex(digits)?;
                self.at += 1;
                Ok(item)
            }
            c if !c.is_ascii_alphanumeric() => literal(c),
            c => Err(format!("\\{c}")),
        }
    }

    fn hex(&mut self, digits: usize) -> Parsed<ClassItem> {
        let text: String = self.chars.iter().skip(self.at).take(digits).collect();
        self.at += digits;
        let c = u32::from_str_radix(&text, 16).ok().and_then(char::from_u32);
        c.map(|c| ClassItem::Range(c, c))
            .ok_or_else(|| format!("invalid character code {text:?}"))
    }

    fn category(&mut self, negated: bool) -> Parsed<ClassItem> {
        let name: String = if self.eat("{") {
            let name: String = self
                .chars
                .iter()
                .skip(self.at)
                .take_while(|c| **c != '}')
                .collect();
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
            "L" | "Letter" => CharCategory::Letter,
            "Lu" => CharCategory::Upper,
            "Lt" => CharCategory::Title,
            "Ll" => CharCategory::Lower,
            "Lm" | "Lo" => CharCategory::Caseless,
            "N" | "Number" => CharCategory::Number,
            "Nd" => CharCategory::Digit,
            "M" | "Mark" => CharCategory::Mark,
            "P" | "Punctuation" => CharCategory::Punctuation,
            "S" | "Symbol" => CharCategory::Symbol,
            "Han" => CharCategory::Han,
            other => {
                let items = script(other).ok_or_else(|| format!("\\p{{{other}}}"))?;
                return Ok(ClassItem::All(vec![CharClass {
                    items,
                    negated,
                    ignore_case: false,
                }]));
            }
        };
        Ok(ClassItem::Category(category, negated))
    }
}
