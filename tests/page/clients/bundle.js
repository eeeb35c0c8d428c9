/** The official clients, bundled for a page by clients.test.mjs. */

export { default as OpenAI } from "openai";
export { zodFunction, zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
export * as ai from "ai";
export { createOpenAICompatible } from "@ai-sdk/openai-compatible";
export { createOpenAI } from "@ai-sdk/openai";
export { ChatOpenAI, OpenAI as LangChainOpenAI, OpenAIEmbeddings } from "@langchain/openai";
export { tool as langchainTool } from "@langchain/core/tools";
export * as z from "zod";
