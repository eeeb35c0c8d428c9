/** The shortest program that uses a model with the package. */

import type { ModelInfo } from "jerboa";

const USES: Record<ModelInfo["task"], () => string> = {
  generate: () => `const stream = await model.chat.completions.create({
  messages: [{ role: "user", content: "Hello!" }],
  stream: true,
});
for await (const chunk of stream) console.log(chunk.choices[0]?.delta.content ?? "");`,
  embed: () => `const [question, note] = await model.embed(["Where do bees live?", "A hive is the home of bees."]);
console.log(similarity(question, note));`,
  rerank: () => `const scores = await model.rerank("Where do bees live?", ["In a hive.", "On the Moon."]);
console.log(scores);`,
  transcribe: () => `const audio = await (await fetch("speech.wav")).blob();
const { text } = await model.transcribe(audio);
console.log(text);`,
  speak: () => `const speech = await model.audio.speech.create({ input: "Hello!" });
new Audio(URL.createObjectURL(await speech.blob())).play();`,
};

/** Code that loads a model and uses it for its task. */
export function snippet(source: string, task: ModelInfo["task"]): string {
  const names = task === "embed" ? "loadModel, similarity" : "loadModel";
  return `// npm install jerboa\nimport { ${names} } from "jerboa";\n\nconst model = await loadModel(${JSON.stringify(source)});\n${USES[task]()}\n`;
}
