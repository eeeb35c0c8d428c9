/** The notice in place of a tab whose model is for another task. */

import type { ComponentChildren } from "preact";
import { LOAD } from "../strings";
import { Notice } from "../ui/notice";

interface Props {
  title: string;
  /** Opens the choice of models. */
  choose: () => void;
  /** Further actions. */
  more?: ComponentChildren;
  /** What to choose. */
  children: ComponentChildren;
}

export function WrongModel({ title, choose, more, children }: Props) {
  return (
    <Notice
      title={title}
      actions={
        <>
          <button type="button" class="primary" onClick={choose}>
            {LOAD.other}
          </button>
          {more}
        </>
      }
    >
      {children}
    </Notice>
  );
}
