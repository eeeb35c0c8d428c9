/** Decodes images and video frames with the browser's decoder and uploads their rows to the engine in strips. */

import type { Engine, EngineModule, EngineRows, SeenImage } from "./contract.js";
import { JerboaError, refused } from "./errors.js";
import type { GivenImage } from "./pictures.js";
import type { GivenVideo } from "./video.js";

/** Pixels per strip that is copied to the engine. */
const STRIP = 1 << 18;
/** Bytes of a file that are read first; most image headers end there. */
const HEAD = 1 << 18;
/** Maximum pixels of an image; the engine has the same limit for files. */
const MOST = 1e8;

/** The images that an engine has encoded, by key. */
export class Shown {
  readonly #known = new Map<number, number>();

  /** Encodes an image, unless it was encoded before and is still cached. */
  async see(module: EngineModule, engine: Engine, given: GivenImage): Promise<SeenImage> {
    const seen = await decoded(module, engine, given);
    if (given.key !== undefined) this.#known.set(given.key, seen.picture);
    return seen;
  }

  /** Replaces the images of a conversation by their ids. */
  async numbered(module: EngineModule, engine: Engine, messages: unknown[]): Promise<unknown[]> {
    const numbered = [];
    for (const message of messages) {
      const { content } = message as { content?: unknown };
      if (!Array.isArray(content)) numbered.push(message);
      else numbered.push({ ...(message as object), content: await this.#parts(module, engine, content) });
    }
    return numbered;
  }

  async #parts(module: EngineModule, engine: Engine, parts: unknown[]): Promise<unknown[]> {
    const numbered = [];
    for (const part of parts) {
      const { type, image, frames, key } = part as { type?: string } & Partial<GivenImage & GivenVideo>;
      if (!image && !frames) numbered.push(part);
      else {
        const known = key === undefined ? undefined : this.#known.get(key);
        const there = known !== undefined && engine.knows(known);
        const given = key === undefined ? {} : { key };
        const seen = (): Promise<SeenImage> => (frames ? this.#watch(module, engine, part as GivenVideo) : this.see(module, engine, { image: image!, ...given }));
        numbered.push({ type, picture: there ? known : (await seen()).picture });
      }
    }
    return numbered;
  }

  async #watch(module: EngineModule, engine: Engine, { frames, seconds, key }: GivenVideo): Promise<SeenImage> {
    const seen = await watched(module, engine, frames, seconds);
    if (key !== undefined) this.#known.set(key, seen.picture);
    return seen;
  }
}

/** Frame times of an image: none. */
const STILL = new Float64Array();

/** Encodes video frames; frames of another size are scaled to the first one's. */
async function watched(module: EngineModule, engine: Engine, frames: GivenVideo["frames"], seconds: Float64Array): Promise<SeenImage> {
  let rows: EngineRows | undefined;
  let size = { width: 0, height: 0 };
  try {
    for (const frame of frames) {
      const bitmap = frame instanceof Blob || frame instanceof ImageData ? await bitmapOf(module, frame) : frame;
      try {
        if (!rows) {
          size = sizeOf(bitmap);
          rows = engine.film(size.width, size.height, frames.length);
        }
        draw(rows, bitmap, size);
      } finally {
        if (bitmap !== frame) bitmap.close();
      }
    }
  } catch (thrown) {
    rows?.free();
    throw thrown;
  }
  if (!rows) throw refused("The video has no frames.");
  return engine.see(rows, seconds);
}

async function decoded(module: EngineModule, engine: Engine, { image }: GivenImage): Promise<SeenImage> {
  if (image instanceof ImageData) return plain(engine, image);
  if (!(image instanceof Blob)) return drawn(engine, image);
  const bitmap = await bitmapOf(module, image);
  try {
    return await drawn(engine, bitmap);
  } finally {
    bitmap.close();
  }
}

async function bitmapOf(module: EngineModule, image: Blob | ImageData): Promise<ImageBitmap> {
  if (image instanceof Blob) await examined(module, image);
  return createImageBitmap(image, { colorSpaceConversion: "none", premultiplyAlpha: "none" }).catch((thrown) => {
    throw refused(`The image could not be decoded; the file may be damaged (${thrown instanceof Error ? thrown.message : thrown}).`);
  });
}

/** Checks an image's header; refuses images that are too large to decode. */
async function examined(module: EngineModule, file: Blob): Promise<void> {
  for (let size = HEAD; ; size *= 16) {
    try {
      module.imageSize(new Uint8Array(await file.slice(0, size).arrayBuffer()));
      return;
    } catch (thrown) {
      const error = JerboaError.from(thrown);
      // Long comments and previews may precede the size.
      if (size >= file.size || !error.message.includes("breaks off")) throw error;
    }
  }
}

async function plain(engine: Engine, { data, width, height }: ImageData): Promise<SeenImage> {
  const rows = engine.rows(width, height);
  const pitch = width * 4;
  const strip = Math.max(1, Math.floor(STRIP / width)) * pitch;
  for (let at = 0; at < data.length; at += strip) rows.push(new Uint8Array(data.buffer, data.byteOffset + at, Math.min(strip, data.length - at)));
  return engine.see(rows, STILL);
}

async function drawn(engine: Engine, bitmap: ImageBitmap): Promise<SeenImage> {
  const size = sizeOf(bitmap);
  const rows = engine.rows(size.width, size.height);
  try {
    draw(rows, bitmap, size);
  } catch (thrown) {
    rows.free();
    throw thrown;
  }
  return engine.see(rows, STILL);
}

function sizeOf({ width, height }: ImageBitmap): { width: number; height: number } {
  if (!(width > 0 && height > 0) || width * height > MOST) throw refused(`The image has ${width}x${height} pixels; the limit is ${MOST / 1e6} million. Use a smaller image.`);
  return { width, height };
}

/** Uploads the rows of an image, scaled to this size. */
function draw(rows: EngineRows, bitmap: ImageBitmap, { width, height }: { width: number; height: number }): void {
  const most = Math.min(height, Math.max(1, Math.floor(STRIP / width)));
  const canvas = new OffscreenCanvas(width, most);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  if (!context) throw refused("Canvas is not available in this browser, so the image's pixels cannot be read.");
  try {
    for (let y = 0; y < height; y += most) {
      const count = Math.min(most, height - y);
      context.clearRect(0, 0, width, most);
      // Draws one strip of the scaled image at a time.
      context.drawImage(bitmap, 0, -y, width, height);
      const { data } = context.getImageData(0, 0, width, count);
      rows.push(new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
    }
  } catch (thrown) {
    if (thrown instanceof DOMException) throw refused(`The image cannot be read: ${thrown.message}. Images from other sites need CORS.`);
    throw thrown;
  }
}
