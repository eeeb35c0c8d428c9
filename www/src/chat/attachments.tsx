/** Images and text files for the next message. */

import { signal } from "@preact/signals";
import type { Model } from "jerboa";
import { COMPOSER } from "../strings";
import { textFileProblem } from "../text-file";
import { announce } from "../ui/announce";
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

/** Whether a model accepts images. */
export const acceptsImages = (model: Model | undefined): boolean => model?.info.capabilities?.includes("image") === true;

/** Attaches files: images where the model accepts them, and files that are text. */
export async function attach(files: readonly File[], model: Model | undefined): Promise<void> {
  problem.value = "";
  for (const file of files) {
    const image = file.type.startsWith("image/");
    const reason = !image ? await textFileProblem(file) : acceptsImages(model) ? "" : COMPOSER.noImages(model?.info.model ?? "");
    if (reason) problem.value = reason;
    else attached.value = [...attached.peek(), { name: file.name, kind: image ? "image" : "text", blob: file, url: image ? URL.createObjectURL(file) : "" }];
  }
  announce(problem.value || COMPOSER.attached(files.length));
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
    attached.value = attached.peek().filter((each) => each !== item);
    if (item.url) URL.revokeObjectURL(item.url);
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
