/** An error notice with suggested actions. */

import type { JerboaError } from "jerboa";
import type { ComponentChildren } from "preact";
import { userMessage } from "../errors";
import { UI } from "../strings";

interface Props {
  title?: string;
  children?: ComponentChildren;
  /** Shows an error instead of `children`. */
  error?: JerboaError;
  /** The key of the error's message, if the code has another one. */
  reason?: string | undefined;
  actions?: ComponentChildren;
}

export function Notice({ title, children, error, reason, actions }: Props) {
  const said = error && userMessage(error, reason);
  return (
    <div class="notice" role="alert">
      {title && <strong>{title}</strong>}
      {/* The engine's messages are in English. */}
      <p dir={said ? "auto" : undefined}>{said ? said.text : children}</p>
      {said?.details && (
        <details class="notice-details">
          <summary>{UI.details}</summary>
          <p dir="auto">{said.details}</p>
        </details>
      )}
      {actions && <div class="notice-actions">{actions}</div>}
    </div>
  );
}
