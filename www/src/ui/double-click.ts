/** A button that starts and the one that stops often have the same place. */

import { useRef } from "preact/hooks";

/** Maximum milliseconds between the clicks of a double click. */
const DOUBLE_CLICK_MS = 500;

/** Ignores the second click of a double click: `started` notes the first one, `guard` wraps the action of the button that replaces it. */
export function useDoubleClickGuard(): { started: () => void; guard: (act: () => void) => () => void } {
  const at = useRef(-Infinity);
  return {
    started: () => (at.current = performance.now()),
    guard: (act) => () => {
      if (performance.now() - at.current > DOUBLE_CLICK_MS) act();
    },
  };
}
