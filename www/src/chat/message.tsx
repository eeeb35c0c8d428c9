/** One turn of the conversation. */

import { useComputed } from "@preact/signals";
import { count, milliseconds, rate } from "../format";
import { CopyButton } from "../ui/copy";
import { Icon } from "../ui/icon";
import { Notice } from "../ui/notice";
import type { Stats, Turn } from "./conversation";
import { markdown, splitThinking } from "./markdown";

interface Props {
  turn: Turn;
  /** The text that the turn continues, for models that do not chat: it is shown as it is, the given part first. */
  given?: Turn | undefined;
  /** Set on the last answer. */
  onAgain?: (() => void) | undefined;
}

export function Message({ turn, given, onAgain }: Props) {
  if (turn.role === "user") {
    return (
      <div class="turn user">
        <span class="unseen">You: </span>
        <p>{turn.text}</p>
      </div>
    );
  }
  const running = turn.running.value;
  const { stats, error } = turn;
  return (
    <article class="turn" aria-label={given ? "Continued text" : "Answer"} data-state={running ? "running" : "done"}>
      {given ? (
        <p class="continued">
          <span class="given">{given.text}</span>
          <span class="generated">{turn.text}</span>
        </p>
      ) : (
        <Answer turn={turn} />
      )}
      {running && !turn.text.value && <span class="waiting" role="img" aria-label="The model is reading" />}
      {error.value && <Notice>{error.value.message}</Notice>}
      {!running && (
        <footer class="turn-foot">
          {turn.text.value && <CopyButton small label="Copy this answer" text={() => (given?.text.value ?? "") + turn.text.value} />}
          {onAgain && (
            <button type="button" class="quiet-button" onClick={onAgain}>
              <Icon name="again" />
              <span>Regenerate</span>
            </button>
          )}
          {stats.value && <Numbers stats={stats.value} />}
        </footer>
      )}
    </article>
  );
}

function Answer({ turn }: { turn: Turn }) {
  const parts = useComputed(() => {
    const { thinking, answer, open } = splitThinking(turn.text.value);
    return { thinking: thinking.trim() ? markdown(thinking) : "", open, answer: markdown(answer) };
  });
  const { thinking, answer, open } = parts.value;
  return (
    <>
      {thinking && (
        <details class="thinking">
          <summary>{open && turn.running.value ? "Thinking…" : "Thoughts"}</summary>
          <div class="prose" dangerouslySetInnerHTML={{ __html: thinking }} />
        </details>
      )}
      <div class="prose" dangerouslySetInnerHTML={{ __html: answer }} />
    </>
  );
}

const REASONS: Partial<Record<Stats["reason"], string>> = { abort: "stopped", length: "reached the limit" };

function Numbers({ stats }: { stats: Stats }) {
  const { tokens, tokensPerSecond, firstTokenMs, promptTokens, cachedTokens, reason } = stats;
  const parts = [count(tokens, "token")];
  if (tokensPerSecond !== undefined) parts.push(`${rate(tokensPerSecond)} tokens/s`);
  if (firstTokenMs > 0) parts.push(`first after ${milliseconds(firstTokenMs)}`);
  if (promptTokens > 0) parts.push(`prompt ${promptTokens.toLocaleString("en")}${cachedTokens > 0 ? `, ${cachedTokens.toLocaleString("en")} cached` : ""}`);
  if (REASONS[reason]) parts.push(REASONS[reason]);
  return <span class="numbers">{parts.join(" · ")}</span>;
}
