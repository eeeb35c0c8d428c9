//! Masks of positions inside of a text, such as a JSON string, which most tokens continue. A walk over
//! all tokens takes milliseconds, and only the lexer's state decides what it finds: it is taken once a
//! state.

use llguidance::derivre::{HashMap, StateID};
use llguidance::earley::{BiasComputer, ParserRecognizer, SlicedBiasComputer};
use llguidance::toktrie::{SimpleVob, TokEnv, TokTrie, TokenId};
use std::sync::{Arc, Mutex, PoisonError};

/// What plain tokens consist of: the characters that a JSON string has without escapes.
const PLAIN: &str = r#"[^"\\\x00-\x1F\x7F]+"#;
/// The lexer's number of [`PLAIN`].
const PLAIN_LEXEME: usize = 0;
/// Effort to find out that a lexeme takes any plain text, in the lexer's units.
const CONTAINMENT_BUDGET: u64 = 1000;
/// Maximum states whose tokens are kept, of up to a bit a token each.
const MAX_STATES: usize = 256;

/// The expressions that grammars are compared with.
pub(crate) fn slices() -> Vec<String> {
    vec![PLAIN.to_owned()]
}

fn is_plain(token: &[u8]) -> bool {
    let text = std::str::from_utf8(token).unwrap_or_default();
    let is_special = |c: char| c == '"' || c == '\\' || c < ' ' || c == '\x7f';
    !text.is_empty() && !text.contains(is_special)
}

/// The tokens of a vocabulary in two tries.
pub(crate) struct PlainTokens {
    plain: TokTrie,
    all_plain: SimpleVob,
    others: TokTrie,
}

impl PlainTokens {
    pub(crate) fn new(trie: &TokTrie) -> Self {
        let mut all_plain = trie.alloc_token_set();
        let mut others = trie.alloc_token_set();
        for id in 0..trie.vocab_size() as TokenId {
            let token = trie.token(id);
            match is_plain(token) {
                true => all_plain.allow_token(id),
                false => others.allow_token(id),
            }
        }
        Self {
            plain: trie.filter(&all_plain),
            others: trie.filter(&others),
            all_plain,
        }
    }
}

/// Computes the masks of one grammar.
pub(crate) struct MaskComputer {
    env: TokEnv,
    tokens: Arc<PlainTokens>,
    /// For states that are not inside of a text.
    sliced: Arc<SlicedBiasComputer>,
    /// Plain tokens that continue the lexeme of a state; `None` if some end it: what follows
    /// then depends on the parser.
    known: Mutex<HashMap<StateID, Option<SimpleVob>>>,
}

impl MaskComputer {
    pub(crate) fn new(
        env: TokEnv,
        tokens: Arc<PlainTokens>,
        sliced: Arc<SlicedBiasComputer>,
    ) -> Self {
        Self {
            env,
            tokens,
            sliced,
            known: Mutex::default(),
        }
    }

    /// Allows plain tokens; returns whether none of them ends the lexeme.
    fn allow_plain(&self, parser: &mut ParserRecognizer<'_>, allowed: &mut SimpleVob) -> bool {
        let state = parser.lexer_state();
        let lexer = parser.lexer_mut();
        let takes_all = lexer.subsume_possible(state)
            && lexer
                .check_subsume(state, PLAIN_LEXEME, CONTAINMENT_BUDGET, None)
                .unwrap_or(false);
        if takes_all {
            allowed.or(&self.tokens.all_plain);
            return true;
        }
        let before = ended_lexemes(parser);
        self.tokens.plain.add_bias(parser, allowed, &[]);
        ended_lexemes(parser) == before
    }
}

/// Lexemes that ended so far: the parser begins a row for each, or finds one that it knows.
fn ended_lexemes(parser: &mut ParserRecognizer<'_>) -> usize {
    let counts = parser.stats_mut();
    counts.rows + counts.cached_rows
}

impl BiasComputer for MaskComputer {
    fn compute_bias(&self, parser: &mut ParserRecognizer<'_>, start: &[u8]) -> SimpleVob {
        if !start.is_empty() {
            return self.sliced.compute_bias(parser, start);
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut allowed = self.trie().alloc_token_set();
        let state = parser.lexer_state();
        match known.get(&state) {
            Some(Some(plain)) => allowed.or(plain),
            Some(None) => return self.sliced.compute_bias(parser, start),
            None => {
                let is_inside = self.allow_plain(parser, &mut allowed);
                if known.len() < MAX_STATES {
                    known.insert(state, is_inside.then(|| allowed.clone()));
                }
            }
        }
        self.tokens.others.add_bias(parser, &mut allowed, &[]);
        allowed
    }

    fn trie(&self) -> &TokTrie {
        self.env.tok_trie()
    }
}
