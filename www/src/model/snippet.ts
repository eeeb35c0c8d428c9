/** The shortest program that uses a model with the package. */

import type { LoadOptions, ModelInfo } from "jerboa";

const USES: Record<ModelInfo["task"] | "continue", string> = {
  generate: `const stream = await model.chat.completions.create({
  messages: [{ role: "user", content: "Hello!" }],
  stream: true,
});
for await (const chunk of stream) console.log(chunk.choices[0]?.delta.content ?? "");`,
  continue: `for await (const text of model.generate("Once upon a time", { maxTokens: 100 })) console.log(text);`,
  embed: `const [question, note] = await model.embed(["Where do bees live?", "A hive is the home of bees."]);
console.log(similarity(question, note));`,
  rerank: `const scores = await model.rerank("Where do bees live?", ["In a hive.", "On the Moon."]);
console.log(scores);`,
  transcribe: `const audio = await (await fetch("speech.wav")).blob();
const { text } = await model.transcribe(audio);
console.log(text);`,
  speak: `const speech = await model.audio.speech.create({ input: "Hello!" });
new Audio(URL.createObjectURL(await speech.blob())).play();`,
};

/** The load options as an object's source. An access token is not shown. */
function optionsOf(options: LoadOptions): string {
  const given = Object.entries({ ...options, ...(options.token ? { token: "hf_…" } : {}) }).filter(([, value]) => ["string", "number", "boolean"].includes(typeof value));
  return given.length > 0 ? `, { ${given.map(([name, value]) => `${name}: ${JSON.stringify(value)}`).join(", ")} }` : "";
}

/** Code that loads a model with its options and uses it for its task; a model without a chat template continues a text. */
export function snippet(source: string, { task, hasChatTemplate }: ModelInfo, options: LoadOptions): string {
  const use = task === "generate" && !hasChatTemplate ? "continue" : task;
  const names = task === "embed" ? "loadModel, similarity" : "loadModel";
  return `// npm install jerboa\nimport { ${names} } from "jerboa";\n\nconst model = await loadModel(${JSON.stringify(source)}${optionsOf(options)});\n${USES[use]}\n`;
}
