/** jerboa/langchain with LangChain's own tools, bundled for a page by langchain.test.mjs. */

export { ChatJerboa, JerboaEmbeddings } from "jerboa/langchain";
export { HumanMessage, SystemMessage, ToolMessage } from "@langchain/core/messages";
export { ChatPromptTemplate } from "@langchain/core/prompts";
export { StringOutputParser } from "@langchain/core/output_parsers";
export { tool } from "@langchain/core/tools";
export * as z from "zod";
