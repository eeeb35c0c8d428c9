/** One panel for each hook of jerboa/react. A panel that closes stops its call. */

import { similarity } from "jerboa";
import { type CallState, useChat, useCompletion, useEmbedding, useModel, useObject, useSpeech, useTranscription } from "jerboa/react";
import { Component, type ReactNode, Suspense, useState } from "react";
import { MODELS } from "./models";

const PANELS: Record<string, () => ReactNode> = { Chat, Completion, Object: ObjectPanel, Search, Transcribe, Speak, Model: ModelPanel };

export function App({ first }: { first?: string }) {
  const [open, setOpen] = useState<string | undefined>(first);
  const Panel = open ? PANELS[open] : undefined;
  return (
    <main>
      <nav>
        {Object.keys(PANELS).map((name) => (
          <button key={name} onClick={() => setOpen(name)} aria-pressed={name === open}>{name}</button>
        ))}
        <button onClick={() => setOpen(undefined)}>Close</button>
      </nav>
      {Panel ? <Panel /> : <p>Choose a hook.</p>}
    </main>
  );
}

/** Progress, failure and a stop button of a call. */
function Status({ call }: { call: CallState }) {
  return (
    <p>
      <output>{call.status}</output> {call.status === "loading" && <progress value={call.progress?.progress ?? 0} />}
      {call.error && <span role="alert">{call.error.message}</span>}
      <button onClick={call.stop}>Stop</button>
    </p>
  );
}

/** A text field with a button. */
function Ask({ label, onAsk }: { label: string; onAsk: (text: string) => unknown }) {
  const [text, setText] = useState("");
  return (
    <form onSubmit={(event) => (event.preventDefault(), onAsk(text))}>
      <input aria-label={label} value={text} onChange={(event) => setText(event.target.value)} />
      <button>{label}</button>
    </form>
  );
}

function Chat() {
  const chat = useChat(MODELS.chat, {
    system: "You are brief.",
    tools: {
      weather: {
        description: "Returns the weather of a city.",
        parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
        execute: ({ city }: { city: string }) => `${city}: 21 °C`,
      },
    },
  });
  return (
    <section>
      <ol>{chat.messages.map(({ id, role, content }) => <li key={id}>{role}: {String(content)}</li>)}</ol>
      <Ask label="Send" onAsk={chat.send} />
      <button onClick={chat.regenerate}>Again</button>
      <Status call={chat} />
    </section>
  );
}

function Completion() {
  const call = useCompletion(MODELS.completion, { preload: true });
  return (
    <section>
      <Ask label="Continue" onAsk={(prompt) => call.complete(prompt, { maxTokens: 12, temperature: 0 })} />
      <blockquote>{call.completion}</blockquote>
      <Status call={call} />
    </section>
  );
}

const CITY = { type: "object", properties: { city: { type: "string", maxLength: 40 } }, required: ["city"], additionalProperties: false };

function ObjectPanel() {
  const call = useObject<{ city: string }>(MODELS.chat, { schema: CITY });
  return (
    <section>
      <Ask label="Name a city" onAsk={call.submit} />
      <blockquote>{JSON.stringify(call.object)}</blockquote>
      <Status call={call} />
    </section>
  );
}

const NOTES = ["The queen lays all the eggs.", "Bread needs flour, water and salt."];

function Search() {
  const call = useEmbedding(MODELS.embedding);
  const [question, ...notes] = call.vectors ?? [];
  return (
    <section>
      <Ask label="Search" onAsk={(text) => call.embed([text, ...NOTES])} />
      <ul>{question && notes.map((note, i) => <li key={NOTES[i]}>{similarity(question, note).toFixed(2)} {NOTES[i]}</li>)}</ul>
      <Status call={call} />
    </section>
  );
}

function Transcribe() {
  const call = useTranscription(MODELS.transcription);
  const [said, setSaid] = useState<string>();
  const listen = async () => setSaid(await call.listen(await navigator.mediaDevices.getUserMedia({ audio: true })));
  return (
    <section>
      <input type="file" aria-label="Audio" onChange={(event) => event.target.files?.[0] && call.transcribe(event.target.files[0])} />
      <button onClick={listen}>Listen</button>
      <blockquote>{call.text}</blockquote>
      {said !== undefined && <p>You said: {said}</p>}
      <Status call={call} />
    </section>
  );
}

function Speak() {
  const call = useSpeech(MODELS.speech, { codec: MODELS.codec });
  return (
    <section>
      <Ask label="Speak" onAsk={(text) => call.speak(text)} />
      {call.audio && <audio controls src={URL.createObjectURL(call.audio)} />}
      <Status call={call} />
    </section>
  );
}

/** Suspense: the fallback until the model is ready, the error boundary if it fails. */
function ModelPanel() {
  return (
    <Boundary>
      <Suspense fallback={<p>Loading…</p>}>
        <ModelInfo />
      </Suspense>
    </Boundary>
  );
}

function ModelInfo() {
  const { model } = useModel(MODELS.chat, { suspense: true });
  return <p>{model.info.model}: {model.info.contextLength} tokens</p>;
}

class Boundary extends Component<{ children: ReactNode }, { error?: Error }> {
  override state: { error?: Error } = {};

  static getDerivedStateFromError(error: Error) {
    return { error };
  }

  override render() {
    return this.state.error ? <p role="alert">{this.state.error.message}</p> : this.props.children;
  }
}
