//! Language codes of Whisper's tokens, and English language names.
//!
//! Source: transformers' `TO_LANGUAGE_CODE` (models/whisper/tokenization_whisper.py).

/// Codes with names; a code's first entry is its name, later ones are aliases.
const NAMES: &str = "\
    en english,zh chinese,de german,es spanish,ru russian,ko korean,fr french,ja japanese,pt portuguese,tr turkish,\
    pl polish,ca catalan,nl dutch,ar arabic,sv swedish,it italian,id indonesian,hi hindi,fi finnish,vi vietnamese,\
    he hebrew,uk ukrainian,el greek,ms malay,cs czech,ro romanian,da danish,hu hungarian,ta tamil,no norwegian,\
    th thai,ur urdu,hr croatian,bg bulgarian,lt lithuanian,la latin,mi maori,ml malayalam,cy welsh,sk slovak,\
    te telugu,fa persian,lv latvian,bn bengali,sr serbian,az azerbaijani,sl slovenian,kn kannada,et estonian,\
    mk macedonian,br breton,eu basque,is icelandic,hy armenian,ne nepali,mn mongolian,bs bosnian,kk kazakh,\
    sq albanian,sw swahili,gl galician,mr marathi,pa punjabi,si sinhala,km khmer,sn shona,yo yoruba,so somali,\
    af afrikaans,oc occitan,ka georgian,be belarusian,tg tajik,sd sindhi,gu gujarati,am amharic,yi yiddish,lo lao,\
    uz uzbek,fo faroese,ht haitian creole,ps pashto,tk turkmen,nn nynorsk,mt maltese,sa sanskrit,lb luxembourgish,\
    my myanmar,bo tibetan,tl tagalog,mg malagasy,as assamese,tt tatar,haw hawaiian,ln lingala,ha hausa,ba bashkir,\
    jw javanese,su sundanese,yue cantonese,\
    my burmese,ca valencian,nl flemish,ht haitian,lb letzeburgesch,ps pushto,pa panjabi,ro moldavian,ro moldovan,\
    si sinhalese,es castilian,zh mandarin";

/// Returns (code, name) pairs; a code's name comes before its aliases.
pub fn all() -> impl Iterator<Item = (&'static str, &'static str)> {
    NAMES.split(',').filter_map(|entry| entry.split_once(' '))
}

/// Returns the code for a name or a code, ignoring case.
pub fn code_of(wanted: &str) -> Option<&'static str> {
    let wanted = wanted.trim().to_lowercase();
    all()
        .find(|(code, name)| *code == wanted || *name == wanted)
        .map(|(code, _)| code)
}

/// Returns the English name of a code.
pub fn name_of(code: &str) -> Option<&'static str> {
    all()
        .find(|(other, _)| *other == code)
        .map(|(_, name)| name)
}

/// Returns the name closest to `wanted` in spelling, among languages whose codes `known` accepts;
/// None if every name differs in more than a third of its letters.
pub fn nearest(wanted: &str, known: impl Fn(&str) -> bool) -> Option<&'static str> {
    let wanted = wanted.trim().to_lowercase();
    let names = all().filter(|(code, _)| known(code)).map(|(_, name)| name);
    names
        .map(|name| (distance(name, &wanted), name))
        .filter(|(differing, name)| 3 * differing <= name.len())
        .min_by_key(|found| found.0)
        .map(|found| found.1)
}

/// Levenshtein distance between two words.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut before = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let changed = before + usize::from(x != *y);
            before = row[j + 1];
            row[j + 1] = changed.min(before + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_language_has_a_code_a_name_and_its_aliases() {
        let own = |(code, name): &(&str, &str)| name_of(code) == Some(*name);
        assert_eq!((all().count(), all().filter(own).count()), (112, 100));
        for (code, name) in all() {
            assert_eq!(
                (code_of(name), code_of(&code.to_uppercase())),
                (Some(code), Some(code))
            );
        }
        for (wanted, code) in [
            ("Romanian", "ro"),
            ("moldovan", "ro"),
            (" Haitian Creole", "ht"),
            ("castilian", "es"),
            ("yue", "yue"),
        ] {
            assert_eq!(code_of(wanted), Some(code));
        }
        assert_eq!(name_of("my"), Some("myanmar"));
        assert_eq!(code_of("klingon"), None);
    }

    #[test]
    fn a_misspelled_name_finds_its_neighbour() {
        assert_eq!(nearest("Rumanian", |_| true), Some("romanian"));
        assert_eq!(nearest("germn", |_| true), Some("german"));
        assert_eq!(nearest("engilsh", |code| code == "en"), Some("english"));
        for wanted in ["germn", "auto", "", "xx"] {
            assert_eq!(nearest(wanted, |code| code == "en"), None);
        }
        for wanted in ["auto", "", "xx", "detect"] {
            assert_eq!(nearest(wanted, |_| true), None, "{wanted}");
        }
        assert_eq!(
            (
                distance("", "abc"),
                distance("kitten", "sitting"),
                distance("a", "a")
            ),
            (3, 3, 0)
        );
    }
}
