/** Declarations of the Node APIs that the file store uses. @types/node would leak its globals into browser code. */

declare module "node:fs/promises" {
  export interface FileHandle {
    read(buffer: Uint8Array, offset: number, length: number, position: number): Promise<{ bytesRead: number }>;
    write(buffer: Uint8Array, offset: number, length: number, position: number): Promise<{ bytesWritten: number }>;
    writeFile(text: string): Promise<void>;
    truncate(length: number): Promise<void>;
    datasync(): Promise<void>;
    stat(): Promise<{ size: number }>;
    close(): Promise<void>;
  }
  export function open(path: string, flags: string): Promise<FileHandle>;
  export function readFile(path: string, encoding: "utf8"): Promise<string>;
  export function rename(from: string, to: string): Promise<void>;
  export function rm(path: string, options?: { force?: boolean }): Promise<void>;
  export function copyFile(from: string, to: string): Promise<void>;
}

declare module "node:path" {
  export function dirname(path: string): string;
  export function resolve(path: string): string;
}
