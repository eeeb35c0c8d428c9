/** Images and text files for the next message. */

import { signal } from "@preact/signals";
import type { Model } from "jerboa";
import { asError, canRetry, userMessage } from "../errors";
import { COMPOSER } from "../strings";
import { textFileProblem } from "../text-file";
import { announce } from "../ui/announce";
import { refocus } from "../ui/focus";
import { Icon } from "../ui/icon";

/** An image or text file of a message. */
export interface Attachment {
  name: string;
  kind: "image" | "text";
  blob: Blob;
  /** An object URL of an image. */
  url: string;
}

const TEXT_TYPES = "text/*,.md,.txt,.csv,.json,.html,.xml,.yaml,.toml,.rs,.js,.ts,.tsx,.py,.java,.c,.cpp,.h,.go,.sql,.log";

/** The attachments of the next message. */
export const attached = signal<Attachment[]>([]);
/** Why the last files were not attached. */
const problem = signal("");
/** Images that a model has encoded. */
const encoded = new WeakSet<Blob>();

/** Whether a model accepts images. */
export const acceptsImages = (model: Model | undefined): boolean => model?.info.capabilities?.includes("image") === true;

/** Why a model cannot read an image; undefined if it can. Errors that say nothing about the image are thrown. */
export async function imageProblem(model: Model, name: string, blob: Blob): Promise<string | undefined> {
  if (encoded.has(blob)) return undefined;
  try {
    await model.encodeImage(blob);
    encoded.add(blob);
    return undefined;
  } catch (thrown) {
    const error = asError(thrown);
    if (canRetry(error) || error.code === "out_of_memory") throw error;
    return `“${name}”: ${userMessage(error).text}`;
  }
}

/** Attaches files: images where the model accepts them, and files that are text. */
export async function attach(files: readonly File[], model: Model | undefined): Promise<void> {
  const problems: string[] = [];
  const refuse = (why: string): void => {
    problems.push(why);
    problem.value = problems.join(" ");
  };
  problem.value = "";
  for (const file of files) {
    const image = file.type.startsWith("image/");
    const why = !image ? await textFileProblem(file) : acceptsImages(model) ? "" : COMPOSER.noImages(model?.info.model ?? "");
    if (why) {
      refuse(why);
      continue;
    }
    const item: Attachment = { name: file.name, kind: image ? "image" : "text", blob: file, url: image ? URL.createObjectURL(file) : "" };
    attached.value = [...attached.peek(), item];
    // The image is shown while the model encodes it, which may have to wait for an answer.
    if (!image || !model) continue;
    void imageProblem(model, file.name, file).then(
      (found) => {
        if (!found || !attached.peek().includes(item)) return;
        detach(item);
        refuse(found);
        announce(found);
      },
      () => undefined,
    );
  }
  announce(problem.value || COMPOSER.attached(files.length));
}

function detach(item: Attachment): void {
  attached.value = attached.peek().filter((each) => each !== item);
  if (item.url) URL.revokeObjectURL(item.url);
}

/** Takes the attachments for a message. */
export function takeAttachments(): Attachment[] {
  const taken = attached.peek();
  attached.value = [];
  problem.value = "";
  return taken;
}

/** The button that attaches files. */
export function AttachButton({ model, disabled }: { model: Model | undefined; disabled: boolean }) {
  const images = acceptsImages(model);
  return (
    <label class="icon-button attach" title={images ? COMPOSER.attachBoth : COMPOSER.attachText} aria-disabled={disabled}>
      <Icon name="clip" />
      <input
        type="file"
        multiple
        disabled={disabled}
        aria-label={images ? COMPOSER.attachBoth : COMPOSER.attachText}
        accept={images ? `image/*,${TEXT_TYPES}` : TEXT_TYPES}
        onChange={({ currentTarget: input }) => void attach([...(input.files ?? [])], model).then(() => (input.value = ""))}
      />
    </label>
  );
}

/** The attachments above the text, with buttons that remove them. */
export function Attached() {
  if (attached.value.length === 0 && !problem.value) return null;
  const remove = (item: Attachment): void => {
    detach(item);
    refocus(".composer textarea");
  };
  return (
    <div class="attached">
      {attached.value.length > 0 && (
        <ul class="chips" aria-label={COMPOSER.attachments}>
          {attached.value.map((item) => (
            <li key={item}>
              <FileChip name={item.name} url={item.url} />
              <button type="button" class="icon-button" aria-label={COMPOSER.remove(item.name)} onClick={() => remove(item)}>
                <Icon name="close" />
              </button>
            </li>
          ))}
        </ul>
      )}
      {problem.value && (
        <p class="problem" role="alert">
          {problem}
        </p>
      )}
    </div>
  );
}

/** An image, or a file's name. */
export function FileChip({ name, url }: { name: string; url: string }) {
  return url ? (
    <img class="chip-image" src={url} alt={name} />
  ) : (
    <span class="chip">
      <Icon name="file" />
      <span class="chip-name">{name}</span>
    </span>
  );
}
