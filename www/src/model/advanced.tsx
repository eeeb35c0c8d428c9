/** Advanced load options. The token is kept in memory only. */

import { signal, type Signal } from "@preact/signals";
import { useId } from "preact/hooks";
import type { LoadRequest } from "./model-store";
import { ADVANCED } from "../strings";

const token = signal("");
const revision = signal("");
const endpoint = signal("");
const maxContext = signal("");
const weights = signal("auto");
const embeddingWeights = signal("auto");
const kv = signal("auto");

/** The longest context that `loadModel` accepts. */
const MAX_CONTEXT = 2 ** 24;

/** The options that are set. */
export function advancedOptions(): LoadRequest["options"] {
  const options: LoadRequest["options"] = {};
  if (token.value.trim()) options.token = token.value.trim();
  if (revision.value.trim()) options.revision = revision.value.trim();
  if (endpoint.value.trim()) options.endpoint = endpoint.value.trim();
  if (Number(maxContext.value) >= 1) options.maxContext = Math.min(MAX_CONTEXT, Math.floor(Number(maxContext.value)));
  if (weights.value !== "auto") options.weights = weights.value as NonNullable<LoadRequest["options"]["weights"]>;
  if (embeddingWeights.value !== "auto") options.embeddingWeights = embeddingWeights.value as NonNullable<LoadRequest["options"]["embeddingWeights"]>;
  if (kv.value !== "auto") options.kv = kv.value as NonNullable<LoadRequest["options"]["kv"]>;
  return options;
}

export function Advanced({ open }: { open: boolean }) {
  return (
    <details class="fold" open={open}>
      <summary>{ADVANCED.title}</summary>
      <div class="fields">
        <Text label={ADVANCED.token} value={token} type="password" focus={open} placeholder="hf_…" hint={ADVANCED.tokenHint} />
        <Text label={ADVANCED.revision} value={revision} placeholder="main" />
        <Text label={ADVANCED.endpoint} value={endpoint} type="url" placeholder="https://huggingface.co" />
        <Text label={ADVANCED.context} value={maxContext} type="number" placeholder={ADVANCED.contextDefault} />
        <Choice label={ADVANCED.weights} value={weights} names={["auto", "f32", "f16", "q8", "q4"]} />
        <Choice label={ADVANCED.embeddings} value={embeddingWeights} names={["auto", "f32", "f16", "q8", "q4"]} />
        <Choice label={ADVANCED.kv} value={kv} names={["auto", "f32", "f16", "packed", "int8"]} />
      </div>
    </details>
  );
}

interface TextProps {
  label: string;
  value: Signal<string>;
  type?: "text" | "password" | "url" | "number";
  placeholder?: string;
  hint?: string;
  /** Focuses the field when the sheet opens. */
  focus?: boolean;
}

function Text({ label, value, type = "text", placeholder, hint, focus }: TextProps) {
  const id = useId();
  return (
    <div class="field">
      <label for={id}>{label}</label>
      <input
        id={id}
        // The types allow different attributes per kind of field; these apply to all.
        type={type as "number"}
        min={type === "number" ? 1 : undefined}
        placeholder={placeholder}
        autofocus={focus}
        autocomplete="off"
        autocapitalize="off"
        spellcheck={false}
        aria-describedby={hint ? `${id}-hint` : undefined}
        value={value}
        onInput={(e) => (value.value = e.currentTarget.value)}
      />
      {hint && (
        <p id={`${id}-hint`} class="hint">
          {hint}
        </p>
      )}
    </div>
  );
}

function Choice({ label, value, names }: { label: string; value: Signal<string>; names: string[] }) {
  const id = useId();
  return (
    <div class="field">
      <label for={id}>{label}</label>
      <select id={id} value={value} onChange={(e) => (value.value = e.currentTarget.value)}>
        {names.map((name) => (
          <option key={name} value={name}>
            {name}
          </option>
        ))}
      </select>
    </div>
  );
}
