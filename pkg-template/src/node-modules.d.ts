/** Declarations of the Node APIs that the entry for Node uses; memory/node.d.ts has those of the file store. */

declare const process: { env: Record<string, string | undefined>; versions: { node: string }; exitCode?: number; stdin: { once(event: "end", listener: () => void): void } };

declare module "node:fs" {
  export function existsSync(path: string): boolean;
  export function openAsBlob(path: string): Promise<Blob>;
  export function createReadStream(path: string): AsyncIterable<Uint8Array>;
}

declare module "node:fs/promises" {
  interface Entry {
    name: string;
    /** Folder of the entry; `path` before Node 20.12. */
    parentPath?: string;
    path?: string;
    isFile(): boolean;
    isDirectory(): boolean;
    isSymbolicLink(): boolean;
  }
  export function appendFile(path: string, bytes: string | Uint8Array): Promise<void>;
  export function mkdir(path: string, options: { recursive: true }): Promise<unknown>;
  export function readdir(path: string): Promise<string[]>;
  export function readdir(path: string, options: { recursive: true; withFileTypes: true }): Promise<Entry[]>;
  export function readFile(path: string | URL): Promise<Uint8Array>;
  export function readlink(path: string): Promise<string>;
  export function rmdir(path: string): Promise<void>;
  export function stat(path: string): Promise<{ size: number; isFile(): boolean }>;
  export function symlink(target: string, path: string): Promise<void>;
  export function writeFile(path: string, bytes: Uint8Array | string): Promise<void>;
}

declare module "node:path" {
  export function basename(path: string, suffix?: string): string;
  export function join(...parts: string[]): string;
  export function relative(from: string, to: string): string;
  export const sep: string;
}

declare module "node:os" {
  export function homedir(): string;
  export function totalmem(): number;
}

declare module "node:url" {
  export function fileURLToPath(url: string | URL): string;
}

declare module "node:crypto" {
  interface Hash {
    update(bytes: Uint8Array): Hash;
    digest(encoding: "hex"): string;
  }
  export function createHash(name: "sha256" | "sha1"): Hash;
}

declare module "node:worker_threads" {
  /** A thread, or the port to the thread that started it. */
  export interface ThreadPort {
    postMessage(message: unknown, transfer?: readonly Transferable[]): void;
    on(event: string, listener: (value: unknown) => void): unknown;
  }
  export class Worker implements ThreadPort {
    constructor(script: URL);
    postMessage(message: unknown, transfer?: readonly Transferable[]): void;
    on(event: string, listener: (value: unknown) => void): unknown;
    ref(): void;
    unref(): void;
    terminate(): Promise<number>;
  }
  export const parentPort: ThreadPort | null;
}

declare module "node:process" {
  interface OutputStream {
    write(text: string | Uint8Array): boolean;
    on(event: "error", listener: (error: Error & { code?: string }) => void): void;
    readonly isTTY?: boolean;
  }
  interface InputStream extends AsyncIterable<Uint8Array> {
    readonly isTTY?: boolean;
  }
  export const argv: string[];
  export const env: Record<string, string | undefined>;
  export const stdin: InputStream;
  export const stdout: OutputStream;
  export const stderr: OutputStream;
  type Signal = "SIGINT" | "SIGTERM";
  const process: { on(signal: Signal, listener: () => void): void; removeAllListeners(signal: Signal): void; kill(pid: number, signal: Signal): void; readonly pid: number };
  export default process;
  export function exit(code: number): never;
}

declare module "node:readline/promises" {
  interface Interface extends AsyncIterable<string> {
    prompt(): void;
    on(event: "SIGINT", listener: () => void): void;
    close(): void;
  }
  export function createInterface(options: { input: unknown; output: unknown; terminal: boolean; prompt: string }): Interface;
}

declare module "node:util" {
  interface OptionConfig {
    type: "string" | "boolean";
    short?: string;
    multiple?: boolean;
  }
  export function parseArgs(config: { args: string[]; options: Record<string, OptionConfig>; allowPositionals: true }): {
    values: Record<string, string | boolean | (string | boolean)[] | undefined>;
    positionals: string[];
  };
}

declare module "node:dns" {
  export interface LookupAddress {
    address: string;
    family: number;
  }
  export function lookup(name: string, options: { all: true }, done: (error: Error | null, addresses: LookupAddress[]) => void): void;
}

declare module "node:net" {
  export class BlockList {
    addSubnet(net: string, prefix: number, family: "ipv4" | "ipv6"): void;
    check(address: string, family: "ipv4" | "ipv6"): boolean;
  }
  /** 4 or 6; 0 for text that is no address. */
  export function isIP(text: string): number;
}

declare module "node:https" {
  export { request } from "node:http";
}

declare module "node:http" {
  import type { LookupAddress } from "node:dns";
  export interface IncomingMessage extends AsyncIterable<Uint8Array> {
    readonly method?: string;
    readonly url?: string;
    readonly statusCode?: number;
    readonly headers: Record<string, string | undefined>;
    destroy(): void;
    on(event: "data", listener: (chunk: Uint8Array) => void): void;
    on(event: "end", listener: () => void): void;
    on(event: "error", listener: (error: Error) => void): void;
  }
  export type Lookup = (name: string, options: { all?: boolean }, done: (error: Error | null, address?: string | LookupAddress[], family?: number) => void) => void;
  interface RequestOptions {
    agent: false;
    lookup: Lookup;
    headers: Record<string, string>;
    signal?: AbortSignal;
  }
  interface ClientRequest {
    on(event: "error", listener: (error: Error) => void): void;
    end(): void;
  }
  export function request(url: URL, options: RequestOptions, answered: (response: IncomingMessage) => void): ClientRequest;
  export interface ServerResponse {
    readonly headersSent: boolean;
    writeHead(status: number, headers?: Record<string, string>): void;
    write(bytes: Uint8Array): boolean;
    end(): void;
    on(event: "close", listener: () => void): void;
    once(event: "close" | "drain", listener: () => void): void;
  }
  interface Server {
    once(event: "error", listener: (error: Error & { code?: string }) => void): void;
    listen(port: number, host: string, ready: () => void): void;
    address(): { port: number } | string | null;
    close(done: () => void): void;
    closeAllConnections(): void;
  }
  export function createServer(handler: (request: IncomingMessage, response: ServerResponse) => void): Server;
}
