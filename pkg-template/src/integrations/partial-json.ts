/** Parses the beginning of a JSON text. */

/** A value that has not begun, or of which nothing can be said yet. */
const MISSING = Symbol("missing");

/** The value that a prefix of valid JSON has so far; undefined before there is one. Incomplete keys, numbers and words are left out. */
export function parsePartialJson(text: string): unknown {
  const value = new Reader(text).value();
  return value === MISSING ? undefined : value;
}

class Reader {
  readonly #text: string;
  #at = 0;

  constructor(text: string) {
    this.#text = text;
  }

  value(): unknown {
    const first = this.#next();
    if (first === "{") return Object.fromEntries(this.#items("}", () => this.#member()));
    if (first === "[") return this.#items("]", () => this.value());
    if (first === '"') return this.#string().value;
    const [word = ""] = /^[-+.\w]*/.exec(this.#text.slice(this.#at)) ?? [];
    this.#at += word.length;
    // A number may go on.
    const isWhole = this.#at < this.#text.length || /^(true|false|null)$/.test(word);
    return word && isWhole ? JSON.parse(word) : MISSING;
  }

  /** The items of an object or a list, those that have begun. */
  #items<T>(end: string, item: () => T | typeof MISSING): T[] {
    const items: T[] = [];
    for (this.#at++; ; this.#at++) {
      if (this.#next() === end) break;
      const made = item();
      if (made === MISSING) return items;
      items.push(made);
      if (this.#next() !== ",") break;
    }
    this.#at++;
    return items;
  }

  #member(): [string, unknown] | typeof MISSING {
    if (this.#next() !== '"') return MISSING;
    const key = this.#string();
    if (!key.isWhole || this.#next() !== ":") return MISSING;
    this.#at++;
    const value = this.value();
    return value === MISSING ? MISSING : [key.value, value];
  }

  #string(): { value: string; isWhole: boolean } {
    const [written = '"'] = /^"(?:[^"\\]|\\.)*"?/s.exec(this.#text.slice(this.#at)) ?? [];
    this.#at += written.length;
    if (/^"(?:[^"\\]|\\.)*"$/s.test(written)) return { value: JSON.parse(written) as string, isWhole: true };
    this.#at = this.#text.length;
    return { value: JSON.parse(`${written.replace(/\\u[\da-f]{0,3}$/i, "")}"`) as string, isWhole: false };
  }

  /** The next character other than a space. */
  #next(): string | undefined {
    while (/\s/.test(this.#text[this.#at] ?? "")) this.#at++;
    return this.#text[this.#at];
  }
}
