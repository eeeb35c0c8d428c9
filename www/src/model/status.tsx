/** Progress or failure of a load: full size, or as a strip above a model in use. */

import type { LoadProgress } from "jerboa";
import { canRetry } from "../errors";
import { bytes, seconds } from "../format";
import { LOAD } from "../strings";
import { refocus } from "../ui/focus";
import { Notice } from "../ui/notice";
import type { LoadRequest, ModelSlot, PendingModel } from "./model-store";

interface Props {
  slot: ModelSlot;
  pending: PendingModel;
  choose: (advanced: boolean) => void;
}

/** Moves the focus to the model's button: the used control disappears. */
const settle = (): void => refocus(".model-button");

function cancel(slot: ModelSlot): void {
  slot.cancel();
  settle();
}

function retry(slot: ModelSlot, wanted: LoadRequest): void {
  void slot.load(wanted);
  settle();
}

/** The label of a load's phase. */
function phaseOf(progress: LoadProgress | undefined): string {
  if (!progress) return LOAD.starting;
  if (progress.phase === "weights") return progress.fromCache ? LOAD.cache : LOAD.download;
  return LOAD[progress.phase];
}

/** Shown instead of a model. */
export function PendingStage({ slot, pending, choose }: Props) {
  if (pending.error) return <Failed slot={slot} pending={pending} choose={choose} />;
  return (
    <section class="loading" aria-label={LOAD.loading}>
      <h2>{pending.wanted.label}</h2>
      <Bar progress={pending.progress} />
      <p class="loading-phase">
        {phaseOf(pending.progress)}
        {pending.progress?.phase === "weights" && pending.progress.file && <span class="muted"> {pending.progress.file}</span>}
      </p>
      <p class="loading-numbers">{numbersOf(pending.progress)}</p>
      <button type="button" class="secondary" onClick={() => cancel(slot)}>
        {LOAD.cancel}
      </button>
    </section>
  );
}

/** Shown above a model in use. */
export function PendingStrip({ slot, pending, choose }: Props) {
  if (pending.error) return <Failed slot={slot} pending={pending} choose={choose} />;
  return (
    <section class="strip" aria-label={LOAD.loading}>
      <div class="row">
        <p class="grow strip-text">
          <strong>{pending.wanted.label}</strong> <span class="muted">{summaryOf(pending.progress)}</span>
        </p>
        <button type="button" class="quiet-button" onClick={() => cancel(slot)}>
          {LOAD.cancel}
        </button>
      </div>
      <Bar progress={pending.progress} />
    </section>
  );
}

/** The phase of a load and its numbers, in one line. */
export const summaryOf = (progress: LoadProgress | undefined): string => [phaseOf(progress), numbersOf(progress).trim()].filter(Boolean).join(" · ");

export function Bar({ progress }: { progress: LoadProgress | undefined }) {
  const share = Math.max(0, Math.min(1, progress?.progress ?? 0));
  return (
    <div class={progress ? "bar" : "bar bar-open"} role="progressbar" aria-label={phaseOf(progress)} aria-valuemin={0} aria-valuemax={100} aria-valuenow={Math.round(share * 100)}>
      <div style={progress && { width: `${share * 100}%` }} />
    </div>
  );
}

/** What of a load is done, its speed and the time left. */
function numbersOf(progress: LoadProgress | undefined): string {
  const nothing = "\u00a0";
  if (!progress || progress.total === 0) return nothing;
  const { phase, loaded, total, bytesPerSecond, secondsLeft, fromCache } = progress;
  if (phase === "compile") return LOAD.kernels(loaded, total);
  if (phase !== "weights") return nothing;
  const parts = [LOAD.of(bytes(loaded), bytes(total))];
  if (!fromCache && loaded < total && bytesPerSecond > 0) parts.push(`${bytes(bytesPerSecond)}/s`);
  if (!fromCache && typeof secondsLeft === "number" && Number.isFinite(secondsLeft) && loaded < total) parts.push(LOAD.left(seconds(secondsLeft)));
  return parts.join(" · ");
}

function Failed({ slot, pending, choose }: Props) {
  const { wanted, error } = pending;
  const before = slot.current.value;
  return (
    <Notice
      title={LOAD.failed(wanted.label) + (before ? ` ${LOAD.staysLoaded(before.wanted.label)}` : "")}
      {...(error ? { error } : {})}
      actions={
        <>
          {error?.code === "gated" && (
            <button type="button" class="primary" onClick={() => choose(true)}>
              {LOAD.token}
            </button>
          )}
          {canRetry(error) && (
            <button type="button" class="primary" onClick={() => retry(slot, wanted)}>
              {LOAD.again}
            </button>
          )}
          <button type="button" class={error?.code === "gated" || canRetry(error) ? "secondary" : "primary"} onClick={() => choose(false)}>
            {LOAD.other}
          </button>
          {before && (
            <button type="button" class="secondary" onClick={() => cancel(slot)}>
              {LOAD.dismiss}
            </button>
          )}
        </>
      }
    />
  );
}
