/** One turn of the conversation. */

import { type ReadonlySignal, useComputed, useSignal, useSignalEffect } from "@preact/signals";
import type { TargetedKeyboardEvent, TargetedMouseEvent } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { milliseconds, rate } from "../format";
import { CopyButton, copyText } from "../ui/copy";
import { Icon } from "../ui/icon";
import { canRead, readAloud, reading, stopReading } from "../speech/read-aloud";
import { ANSWERS, COMPOSER, LOAD, MESSAGE } from "../strings";
import { refocus } from "../ui/focus";
import { Notice } from "../ui/notice";
import { FileChip } from "./attachments";
import { asCode, prose } from "./prose";
import { splitThinking } from "./thinking";
import type { Stats, Turn } from "./thread";
import { locale } from "../language";

interface Props {
  turn: Turn;
  /** The text that the turn continues, for base models; shown verbatim before it. */
  given?: Turn | undefined;
  /** Set on the last answer. */
  onAgain?: (() => void) | undefined;
  /** Set on the last answer if it was cut off. */
  onMore?: (() => void) | undefined;
  /** Edits the message or the answer. */
  onEdit?: ((text: string) => void) | undefined;
  /** Branches here into a new conversation. */
  onBranch?: (() => void) | undefined;
  /** All answers to the same question. */
  answers?: readonly Turn[] | undefined;
  /** Shows another one of them. */
  onShow?: ((turn: Turn) => void) | undefined;
}

export function Message({ turn, given, onAgain, onMore, onEdit, onBranch, answers = [], onShow }: Props) {
  if (turn.role === "user") return <Question turn={turn} onEdit={onEdit} />;
  const running = turn.running.value;
  const begun = useComputed(() => turn.text.value !== "");
  const editing = useSignal(false);
  if (editing.value && !running) {
    return <Editor text={splitThinking(turn.text.peek()).answer.trim()} label={MESSAGE.answer} action={MESSAGE.save} done={onEdit} close={() => (editing.value = false)} opener={openerOf(turn)} />;
  }
  const { stats, error } = turn;
  return (
    <article class="turn" id={elementOf(turn)} aria-label={given ? MESSAGE.continued : MESSAGE.answer} data-state={running ? "running" : "done"}>
      {given ? (
        <p class="continued" dir="auto">
          <span class="given">{given.text}</span>
          <span class="generated">{turn.text}</span>
        </p>
      ) : (
        <Answer turn={turn} />
      )}
      {running && !begun.value && <span class="waiting" role="img" aria-label={MESSAGE.waiting} />}
      {error.value && <Notice error={error.value} />}
      {!running && (
        <footer class="turn-foot">
          {answers.length > 1 && <Pager turn={turn} answers={answers} onShow={onShow} />}
          {begun.value && <CopyButton small label={MESSAGE.copy} text={() => (given?.text.value ?? "") + turn.text.value} />}
          {begun.value && !given && onEdit && (
            <button type="button" class="quiet-button edit-turn" aria-label={MESSAGE.editAnswer} title={MESSAGE.editAnswer} onClick={() => (editing.value = true)}>
              <Icon name="pencil" />
            </button>
          )}
          {begun.value && !given && canRead.value && <ReadButton turn={turn} />}
          {onAgain && (
            <button type="button" class="quiet-button" onClick={onAgain}>
              <Icon name="again" />
              <span>{MESSAGE.again}</span>
            </button>
          )}
          {onMore && (turn.cut.value || stats.value?.reason === "length" || stats.value?.reason === "abort") && (
            <button type="button" class="quiet-button" onClick={onMore}>
              <Icon name="more" />
              <span>{COMPOSER.continue}</span>
            </button>
          )}
          {onBranch && (
            <button type="button" class="quiet-button" onClick={onBranch}>
              <Icon name="branch" />
              <span>{MESSAGE.branch}</span>
            </button>
          )}
          {turn.cut.value && <span class="cut">{ANSWERS.cut}</span>}
          {stats.value && <Numbers stats={stats.value} />}
        </footer>
      )}
    </article>
  );
}

/** Reads the answer aloud, or stops. */
function ReadButton({ turn }: { turn: Turn }) {
  const on = reading.value === turn.id;
  const label = on ? ANSWERS.stopReading : ANSWERS.read;
  return (
    <button type="button" class="quiet-button" aria-label={label} title={label} aria-pressed={on} onClick={() => (on ? stopReading() : void readAloud(turn.id, splitThinking(turn.text.peek()).answer))}>
      <Icon name={on ? "stop" : "speaker"} />
    </button>
  );
}

/** Switches between the answers to one question. */
function Pager({ turn, answers, onShow }: { turn: Turn; answers: readonly Turn[]; onShow: Props["onShow"] }) {
  const at = answers.indexOf(turn);
  const button = (to: number, label: string, icon: "left" | "right") => (
    <button type="button" class="quiet-button" aria-label={label} title={label} disabled={!onShow || !answers[to]} onClick={() => onShow?.(answers[to]!)}>
      <Icon name={icon} />
    </button>
  );
  return (
    <span class="pager" role="group" aria-label={ANSWERS.several}>
      {button(at - 1, ANSWERS.previous, "left")}
      <span aria-label={ANSWERS.position(at + 1, answers.length)}>{`${at + 1}/${answers.length}`}</span>
      {button(at + 1, ANSWERS.next, "right")}
    </span>
  );
}

interface EditorProps {
  text: string;
  /** The name of the field. */
  label: string;
  /** The name of the button that ends the edit. */
  action: string;
  /** Whether Enter ends the edit; else it starts a new line. */
  isShort?: boolean;
  /** Receives a text that has changed; undefined while the conversation cannot change. */
  done: Props["onEdit"];
  close: () => void;
  /** Selector of the button that opened the editor. */
  opener: string;
}

/** Id of a turn's element. */
const elementOf = (turn: Turn): string => `turn-${turn.id}`;

/** Selector of the button that edits a turn. */
const openerOf = (turn: Turn): string => `#${elementOf(turn)} .edit-turn`;

/** Edits a message or an answer where it stands. */
function Editor({ text, label, action, isShort = false, done, close, opener }: EditorProps) {
  const field = useRef<HTMLTextAreaElement>(null);
  useEffect(() => {
    if (!field.current) return;
    field.current.style.height = `${field.current.scrollHeight}px`;
    field.current.focus();
  }, []);
  const cancel = (): void => {
    close();
    refocus(opener);
  };
  const end = (): void => {
    const now = field.current?.value.trim();
    if (!done) return;
    if (!now || now === text) return cancel();
    close();
    done(now);
  };
  const key = (event: TargetedKeyboardEvent<HTMLTextAreaElement>): void => {
    if (event.key === "Escape" && !event.isComposing) cancel();
    const ends = isShort ? !event.shiftKey : event.ctrlKey || event.metaKey;
    if (event.key !== "Enter" || !ends || event.isComposing) return;
    event.preventDefault();
    end();
  };
  return (
    <div class="turn user-edit">
      <textarea ref={field} rows={2} dir="auto" aria-label={label} defaultValue={text} onKeyDown={key} />
      <div class="row">
        <button type="button" class="primary" disabled={!done} onClick={end}>
          {action}
        </button>
        <button type="button" class="secondary" onClick={cancel}>
          {LOAD.cancel}
        </button>
      </div>
    </div>
  );
}

function Question({ turn, onEdit }: { turn: Turn; onEdit: Props["onEdit"] }) {
  const editing = useSignal(false);
  if (editing.value) return <Editor text={turn.text.peek()} label={MESSAGE.own} action={MESSAGE.sendAgain} isShort done={onEdit} close={() => (editing.value = false)} opener={openerOf(turn)} />;
  return (
    <div class="turn user" id={elementOf(turn)}>
      <span class="unseen">{`${MESSAGE.you}: `}</span>
      {turn.files.length > 0 && (
        <ul class="chips" aria-label={COMPOSER.attachments}>
          {turn.files.map((file, i) => (
            <li key={i}>
              <FileChip name={file.name} url={file.url.value} />
            </li>
          ))}
        </ul>
      )}
      <p dir="auto">{turn.text}</p>
      {turn.context.value && (
        <details class="passages">
          <summary>{COMPOSER.passages}</summary>
          <p dir="auto">{turn.context}</p>
        </details>
      )}
      {onEdit && (
        <button type="button" class="user-tool edit-turn" aria-label={MESSAGE.edit} title={MESSAGE.edit} onClick={() => (editing.value = true)}>
          <Icon name="pencil" />
        </button>
      )}
    </div>
  );
}

/** Minimum milliseconds between two renders of a growing text. */
const MIN_RENDER_INTERVAL_MS = 40;
/** The same as a multiple of one render's time. */
const RENDER_TIME_FACTOR = 4;

/** Renders a growing text at a limited rate: each piece of a long answer costs as much as the whole text. */
function useThrottled<T>(turn: Turn, make: (text: string) => T): ReadonlySignal<T> {
  const shown = useSignal(turn.text.peek());
  const state = useRef({ timer: 0, took: 0 });
  useSignalEffect(() => {
    void turn.text.value;
    const { timer, took } = state.current;
    if (!turn.running.value || timer) return;
    state.current.timer = setTimeout(() => {
      state.current.timer = 0;
      shown.value = turn.text.peek();
    }, Math.max(MIN_RENDER_INTERVAL_MS, took * RENDER_TIME_FACTOR));
  });
  useEffect(() => () => clearTimeout(state.current.timer), []);
  return useComputed(() => {
    const began = performance.now();
    // A complete answer is shown whole with the state that says so.
    const made = make(turn.running.value ? shown.value : turn.text.value);
    state.current.took = performance.now() - began;
    return made;
  });
}

function Answer({ turn }: { turn: Turn }) {
  const parts = useThrottled(turn, (text) => {
    const { thinking, answer, open } = splitThinking(text);
    return { thinking: thinking.trim() ? prose(thinking) : "", open, answer: prose(asCode(answer)) };
  });
  const { thinking, answer, open } = parts.value;
  return (
    <>
      {thinking && (
        <details class="thinking">
          <summary>{open && turn.running.value ? MESSAGE.thinking : MESSAGE.thoughts}</summary>
          <div class="prose" dir="auto" dangerouslySetInnerHTML={{ __html: thinking }} />
        </details>
      )}
      {turn.steps.value.map((step) => (
        <details key={step.id} class="tool-step">
          <summary>
            {MESSAGE.called} <code>{step.name}</code>
          </summary>
          <dl class="table">
            <div>
              <dt>{MESSAGE.arguments}</dt>
              <dd>
                <code>{step.given}</code>
              </dd>
            </div>
            <div>
              <dt>{MESSAGE.result}</dt>
              <dd>{step.result}</dd>
            </div>
          </dl>
        </details>
      ))}
      <div class="prose" dir="auto" onClick={copyCode} dangerouslySetInnerHTML={{ __html: answer }} />
    </>
  );
}

/** Copies the code of the block whose button was used. */
async function copyCode({ target }: TargetedMouseEvent<HTMLElement>): Promise<void> {
  const button = (target as Element).closest<HTMLElement>(".code-head button");
  const code = button?.closest(".code-block")?.querySelector("code")?.textContent;
  if (!button || !code || !(await copyText(code.replace(/\n$/, "")))) return;
  button.textContent = ANSWERS.copied;
  setTimeout(() => (button.textContent = ANSWERS.copyCode), 1500);
}

const reasonOf = (reason: Stats["reason"]): string => (reason === "abort" ? MESSAGE.stopped : reason === "length" ? MESSAGE.limit : "");

/** Shows decode throughput; the other statistics on demand. */
function Numbers({ stats }: { stats: Stats }) {
  const { tokens, thoughtTokens, tokensPerSecond, firstTokenMs, promptTokens, cachedTokens, reason } = stats;
  const first = tokensPerSecond === undefined ? MESSAGE.tokens(tokens) : MESSAGE.rate(rate(tokensPerSecond));
  const parts = tokensPerSecond === undefined ? [] : [MESSAGE.tokens(tokens)];
  if (thoughtTokens > 0) parts.push(MESSAGE.ofThinking(thoughtTokens.toLocaleString(locale())));
  if (firstTokenMs > 0) parts.push(MESSAGE.firstAfter(milliseconds(firstTokenMs)));
  if (promptTokens > 0) parts.push(MESSAGE.prompt(promptTokens.toLocaleString(locale()), cachedTokens > 0 ? cachedTokens.toLocaleString(locale()) : ""));
  return (
    <details class="numbers">
      <summary>{[first, reasonOf(reason)].filter(Boolean).join(" · ")}</summary>
      <span>{parts.join(" · ")}</span>
    </details>
  );
}
