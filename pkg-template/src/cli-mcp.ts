/** A server of the Model Context Protocol on standard input and output. Loaded by the command `mcp`. */

import { invalidRequest, JerboaError } from "./errors.js";
import type { Model } from "./index.js";
import { fileStore } from "./memory/file.js";
import { createMemory, type Memory } from "./memory/index.js";

/** Models that are loaded with their first use, and the file of a memory. */
export interface McpSources {
  generate: (() => Promise<Model>) | undefined;
  embed: (() => Promise<Model>) | undefined;
  memory: string | undefined;
  version: string;
  signal: AbortSignal;
}

/** What a tool gives back. */
interface ToolResult {
  content: { type: "text"; text: string }[];
  structuredContent?: Record<string, unknown>;
  isError?: boolean;
}

interface McpTool {
  name: string;
  description: string;
  inputSchema: object;
  run(args: Record<string, unknown>, signal: AbortSignal): Promise<ToolResult>;
}

/** The parts of `@modelcontextprotocol/sdk` that are used. */
interface Sdk {
  Server: new (info: object, options: object) => {
    setRequestHandler(schema: unknown, handler: (request: { params: { name: string; arguments?: Record<string, unknown> } }, extra: { signal: AbortSignal }) => Promise<unknown>): void;
    connect(transport: unknown): Promise<void>;
    close(): Promise<void>;
    onclose?: () => void;
  };
  StdioServerTransport: new () => unknown;
  ListToolsRequestSchema: unknown;
  CallToolRequestSchema: unknown;
}

const SDK = "@modelcontextprotocol/sdk";

async function sdk(): Promise<Sdk> {
  try {
    const names = ["server/index.js", "server/stdio.js", "types.js"].map((name) => `${SDK}/${name}`);
    return Object.assign({}, ...(await Promise.all(names.map((name) => import(/* @vite-ignore */ name))))) as Sdk;
  } catch (thrown) {
    throw new JerboaError("request", `mcp: the npm package '${SDK}' could not be loaded (${(thrown as Error).message.split("\n")[0]}). Run 'npm install ${SDK}'.`, { cause: thrown });
  }
}

const text = (words: string, structuredContent?: Record<string, unknown>): ToolResult => ({ content: [{ type: "text", text: words }], ...(structuredContent ? { structuredContent } : {}) });

/** A value once: the first call makes it. */
function once<T>(make: () => Promise<T>): () => Promise<T> {
  let made: Promise<T> | undefined;
  return () => {
    made ??= make();
    made.catch(() => (made = undefined));
    return made;
  };
}

const PASSAGES = 5;

function toolsOf({ generate, embed, memory }: McpSources): McpTool[] {
  const tools: McpTool[] = [];
  if (generate) {
    tools.push({
      name: "generate",
      description: "Generates text with a language model that runs on this machine.",
      inputSchema: {
        type: "object",
        properties: {
          prompt: { type: "string" },
          system: { type: "string", description: "System prompt." },
          max_tokens: { type: "integer", minimum: 1 },
          temperature: { type: "number", minimum: 0 },
        },
        required: ["prompt"],
        additionalProperties: false,
      },
      run: async (args, signal) => {
        const model = await generate();
        const { prompt, system, max_tokens, temperature } = args as { prompt: string; system?: string; max_tokens?: number; temperature?: number };
        if (typeof prompt !== "string") throw invalidRequest("generate: 'prompt' must be a string.");
        const limits = { ...(max_tokens === undefined ? {} : { max_tokens }), ...(temperature === undefined ? {} : { temperature }) };
        if (model.info.hasChatTemplate) {
          const messages = [...(system ? [{ role: "system" as const, content: system }] : []), { role: "user" as const, content: prompt }];
          const { choices } = await model.chat.completions.create({ messages, ...limits }, { signal });
          return text(choices[0]?.message.content ?? "");
        }
        const { choices } = await model.completions.create({ prompt, ...limits }, { signal });
        return text(choices[0]?.text ?? "");
      },
    });
  }
  if (embed) {
    tools.push({
      name: "embed",
      description: "Computes an embedding vector for each text.",
      inputSchema: { type: "object", properties: { texts: { type: "array", items: { type: "string" }, minItems: 1 } }, required: ["texts"], additionalProperties: false },
      run: async ({ texts }) => {
        if (!Array.isArray(texts) || texts.length === 0 || !texts.every((each) => typeof each === "string")) throw invalidRequest("embed: 'texts' must be an array of one or more strings.");
        const vectors = (await (await embed()).embed(texts)).map((vector) => Array.from(vector));
        return text(JSON.stringify(vectors), { vectors });
      },
    });
  }
  if (embed && memory) tools.push(searchTool(once(async () => createMemory({ model: await embed(), store: fileStore(memory) }))));
  return tools;
}

function searchTool(memory: () => Promise<Memory>): McpTool {
  return {
    name: "search_memory",
    description: "Finds the passages of the user's documents that match a question, best first.",
    inputSchema: { type: "object", properties: { query: { type: "string" }, k: { type: "integer", minimum: 1, description: `Number of passages, ${PASSAGES} by default.` } }, required: ["query"], additionalProperties: false },
    run: async ({ query, k = PASSAGES }, signal) => {
      if (typeof query !== "string") throw invalidRequest("search_memory: 'query' must be a string.");
      const hits = await (await memory()).search(query, { k: k as number, signal });
      const passages = hits.map(({ document, text: passage, score, metadata }) => ({ document, text: passage, score, metadata }));
      return text(passages.map(({ document, text: passage }) => `[${document}]\n${passage}`).join("\n\n") || "The memory has no documents.", { passages });
    },
  };
}

/** Serves until the client closes standard input, or the signal. */
export async function serveMcp(sources: McpSources): Promise<void> {
  const { Server, StdioServerTransport, ListToolsRequestSchema, CallToolRequestSchema } = await sdk();
  const tools = toolsOf({ ...sources, generate: sources.generate && once(sources.generate), embed: sources.embed && once(sources.embed) });
  const server = new Server({ name: "jerboa", version: sources.version }, { capabilities: { tools: {} } });
  server.setRequestHandler(ListToolsRequestSchema, async () => ({ tools: tools.map(({ run: _, ...tool }) => tool) }));
  server.setRequestHandler(CallToolRequestSchema, async ({ params }, { signal }) => {
    const tool = tools.find(({ name }) => name === params.name);
    if (!tool) throw invalidRequest(`unknown tool '${params.name}'. Use one of: ${tools.map(({ name }) => name).join(", ")}.`);
    try {
      return await tool.run(params.arguments ?? {}, signal);
    } catch (thrown) {
      // The model that called reads what went wrong.
      return { ...text(JerboaError.from(thrown).message), isError: true };
    }
  });
  const ended = new Promise<void>((resolve) => {
    server.onclose = resolve;
    sources.signal.addEventListener("abort", () => resolve(), { once: true });
  });
  const closed = new Promise<void>((resolve) => process.stdin.once("end", resolve));
  await server.connect(new StdioServerTransport());
  await Promise.race([ended, closed]);
  await server.close();
}
