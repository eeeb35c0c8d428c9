/** Shown without WebGPU: the reason and what to do. */

import { NO_WEBGPU, UI } from "./strings";
import { checkWebGpu } from "./webgpu";

type Reason = "insecure" | "without" | "no-adapter";

export function NoWebGpu({ reason }: { reason: Reason }) {
  const { title, why, steps } = NO_WEBGPU[reason];
  return (
    <div class="stage">
      <section class="welcome no-webgpu" role="alert">
        <h1>{title}</h1>
        <p>{why}</p>
        <ul>
          {steps.map((step) => (
            <li key={step}>{step}</li>
          ))}
        </ul>
        <button type="button" class="primary" onClick={() => void checkWebGpu()}>
          {UI.checkAgain}
        </button>
      </section>
    </div>
  );
}
