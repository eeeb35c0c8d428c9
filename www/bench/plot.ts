/** An SVG line plot: speed against context length. */

const SIZE = { width: 560, height: 220, left: 56, bottom: 28, top: 12, right: 12 };

function element(name: string, attributes: Record<string, string | number>, text = ""): SVGElement {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
  made.textContent = text;
  return made;
}

/** Draws points with their ranges; both axes start at zero. */
export function plot(points: { x: number; y: number; min: number; max: number }[], xLabel: string, yLabel: string): SVGElement {
  const { width, height, left, bottom, top, right } = SIZE;
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${yLabel} against ${xLabel}` });
  const most = { x: Math.max(...points.map((p) => p.x), 1), y: Math.max(...points.map((p) => p.max), 1e-9) * 1.1 };
  const x = (value: number): number => left + (value / most.x) * (width - left - right);
  const y = (value: number): number => height - bottom - (value / most.y) * (height - bottom - top);
  svg.append(element("path", { class: "axis", d: `M${left} ${top}V${height - bottom}H${width - right}` }));
  for (let i = 0; i <= 4; i++) {
    const value = (most.y * i) / 4;
    svg.append(element("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, value.toPrecision(3)));
  }
  for (const point of points) {
    svg.append(element("text", { x: x(point.x), y: height - 8, "text-anchor": "middle" }, String(point.x)));
    svg.append(element("path", { class: "range", d: `M${x(point.x)} ${y(point.min)}V${y(point.max)}` }));
    svg.append(element("circle", { cx: x(point.x), cy: y(point.y), r: 4 }));
  }
  svg.append(element("polyline", { points: points.map((p) => `${x(p.x)},${y(p.y)}`).join(" ") }));
  svg.append(element("text", { x: left + 6, y: top + 10 }, yLabel));
  return svg;
}
