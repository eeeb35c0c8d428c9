/** Type declarations of wasm-bindgen's output, which is next to these files in the built package. */

import type { EngineModule } from "./engine-calls.js";

declare const init: EngineModule["default"];
export default init;
export declare const Engine: EngineModule["Engine"];
export declare const deviceReport: EngineModule["deviceReport"];
export declare const diagnose: EngineModule["diagnose"];
export declare const implementation: EngineModule["implementation"];
export declare const calibrate: EngineModule["calibrate"];
export declare const imageSize: EngineModule["imageSize"];
export declare const cachedModels: EngineModule["cachedModels"];
export declare const deleteModel: EngineModule["deleteModel"];
export declare const version: EngineModule["version"];
export declare const setHost: EngineModule["setHost"];
