/** Searches the Hugging Face Hub for models that run here. Loaded with the first search. */

import type { LoadRequest } from "./model-store";

/** A model of the Hub. */
export interface HubModel {
  id: string;
  downloads: number;
  /** Whether its terms must be accepted first. */
  gated: boolean;
  /** SPDX name; undefined if the repository has none. */
  licence: string | undefined;
  parameters: number | undefined;
  /** Download size; undefined for GGUF repositories, which have a size per file. */
  bytes: number | undefined;
  gguf: boolean;
  quantized: boolean;
}

/** A .gguf file of a repository; the parts of a split file count as one. */
export interface GgufFile {
  name: string;
  bytes: number;
}

/** Where to search: an endpoint, and a token for private and gated models. */
export interface HubAddress {
  endpoint?: string | undefined;
  token?: string | undefined;
}

/** The fields of the Hub's API that are read. */
interface ApiModel {
  id: string;
  downloads?: number;
  gated?: boolean | string;
  tags?: string[];
  safetensors?: { parameters?: Record<string, number>; total?: number };
  gguf?: { total?: number };
  siblings?: { rfilename: string; size?: number }[];
}

const HUB = "https://huggingface.co";
/** Results per query. */
const LIMIT = 20;
const FIELDS = ["downloads", "gated", "tags", "safetensors", "gguf"];
/** Tags of quantized safetensors. */
const QUANTIZED = new Set(["4-bit", "8-bit", "awq", "gptq", "compressed-tensors", "bitnet", "fp8", "mxfp4", "3-bit", "6-bit"]);
/** Bytes of an element by the names of safetensors. */
const ELEMENT_BYTES: Record<string, number> = { F64: 8, I64: 8, U64: 8, F32: 4, I32: 4, U32: 4, F16: 2, BF16: 2, I16: 2, U16: 2 };

async function api<T>(path: string, { endpoint = HUB, token }: HubAddress, signal: AbortSignal): Promise<T> {
  const response = await fetch(`${endpoint.replace(/\/+$/, "")}/api/models${path}`, { signal, ...(token ? { headers: { authorization: `Bearer ${token}` } } : {}) });
  if (!response.ok) throw new Error(`HTTP ${response.status}`);
  return (await response.json()) as T;
}

/** The models whose names have the words of a query and that have files to load: quantized ones first, then by downloads. */
export async function searchHub(query: string, task: string, address: HubAddress, signal: AbortSignal): Promise<HubModel[]> {
  const search = (filters: string[]): Promise<ApiModel[]> => {
    const params = new URLSearchParams({ search: query, sort: "downloads", direction: "-1", limit: String(LIMIT) });
    for (const filter of filters) params.append("filter", filter);
    for (const field of FIELDS) params.append("expand[]", field);
    return api(`?${params}`, address, signal);
  };
  // Quantized models are often far down the list of all. Only text models have many of them.
  const text = task === "text-generation";
  const lists = await Promise.all([search(text ? ["gguf"] : [task]), ...(text ? [search(["4-bit"]), search([task])] : [])]);
  const found = new Map(lists.flat().map((model) => [model.id, model]));
  const models = [...found.values()].filter(({ tags = [] }) => tags.includes("safetensors") || tags.includes("gguf")).map(described);
  return models.sort((a, b) => Number(b.quantized) - Number(a.quantized) || b.downloads - a.downloads);
}

function described({ id, downloads = 0, gated, tags = [], safetensors, gguf }: ApiModel): HubModel {
  const isGguf = tags.includes("gguf") && !tags.includes("safetensors");
  const types = Object.entries(safetensors?.parameters ?? {});
  const bytes = types.reduce((sum, [type, count]) => sum + count * (ELEMENT_BYTES[type] ?? 1), 0);
  const quantized = isGguf || tags.some((tag) => QUANTIZED.has(tag));
  return {
    id,
    downloads,
    gated: gated !== undefined && gated !== false,
    licence: tags.find((tag) => tag.startsWith("license:"))?.slice("license:".length),
    // Elements of quantized files hold several weights each.
    parameters: isGguf ? gguf?.total : quantized ? undefined : safetensors?.total,
    bytes: isGguf || bytes === 0 ? undefined : bytes,
    gguf: isGguf,
    quantized,
  };
}

/** The .gguf files of a repository, smallest first, without projectors of images. */
export async function ggufFiles(id: string, address: HubAddress, signal: AbortSignal): Promise<GgufFile[]> {
  const { siblings = [] } = await api<ApiModel>(`/${id}?blobs=true`, address, signal);
  const files = new Map<string, number>();
  for (const { rfilename, size = 0 } of siblings) {
    if (!rfilename.endsWith(".gguf") || /mmproj/i.test(rfilename)) continue;
    const first = rfilename.replace(/-\d{5}-of-(\d{5})\.gguf$/, "-00001-of-$1.gguf");
    files.set(first, (files.get(first) ?? 0) + size);
  }
  return [...files].map(([name, bytes]) => ({ name, bytes })).sort((a, b) => a.bytes - b.bytes);
}

/** GPU memory for weights of this size: with a KV cache and activations for a few thousand tokens. */
export function memoryFor(bytes: number): number {
  return bytes * 1.1 + 0.2e9;
}

/** The load request of a result, or of one of its files. */
export function requestFor(id: string, file: string | undefined, options: LoadRequest["options"]): LoadRequest {
  return { source: file ? `${id}/${file}` : id, label: file ? `${id.split("/")[1]}/${file}` : id, options };
}
