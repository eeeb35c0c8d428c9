/** The adapter that the chat's answers use. */

import { signal } from "@preact/signals";
import type { Model } from "jerboa";

/** An adapter that is loaded next to a model. */
export interface ChatAdapter {
  model: Model;
  name: string;
}

export const chatAdapter = signal<ChatAdapter | undefined>(undefined);

/** The request field that chooses the adapter; none for other models. */
export function adapterOf(model: Model): { adapter?: string } {
  const chosen = chatAdapter.peek();
  return chosen?.model === model ? { adapter: chosen.name } : {};
}
