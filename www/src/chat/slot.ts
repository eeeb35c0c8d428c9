/** The chat model, which the Train tab trains. */

import { ModelSlot } from "../model/model-store";

export const chatSlot = new ModelSlot("chat");
