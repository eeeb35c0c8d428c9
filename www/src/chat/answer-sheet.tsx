/** The sheet of an answer's format, tools and thinking. */

import type { ModelInfo } from "jerboa";
import { useId } from "preact/hooks";
import { ANSWER, UI } from "../strings";
import { Dialog } from "../ui/dialog";
import { answers, type AnswerSettings, callsTools, DEFAULTS, isBudget, MAX_BUDGET, schemaProblem, set, switchesThinking, thinks } from "./answer-store";
import { TOOLS } from "./tools";

interface Props {
  open: boolean;
  onClose: () => void;
  /** The loaded model; undefined before. */
  info: ModelInfo | undefined;
}

export function AnswerSheet({ open, onClose, info }: Props) {
  return (
    <Dialog open={open} title={ANSWER.title} onClose={onClose} side>
      <p class="hint">{info && !info.hasChatTemplate ? ANSWER.base : ANSWER.hint}</p>
      <Format />
      <Tools info={info} />
      <Thinking info={info} />
      <ThinkingBudget info={info} />
      <button type="button" class="secondary" onClick={() => (answers.value = DEFAULTS)}>
        {UI.reset}
      </button>
    </Dialog>
  );
}

function Format() {
  const id = useId();
  const { format, schema } = answers.value;
  const problem = schemaProblem(schema);
  return (
    <>
      <div class="field">
        <label for={id}>{ANSWER.format}</label>
        <select id={id} value={format} aria-describedby={`${id}-hint`} onChange={(e) => set("format", e.currentTarget.value as AnswerSettings["format"])}>
          <option value="text">{ANSWER.formatText}</option>
          <option value="json_object">{ANSWER.formatJson}</option>
          <option value="json_schema">{ANSWER.formatSchema}</option>
        </select>
        <p id={`${id}-hint`} class="hint">
          {format === "text" ? ANSWER.text : ANSWER.json}
        </p>
      </div>
      {format === "json_schema" && (
        <div class="field">
          <label for={`${id}-schema`}>{ANSWER.schema}</label>
          <textarea
            id={`${id}-schema`}
            class="code"
            rows={10}
            spellcheck={false}
            value={schema}
            aria-invalid={problem ? "true" : undefined}
            aria-describedby={problem ? `${id}-problem` : undefined}
            onInput={(e) => set("schema", e.currentTarget.value)}
          />
          {problem && (
            <p id={`${id}-problem`} class="problem" role="alert">
              {problem}
            </p>
          )}
        </div>
      )}
    </>
  );
}

function Tools({ info }: { info: ModelInfo | undefined }) {
  const id = useId();
  const { tools, format } = answers.value;
  const known = info ? callsTools(info) : true;
  return (
    <div class="field">
      <label class="check">
        <input type="checkbox" checked={tools} disabled={!known || format !== "text"} aria-describedby={id} onChange={(e) => set("tools", e.currentTarget.checked)} />
        <span>{ANSWER.tools}</span>
      </label>
      <p id={id} class="hint">
        {known ? (format === "text" ? TOOLS.map((tool) => tool.function.name).join(", ") : ANSWER.toolsText) : ANSWER.toolsUnknown(info!.model)}
      </p>
    </div>
  );
}

function Thinking({ info }: { info: ModelInfo | undefined }) {
  const id = useId();
  const known = info ? switchesThinking(info) : true;
  return (
    <div class="field">
      <label for={id}>{ANSWER.thinkingLabel}</label>
      <select id={id} value={answers.value.thinking} disabled={!known} aria-describedby={`${id}-hint`} onChange={(e) => set("thinking", e.currentTarget.value as AnswerSettings["thinking"])}>
        <option value="default">{ANSWER.thinkingDefault}</option>
        <option value="on">{ANSWER.thinkingOn}</option>
        <option value="off">{ANSWER.thinkingOff}</option>
      </select>
      <p id={`${id}-hint`} class="hint">
        {known ? ANSWER.thinking : ANSWER.thinkingUnknown(info!.model)}
      </p>
    </div>
  );
}

function ThinkingBudget({ info }: { info: ModelInfo | undefined }) {
  const id = useId();
  const change = (input: HTMLInputElement): void => {
    const value = Math.min(MAX_BUDGET, Math.round(Number(input.value)));
    set("budget", input.value.trim() !== "" && isBudget(value) ? value : undefined);
    input.value = String(answers.peek().budget ?? "");
  };
  return (
    <div class="field">
      <label for={id}>{ANSWER.budget}</label>
      <input
        id={id}
        type="number"
        inputmode="numeric"
        min={1}
        max={MAX_BUDGET}
        step={1}
        placeholder={ANSWER.budgetNone}
        value={answers.value.budget ?? ""}
        disabled={info !== undefined && !thinks(info)}
        aria-describedby={`${id}-hint`}
        onChange={(e) => change(e.currentTarget)}
      />
      <p id={`${id}-hint`} class="hint">
        {ANSWER.budgetHint}
      </p>
    </div>
  );
}
