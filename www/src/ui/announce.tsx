/** Sentences for screen readers that are not to be seen. */

import { signal } from "@preact/signals";

const text = signal("");

/** Says a sentence. */
export function announce(sentence: string): void {
  // The same sentence twice is news too: readers speak up only when the text changes.
  text.value = text.value === sentence ? `${sentence}\u00a0` : sentence;
}

export function Announcer() {
  return (
    <p class="unseen" role="status" aria-live="polite">
      {text}
    </p>
  );
}
