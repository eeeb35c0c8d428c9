/** The chat model, which the Train tab trains. */

import { ModelSlot, type ReadyModel } from "../model/model-store";

/** Whether a model generates text. */
export const generatesText = ({ model, reads }: ReadyModel): boolean => reads && model.info.task === "generate";

export const chatSlot = new ModelSlot("chat", generatesText);
