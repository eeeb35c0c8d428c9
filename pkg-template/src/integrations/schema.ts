/** Schemas of objects that models write: JSON Schema, or a schema library's own. */

import { type FinishReason, JerboaError } from "../index.js";

/** A schema in JSON Schema's form. */
export type JsonSchema = Record<string, unknown>;

/** A schema of a library that follows Standard Schema with its JSON Schema part, such as Zod 4.2. */
export interface StandardSchema<T> {
  readonly "~standard": {
    readonly version: 1;
    readonly vendor: string;
    readonly types?: { readonly input: unknown; readonly output: T } | undefined;
    readonly validate: (value: unknown) => StandardResult<T> | Promise<StandardResult<T>>;
    readonly jsonSchema?: { readonly input: (options: { target: "draft-2020-12" }) => JsonSchema };
  };
}

/** The outcome of a validation. */
export type StandardResult<T> = { readonly value: T; readonly issues?: undefined } | { readonly issues: readonly { readonly message: string }[] };

/** The JSON Schema of a schema. @throws {@link JerboaError} for a library that cannot give one. */
export function jsonSchemaOf(schema: JsonSchema | StandardSchema<unknown>): JsonSchema {
  // A schema of some libraries is a function.
  if (!schema || (typeof schema !== "object" && typeof schema !== "function")) throw new JerboaError("request", `useObject: 'schema' is ${String(schema)}. Pass a JSON Schema, or a schema of Zod 4.2 or newer.`);
  if (!("~standard" in schema)) return schema;
  const { jsonSchema, vendor } = (schema as StandardSchema<unknown>)["~standard"];
  if (!jsonSchema) throw new JerboaError("request", `The schema of '${vendor}' cannot be converted to JSON Schema. Pass a JSON Schema, or a schema of Zod 4.2 or newer.`);
  return jsonSchema.input({ target: "draft-2020-12" });
}

/** The value of a complete answer. @throws {@link JerboaError} `request` for one that its limit of tokens or a stop string cut. */
export function parseAnswer(where: string, text: string, finish: FinishReason | undefined): unknown {
  try {
    return JSON.parse(text);
  } catch (thrown) {
    const reason = finish === "length" ? "the answer reached its limit of tokens. Raise 'max_completion_tokens', or load the model with a larger maxContext" : "a string of 'stop' ended the answer. Leave out 'stop'; the schema ends the object";
    throw new JerboaError("request", `${where}: the object is incomplete: ${reason}.`, { cause: thrown });
  }
}

/** A parsed value, validated by the schema's library if it is one. */
export async function validated<T>(schema: JsonSchema | StandardSchema<T>, value: unknown): Promise<T> {
  if (!("~standard" in schema)) return value as T;
  const result = await (schema as StandardSchema<T>)["~standard"].validate(value);
  if (result.issues) throw new JerboaError("request", `The answer does not match the schema: ${result.issues.map(({ message }) => message).join("; ")}.`);
  return result.value;
}
