/** The share of the model's context that the conversation uses. */

import { useSignal, useSignalEffect } from "@preact/signals";
import type { Model } from "jerboa";
import { ANSWERS } from "../strings";
import type { Conversation } from "./conversation";
import { locale } from "../language";

/** Share from which the meter warns. */
const NEARLY_FULL = 0.85;
/** Circumference of the ring. */
const RING = 2 * Math.PI * 8;

export function ContextMeter({ conversation, model }: { conversation: Conversation; model: Model }) {
  const used = useSignal(0);
  useSignalEffect(() => {
    const turns = conversation.turns.value;
    void conversation.system.value;
    if (conversation.busy.value) return;
    if (turns.length === 0) return void (used.value = 0);
    // Answers can be edited.
    turns.forEach(({ text }) => void text.value);
    let current = true;
    count(model, conversation).then(
      (tokens) => current && (used.value = tokens),
      () => current && (used.value = 0),
    );
    return () => void (current = false);
  });
  const limit = model.info.contextLength;
  if (used.value === 0 || !limit) return null;
  const share = Math.min(1, used.value / limit);
  const text = ANSWERS.contextUsed(used.value.toLocaleString(locale()), limit.toLocaleString(locale()));
  return (
    <span class={share > NEARLY_FULL ? "context context-full" : "context"} role="meter" aria-label={ANSWERS.context} aria-valuemin={0} aria-valuemax={limit} aria-valuenow={Math.min(used.value, limit)} aria-valuetext={text} title={text}>
      <svg viewBox="0 0 20 20" aria-hidden="true">
        <circle cx="10" cy="10" r="8" />
        <circle cx="10" cy="10" r="8" stroke-dasharray={`${share * RING} ${RING}`} />
      </svg>
      {`${Math.round(share * 100)}%`}
    </span>
  );
}

/** The tokens of the conversation as the model gets them. */
function count(model: Model, conversation: Conversation): Promise<number> {
  if (model.info.hasChatTemplate) return model.countTokens(conversation.messages());
  return model.countTokens(conversation.turns.peek().slice(-2).map(({ text }) => text.peek()).join(""));
}
