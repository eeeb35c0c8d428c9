/** Projects vectors to a plane by PCA (ml-pca). */

/** A position between 0 and 1, in the order of the inputs. */
export type PlanePoint = [x: number, y: number];

/** The projection is computed from at most this many vectors: more hardly change it. */
const SAMPLE = 600;

/** Projects vectors; `extra` is projected too without influencing the axes. Needs at least three vectors. */
export async function project(vectors: ArrayLike<number>[], extra?: ArrayLike<number>): Promise<{ places: PlanePoint[]; extra?: PlanePoint } | undefined> {
  if (vectors.length < 3) return undefined;
  const { PCA } = await import("ml-pca");
  const step = Math.ceil(vectors.length / SAMPLE);
  const rows = vectors.map((vector) => Array.from(vector));
  const pca = new PCA(rows.filter((_, i) => i % step === 0), { method: "NIPALS", nCompNIPALS: 2 });
  const all = extra ? [...rows, Array.from(extra)] : rows;
  const points = pca.predict(all, { nComponents: 2 }).to2DArray();
  const fit = [0, 1].map((axis) => {
    const values = points.map((point) => point[axis] ?? 0);
    const [low, high] = [Math.min(...values), Math.max(...values)];
    return (value: number): number => (high > low ? (value - low) / (high - low) : 0.5);
  });
  const places = points.map((point): PlanePoint => [fit[0]!(point[0] ?? 0), fit[1]!(point[1] ?? 0)]);
  return extra ? { places: places.slice(0, -1), extra: places.at(-1)! } : { places };
}
