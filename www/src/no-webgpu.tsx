/** The page where there is no WebGPU: why, and what to do. */

import { checkWebGpu } from "./webgpu";

type Reason = "insecure" | "without" | "no-adapter";

const TITLES: Record<Reason, string> = {
  insecure: "This page needs a secure address.",
  without: "This browser has no WebGPU.",
  "no-adapter": "WebGPU found no GPU here.",
};

export function NoWebGpu({ reason }: { reason: Reason }) {
  return (
    <div class="stage">
      <section class="welcome no-webgpu" role="alert">
        <h1>{TITLES[reason]}</h1>
        {reason === "insecure" && (
          <>
            <p>Browsers give WebGPU only to pages that come over https or from localhost. This one came over plain http from another machine.</p>
            <ul>
              <li>Open the page as http://localhost on the machine that serves it, or serve it over https.</li>
            </ul>
          </>
        )}
        {reason === "without" && (
          <>
            <p>Jerboa computes on the graphics processor through WebGPU. These browsers have it:</p>
            <ul>
              <li>Chrome and Edge from version 113, on Android from 121</li>
              <li>Safari from version 26, on the Mac, the iPhone and the iPad</li>
              <li>Firefox from version 141 on Windows, from 145 on the Mac</li>
            </ul>
          </>
        )}
        {reason === "no-adapter" && (
          <>
            <p>The browser knows WebGPU but offers no adapter for it. Most often one of these is why:</p>
            <ul>
              <li>Hardware acceleration is switched off in the browser's settings: switch it on and restart the browser.</li>
              <li>The graphics driver is old or on the browser's blocklist: update it. In Chrome, chrome://gpu names the reason.</li>
              <li>On Linux, Chrome may need chrome://flags/#enable-unsafe-webgpu and a Vulkan driver.</li>
            </ul>
          </>
        )}
        <button type="button" class="primary" onClick={() => void checkWebGpu()}>
          Check again
        </button>
      </section>
    </div>
  );
}
