/** The losses of a run by step: each step's as a thin line, those of the evaluations as points. */

import type { TrainProgress } from "jerboa/train";
import { TRAIN } from "../strings";

const WIDTH = 640;
const HEIGHT = 260;
const EDGE = { left: 44, right: 14, top: 14, bottom: 30 };

interface Point {
  step: number;
  loss: number;
}

export function Curve({ progress, steps }: { progress: readonly TrainProgress[]; steps: number }) {
  const trained = progress.flatMap(({ step, loss }): Point[] => (loss === undefined ? [] : [{ step, loss }]));
  const held = progress.flatMap(({ step, evaluationLoss: loss }): Point[] => (loss === undefined ? [] : [{ step, loss }]));
  const top = Math.max(0.1, ...trained.map(({ loss }) => loss), ...held.map(({ loss }) => loss)) * 1.05;
  const x = (step: number): number => EDGE.left + (step / Math.max(1, steps)) * (WIDTH - EDGE.left - EDGE.right);
  const y = (loss: number): number => HEIGHT - EDGE.bottom - (loss / top) * (HEIGHT - EDGE.top - EDGE.bottom);
  const path = (points: Point[]): string => points.map(({ step, loss }, i) => `${i ? "L" : "M"}${x(step).toFixed(1)} ${y(loss).toFixed(1)}`).join("");
  const marks = [0, top / 2, top];
  const [first, last] = [held[0] ?? trained[0], held.at(-1) ?? trained.at(-1)];
  return (
    <figure class="curve">
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label={TRAIN.curve(fixed(first?.loss), fixed(last?.loss), last?.step ?? 0)}>
        {marks.map((loss) => (
          <g key={loss} class="curve-mark">
            <path d={`M${EDGE.left} ${y(loss)}H${WIDTH - EDGE.right}`} />
            <text x={EDGE.left - 8} y={y(loss) + 4} text-anchor="end">
              {loss.toFixed(1)}
            </text>
          </g>
        ))}
        <g class="curve-mark">
          <text x={EDGE.left} y={HEIGHT - 8}>0</text>
          <text x={WIDTH - EDGE.right} y={HEIGHT - 8} text-anchor="end">
            {TRAIN.steps(steps)}
          </text>
        </g>
        <path class="curve-train" d={path(trained)} />
        <path class="curve-held" d={path(held)} />
        {held.map(({ step, loss }) => (
          <circle key={step} class="curve-point" cx={x(step)} cy={y(loss)} r="4" />
        ))}
      </svg>
      <figcaption class="curve-legend">
        <span class="curve-key curve-key-train">{TRAIN.trainLoss(fixed(trained.at(-1)?.loss))}</span>
        {held.length > 0 && <span class="curve-key curve-key-held">{TRAIN.evaluationLoss(fixed(held.at(-1)?.loss))}</span>}
      </figcaption>
    </figure>
  );
}

const fixed = (loss: number | undefined): string => (loss === undefined ? "–" : loss.toFixed(3));
