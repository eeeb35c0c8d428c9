/** A scatter plot of the passages; near points have similar meaning, or with the small encoder similar words. */

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type { Library } from "./library";
import { project, type PlanePoint } from "./projection";
import { EMBEDDING } from "../strings";

const WIDTH = 640;
const HEIGHT = 360;
const EDGE = 18;

interface Layout {
  places: PlanePoint[];
  extra?: PlanePoint;
}

export function Picture({ library }: { library: Library }) {
  const layout = useSignal<Layout | undefined>(undefined);
  const records = library.records.value;
  const found = library.found.value;

  useEffect(() => {
    let current = true;
    const vectors = records.map(({ vector }) => vector);
    project(vectors, found?.vector).then(
      (next) => current && (layout.value = next),
      () => current && (layout.value = undefined),
    );
    return () => void (current = false);
  }, [records, found]);

  if (!layout.value || layout.value.places.length !== records.length) return null;
  const rank = new Map(found?.hits.map(({ id }, i) => [id, i]));
  const at = ([x, y]: PlanePoint): { x: number; y: number } => ({ x: EDGE + x * (WIDTH - 2 * EDGE), y: HEIGHT - EDGE - y * (HEIGHT - 2 * EDGE) });
  const near = (id: string): boolean => (rank.get(id) ?? 99) < 3;
  const labelled = records.length <= 24;
  return (
    <section class="panel" aria-label={EMBEDDING.map}>
      <svg class="map" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label={EMBEDDING.points(records.length)}>
        {records.map(({ id, document, text }, i) => {
          const { x, y } = at(layout.value!.places[i]!);
          const end = x > WIDTH * 0.8;
          return (
            <g key={id} class={near(id) ? "point point-near" : "point"}>
              <circle cx={x} cy={y} r={near(id) ? 6 : 4.5}>
                <title>{`${document}: ${text}`}</title>
              </circle>
              {(labelled || near(id)) && (
                <text x={end ? x - 9 : x + 9} y={y + 4} text-anchor={end ? "end" : "start"}>
                  {document.length > 22 ? `${document.slice(0, 21)}…` : document}
                </text>
              )}
            </g>
          );
        })}
        {layout.value.extra && <Asked {...at(layout.value.extra)} />}
      </svg>
      <p class="hint">{EMBEDDING.mapHint(found !== undefined)}</p>
    </section>
  );
}

function Asked({ x, y }: { x: number; y: number }) {
  return <path class="asked" d={`M${x - 7} ${y}h14M${x} ${y - 7}v14`} />;
}
