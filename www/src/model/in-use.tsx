/** The loaded model in the picker: unload it, or use it in code. */

import { useSignal } from "@preact/signals";
import { bytes } from "../format";
import { IN_USE } from "../strings";
import { CopyButton } from "../ui/copy";
import type { ModelSlot } from "./model-store";
import { snippet } from "./snippet";

export function InUse({ slot, onClose }: { slot: ModelSlot; onClose: () => void }) {
  const shown = useSignal(false);
  const ready = slot.current.value;
  if (!ready) return null;
  const { info } = ready.model;
  const memory = Object.values(info.bytes ?? {}).reduce((sum: number, size) => sum + (typeof size === "number" ? size : 0), 0);
  const code = typeof ready.wanted.source === "string" ? snippet(ready.wanted.source, info, { codec: slot.more().codec, ...ready.wanted.options }) : undefined;
  return (
    <section class="group in-use" aria-label={IN_USE.label}>
      <div class="row row-wrap">
        <span class="grow">
          <strong class="in-use-name">{ready.wanted.label}</strong>
          <span class="hint"> {IN_USE.memory(bytes(memory))}</span>
        </span>
        {code && (
          <button type="button" class="secondary" aria-expanded={shown.value} onClick={() => (shown.value = !shown.value)}>
            {IN_USE.code}
          </button>
        )}
        <button
          type="button"
          class="secondary"
          onClick={() => {
            onClose();
            void slot.eject();
          }}
        >
          {IN_USE.eject}
        </button>
      </div>
      {shown.value && code && (
        <div class="code-block">
          <div class="code-head">
            <span>JavaScript</span>
            <CopyButton small label={IN_USE.copy} text={() => code} />
          </div>
          <pre tabIndex={0}>
            <code>{code}</code>
          </pre>
        </div>
      )}
    </section>
  );
}
