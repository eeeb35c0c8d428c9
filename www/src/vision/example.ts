/** An example image that the page draws: a house, a tree and the sun. */

import { VISION } from "../strings";

const SHAPES: readonly [colour: string, path: string][] = [
  ["#bfe3f7", "M0 0H480V320H0Z"],
  ["#8fbf6a", "M0 220H480V320H0Z"],
  ["#f6c445", "M400 70a38 38 0 1 0 .1 0Z"],
  ["#c96f4a", "M90 150H250V260H90Z"],
  ["#7d3b2a", "M75 150 170 80 265 150Z"],
  ["#fdf3d8", "M115 175H155V210H115ZM190 190H225V260H190Z"],
  ["#6b4a2f", "M338 190H354V260H338Z"],
  ["#3f7d46", "M346 90a52 58 0 1 0 .1 0Z"],
];

export async function example(): Promise<File> {
  const canvas = new OffscreenCanvas(480, 320);
  const context = canvas.getContext("2d");
  for (const [colour, path] of SHAPES) {
    if (!context) break;
    context.fillStyle = colour;
    context.fill(new Path2D(path));
  }
  return new File([await canvas.convertToBlob({ type: "image/png" })], VISION.exampleName, { type: "image/png" });
}
