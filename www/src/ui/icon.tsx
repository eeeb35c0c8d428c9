/** Icons as strokes on a 24-unit square, in the text color. Decorative: buttons carry the labels. */

const PATHS = {
  send: "M12 19V5M5.5 11.5 12 5l6.5 6.5",
  stop: "M7 7h10v10H7z",
  copy: "M9 9h10v10H9zM15 9V5H5v10h4",
  check: "m5 12.5 4.5 4.5L19 7.5",
  again: "M19 12a7 7 0 1 1-2.1-5M19 4v4h-4",
  plus: "M12 5v14M5 12h14",
  sliders: "M4 8h9M17 8h3M4 16h3M11 16h9M13 5.5v5M7 13.5v5",
  chip: "M7 7h10v10H7zM10 3.5V7M14 3.5V7M10 17v3.5M14 17v3.5M3.5 10H7M3.5 14H7M17 10h3.5M17 14h3.5",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8M12 3v1.5M12 19.5V21M3 12h1.5M19.5 12H21M5.6 5.6l1.1 1.1M17.3 17.3l1.1 1.1M5.6 18.4l1.1-1.1M17.3 6.7l1.1-1.1",
  moon: "M19.5 14.5A8 8 0 0 1 9.5 4.5a8 8 0 1 0 10 10",
  system: "M4 5h16v11H4zM9 20h6M12 16v4",
  close: "M6 6l12 12M18 6 6 18",
  down: "m6 9.5 6 6 6-6",
  download: "M12 4v10M7.5 10l4.5 4.5 4.5-4.5M5 19h14",
  share: "M12 15V4M8 7.5l4-4 4 4M6 11v9h12v-9",
  left: "m14.5 6-6 6 6 6",
  right: "m9.5 6 6 6-6 6",
  more: "M5 12h9M11 8.5l3.5 3.5L11 15.5M18.5 6v12",
  branch: "M7 5v14M7 12c6 0 8-2 8-7M12 8l3-3 3 3",
  pencil: "M5 19l1-4L15.5 5.5l3 3L9 18zM13.5 7.5l3 3",
  list: "M5 7h14M5 12h14M5 17h9",
  trash: "M5 7h14M10 7V5h4v2M7 7l1 12h8l1-12",
  braces: "M9 5c-3 0-3 2-3 4s0 3-2 3c2 0 2 1 2 3s0 4 3 4M15 5c3 0 3 2 3 4s0 3 2 3c-2 0-2 1-2 3s0 4-3 4",
  clip: "M8 12.5 14.5 6a3 3 0 0 1 4.5 4.2l-8 8a4.5 4.5 0 0 1-6.5-6.3L12 4.5M8 12.5a1.6 1.6 0 0 0 2.3 2.2L16 9",
  mic: "M12 4a3 3 0 0 0-3 3v5a3 3 0 0 0 6 0V7a3 3 0 0 0-3-3M6 11.5a6 6 0 0 0 12 0M12 17.5V20M9 20h6",
  speaker: "M5 10v4h3l4 4V6L8 10zM15.5 9.5a3.5 3.5 0 0 1 0 5M18 7a7 7 0 0 1 0 10",
  file: "M6 4h8l4 4v12H6zM14 4v4h4",
  folder: "M4 6h6l2 2.5h8V18H4z",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name }: { name: IconName }) {
  return (
    <svg class={`icon icon-${name}`} viewBox="0 0 24 24" aria-hidden="true">
      <path d={PATHS[name]} />
    </svg>
  );
}
