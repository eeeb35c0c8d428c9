/** OpenAI's `responses`. The code that answers is loaded with the first call. */

import type { GenerationRequestOptions } from "./chat.js";
import { missingAsset } from "./errors.js";
import type { ResponseRunner } from "./response-runner.js";
import type { ResponseModel } from "./response-store.js";
import type {
  DeletedResponse, InputTokenCount, ModelResponse, ResponseCreateParams, ResponseCreateParamsNonStreaming, ResponseCreateParamsStreaming, ResponseItemList, ResponseStream,
} from "./responses-types.js";
import { wrongTask } from "./tasks.js";
import { ASSET_TIMEOUT_MS, withTimeout } from "./waits.js";

/** OpenAI's `responses`. Responses are stored in this page, the last {@link MAX_STORED_RESPONSES} of them. */
export class Responses {
  /** OpenAI's `responses.inputTokens`. */
  readonly inputTokens = {
    /** Counts the tokens that a request's input would take; an image counts as its placeholder. */
    count: async (params: Omit<ResponseCreateParams, "stream">): Promise<InputTokenCount> => ({ object: "response.input_tokens", input_tokens: await (await this.#runner()).count(params) }),
  };
  readonly #model: ResponseModel;
  #loading: Promise<ResponseRunner> | undefined;

  /** @internal */
  constructor(model: ResponseModel) {
    this.#model = model;
  }

  /** Answers as a stream of events. */
  create(params: ResponseCreateParamsStreaming, options?: GenerationRequestOptions): Promise<ResponseStream>;
  /** Answers. An abort rejects with code `aborted`. */
  create(params: ResponseCreateParamsNonStreaming, options?: GenerationRequestOptions): Promise<ModelResponse>;
  create(params: ResponseCreateParams, options?: GenerationRequestOptions): Promise<ModelResponse | ResponseStream>;
  async create(params: ResponseCreateParams, options?: GenerationRequestOptions): Promise<ModelResponse | ResponseStream> {
    const { info } = this.#model;
    if (info.task !== "generate") throw wrongTask(info, "cannot chat");
    return (await this.#runner()).create(params, options);
  }

  /** Returns a stored response. */
  async retrieve(id: string): Promise<ModelResponse> {
    return (await this.#runner()).store.get(id).response;
  }

  /** Deletes a stored response. */
  async delete(id: string): Promise<DeletedResponse> {
    (await this.#runner()).store.delete(id);
    return { id, object: "response", deleted: true };
  }

  /** Returns the items that a stored response answered. */
  async inputItems(id: string): Promise<ResponseItemList> {
    const { items } = (await this.#runner()).store.get(id);
    return { object: "list", data: items, first_id: items[0]?.id ?? null, last_id: items.at(-1)?.id ?? null, has_more: false };
  }

  #runner(): Promise<ResponseRunner> {
    const load = async (): Promise<ResponseRunner> => {
      const { ResponseRunner } = await withTimeout(ASSET_TIMEOUT_MS, "its server", import("./response-runner.js"));
      return new ResponseRunner(this.#model);
    };
    return (this.#loading ??= load().catch((thrown: unknown) => {
      // The next call tries again: the network may be back.
      this.#loading = undefined;
      throw missingAsset("The code of 'responses'", thrown);
    }));
  }
}
