/** Images and videos for the next question: dropped, pasted, opened or taken with the camera, with their token grid. */

import { useSignal } from "@preact/signals";
import type { Model } from "jerboa";
import type { TargetedDragEvent, TargetedEvent } from "preact";
import { useEffect } from "preact/hooks";
import { userMessage } from "../errors";
import { milliseconds } from "../format";
import { COMPOSER, MESSAGE, VISION } from "../strings";
import { refocus } from "../ui/focus";
import { Icon } from "../ui/icon";
import { Camera } from "./camera";
import { example } from "./example";
import { type ImageItem, type VisionChat, acceptsVideo } from "./vision-chat";

const imageFiles = (files: Iterable<File> | undefined): File[] => [...(files ?? [])];

export function ImageList({ talk, model }: { talk: VisionChat; model: Model }) {
  const over = useSignal(false);
  const camera = useSignal(false);
  const add = (files: readonly Blob[]): void => void (files.length && talk.add(model, files));
  useEffect(() => {
    const paste = (event: ClipboardEvent): void => {
      const files = imageFiles(event.clipboardData?.files);
      if (files.length === 0) return;
      event.preventDefault();
      add(files);
    };
    addEventListener("paste", paste);
    return () => removeEventListener("paste", paste);
  }, [model]);
  const drop = (event: TargetedDragEvent<HTMLElement>): void => {
    event.preventDefault();
    over.value = false;
    add(imageFiles(event.dataTransfer?.files));
  };
  const dragged = (event: TargetedDragEvent<HTMLElement>): void => {
    event.preventDefault();
    over.value = true;
  };
  const pick = (event: TargetedEvent<HTMLInputElement>): void => {
    add(imageFiles(event.currentTarget.files ?? undefined));
    event.currentTarget.value = "";
  };
  const shots = talk.shots.value;
  /** The used control disappears. */
  const settle = (): void => refocus(".composer input");
  const remove = (shot: ImageItem): void => {
    talk.remove(shot);
    settle();
  };
  const addExample = async (): Promise<void> => {
    add([await example()]);
    settle();
  };
  return (
    <section class={over.value ? "panel panel-over" : "panel"} aria-label={VISION.images} onDragOver={dragged} onDragLeave={() => (over.value = false)} onDrop={drop}>
      <div class="panel-head">
        <h2>{VISION.images}</h2>
      </div>
      {shots.length > 0 && (
        <ul class="shots">
          {shots.map((shot) => (
            <li key={shot.id}>
              <ImageFacts shot={shot} />
              <button type="button" class="icon-button" aria-label={COMPOSER.remove(shot.name)} onClick={() => remove(shot)}>
                <Icon name="trash" />
              </button>
            </li>
          ))}
        </ul>
      )}
      <div class="row row-wrap">
        <label class="file-button grow">
          <Icon name="file" />
          {acceptsVideo(model) ? VISION.openBoth : VISION.open}
          <input type="file" multiple accept={acceptsVideo(model) ? "image/*,video/*" : "image/*"} onChange={pick} />
        </label>
        <button type="button" class="secondary" onClick={() => (camera.value = true)}>
          {VISION.camera}
        </button>
      </div>
      {shots.length === 0 && (
        <button type="button" class="secondary" onClick={() => void addExample()}>
          {VISION.example}
        </button>
      )}
      {camera.value && <Camera onTaken={(blob) => add([blob])} onClose={() => (camera.value = false)} />}
    </section>
  );
}

/** An image with its token grid and encoding time, or a playable video. */
export function ImageFacts({ shot }: { shot: ImageItem }) {
  const seen = shot.seen.value;
  const error = shot.error.value;
  return (
    <figure class="shot">
      {error ? (
        <strong>{shot.name}</strong>
      ) : shot.video ? (
        <div class="shot-frame">
          <video src={shot.url} aria-label={shot.name} controls muted playsInline preload="metadata" />
        </div>
      ) : (
        <div class="shot-frame">
          <img src={shot.url} alt={shot.name} />
          {seen && <Grid grids={seen.grids} />}
        </div>
      )}
      <figcaption class="hint">{error ? <span class="problem" role="alert">{userMessage(error).text}</span> : seen ? facts(seen) : shot.video ? VISION.frames : VISION.processing}</figcaption>
    </figure>
  );
}

function facts({ tokens, tiles, ms }: NonNullable<ImageItem["seen"]["value"]>): string {
  const size = tiles.length === 1 ? VISION.pixels(tiles[0]![0], tiles[0]![1]) : VISION.tiles(tiles.length);
  return [size, MESSAGE.tokens(tokens), ms > 0 ? VISION.encodedIn(milliseconds(ms)) : VISION.alreadyEncoded].join(" · ");
}

/** Lines between tokens, for images of one tile. */
function Grid({ grids }: { grids: [number, number][] }) {
  const [first] = grids;
  if (grids.length !== 1 || !first) return null;
  const [rows, columns] = first;
  const lines = (n: number): number[] => Array.from({ length: n - 1 }, (_, i) => i + 1);
  return (
    <svg class="grid" viewBox={`0 0 ${columns} ${rows}`} preserveAspectRatio="none" role="img" aria-label={VISION.grid(rows, columns)}>
      {lines(columns).map((x) => (
        <path key={`x${x}`} d={`M${x} 0V${rows}`} />
      ))}
      {lines(rows).map((y) => (
        <path key={`y${y}`} d={`M0 ${y}H${columns}`} />
      ))}
    </svg>
  );
}
