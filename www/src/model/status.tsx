/** A load as it goes, or why it failed. */

import type { LoadProgress } from "jerboa";
import { bytes, rate, seconds } from "../format";
import { Notice } from "../ui/notice";
import type { ModelSlot, SlotState } from "./slot";

const PHASES: Record<LoadProgress["phase"], string> = {
  config: "Reading the configuration",
  tokenizer: "Reading the tokenizer",
  weights: "Downloading",
  compile: "Preparing the GPU",
  ready: "Ready",
};

export function Loading({ slot, state }: { slot: ModelSlot; state: Extract<SlotState, { kind: "loading" }> }) {
  const { progress, wanted } = state;
  const known = progress && progress.total > 0;
  const share = known ? Math.min(1, progress.loaded / progress.total) : undefined;
  const phase = !progress ? "Starting" : progress.phase === "weights" && progress.fromCache ? "Reading from this device" : PHASES[progress.phase];
  return (
    <section class="loading" aria-label="Loading">
      <h1>{wanted.label}</h1>
      <div
        class={share === undefined ? "bar bar-open" : "bar"}
        role="progressbar"
        aria-label={phase}
        aria-valuemin={0}
        aria-valuemax={100}
        aria-valuenow={share === undefined ? undefined : Math.round(share * 100)}
      >
        <div style={share === undefined ? undefined : { width: `${share * 100}%` }} />
      </div>
      <p class="loading-phase">
        {phase}
        {progress?.file && <span class="muted"> {progress.file}</span>}
      </p>
      <p class="loading-numbers">{progress ? numbers(progress) : "\u00a0"}</p>
      <button type="button" class="secondary" onClick={() => slot.cancel()}>
        Cancel
      </button>
    </section>
  );
}

function numbers({ phase, loaded, total, bytesPerSecond, secondsLeft, fromCache }: LoadProgress): string {
  if (phase !== "weights" || total === 0) return "\u00a0";
  const parts = [`${bytes(loaded)} of ${bytes(total)}`];
  if (!fromCache && bytesPerSecond > 0) parts.push(`${rate(bytesPerSecond / 1e6)} MB/s`);
  if (!fromCache && secondsLeft !== undefined && secondsLeft !== null && Number.isFinite(secondsLeft) && loaded < total) parts.push(`${seconds(secondsLeft)} left`);
  return parts.join(" · ");
}

interface FailedProps {
  slot: ModelSlot;
  state: Extract<SlotState, { kind: "failed" }>;
  choose: (advanced: boolean) => void;
}

export function Failed({ slot, state, choose }: FailedProps) {
  const { wanted, error } = state;
  return (
    <Notice
      title={`${wanted.label} could not be loaded.`}
      actions={
        <>
          {error.code === "gated" ? (
            <button type="button" class="primary" onClick={() => choose(true)}>
              Enter a token
            </button>
          ) : (
            <button type="button" class="primary" onClick={() => void slot.load(wanted)}>
              Try again
            </button>
          )}
          <button type="button" class="secondary" onClick={() => choose(false)}>
            Choose another model
          </button>
        </>
      }
    >
      {error.message}
    </Notice>
  );
}
