/** A sentence that something went wrong, with what can be done. */

import type { ComponentChildren } from "preact";

export function Notice({ title, children, actions }: { title?: string; children: ComponentChildren; actions?: ComponentChildren }) {
  return (
    <div class="notice" role="alert">
      {title && <strong>{title}</strong>}
      <p>{children}</p>
      {actions && <div class="notice-actions">{actions}</div>}
    </div>
  );
}
