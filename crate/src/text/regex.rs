//! A small backtracking matcher for regular expressions of tokenizer.json without a native splitter
//! in the `tokenizers` library (Qwen3.5's, XLM-RoBERTa's ` {2,}`). Supports the syntax of those
//! files and refuses the rest by name. A full engine would add 0.3 MB to the download.

mod assertion;
mod class;
mod parse;
mod scripts;

use super::budget::EncodeBudget;
use super::tokenizer_error;
use crate::Result;
use assertion::Assertion;
use class::CharClass;
pub(super) use class::{is_punctuation, is_word};
use parse::{RegexNode, parse};
use std::rc::Rc;

#[derive(Debug)]
enum RegexInst {
    /// A class, and the steps that it takes beyond one.
    Class(Rc<CharClass>, u64),
    /// Continue at the first target; backtrack to the second.
    Split(usize, usize),
    Jump(usize),
    /// The body follows and ends in `Match`; matching continues at `next`.
    Look {
        negative: bool,
        /// Characters before the position where the body begins.
        behind: usize,
        next: usize,
    },
    /// The body follows and ends in `Match`; nothing goes back into it once it matched.
    Atomic {
        next: usize,
    },
    Assert(Assertion),
    Match,
}

/// A compiled regular expression.
#[derive(Debug)]
pub(super) struct Regex {
    program: Vec<RegexInst>,
}

/// Maximum number of instructions: repetitions are unrolled.
const MAX_PROGRAM: usize = 20_000;
/// Items of a class that are compared in the time of one step.
const ITEMS_PER_STEP: usize = 8;
/// Maximum number of characters of an expression that an error quotes.
const MAX_QUOTED: usize = 200;

/// Open alternatives of a search, and its remaining steps.
struct BacktrackState {
    open: Vec<(usize, usize)>,
    steps: u64,
}

/// The search exceeded its maximum number of steps.
struct StepLimitExceeded;

impl Regex {
    pub fn new(regex: &str) -> Result<Regex> {
        let refuse = |what: String| {
            let quoted: String = regex.chars().take(MAX_QUOTED).collect();
            let more = if quoted.len() < regex.len() {
                "…"
            } else {
                ""
            };
            tokenizer_error(format!(
                "tokenizer.json: the regular expression {quoted:?}{more} is not supported: {what}. Rewrite it \
                 without this, or use a GGUF file of the model"
            ))
        };
        if regex.contains(r"\p{Lm}") != regex.contains(r"\p{Lo}") {
            return Err(refuse("\\p{Lm} and \\p{Lo} must occur together".to_owned()));
        }
        let node = parse(regex).map_err(refuse)?;
        let mut program = Vec::new();
        emit(&node, &mut program).map_err(refuse)?;
        program.push(RegexInst::Match);
        Ok(Regex { program })
    }

    /// Splits `text` into matches and gaps. The flag is true for matches, or for gaps if `invert`.
    ///
    /// # Errors
    /// `Tokenizer` if the search needs more steps than are left.
    pub fn segments(
        &self,
        text: &str,
        invert: bool,
        budget: &EncodeBudget,
    ) -> Result<Vec<((usize, usize), bool)>> {
        let mut out = Vec::new();
        let mut last = 0;
        self.each_match(text, budget, |start, end| {
            if last < start {
                out.push(((last, start), invert));
            }
            // An empty match splits at its position.
            if start < end {
                out.push(((start, end), !invert));
            }
            last = end;
            Ok(())
        })?;
        if last < text.len() {
            out.push(((last, text.len()), invert));
        }
        Ok(out)
    }

    /// Returns `text` with every match replaced; `None` if there is no match.
    ///
    /// # Errors
    /// `Tokenizer` if the search needs more steps, or its result more bytes, than are left.
    pub fn replace(
        &self,
        text: &str,
        content: &str,
        budget: &EncodeBudget,
    ) -> Result<Option<String>> {
        let mut out: Option<String> = None;
        let mut last = 0;
        self.each_match(text, budget, |start, end| {
            if start == end {
                return Ok(());
            }
            budget.grow(end - start, content.len())?;
            let out = out.get_or_insert_with(String::new);
            out.push_str(text.get(last..start).unwrap_or_default());
            out.push_str(content);
            last = end;
            Ok(())
        })?;
        Ok(out.map(|out| out + text.get(last..).unwrap_or_default()))
    }

    /// Whether a match begins at the start of `text`, as Python's `re.match` requires.
    ///
    /// # Errors
    /// `Tokenizer` if the search needs more steps than are left.
    pub fn matches_start(&self, text: &str, budget: &EncodeBudget) -> Result<bool> {
        let mut search = BacktrackState {
            open: Vec::new(),
            steps: budget.steps(),
        };
        let end = self.run(text, 0, 0, &mut search);
        Ok(end
            .map_err(|StepLimitExceeded| budget.exhausted())?
            .is_some())
    }

    fn each_match(
        &self,
        text: &str,
        budget: &EncodeBudget,
        mut found: impl FnMut(usize, usize) -> Result<()>,
    ) -> Result<()> {
        let mut search = BacktrackState {
            open: Vec::new(),
            steps: budget.steps(),
        };
        let mut at = 0;
        while at < text.len() {
            let end = self
                .run(text, 0, at, &mut search)
                .map_err(|StepLimitExceeded| budget.exhausted())?;
            match end {
                Some(end) if end > at => {
                    found(at, end)?;
                    at = end;
                }
                empty => {
                    if empty.is_some() {
                        found(at, at)?;
                    }
                    at += char_at(text, at).map_or(1, char::len_utf8);
                }
            }
        }
        budget.set_steps(search.steps);
        Ok(())
    }

    /// Returns the end of the match that starts at `at`, for the program from `pc` on.
    fn run(
        &self,
        text: &str,
        pc: usize,
        at: usize,
        search: &mut BacktrackState,
    ) -> Result<Option<usize>, StepLimitExceeded> {
        let base = search.open.len();
        search.open.push((pc, at));
        let end = 'search: loop {
            if search.open.len() == base {
                break None;
            }
            let Some((mut pc, mut at)) = search.open.pop() else {
                break None;
            };
            loop {
                search.steps = search.steps.checked_sub(1).ok_or(StepLimitExceeded)?;
                match self.program.get(pc) {
                    Some(RegexInst::Class(class, extra)) => {
                        search.steps = search.steps.checked_sub(*extra).ok_or(StepLimitExceeded)?;
                        match char_at(text, at) {
                            Some(c) if class.has(c) => {
                                at += c.len_utf8();
                                pc += 1;
                            }
                            _ => break,
                        }
                    }
                    Some(RegexInst::Split(first, second)) => {
                        search.open.push((*second, at));
                        pc = *first;
                    }
                    Some(RegexInst::Jump(to)) => pc = *to,
                    Some(RegexInst::Look {
                        negative,
                        behind,
                        next,
                    }) => {
                        let spent = search.steps.checked_sub(*behind as u64);
                        search.steps = spent.ok_or(StepLimitExceeded)?;
                        let found = match step_back(text, at, *behind) {
                            Some(start) => self.run(text, pc + 1, start, search)?.is_some(),
                            None => false,
                        };
                        if found == *negative {
                            break;
                        }
                        pc = *next;
                    }
                    Some(RegexInst::Atomic { next }) => {
                        match self.run(text, pc + 1, at, search)? {
                            Some(end) => (pc, at) = (*next, end),
                            None => break,
                        }
                    }
                    Some(RegexInst::Assert(assertion)) if assertion.holds(text, at) => pc += 1,
                    Some(RegexInst::Match) => break 'search Some(at),
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

/// Returns the position `count` characters before `at`.
fn step_back(text: &str, at: usize, count: usize) -> Option<usize> {
    let before = text.get(..at)?;
    match count.checked_sub(1) {
        Some(skipped) => before
            .char_indices()
            .rev()
            .nth(skipped)
            .map(|(start, _)| start),
        None => Some(at),
    }
}

/// Appends the instructions of `node`.
fn emit(node: &RegexNode, program: &mut Vec<RegexInst>) -> Result<(), String> {
    if program.len() > MAX_PROGRAM {
        return Err(format!("more than {MAX_PROGRAM} instructions"));
    }
    match node {
        RegexNode::Class(class) => {
            let extra = class.weight() / ITEMS_PER_STEP;
            program.push(RegexInst::Class(class.clone(), extra as u64));
        }
        RegexNode::Assert(assertion) => program.push(RegexInst::Assert(*assertion)),
        RegexNode::Atomic(node) => {
            let atomic = program.len();
            program.push(RegexInst::Match);
            emit(node, program)?;
            program.push(RegexInst::Match);
            let next = program.len();
            set(program, atomic, RegexInst::Atomic { next });
        }
        RegexNode::Concat(nodes) => nodes.iter().try_for_each(|node| emit(node, program))?,
        RegexNode::Alternate(nodes) => {
            let mut jumps = Vec::new();
            for (i, node) in nodes.iter().enumerate() {
                let split = program.len();
                let last = i + 1 == nodes.len();
                if !last {
                    program.push(RegexInst::Split(split + 1, 0));
                }
                emit(node, program)?;
                if !last {
                    jumps.push(program.len());
                    program.push(RegexInst::Jump(0));
                    let next = program.len();
                    set(program, split, RegexInst::Split(split + 1, next));
                }
            }
            let end = program.len();
            jumps
                .into_iter()
                .for_each(|jump| set(program, jump, RegexInst::Jump(end)));
        }
        RegexNode::Look {
            node,
            negative,
            behind,
        } => {
            let look = program.len();
            program.push(RegexInst::Match);
            emit(node, program)?;
            program.push(RegexInst::Match);
            let next = program.len();
            let (negative, behind) = (*negative, *behind);
            set(
                program,
                look,
                RegexInst::Look {
                    negative,
                    behind,
                    next,
                },
            );
        }
        RegexNode::Repeat {
            node,
            min,
            max,
            greedy,
        } => {
            for _ in 0..*min {
                let before = program.len();
                emit(node, program)?;
                // Nothing, however often it is repeated, adds no instructions.
                if program.len() == before {
                    break;
                }
            }
            let choice = |a: usize, b: usize| {
                if *greedy {
                    RegexInst::Split(a, b)
                } else {
                    RegexInst::Split(b, a)
                }
            };
            match max {
                None => {
                    let split = program.len();
                    program.push(RegexInst::Match);
                    emit(node, program)?;
                    program.push(RegexInst::Jump(split));
                    let end = program.len();
                    set(program, split, choice(split + 1, end));
                }
                Some(max) => {
                    let mut splits = Vec::new();
                    for _ in *min..*max {
                        splits.push(program.len());
                        program.push(RegexInst::Match);
                        emit(node, program)?;
                    }
                    let end = program.len();
                    splits
                        .into_iter()
                        .for_each(|split| set(program, split, choice(split + 1, end)));
                }
            }
        }
    }
    Ok(())
}

fn set(program: &mut [RegexInst], at: usize, inst: RegexInst) {
    if let Some(slot) = program.get_mut(at) {
        *slot = inst;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(text: &str) -> EncodeBudget {
        EncodeBudget::for_text(text.len())
    }

    fn cut(regex: &str, text: &str) -> Vec<String> {
        let pattern = Regex::new(regex).expect("supported");
        pattern
            .segments(text, false, &budget(text))
            .expect("within the step limit")
            .into_iter()
            .map(|((a, b), _)| text[a..b].to_owned())
            .collect()
    }

    #[test]
    fn classes_groups_and_lookahead() {
        assert_eq!(
            cut(r"\s+(?!\S)|\s+", "a   b  "),
            ["a", "  ", " ", "b", "  "]
        );
        assert_eq!(cut(r"(?i:'S|'ve)", "it's I'VE"), ["it", "'s", " I", "'VE"]);
        assert_eq!(cut(r"[^\s\p{L}]{2,3}", "a12345b"), ["a", "123", "45", "b"]);
        assert_eq!(cut(r"\p{L}\p{M}*", "e\u{301}x"), ["e\u{301}", "x"]);
        assert_eq!(cut(r"[a-c\-]+?|\d", "ab-1"), ["a", "b", "-", "1"]);
        assert_eq!(cut(r"(?=(\d{3})+(?!\d))", "a1234567"), ["a1", "234", "567"]);
    }

    /// As Oniguruma: nothing backtracks into a possessive repetition or an atomic group.
    #[test]
    fn possessive_repetitions_and_atomic_groups() {
        assert_eq!(cut(r"a++b|.", "aab ab"), ["aab", " ", "ab"]);
        assert_eq!(cut(r"a++ab", "aab"), ["aab"]);
        assert_eq!(cut(r"a?+ab|b", "aabab"), ["aab", "a", "b"]);
        assert_eq!(cut(r"(?>a|ab)c|b", "abcac"), ["a", "b", "c", "ac"]);
        assert_eq!(cut(r"\d*+x", "12x3"), ["12x", "3"]);
        let cl100k = r"[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";
        let text = "Hello (world)... 12345!\n\n x";
        let expected = [
            "Hello", " (", "world", ")...", " ", "123", "45", "!\n\n", " x",
        ];
        assert_eq!(cut(cl100k, text), expected);
    }

    #[test]
    fn assertions_are_those_of_oniguruma() {
        assert_eq!(cut("^ +", "  a\n  b  c"), ["  ", "a\n", "  ", "b  c"]);
        assert_eq!(cut(" +$", "a  \nb  c "), ["a", "  ", "\nb  c", " "]);
        assert_eq!(cut(r"\s+$", "a \n"), ["a", " ", "\n"]);
        assert_eq!(cut(r"\A +| +\z", "  a\n  b  "), ["  ", "a\n  b", "  "]);
        assert_eq!(cut(r"\bab\b", "ab cab ab"), ["ab", " cab ", "ab"]);
        assert_eq!(cut("(?i)the|b", "THE aB"), ["THE", " a", "B"]);
        assert_eq!(cut("a(?i)b|c", "aB aC c"), ["aB", " ", "aC", " c"]);
        assert_eq!(cut("(a(?i)b)c", "aBcaBC"), ["aBc", "aBC"]);
    }

    /// The expected words are those of the library's Split with behavior Isolated.
    #[test]
    fn lookbehind() {
        assert_eq!(cut("(?<=a)b", "abcb ab"), ["a", "b", "cb a", "b"]);
        assert_eq!(cut("(?<!a)b", "abcb ab"), ["abc", "b", " ab"]);
        assert_eq!(cut(r"(?<=\p{L})\d+", "a12 3 b4"), ["a", "12", " 3 b", "4"]);
        assert_eq!(
            cut("(?<=ab|c)x", "abx cx bx"),
            ["ab", "x", " c", "x", " bx"]
        );
        assert_eq!(
            cut("(?<!ab|c)x", "abx cx bx x"),
            ["abx cx b", "x", " ", "x"]
        );
        assert_eq!(cut(r"(?<=\d{2})(?=(\d{3})+$)", "1234567"), ["1234", "567"]);
        assert_eq!(cut(r"(?<=^|\s)a", "a aa a"), ["a", " ", "a", "a ", "a"]);
        assert_eq!(cut(r"(?<![\s])\s+", "a  b c"), ["a", "  ", "b", " ", "c"]);
        assert_eq!(
            cut("(?<=(?:é|中))x", "éx中x ax"),
            ["é", "x", "中", "x", " ax"]
        );
        assert_eq!(cut("x(?<=ax)", "ax bx x"), ["a", "x", " bx x"]);
        assert_eq!(cut("(?i)(?<=A)b", "ab Ab"), ["a", "b", " A", "b"]);
        assert_eq!(cut("(?<=)b", "ab"), ["a", "b"]);
    }

    #[test]
    fn scripts_by_name() {
        assert_eq!(
            cut(r"[\p{Hiragana}\p{Katakana}ー]+|\P{Thai}", "カタひらー漢 กa"),
            ["カタひらー", "漢", " ", "ก", "a"]
        );
        assert_eq!(cut(r"\p{^Arabic}+", "ab مر c"), ["ab ", "مر", " c"]);
        assert_eq!(cut(r"\p{greek}+", "αβ a"), ["αβ", " a"]);
    }

    #[test]
    fn nested_classes() {
        assert_eq!(
            cut(r" ?[^(\s|[.,!?\u2026])]+", "a(b. c|d"),
            ["a", "(", "b", ".", " c", "|", "d"]
        );
        assert_eq!(cut("[[:alpha:]]+|[[:^space:]]", "ab 1"), ["ab", " ", "1"]);
        assert_eq!(cut(r"[\w&&[^\d_]]+", "ab12_c"), ["ab", "12_", "c"]);
        assert_eq!(cut(r"[^\w&&[^\d]]+", "ab12c"), ["ab", "12", "c"]);
        assert_eq!(cut(r"\h+", "xAf9g"), ["x", "Af9", "g"]);
        assert_eq!(cut("[a[b-d]x]+", "zadxe"), ["z", "adx", "e"]);
    }

    #[test]
    fn replacing() {
        let pattern = Regex::new(" {2,}").expect("supported");
        let replace = |text: &str| {
            pattern
                .replace(text, "_", &budget(text))
                .expect("within the limits")
        };
        assert_eq!(replace("a  b    c d"), Some("a_b_c d".to_owned()));
        assert_eq!(replace("a b"), None);
    }

    #[test]
    fn unsupported_syntax_is_rejected_by_name() {
        for regex in [
            "(?<=a+)b",
            "(?<!a(?=b))b",
            "(?<name>a)",
            "a{2}+",
            "(",
            "[",
            "[]",
            "a)",
            "\\p{Elephant}",
            "\\p{Z}",
            "(a*)*",
            "\\k",
            "{2}*",
            "a{5,2}",
            "\\x{110000}",
            "\\",
        ] {
            let error = Regex::new(regex);
            assert!(
                matches!(error, Err(crate::Error::Tokenizer { .. })) || regex == "{2}*",
                "{regex}: {error:?}"
            );
        }
    }

    #[test]
    fn endless_backtracking_is_stopped() {
        let text = "a".repeat(64);
        for regex in ["(a|a)*b", "(a+)+b", "(?=(a|aa)+b)a", "(?<=a{9})(a+)+b"] {
            let pattern = Regex::new(regex).expect("supported");
            let error = pattern.segments(&text, false, &budget(&text));
            let error = error.expect_err(regex).to_string();
            assert!(error.contains("steps for 64 bytes"), "{error}");
            let replaced = pattern.replace(&text, "", &budget(&text));
            assert!(replaced.is_err(), "{regex}");
        }
        // Expressions in real files take few steps, also if a run of spaces is tried repeatedly.
        let long = format!("{}end", " ".repeat(20_000));
        let pattern = Regex::new(r"\s+(?!\S)|\s+|\p{L}+").expect("supported");
        let segments = pattern.segments(&long, false, &budget(&long));
        assert_eq!(segments.expect("within the limits").len(), 3);
    }

    /// The native splitters are the reference for their expressions.
    #[cfg(not(target_arch = "wasm32"))]
    #[test]
    fn agrees_with_the_native_splitters() {
        let text = "Hello, WORLD's 12345 \u{4f60}\u{597d}\u{3002}\r\n\r\n  caf\u{e9} e\u{301}\u{1f600}\u{1f3fd}  \u{661}\u{662}\u{bd}\u{2167}\u{24b6} \u{5e9}\u{5dc}\u{5d5}\u{5dd} x_y \u{939}\u{93f}\u{928}\u{94d}\u{926}\u{940} \u{200d}don't I'LL \t\u{a0}\u{3000}end  ";
        for regex in [
            bitcannon::regexes::GPT2,
            bitcannon::regexes::CL100K,
            bitcannon::regexes::O200K,
            bitcannon::regexes::TEKKEN,
        ] {
            let grammar = tokenizers::utils::recognize(regex).expect("a native splitter");
            let bytes = text.as_bytes();
            let mut tags = vec![0; bytes.len()];
            bitcannon::classify::classify(bytes, &mut tags);
            let mut a = vec![0; 20];
            let mut b = vec![0; 20];
            let mut c = vec![0; 40];

            let mut spans = vec![bitcannon::Span::default(); bytes.len() + 1];
            let n = grammar.split(bytes, &tags, &mut a, &mut b, &mut c, &mut spans);
            let native: Vec<&str> = spans[..n].iter().map(|s| &text[s.range()]).collect();
            assert_eq!(cut(regex, text), native, "{regex}");
        }
    }
}
