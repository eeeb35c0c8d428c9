/** The settings sheet. */

import { useId } from "preact/hooks";
import { Dialog } from "../ui/dialog";
import { CHAT, SETTINGS, UI } from "../strings";
import type { Conversation } from "./conversation";
import { clamped, DEFAULTS, type NumericSetting, RANGES, set, settings, type Settings } from "./settings-store";

interface Props {
  open: boolean;
  onClose: () => void;
  completion: boolean;
  conversation: Conversation;
}

export function SettingsSheet({ open, onClose, completion, conversation }: Props) {
  return (
    <Dialog open={open} title={SETTINGS.title} onClose={onClose} side>
      <p class="hint">{CHAT.contextHint}</p>
      {!completion && (
        <>
          <System label={SETTINGS.system} value={settings.value.system} onChange={(text) => set("system", text)} />
          <System label={SETTINGS.ownSystem} hint={SETTINGS.ownSystemHint} value={conversation.system.value} onChange={(text) => conversation.setSystem(text)} />
        </>
      )}
      <div class="fields fields-two">
        <Numeric name="temperature" label={SETTINGS.temperature} hint={SETTINGS.temperatureHint} />
        <Numeric name="maxTokens" label={SETTINGS.maxTokens} hint={SETTINGS.maxTokensHint} />
        <Numeric name="topP" label="Top-p" hint={SETTINGS.topPHint} />
        <Numeric name="topK" label="Top-k" hint={SETTINGS.topKHint} />
        <Numeric name="minP" label="Min-p" hint={SETTINGS.minPHint} />
        <Numeric name="seed" label={SETTINGS.seed} hint={SETTINGS.seedHint} />
      </div>
      <Overflow completion={completion} />
      <button type="button" class="secondary" onClick={() => (settings.value = DEFAULTS)}>
        {UI.reset}
      </button>
    </Dialog>
  );
}

interface SystemProps {
  label: string;
  hint?: string;
  value: string;
  onChange: (text: string) => void;
}

function System({ label, hint, value, onChange }: SystemProps) {
  const id = useId();
  return (
    <div class="field">
      <label for={id}>{label}</label>
      <textarea id={id} rows={3} dir="auto" value={value} aria-describedby={hint && `${id}-hint`} onInput={(e) => onChange(e.currentTarget.value)} />
      {hint && (
        <p id={`${id}-hint`} class="hint">
          {hint}
        </p>
      )}
    </div>
  );
}

interface NumericProps {
  name: NumericSetting;
  label: string;
  hint: string;
}

function Numeric({ name, label, hint }: NumericProps) {
  const { min, max, step } = RANGES[name];
  const id = useId();
  const change = (input: HTMLInputElement): void => {
    // Values out of range are clamped on blur, so that no request is refused.
    set(name, String(clamped(name, input.value) ?? ""));
    input.value = settings.peek()[name];
  };
  return (
    <div class="field">
      <label for={id}>{label}</label>
      <input
        id={id}
        type="number"
        inputmode={step === 1 ? "numeric" : "decimal"}
        min={min}
        max={max}
        step={step}
        placeholder={name === "seed" ? SETTINGS.random : SETTINGS.default}
        aria-describedby={`${id}-hint`}
        value={settings.value[name]}
        onChange={(e) => change(e.currentTarget)}
      />
      <p id={`${id}-hint`} class="hint">
        {hint}
      </p>
    </div>
  );
}

function Overflow({ completion }: { completion: boolean }) {
  const id = useId();
  return (
    <div class="field">
      <label for={id}>{SETTINGS.overflow}</label>
      <select id={id} value={settings.value.overflow} onChange={(e) => set("overflow", e.currentTarget.value as Settings["overflow"])}>
        {!completion && <option value="truncate">{SETTINGS.dropTurns}</option>}
        <option value={completion && settings.value.overflow === "truncate" ? "truncate" : "rolling"}>{SETTINGS.dropText}</option>
        <option value="error">{SETTINGS.stopWithMessage}</option>
      </select>
    </div>
  );
}
