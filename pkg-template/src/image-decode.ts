/** Decodes images and video frames with the browser's decoder and uploads their rows to the engine in strips. */

import type { ImageUpload, EncodedImageInfo } from "./contract.js";
import type { Engine, EngineModule } from "./engine-calls.js";
import { JerboaError, invalidRequest } from "./errors.js";
import type { ImageInput } from "./images.js";
import { platform, type Pixels } from "./platform.js";
import type { VideoInput } from "./video.js";
import { IMAGE_TIMEOUT_MS, withTimeout } from "./waits.js";

/** Pixels per strip that is copied to the engine. */
const STRIP_PIXELS = 1 << 18;
/** Bytes of a file that are read first; most image headers end there. */
const HEADER_BYTES = 1 << 18;
/** Maximum pixels of an image; the engine has the same limit for files. */
const MAX_IMAGE_PIXELS = 1e8;

/** The images that an engine has encoded, by key. */
export class ImageRegistry {
  readonly #idsByKey = new Map<number, number>();

  /** Encodes an image, unless it was encoded before and is still cached. */
  async encode(module: EngineModule, engine: Engine, given: ImageInput): Promise<EncodedImageInfo> {
    const encoded = await decodeAndEncode(module, engine, given);
    if (given.key !== undefined) this.#idsByKey.set(given.key, encoded.id);
    return encoded;
  }

  /** Replaces the images of a conversation by their ids. */
  async withImageIds(module: EngineModule, engine: Engine, messages: unknown[]): Promise<unknown[]> {
    const replaced = [];
    for (const message of messages) {
      const { content } = message as { content?: unknown };
      if (!Array.isArray(content)) replaced.push(message);
      else replaced.push({ ...(message as object), content: await this.#parts(module, engine, content) });
    }
    return replaced;
  }

  async #parts(module: EngineModule, engine: Engine, parts: unknown[]): Promise<unknown[]> {
    const replaced = [];
    for (const part of parts) {
      const { type, image, frames, key } = part as { type?: string } & Partial<ImageInput & VideoInput>;
      if (!image && !frames) replaced.push(part);
      else {
        const known = key === undefined ? undefined : this.#idsByKey.get(key);
        const there = known !== undefined && engine.hasImage(known);
        const given = key === undefined ? {} : { key };
        const encoded = (): Promise<EncodedImageInfo> => (frames ? this.#encodeVideo(module, engine, part as VideoInput) : this.encode(module, engine, { image: image!, ...given }));
        replaced.push({ type, imageId: there ? known : (await encoded()).id });
      }
    }
    return replaced;
  }

  async #encodeVideo(module: EngineModule, engine: Engine, { frames, seconds, key }: VideoInput): Promise<EncodedImageInfo> {
    const encoded = await encodeVideo(module, engine, frames, seconds);
    if (key !== undefined) this.#idsByKey.set(key, encoded.id);
    return encoded;
  }
}

/** Frame times of an image: none. */
const NO_FRAME_TIMES = new Float64Array();

/** Encodes video frames; frames of another size are scaled to the first one's. */
async function encodeVideo(module: EngineModule, engine: Engine, frames: VideoInput["frames"], seconds: Float64Array): Promise<EncodedImageInfo> {
  let rows: ImageUpload | undefined;
  let size = { width: 0, height: 0 };
  try {
    for (const frame of frames) {
      const host = platform();
      if (host && frame instanceof Blob) {
        await checkHeader(module, frame);
        const pixels = await host.decodeImage(frame, rows && size);
        if (!rows) {
          size = sizeOf(pixels);
          rows = engine.videoUpload(size.width, size.height, frames.length);
        }
        pushPixels(rows, pixels);
        continue;
      }
      const bitmap = frame instanceof Blob || frame instanceof ImageData ? await bitmapOf(module, frame) : frame;
      try {
        if (!rows) {
          size = sizeOf(bitmap);
          rows = engine.videoUpload(size.width, size.height, frames.length);
        }
        drawStrips(rows, bitmap, size);
      } finally {
        if (bitmap !== frame) bitmap.close();
      }
    }
  } catch (thrown) {
    rows?.free();
    throw thrown;
  }
  if (!rows) throw invalidRequest("The video has no frames. Pass at least one.");
  return engine.encodeImage(rows, seconds);
}

async function decodeAndEncode(module: EngineModule, engine: Engine, { image }: ImageInput): Promise<EncodedImageInfo> {
  const host = platform();
  if (host && image instanceof Blob) {
    await checkHeader(module, image);
    return encodePixels(engine, await host.decodeImage(image));
  }
  if (image instanceof ImageData) return encodePixels(engine, image);
  if (!(image instanceof Blob)) return encodeBitmap(engine, image);
  const bitmap = await bitmapOf(module, image);
  try {
    return await encodeBitmap(engine, bitmap);
  } finally {
    bitmap.close();
  }
}

async function bitmapOf(module: EngineModule, image: Blob | ImageData): Promise<ImageBitmap> {
  if (image instanceof Blob) await checkHeader(module, image);
  const decoded = createImageBitmap(image, { colorSpaceConversion: "none", premultiplyAlpha: "none" });
  return withTimeout(IMAGE_TIMEOUT_MS, "createImageBitmap()", decoded, (late) => late.close()).catch((thrown) => {
    throw invalidRequest(`The image could not be decoded: ${thrown instanceof Error ? thrown.message : thrown}. The file may be damaged; save it again as JPEG or PNG.`);
  });
}

/** Checks an image's header; refuses images that are too large to decode. */
async function checkHeader(module: EngineModule, file: Blob): Promise<void> {
  for (let size = HEADER_BYTES; ; size *= 16) {
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

async function encodePixels(engine: Engine, pixels: Pixels): Promise<EncodedImageInfo> {
  const rows = engine.imageUpload(pixels.width, pixels.height);
  pushPixels(rows, pixels);
  return engine.encodeImage(rows, NO_FRAME_TIMES);
}

function pushPixels(rows: ImageUpload, { data, width }: Pixels): void {
  const strip = Math.max(1, Math.floor(STRIP_PIXELS / width)) * width * 4;
  for (let at = 0; at < data.length; at += strip) rows.push(new Uint8Array(data.buffer, data.byteOffset + at, Math.min(strip, data.length - at)));
}

async function encodeBitmap(engine: Engine, bitmap: ImageBitmap): Promise<EncodedImageInfo> {
  const size = sizeOf(bitmap);
  const rows = engine.imageUpload(size.width, size.height);
  try {
    drawStrips(rows, bitmap, size);
  } catch (thrown) {
    rows.free();
    throw thrown;
  }
  return engine.encodeImage(rows, NO_FRAME_TIMES);
}

function sizeOf({ width, height }: { width: number; height: number }): { width: number; height: number } {
  if (!(width > 0 && height > 0)) throw invalidRequest(`The image has no pixels (${width}x${height}). Use another image.`);
  if (width * height > MAX_IMAGE_PIXELS) throw invalidRequest(`The image has ${width}x${height} pixels; the limit is ${MAX_IMAGE_PIXELS / 1e6} million. Use a smaller image.`);
  return { width, height };
}

/** Uploads the rows of an image, scaled to this size. */
function drawStrips(rows: ImageUpload, bitmap: ImageBitmap, { width, height }: { width: number; height: number }): void {
  const most = Math.min(height, Math.max(1, Math.floor(STRIP_PIXELS / width)));
  const canvas = new OffscreenCanvas(width, most);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  if (!context) throw invalidRequest("The image cannot be read: this browser has no 2D canvas in workers. Update the browser.");
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
    if (thrown instanceof DOMException) throw invalidRequest(`The image cannot be read: ${thrown.message}. Images from other sites must be served with CORS headers.`);
    throw thrown;
  }
}
