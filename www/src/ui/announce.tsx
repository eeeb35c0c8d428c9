/** Messages for screen readers only. */

import { signal } from "@preact/signals";

const text = signal("");

/** Announces a sentence. */
export function announce(sentence: string): void {
  // A repeated sentence must change its text, or screen readers skip it.
  text.value = text.value === sentence ? `${sentence}\u00a0` : sentence;
}

export function Announcer() {
  return (
    <p class="unseen" role="status" aria-live="polite">
      {text}
    </p>
  );
}
