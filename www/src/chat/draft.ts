/** A text that another tab wants to be asked: the composer takes it as if it had been typed. */

import { signal } from "@preact/signals";

export const draft = signal("");
