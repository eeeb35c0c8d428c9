/** Shown without WebGPU: the reason and what to do. */

import { checkWebGpu } from "./webgpu";

type Reason = "insecure" | "without" | "no-adapter";

const TITLES: Record<Reason, string> = {
  insecure: "WebGPU requires a secure connection.",
  without: "This browser does not support WebGPU.",
  "no-adapter": "WebGPU found no GPU here.",
};

export function NoWebGpu({ reason }: { reason: Reason }) {
  return (
    <div class="stage">
      <section class="welcome no-webgpu" role="alert">
        <h1>{TITLES[reason]}</h1>
        {reason === "insecure" && (
          <>
            <p>Browsers enable WebGPU only for pages from https or localhost. This page was loaded over http from another machine.</p>
            <ul>
              <li>Open the page as http://localhost on the machine that serves it, or serve it over https.</li>
            </ul>
          </>
        )}
        {reason === "without" && (
          <>
            <p>Jerboa runs models on the GPU through WebGPU. These browsers support it:</p>
            <ul>
              <li>Chrome and Edge from version 113, on Android from 121</li>
              <li>Safari from version 26, on the Mac, the iPhone and the iPad</li>
              <li>Firefox from version 141 on Windows, from 145 on the Mac</li>
            </ul>
          </>
        )}
        {reason === "no-adapter" && (
          <>
            <p>The browser supports WebGPU but provides no GPU adapter. Common reasons:</p>
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
