/** Continues a streamed answer that starts again: engines cut the same text into different events. */

type Fields = Record<string, any>;

/** What the caller of a stream has received, across all answers to its call. */
export class StreamContinuation {
  /** Length of each text and number of other events: what the caller has, and what the current answer has sent. */
  readonly #delivered = new Map<string, number>();
  #seen = new Map<string, number>();
  /** Ids of the first answer, by what they name. */
  readonly #ids = new Map<string, unknown>();
  #events = 0;

  /** Starts the answer again. */
  restart(): void {
    this.#seen = new Map();
  }

  /** Returns the part of a server-sent event that the caller lacks; undefined if it has all of it. */
  rest(event: string): string | undefined {
    const [, name = "", data = ""] = /^((?:event: .*\n)?)data: (.*)/.exec(event) ?? [];
    if (!data.startsWith("{")) return this.#once(event) ? event : undefined;
    const fields = JSON.parse(data) as Fields;
    const isNew = Array.isArray(fields["choices"]) ? this.#chunk(fields) : this.#event(fields);
    return isNew ? `${name}data: ${JSON.stringify(fields)}\n\n` : undefined;
  }

  /** Trims a chunk of a chat or a completion. */
  #chunk(chunk: Fields): boolean {
    this.#rename(chunk, "id", "id");
    if (chunk["choices"].length === 0) return this.#once("usage");
    chunk["choices"] = (chunk["choices"] as Fields[]).filter((choice) => this.#choice(choice));
    return chunk["choices"].length > 0;
  }

  #choice(choice: Fields): boolean {
    const { index, delta, logprobs, finish_reason: finish } = choice;
    const isNew = [this.#trim(choice, "text", `${index}`)];
    if (delta) {
      for (const name of ["content", "reasoning_content", "reasoning"]) isNew.push(this.#trim(delta, name, `${index}`));
      if (delta.role) isNew.push(this.#once(`${index} role`));
      if (delta.tool_calls) {
        delta.tool_calls = (delta.tool_calls as Fields[]).filter((call) => this.#call(call, `${index} ${call["index"]}`));
        isNew.push(delta.tool_calls.length > 0);
        if (delta.tool_calls.length === 0) delete delta.tool_calls;
      }
    }
    if (logprobs) {
      const count = this.#advance(`${index} logprobs`, (logprobs.content ?? logprobs.tokens).length);
      for (const [name, list] of Object.entries(logprobs)) if (Array.isArray(list)) logprobs[name] = list.slice(Math.max(list.length - count, 0));
      if (count === 0) choice["logprobs"] = null;
      isNew.push(count > 0);
    }
    if (finish) isNew.push(this.#once(`${index} finish`));
    return isNew.includes(true);
  }

  #call(call: Fields, key: string): boolean {
    this.#rename(call, "id", key);
    const isNamed = call["id"] !== undefined && this.#once(`${key} call`);
    return this.#trim(call["function"] ?? {}, "arguments", key) || isNamed;
  }

  /** Trims an event with a type, as those of the Responses API. */
  #event(event: Fields): boolean {
    const { type, output_index: at, content_index: part, item, response, logprobs } = event;
    this.#rename(event, "item_id", `item ${at}`);
    if (item) this.#renameItem(item, at);
    if (response) {
      this.#rename(response, "id", "id");
      (response.output as Fields[] | undefined)?.forEach((one, index) => this.#renameItem(one, index));
    }
    const key = `${type} ${at} ${part}`;
    const isDelta = typeof event["delta"] === "string";
    const isNew = isDelta ? this.#trim(event, "delta", key) : this.#once(key);
    if (isDelta && Array.isArray(logprobs)) {
      const count = this.#advance(`${key} logprobs`, logprobs.length);
      event["logprobs"] = logprobs.slice(logprobs.length - count);
    }
    if (isNew && typeof event["sequence_number"] === "number") event["sequence_number"] = this.#events++;
    return isNew;
  }

  #renameItem(item: Fields, at: number): void {
    this.#rename(item, "id", `item ${at}`);
    this.#rename(item, "call_id", `call ${at}`);
  }

  /** Replaces an id by the one that the caller knows. */
  #rename(fields: Fields, name: string, key: string): void {
    if (fields[name] === undefined) return;
    if (!this.#ids.has(key)) this.#ids.set(key, fields[name]);
    fields[name] = this.#ids.get(key);
  }

  /** Removes the start of a text that the caller has; returns whether any is left. */
  #trim(fields: Fields, name: string, key: string): boolean {
    const text: unknown = fields[name];
    if (typeof text !== "string" || text === "") return false;
    fields[name] = text.slice(text.length - this.#advance(`${key} ${name}`, text.length));
    return fields[name] !== "";
  }

  #once(key: string): boolean {
    return this.#advance(key, 1) > 0;
  }

  /** Counts characters or events of the current answer; returns how many of them the caller lacks. */
  #advance(key: string, count: number): number {
    const seen = (this.#seen.get(key) ?? 0) + count;
    const delivered = this.#delivered.get(key) ?? 0;
    this.#seen.set(key, seen);
    this.#delivered.set(key, Math.max(seen, delivered));
    return Math.min(count, Math.max(seen - delivered, 0));
  }
}
