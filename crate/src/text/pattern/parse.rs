//! Parses regular expressions into a tree. Supports the syntax in tokenizer.json files and refuses
//! the rest by name.

use super::class::{Category, Class, Item};

const MAX_REPEAT: u32 = 1000;
const MAX_DEPTH: usize = 100;

#[derive(Debug, Clone)]
pub(super) enum Node {
    Class(Class),
    Concat(Vec<Node>),
    Alternate(Vec<Node>),
    Repeat { node: Box<Node>, min: u32, max: Option<u32>, greedy: bool },
    Look { node: Box<Node>, negative: bool },
    Start,
    End,
}

/// Whether `node` can match the empty string: repeating it would never end.
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

/// Parses an expression.
///
/// # Errors
/// Names the unsupported syntax.
pub(super) fn parse(regex: &str) -> Parsed<Node> {
    let mut parser = Parser { chars: regex.chars().collect(), at: 0, ignore_case: false, depth: 0 };
    let node = parser.alternation()?;
    if parser.at < parser.chars.len() {
        return Err(format!("unexpected ')' at character {}", parser.at));
    }
    Ok(node)
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
        let c = self.peek().ok_or("unexpected end")?;
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
                return Err("invalid repetition count".to_owned());
            }
            (min, max)
        } else {
            return Ok(atom);
        };
        if matches!(self.peek(), Some('+' | '*')) {
            return Err("possessive repetition".to_owned());
        }
        if max.is_none() && nullable(&atom) {
            return Err("unbounded repetition of an expression that may be empty".to_owned());
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
            return Err(format!("more than {MAX_DEPTH} nested groups"));
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
                return Err("group other than (?:), (?i:), (?=) and (?!)".to_owned());
            }
            None
        };
        let node = self.alternation()?;
        if !self.eat(")") {
            return Err("unclosed group".to_owned());
        }
        self.ignore_case = outer;
        self.depth -= 1;
        Ok(match look {
            Some(negative) => Node::Look { node: Box::new(node), negative },
            None => node,
        })
    }

    /// Parses the inside of `[...]`.
    fn class(&mut self) -> Parsed<Class> {
        let negated = self.eat("^");
        let mut items = Vec::new();
        loop {
            let item = match self.next()? {
                ']' if !items.is_empty() => break,
                '[' => return Err("nested character class".to_owned()),
                '&' if self.peek() == Some('&') => return Err("intersection of character classes".to_owned()),
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
                        _ => return Err("invalid range in a character class".to_owned()),
                    }
                }
                item => item,
            });
        }
        Ok(Class { items, negated, ignore_case: self.ignore_case })
    }

    /// Parses what follows a backslash.
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
        c.map(|c| Item::Range(c, c)).ok_or_else(|| format!("invalid character code {text:?}"))
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
