/**
 * Drops what JSON cannot hold: undefined values and functions, at any depth. The engine treats a member that is present
 * as set.
 */
export function stripUndefined<T>(value: T): T;
export function stripUndefined(value: unknown): unknown {
  if (Array.isArray(value)) return value.map((item: unknown) => stripUndefined(item));
  if (typeof value !== "object" || value === null) return value;
  const { toJSON } = value as { toJSON?: unknown };
  if (typeof toJSON === "function") return toJSON.call(value);
  // Typed arrays, Maps and Blobs pass unchanged; a plain object may come from another realm.
  const prototype: unknown = Object.getPrototypeOf(value);
  if (prototype !== null && Object.getPrototypeOf(prototype) !== null) return value;
  const members = Object.entries(value).filter(([, member]) => member !== undefined && typeof member !== "function");
  return Object.fromEntries(members.map(([name, member]) => [name, stripUndefined(member) as unknown]));
}
