/** A value without what JSON has no word for: members that are undefined or functions are left out, at any depth. The engine takes a member that is there for given. */
export function defined<T>(value: T): T;
export function defined(value: unknown): unknown {
  if (Array.isArray(value)) return value.map((item: unknown) => defined(item));
  if (typeof value !== "object" || value === null) return value;
  const { toJSON } = value as { toJSON?: unknown };
  if (typeof toJSON === "function") return toJSON.call(value);
  // Typed arrays, Maps and Blobs cross as they are; a plain object may be of another realm.
  const prototype: unknown = Object.getPrototypeOf(value);
  if (prototype !== null && Object.getPrototypeOf(prototype) !== null) return value;
  const members = Object.entries(value).filter(([, member]) => member !== undefined && typeof member !== "function");
  return Object.fromEntries(members.map(([name, member]) => [name, defined(member) as unknown]));
}
