//! Caches, for each state of the lexer, which plain tokens continue a text, such as a JSON string. A walk
//! over all of them takes milliseconds, and depends on nothing but the state as long as no lexeme ends.

use llguidance::derivre::{HashMap, StateID};
use llguidance::earley::{BiasComputer, ParserRecognizer, SlicedBiasComputer};
use llguidance::toktrie::{SimpleVob, TokEnv, TokTrie, TokenId};
use std::sync::{Arc, Mutex, PoisonError};

/// Characters of plain tokens: those that a JSON string has without escapes.
const PLAIN: &str = r#"[^"\\\x00-\x1F\x7F]"#;
/// Maximum characters of a short plain token; few tokens have more.
const SHORT: usize = 30;
/// The lexer's numbers of the expressions of [`slices`].
const ANY_PLAIN: usize = 0;
const SHORT_PLAIN: usize = 1;
/// Maximum fuel of a check that a lexeme takes any plain text.
const CONTAINMENT_FUEL: u64 = 1000;
/// Maximum number of states in the cache, each with up to a bit a token.
const MAX_STATES: usize = 256;

/// Plain text, and what short plain tokens consist of: a lexeme that contains it takes all of them.
pub(crate) fn slices() -> Vec<String> {
    vec![format!("{PLAIN}+"), format!("{PLAIN}{{1,{SHORT}}}")]
}

/// The number of characters of a plain token; `None` for other tokens.
fn plain_characters(token: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(token).ok()?;
    let is_special = |c: char| c == '"' || c == '\\' || c < ' ' || c == '\x7f';
    (!text.is_empty() && !text.contains(is_special)).then(|| text.chars().count())
}

/// The tokens of a vocabulary in classes.
pub(crate) struct PlainTokens {
    all: SimpleVob,
    short: SimpleVob,
    all_trie: TokTrie,
    long_trie: TokTrie,
    others_trie: TokTrie,
}

impl PlainTokens {
    pub(crate) fn new(trie: &TokTrie) -> Self {
        let [mut all, mut short, mut long, mut others] = [(); 4].map(|()| trie.alloc_token_set());
        for id in 0..trie.vocab_size() as TokenId {
            match plain_characters(trie.token(id)) {
                None => others.allow_token(id),
                Some(count) => {
                    all.allow_token(id);
                    match count <= SHORT {
                        true => short.allow_token(id),
                        false => long.allow_token(id),
                    }
                }
            }
        }
        Self {
            all_trie: trie.filter(&all),
            long_trie: trie.filter(&long),
            others_trie: trie.filter(&others),
            all,
            short,
        }
    }
}

/// Computes the masks of one grammar.
pub(crate) struct MaskComputer {
    env: TokEnv,
    tokens: Arc<PlainTokens>,
    /// For states at which plain tokens end the lexeme.
    sliced: Arc<SlicedBiasComputer>,
    /// Plain tokens that continue the lexeme of a state; `None` if some of them end it.
    cache: Mutex<HashMap<StateID, Option<SimpleVob>>>,
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
            cache: Mutex::default(),
        }
    }

    /// Allows plain tokens that follow at a state that is not in the cache.
    fn allow_plain(&self, parser: &mut ParserRecognizer<'_>, allowed: &mut SimpleVob) -> Walk {
        if takes(parser, ANY_PLAIN) {
            allowed.or(&self.tokens.all);
            return Walk::Short;
        }
        if takes(parser, SHORT_PLAIN) {
            allowed.or(&self.tokens.short);
            self.tokens.long_trie.add_bias(parser, allowed, &[]);
            return Walk::Short;
        }
        let before = ended_lexemes(parser);
        self.tokens.all_trie.add_bias(parser, allowed, &[]);
        match ended_lexemes(parser) == before {
            true => Walk::InsideLexeme,
            false => Walk::BeyondLexeme,
        }
    }
}

/// What a walk over plain tokens found.
enum Walk {
    /// Most tokens were not looked at.
    Short,
    /// No token ends the lexeme: the result depends on the lexer's state alone.
    InsideLexeme,
    /// A token ends the lexeme: what follows depends on the parser.
    BeyondLexeme,
}

/// Whether the lexeme at this state takes any text of an expression of [`slices`].
fn takes(parser: &mut ParserRecognizer<'_>, expression: usize) -> bool {
    let state = parser.lexer_state();
    let lexer = parser.lexer_mut();
    lexer.subsume_possible(state)
        && lexer
            .check_subsume(state, expression, CONTAINMENT_FUEL, None)
            .unwrap_or(false)
}

/// Number of lexemes that ended so far: the parser begins a row for each, or finds one that it has.
fn ended_lexemes(parser: &mut ParserRecognizer<'_>) -> usize {
    let counts = parser.stats_mut();
    counts.rows + counts.cached_rows
}

impl BiasComputer for MaskComputer {
    fn compute_bias(&self, parser: &mut ParserRecognizer<'_>, start: &[u8]) -> SimpleVob {
        if !start.is_empty() {
            return self.sliced.compute_bias(parser, start);
        }
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let mut allowed = self.trie().alloc_token_set();
        let state = parser.lexer_state();
        match cache.get(&state) {
            Some(Some(plain)) => allowed.or(plain),
            Some(None) => return self.sliced.compute_bias(parser, start),
            None => {
                let plain = match self.allow_plain(parser, &mut allowed) {
                    Walk::Short => None,
                    Walk::InsideLexeme => Some(Some(allowed.clone())),
                    Walk::BeyondLexeme => Some(None),
                };
                if let Some(plain) = plain {
                    if cache.len() == MAX_STATES {
                        cache.clear();
                    }
                    cache.insert(state, plain);
                }
            }
        }
        self.tokens.others_trie.add_bias(parser, &mut allowed, &[]);
        allowed
    }

    fn trie(&self) -> &TokTrie {
        self.env.tok_trie()
    }
}
