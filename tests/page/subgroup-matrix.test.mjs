/** Detection of subgroup matrices in the WebGPU binding (crate/js/gpu.js), with simulated browsers: no software adapter supports them. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { JsGpu } from "../../crate/js/gpu.js";
import { ROOT } from "./support/paths.mjs";

const [STANDARD, CHROMIUM] = ["subgroup-matrix", "chromium-experimental-subgroup-matrix"];
const PLAIN = ["shader-f16", "subgroups"];
const square = (side, componentType, resultComponentType = "f32") => ({ M: side, N: side, K: side, componentType, resultComponentType });
const HALVES = square(16, "f16");
const WORDS = readFileSync(`${ROOT}/shaders/common/matrix.wgsl`, "utf8").split("\n").filter((line) => /subgroup_?matrix/i.test(line) && !line.startsWith("//"));

globalThis.GPUShaderStage ??= { COMPUTE: 4 };

/** A device of a browser with `features`, `configs` and subgroups of `lanes`, which compiles the shaders that `takes` accepts and the pipelines that `makes` accepts; records the shaders. */
async function opened({ features = [CHROMIUM], configs = [HALVES], lanes = [32, 32], takes = () => true, makes = () => true, f16 = true, matrix = true }) {
  const [texts, scopes] = [[], []];
  const adapter = {
    features: new Set([...PLAIN, ...features]),
    limits: {},
    info: { vendor: "made up", subgroupMinSize: lanes[0], subgroupMaxSize: lanes[1], subgroupMatrixConfigs: configs },
    requestDevice: async ({ requiredFeatures }) => ({
      features: new Set(requiredFeatures),
      limits: {},
      lost: new Promise(() => {}),
      addEventListener: () => {},
      pushErrorScope: () => scopes.push(null),
      popErrorScope: async () => scopes.pop(),
      createShaderModule({ code }) {
        texts.push(code);
        if (!takes(code)) scopes[scopes.length - 1] = new Error("a word");
        return code;
      },
      createComputePipelineAsync: async ({ compute }) => {
        if (!takes(compute.module) || !makes(compute.module)) throw new Error("no pipeline");
        return {};
      },
      createBindGroupLayout: () => ({}),
      createPipelineLayout: () => ({}),
    }),
  };
  Object.defineProperty(globalThis, "navigator", { value: { gpu: { requestAdapter: async () => adapter } }, configurable: true });
  const gpu = await JsGpu.open(f16, true, matrix, false);
  const { matrices, matrixLanes, standardMatrices } = gpu.facts();
  clearTimeout(gpu.watching);
  return { gpu, texts, matrices, matrixLanes, standardMatrices };
}

/** The subgroup matrix built-ins in a shader. */
const words = (text) => new Set(text.replaceAll(" ", "").match(/subgroupMatrix\w+(<[^>]*>)?|subgroup_matrix_(left|right|result)<[^>]*>/g));

/** A kernel's code as the browser gets it. */
async function given({ gpu, texts }, text) {
  await gpu.compile(["kernel"], [text], [new Uint32Array()]);
  return texts.at(-1);
}

test("the probe kernel uses all built-ins of the shaders and no others", async () => {
  for (const [feature, standard] of [[STANDARD, true], [CHROMIUM, false]]) {
    const found = await opened({ features: [feature] });
    assert.deepEqual([found.matrices, found.matrixLanes, found.standardMatrices], [[16, 1], 32, standard]);
    assert.equal(found.texts.length, 1);
    const sizes = (text) => text.replaceAll("Element, SIDE, SIDE", "f16, 16, 16").replaceAll("f32, SIDE, SIDE", "f32, 16, 16");
    assert.deepEqual([...words(found.texts[0])].sort(), [...words(sizes(WORDS.join("\n")))].sort());
    // The probe starts with what kernels start with.
    const head = found.texts[0].split("\n").slice(0, 2).join("\\n");
    assert.ok(readFileSync(`${ROOT}/crate/src/device/preprocess.rs`, "utf8").includes(`"${head}\\n"`), head);
    assert.ok(found.texts[0].includes("enable f16;"));
  }
});

test("the draft's names are tried first, then Chromium's", async () => {
  const both = { features: [CHROMIUM, STANDARD] };
  assert.equal((await opened(both)).standardMatrices, true);
  const second = await opened({ ...both, takes: (text) => text.includes("enable chromium") });
  assert.deepEqual([second.matrices, second.standardMatrices], [[16, 1], false]);
  const neither = await opened({ ...both, takes: (text) => !text.includes("subgroupMatrix") });
  assert.deepEqual([neither.matrices, neither.matrixLanes, neither.standardMatrices], [[], 0, false]);
  for (const without of [{ features: [] }, { matrix: false }, { configs: [] }, { configs: null }]) {
    const found = await opened({ ...both, ...without });
    assert.deepEqual([found.matrices, found.texts], [[], []], JSON.stringify(without));
  }
});

test("browsers that take the matrix order as an argument get it there", async () => {
  const found = await opened({ takes: (text) => !/_major/.test(text) });
  assert.deepEqual(found.matrices, [16, 1]);
  assert.match(found.texts[1], /subgroupMatrixLoad<Left>\(&tile\[slice\], 0u, false, 24u\)/);
  // As in the files, and as the build stores them: without blanks.
  for (const tight of [false, true]) {
    const text = tight ? WORDS.join("\n").replaceAll(", ", ",") : WORDS.join("\n");
    const calls = (await given(found, text)).replaceAll(", ", ",").match(/subgroupMatrix.*?\)/g);
    assert.deepEqual(calls, [
      "subgroupMatrixLoad<Left>(&tile[slice],$uu * SIDE,false,PITCH)",
      "subgroupMatrixLoad<Right>(&tile[slice],$uu * SIDE,false,PITCH)",
      "subgroupMatrixLoad<Right>(&tile[slice],$uu * SIDE,true,PITCH)",
      "subgroupMatrixMultiplyAccumulate(a,b,sum)",
      "subgroupMatrixLoad<Sum>(&parts,at,false,pitch)",
      "subgroupMatrixStore(&parts,at,sum,false,pitch)",
    ]);
  }
  // Browsers of the draft get the code unchanged.
  const plain = await opened({});
  assert.equal(await given(plain, WORDS.join("\n")), WORDS.join("\n"));
});

test("square shapes with f32 results are used if they compile", async () => {
  const intel = { M: 8, N: 16, K: 16, componentType: "f16", resultComponentType: "f32" };
  const amd = [square(16, "f16"), square(16, "f16", "f16"), square(16, "u8", "u32"), square(16, "i8", "i32")];
  const apple = [square(8, "f32"), square(8, "f16"), square(8, "f16", "f16")];
  const listed = async (configs, more) => (await opened({ configs, ...more })).matrices;
  assert.deepEqual(await listed([intel]), []);
  assert.deepEqual(await listed(amd), [16, 1]);
  assert.deepEqual(await listed([intel, ...amd, ...apple]), [16, 1, 8, 0, 8, 1]);
  assert.deepEqual(await listed([...amd, ...apple], { f16: false }), [], "subgroup matrices need f16");
  assert.deepEqual(await listed([...amd, ...apple], { makes: (text) => !text.includes("16, 16>") }), [8, 0, 8, 1]);
});

test("with several subgroup sizes, subgroup matrix kernels request one", async () => {
  const control = [CHROMIUM, "subgroup-size-control"];
  const lanes = async (range, features = control) => (await opened({ lanes: range, features })).matrixLanes;
  assert.deepEqual([await lanes([32, 64]), await lanes([64, 128]), await lanes([8, 16])], [32, 64, 16]);
  assert.deepEqual([await lanes([32, 64], [CHROMIUM]), await lanes([4, 8]), await lanes([64, 64])], [0, 0, 64]);

  const kernel = "const LANES:u32=32u;\nsubgroupMatrix\n@compute @workgroup_size(THREADS)\nfn main(){}";
  const found = await opened({ lanes: [32, 64], features: control });
  assert.match(found.texts[0], /^enable subgroup_size_control;\nenable /);
  assert.match(found.texts[0], /const LANES: u32 = 32u;[^]*@workgroup_size\(128\) @subgroup_size\(LANES\)\n/);
  assert.equal(await given(found, kernel), `enable subgroup_size_control;\n${kernel.replace("(THREADS)", "(THREADS) @subgroup_size(LANES)")}`);
  const other = "@compute @workgroup_size(64)\nfn main(){}";
  assert.equal(await given(found, other), other, "other kernels are left alone");
  assert.equal(await given(await opened({ features: control }), kernel), kernel, "and all where there is one size");

  for (const name of ["matmul/gemm_matrix", "attention/attention_matrix"]) {
    const text = readFileSync(`${ROOT}/shaders/${name}.wgsl`, "utf8");
    assert.equal(text.match(/@workgroup_size\(\w+\)/g)?.length, 1, `${name}: its size is one name`);
  }
});
