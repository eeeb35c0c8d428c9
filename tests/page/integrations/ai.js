/** The AI SDK, bundled for a page by ai-sdk.test.mjs. */

export * as ai from "ai";
export * as z from "zod";
