/** A button that starts and the one that stops often have the same place. */

import { useRef } from "preact/hooks";

/** Maximum milliseconds between the clicks of a double click. */
const DOUBLE_CLICK_MS = 500;

/** Ignores the second click of a double click: `started` notes the first one, `guard` wraps the action of the button that replaces it. */
export function useDoubleClickGuard(): { started: () => void; guard: (act: () => void) => (event: Event) => void } {
  const at = useRef(-Infinity);
  return {
    started: () => (at.current = performance.now()),
    // An event's time is that of the input, however late a busy page handles it.
    guard: (act) => (event) => {
      if (event.timeStamp - at.current > DOUBLE_CLICK_MS) act();
    },
  };
}
