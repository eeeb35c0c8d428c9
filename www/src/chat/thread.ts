/** The turns of a conversation as a tree: a question may have several answers, one of which is shown. */

import { signal, type Signal } from "@preact/signals";
import { type FinishReason, JerboaError } from "jerboa";
import type { SavedFile, SavedTurn } from "./history";
import { getImage } from "./image-store";
import type { ToolStep } from "./tools";

/** Statistics of an answer. */
export interface Stats {
  tokens: number;
  promptTokens: number;
  cachedTokens: number;
  firstTokenMs: number;
  tokensPerSecond: number | undefined;
  /** Tokens of the thought among them. */
  thoughtTokens: number;
  reason: FinishReason | "abort";
}

export interface Turn {
  id: number;
  role: "user" | "assistant";
  text: Signal<string>;
  running: Signal<boolean>;
  /** Whether a reload ended the answer. */
  cut: Signal<boolean>;
  /** The files of a question. */
  files: TurnFile[];
  /** Passages of files that the model gets with the question. */
  context: Signal<string>;
  /** The calls that the answer made. */
  steps: Signal<ToolStep[]>;
  stats: Signal<Stats | undefined>;
  error: Signal<JerboaError | undefined>;
}

/** A file of a question. */
export interface TurnFile extends SavedFile {
  /** An image; undefined until it is read, or if it is lost. */
  blob: Signal<Blob | undefined>;
  url: Signal<string>;
}

/** A new turn. */
export function newTurn(id: number, role: Turn["role"], text = "", files: TurnFile[] = []): Turn {
  return { id, role, text: signal(text), files, context: signal(""), running: signal(false), cut: signal(false), steps: signal([]), stats: signal(undefined), error: signal(undefined) };
}

/** The files of a saved turn; images are read from their store. */
function restored(files: SavedFile[]): TurnFile[] {
  return files.map((file) => {
    const turnFile: TurnFile = { ...file, blob: signal(undefined), url: signal("") };
    if (file.image)
      getImage(file.image).then(
        (blob) => {
          turnFile.blob.value = blob;
          turnFile.url.value = blob ? URL.createObjectURL(blob) : "";
        },
        () => undefined,
      );
    return turnFile;
  });
}

/** A turn as it is saved, without its place. */
export function savedTurn({ role, text, files, context, cut, error }: Turn): SavedTurn {
  const failure = error.peek();
  return {
    role,
    text: text.peek(),
    ...(files.length > 0 ? { files: files.map(({ name, image, document }) => ({ name, ...(image ? { image } : {}), ...(document ? { document } : {}) })) } : {}),
    ...(context.peek() ? { context: context.peek() } : {}),
    ...(cut.peek() ? { cut: true } : {}),
    ...(failure ? { error: { code: failure.code, message: failure.message } } : {}),
  };
}

/** A turn with the turn that it follows. */
interface Node {
  turn: Turn;
  parent: Node | undefined;
  /** The turn shown after this one. */
  shown: Node | undefined;
}

export class Thread {
  /** The turns that are shown, from the first to the last. */
  readonly turns = signal<Turn[]>([]);
  #nodes: Node[] = [];
  #first: Node | undefined;
  #next = 1;

  /** Adds a turn after `parent`, by default the last one, and shows it. */
  add(role: Turn["role"], text = "", parent: Turn | undefined = this.turns.peek().at(-1), files: TurnFile[] = []): Turn {
    const node: Node = { turn: newTurn(this.#next++, role, text, files), parent: parent && this.#node(parent), shown: undefined };
    this.#nodes.push(node);
    this.#show(node);
    return node.turn;
  }

  /** The turns that follow the same turn, in order of their creation. */
  siblings(turn: Turn): Turn[] {
    const parent = this.#node(turn)?.parent;
    return this.#nodes.filter((node) => node.parent === parent).map((node) => node.turn);
  }

  /** Shows a turn, and the turns that were last shown after it. */
  select(turn: Turn): void {
    const node = this.#node(turn);
    if (node) this.#show(node);
  }

  has(turn: Turn): boolean {
    return this.#node(turn) !== undefined;
  }

  /** Removes all turns. */
  clear(): void {
    this.#nodes = [];
    this.#first = undefined;
    this.turns.value = [];
  }

  /** Replaces the turns by saved ones. */
  restore(saved: SavedTurn[], leaf = saved.length - 1): void {
    this.clear();
    for (const [i, { role, text, parent = i - 1, cut = false, files = [], context = "", error }] of saved.entries()) {
      const node: Node = { turn: newTurn(this.#next++, role, text, restored(files)), parent: this.#nodes[parent], shown: undefined };
      node.turn.cut.value = cut;
      node.turn.context.value = context;
      if (error) node.turn.error.value = new JerboaError(error.code as JerboaError["code"], error.message);
      this.#nodes.push(node);
    }
    const last = this.#nodes[leaf] ?? this.#nodes.at(-1);
    for (const node of this.#nodes) this.#choose(node);
    if (last) this.#show(last);
  }

  /** The files of all turns, also of those that are not shown. */
  files(): TurnFile[] {
    return this.#nodes.flatMap(({ turn }) => turn.files);
  }

  /** All turns, each with the index of the turn that it follows unless that is the one before, and the index of the last one shown. */
  save(): { turns: SavedTurn[]; leaf: number } {
    const index = new Map(this.#nodes.map((node, i) => [node, i]));
    const turns = this.#nodes.map(({ turn, parent }, i): SavedTurn => {
      const at = parent ? index.get(parent)! : -1;
      return { ...savedTurn(turn), ...(at === i - 1 ? {} : { parent: at }) };
    });
    const last = this.turns.peek().at(-1);
    return { turns, leaf: last ? index.get(this.#node(last)!)! : -1 };
  }

  #node(turn: Turn): Node | undefined {
    return this.#nodes.find((node) => node.turn === turn);
  }

  /** Makes a node the one that follows its parent. */
  #choose(node: Node): void {
    if (node.parent) node.parent.shown = node;
    else this.#first = node;
  }

  #show(node: Node): void {
    for (let each: Node | undefined = node; each; each = each.parent) this.#choose(each);
    const path: Turn[] = [];
    for (let each = this.#first; each; each = each.shown) path.push(each.turn);
    this.turns.value = path;
  }
}
